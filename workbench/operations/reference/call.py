"""A function, or arrays, judged by a plain reference in one call."""

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from workbench.arrays import as_torch, of_torch
from workbench.case import spellings
from workbench.case.user_code import running
from workbench.foreign.plain import Returned, read, run_plain
from workbench.foreign.target import target_of
from workbench.judge.reference.diff import ReferenceDiff, diff_arrays
from workbench.judge.stage import SEVERITY
from workbench.operations.reference.case import ReferenceCase
from workbench.operations.reference.inputs import Given, dtype_of, inputs_of
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
    distribution: str = "",
    contract: str | Contract | None = None,
    arrays: str | None = None,
    device: str | None = None,
    backend: str = "auto",
) -> ReferenceDiff:
    """The judgement of a function by a reference in plain code, element by element.

    target, reference: functions, or file.py:function; both take the inputs by keyword. Of several references the run is
    right where it is under one. inputs, dtype, seed, axes, distribution: as of `inputs_of`. contract: words as
    --contract takes them (`operands=...,stored=...`), or a Contract; None: nothing is declared. arrays, device: a
    library and a device for what the function takes, where that is not as the inputs are; backend: where its kernels of
    numba.cuda run.

    The function runs twice, on copies of the inputs between guards, with fresh memory full of NaN.

    Refusal for what does not fit, and for a reference that cannot be traced; Raised where a function raises;
    Unavailable for what this machine lacks.
    """
    given = inputs_of(inputs, dtype, seed, axes or {}, distribution)
    of = dtype_of(given)
    promise = parse(contract, of) if isinstance(contract, str) else contract
    found = target_of(target)
    if not found.is_foreign:
        raise Refusal(f"with a reference TARGET is FILE.py:FUNCTION, or a function; got {found.name}")
    run = run_plain(found.function(), given, name=found.name, arrays=arrays, device=device, backend=backend)
    asked = {"dtype": dtype, "seed": seed or None, "distribution": distribution or None, "arrays": arrays,
             "device": device, "backend": None if backend == "auto" else backend, "contract": contract}  # fmt: skip
    words = repeat_command(found.name, reference, inputs, axes or {}, asked)
    case = ReferenceCase(axes or {}, of, seed, distribution).words
    graphs = (traced(one, given) for one in each(reference))
    return judged_returned(run.returned, graphs, promise, of, target=run.target, gates=run.gates, notes=run.notes,
                           case=case, repeat=words)  # fmt: skip


def diff_results(
    actual: Any, reference: References, inputs: Mapping[str, Any], *, contract: str | Contract | None = None
) -> ReferenceDiff:
    """The judgement of what a kernel returned on `inputs`: an array, a tuple of them, or a dict by name; otherwise as
    `diff_reference`.
    """
    given = inputs_of(inputs, None, 0, {})
    of = dtype_of(given)
    promise = parse(contract, of) if isinstance(contract, str) else contract
    graphs = (traced(one, given) for one in each(reference))
    return judged_returned((read(actual, "actual"),), graphs, promise, of, target="actual", case=of)


def judged_returned(
    returned: Sequence[Returned],
    graphs: Iterable[tuple[Graph, str]],
    contract: Contract | None,
    dtype: str,
    **more: Any,
) -> ReferenceDiff:
    """The mildest judgement of all references, graphs with their names, each the worst of all calls."""
    found: list[ReferenceDiff] = []
    for graph, name in graphs:
        calls = [
            diff_arrays(graph, call.arrays, call.unwritten, target=more["target"], reference=name, contract=contract,
                        dtype=dtype, **{key: x for key, x in more.items() if key != "target"})
            for call in returned
        ]  # fmt: skip
        found.append(max(calls, key=_severity))
        if not found[-1].fails and found[-1].verdict != "suspicious":
            break
    best = min(found, key=_severity)
    return replace(best, tried=tuple(one.reference for one in found if one is not best))


def each(reference: References) -> list[str | Function]:
    """The references; Refusal of none."""
    found = [reference] if isinstance(reference, str) or callable(reference) else list(reference)
    if not found:
        raise Refusal("reference takes a function or several; got none")
    return found


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


def repeat_command(
    target: str, reference: References, inputs: Given, axes: Mapping[str, int], asked: Mapping[str, Any]
) -> str:
    """The command that judges the same again; empty where something has no name in a file. asked: other options by
    name, None where nobody said one.
    """
    references = each(reference)
    named = [one for one in references if isinstance(one, str)]
    where = str(inputs) if isinstance(inputs, str | Path) else ""
    if ":" not in target or len(named) < len(references) or not where or isinstance(asked.get("contract"), Contract):
        return ""
    words = [word for one in named for word in ("--reference", one)] + ["--inputs", where]
    words += spellings.said({name: x for name, x in asked.items() if x is not None})
    words += ["--axes", ",".join(f"{axis}={n}" for axis, n in axes.items())] if axes else []
    return command("diff", target, map(shlex.quote, words))
