"""A function, or arrays, judged by a plain reference in one call."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from workbench.arrays import as_torch, of_torch
from workbench.case import spellings
from workbench.case.user_code import running
from workbench.foreign.plain import Returned, is_array, read, run_plain
from workbench.foreign.target import target_of
from workbench.judge.reference.diff import ReferenceDiff, diff_arrays
from workbench.judge.reference.given import Given as Matched
from workbench.judge.reference.given import matched
from workbench.judge.stage import SEVERITY
from workbench.operations.reference.inputs import Given, dtype_of, inputs_of, is_made
from workbench.raised import as_raised
from workbench.reference.graph import Contract, Graph, parse, trace
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
) -> ReferenceDiff:
    """The judgement of a function by a reference in plain code, element by element.

    target, reference: functions, or file.py:function; both take the inputs by keyword. Of several references the run is
    right where it is under one. inputs, dtype, seed, axes: as of `inputs_of`. contract: words as --contract takes them
    (`operands=...,stored=...`), or a Contract; None: nothing is declared. arrays, device: a library and a device for
    what the function takes, where that is not as the inputs are; backend: where its kernels of numba.cuda run.

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
    run = run_plain(found.function(), given, name=found.name, arrays=arrays, device=device, backend=backend)
    words = _repeat(found.name, reference, inputs, dtype, seed, axes or {}, contract, arrays, device, backend)
    case = ", ".join([*(f"{axis}={n}" for axis, n in (axes or {}).items()), of, f"seed {seed}"])

    def again(n: int) -> tuple[dict[str, Any], Returned]:
        fresh = inputs_of(inputs, dtype, seed + n, axes or {})
        if _same(fresh, given):
            raise Refusal(f"inputs are the same with seed {seed + n}")
        run = run_plain(found.function(), fresh, name=found.name, arrays=arrays, device=device, backend=backend)
        return fresh, run.returned[0]

    return _judged(run.returned, reference, given, promise, of, again if is_made(inputs) else None, target=run.target,
                   gates=run.gates, notes=run.notes, case=case, repeat=words)  # fmt: skip


def diff_results(
    actual: Any, reference: References, inputs: Mapping[str, Any], *, contract: str | Contract | None = None
) -> ReferenceDiff:
    """The judgement of what a kernel returned on `inputs`: an array, a tuple of them, or a dict by name; otherwise as
    `diff_reference`.
    """
    given = inputs_of(inputs, None, 0, {})
    of = dtype_of(given)
    promise = parse(contract, of) if isinstance(contract, str) else contract
    return _judged((read(actual, "actual"),), reference, given, promise, of, target="actual", case=of)


def _judged(
    returned: Sequence[Returned],
    reference: References,
    inputs: Mapping[str, Any],
    contract: Contract | None,
    dtype: str,
    again: Callable[[int], tuple[dict[str, Any], Returned]] | None = None,
    **more: Any,
) -> ReferenceDiff:
    """The mildest judgement of all references, each the worst of all calls. `again`: a call on fresh inputs, and those
    inputs.
    """
    functions = _each(reference)
    if not functions:
        raise Refusal("reference takes a function or several; got none")
    found: list[ReferenceDiff] = []
    for one in functions:
        graph, name = traced(one, inputs)
        calls = [
            diff_arrays(graph, call.arrays, call.unwritten, target=more["target"], reference=name, contract=contract,
                        dtype=dtype, again=_by(one, again, more["target"]),
                        **{key: x for key, x in more.items() if key != "target"})
            for call in returned
        ]  # fmt: skip
        found.append(max(calls, key=_severity))
        if not found[-1].fails and found[-1].verdict != "suspicious":
            break
    best = min(found, key=_severity)
    return replace(best, tried=tuple(one.reference for one in found if one is not best))


def _by(
    reference: str | Function, again: Callable[[int], tuple[dict[str, Any], Returned]] | None, target: str
) -> Callable[[int], tuple[Graph, tuple[Matched, ...]]] | None:
    """What a call on fresh inputs gave, matched with what the reference makes of them."""
    if again is None:
        return None

    def made(n: int) -> tuple[Graph, tuple[Matched, ...]]:
        inputs, returned = again(n)
        graph = traced(reference, inputs)[0]
        return graph, matched(graph, returned.arrays, returned.unwritten, target)

    return made


def _same(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether two sets of inputs hold the same arrays."""
    arrays = [(x, b.get(name)) for name, x in a.items() if is_array(x)]
    return all(y is not None and x.shape == y.shape and bool((x == y).all()) for x, y in arrays)


def _each(reference: References) -> list[str | Function]:
    return [reference] if isinstance(reference, str) or callable(reference) else list(reference)


def _severity(one: ReferenceDiff) -> tuple[bool, int]:
    return one.fails, SEVERITY.index(one.verdict)


def traced(reference: str | Function, inputs: Mapping[str, Any]) -> tuple[Graph, str]:
    """The graph of a reference on inputs, and its name; one that raises on NumPy arrays and may be written for torch
    gets tensors. Refusal as of `trace`; Raised where it raises.
    """
    found = target_of(reference)
    if not found.is_foreign:
        raise Refusal(f"a reference is FILE.py:FUNCTION, or a function; got {found.name}")
    function = found.function()
    try:
        with running(function):
            return trace(function, inputs), found.name
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
    return command("diff", target, map(shlex.quote, words))
