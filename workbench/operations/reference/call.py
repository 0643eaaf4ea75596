"""A function, or arrays, judged by a plain reference in one call."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from workbench.arrays import as_torch, names_numpy, names_torch, of_torch
from workbench.case import spellings
from workbench.case.user_code import running
from workbench.foreign.plain import PlainRun, read, run_plain
from workbench.foreign.target import target_of
from workbench.judge.reference.diff import ReferenceDiff, diff_arrays
from workbench.judge.stage import SEVERITY
from workbench.operations.reference.gradients import ThroughAutograd, cotangents
from workbench.operations.reference.inputs import Given, dtype_of, inputs_of
from workbench.raised import as_raised
from workbench.reference.graph import Contract, Gradients, Graph, parse, trace
from workbench.refusal import Raised, Refusal, Unavailable
from workbench.suggested import command

Function = Callable[..., Any]
References = str | Function | Sequence[str | Function]


def diff_reference(
    target: str | Function,
    reference: References,
    inputs: Given,
    *,
    dtype: str | None = None,
    seed: int = 0,
    axes: Mapping[str, int] | None = None,
    contract: str | Contract | None = None,
    arrays: str | None = None,
    device: str | None = None,
    backend: str = "auto",
    gradients: bool = False,
) -> ReferenceDiff:
    """The judgement of a function by a reference in plain code, element by element.

    target, reference: functions, or file.py:function; both take the inputs by keyword. Of several references the run is
    right where it is under one. inputs, dtype, seed, axes: as of `inputs_of`. contract: words as --contract takes them
    (`operands=...,stored=...`), or a Contract; None: nothing is declared. arrays, device: a library and a device for
    what the function takes, where that is not as the inputs are; backend: where its kernels of numba.cuda run.
    gradients: those of all float inputs are judged, too, `d<input>`, through torch.autograd; gradients of results are
    inputs that the reference does not take, `d<result>`, or drawn from the seed.

    The function runs twice, on copies of the inputs between guards, with fresh memory full of NaN.

    Refusal for what does not fit, and for a reference that cannot be traced; Raised where a function raises;
    Unavailable for what this machine lacks.
    """
    given = inputs_of(inputs, dtype, seed, axes or {})
    of = dtype_of(given)
    promise = parse(contract, of) if isinstance(contract, str) else contract
    found = target_of(target)
    if not found.is_foreign:
        raise Refusal(f"with a reference TARGET is FILE.py:FUNCTION, or a function; got {found.name}")
    function = found.function()
    words = _repeat(
        found.name, reference, inputs, dtype, seed, axes or {}, contract, arrays, device, backend, gradients
    )
    case = ", ".join([*(f"{axis}={n}" for axis, n in (axes or {}).items()), of, f"seed {seed}"])

    def once(graph: Graph) -> PlainRun:
        """Its run; with gradients as the graph asks for them."""
        if not gradients:
            return run_plain(function, given, name=found.name, arrays=arrays, device=device, backend=backend)
        beside = cotangents(graph, given)
        own = {name: x for name, x in given.items() if name not in beside}
        through = ThroughAutograd(function, found.name, graph)
        numpy = any(isinstance(x, np.ndarray) for x in own.values())
        run = run_plain(function, own, name=found.name, arrays=arrays or ("torch" if numpy else None), device=device,
                        backend=backend, beside=beside, through=through)  # fmt: skip
        return replace(run, notes=(*run.notes, *through.notes))

    asked = Gradients(seed, of) if gradients else None
    return _judged(once, reference, given, promise, of, gradients=asked, case=case, repeat=words)


def diff_results(
    actual: Any,
    reference: References,
    inputs: Mapping[str, Any],
    *,
    contract: str | Contract | None = None,
    gradients: bool = False,
) -> ReferenceDiff:
    """The judgement of what a kernel returned on `inputs`: an array, a tuple of them, or a dict by name; otherwise as
    `diff_reference`. With gradients a dict of `d<input>` among others, and all `d<result>` are inputs.
    """
    given = inputs_of(inputs, None, 0, {})
    of = dtype_of(given)
    promise = parse(contract, of) if isinstance(contract, str) else contract
    run = PlainRun("actual", (read(actual, "actual"),))
    return _judged(lambda _: run, reference, given, promise, of, gradients=Gradients() if gradients else None, case=of)


def _judged(
    run: Callable[[Graph], PlainRun],
    reference: References,
    inputs: Mapping[str, Any],
    contract: Contract | None,
    dtype: str,
    gradients: Gradients | None,
    **more: Any,
) -> ReferenceDiff:
    """The mildest judgement of all references, each the worst of all calls; without gradients it runs once."""
    functions = _each(reference)
    if not functions:
        raise Refusal("reference takes a function or several; got none")
    found, made = list[ReferenceDiff](), None
    for one in functions:
        graph, name = traced(one, inputs, gradients)
        made = run(graph) if made is None or gradients is not None else made
        calls = [
            diff_arrays(graph, call.arrays, call.unwritten, target=made.target, reference=name, contract=contract,
                        dtype=dtype, gates=made.gates, notes=made.notes, **more)
            for call in made.returned
        ]  # fmt: skip
        found.append(max(calls, key=_severity))
        if not found[-1].fails and found[-1].verdict != "suspicious":
            break
    best = min(found, key=_severity)
    return replace(best, tried=tuple(one.reference for one in found if one is not best))


def _each(reference: References) -> list[str | Function]:
    return [reference] if isinstance(reference, str) or callable(reference) else list(reference)


def _severity(one: ReferenceDiff) -> tuple[bool, int]:
    return one.fails, SEVERITY.index(one.verdict)


def traced(
    reference: str | Function, inputs: Mapping[str, Any], gradients: Gradients | None = None
) -> tuple[Graph, str]:
    """The graph of a reference on inputs, and its name; one that raises on NumPy arrays and may be written for torch
    gets tensors, and always for gradients. Refusal as of `trace`, and for gradients of one that is written for NumPy;
    Raised where it raises.
    """
    found = target_of(reference)
    if not found.is_foreign:
        raise Refusal(f"a reference is FILE.py:FUNCTION, or a function; got {found.name}")
    function = found.function()
    if gradients is not None:
        if not names_torch(function) and names_numpy(function):
            raise Refusal(f"gradients go through torch.autograd: {found.name} is in NumPy; it must be in torch")
        inputs = {name: as_torch(x, name) if isinstance(x, np.ndarray) else x for name, x in inputs.items()}
    try:
        with running(function):
            return trace(function, inputs, gradients=gradients), found.name
    except (Refusal, Unavailable, KeyboardInterrupt):
        raise
    except Exception as error:
        numpy = [name for name, x in inputs.items() if isinstance(x, np.ndarray)]
        if numpy and of_torch(error, function, "numpy"):
            return traced(reference, {**inputs, **{name: as_torch(inputs[name], name) for name in numpy}})
        raise Raised(f"reference {found.name} raised:\n{as_raised(error)}") from None


def _repeat(
    target: str,
    reference: References,
    inputs: Given,
    dtype: str | None,
    seed: int,
    axes: Mapping[str, int],
    contract: str | Contract | None,
    arrays: str | None,
    device: str | None,
    backend: str,
    gradients: bool,
) -> str:
    """The command that judges the same again; empty where something has no name in a file."""
    references = _each(reference)
    named = [one for one in references if isinstance(one, str)]
    where = str(inputs) if isinstance(inputs, str | Path) else ""
    if ":" not in target or len(named) < len(references) or not where or isinstance(contract, Contract):
        return ""
    said = {"dtype": dtype, "seed": seed or None, "arrays": arrays, "device": device}
    said |= {"backend": None if backend == "auto" else backend, "contract": contract}
    words = [word for one in named for word in ("--reference", one)] + ["--inputs", where]
    words += spellings.said({name: x for name, x in said.items() if x is not None})
    words += ["--axes", ",".join(f"{axis}={n}" for axis, n in axes.items())] if axes else []
    words += ["--gradients"] if gradients else []
    return command("diff", target, map(shlex.quote, words))
