"""A function, or arrays, judged by a plain reference in one call."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np

from workbench.foreign.plain import PlainRun, is_array, read, run_plain
from workbench.foreign.target import target_of
from workbench.judge.reference.diff import ReferenceDiff, diff_arrays
from workbench.judge.reference.given import Given as Matched
from workbench.judge.reference.given import matched
from workbench.operations.reference.case import ReferenceCase
from workbench.operations.reference.gradients import ThroughAutograd, cotangents
from workbench.operations.reference.inputs import Given, dtype_of, inputs_of, is_made
from workbench.operations.reference.repeat import repeat_command
from workbench.operations.reference.traced import Function, References, each, traced
from workbench.reference.graph import Contract, Gradients, Graph, parse
from workbench.refusal import Refusal

#: what a kernel gives on fresh inputs, of a number from 1 on, matched with what one of the references makes of them
Again = Callable[[int, int], tuple[Graph, tuple[Matched, ...]]]


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
    gradients: bool = False,
) -> ReferenceDiff:
    """The judgement of a function by a reference in plain code, element by element.

    target, reference: functions, or file.py:function; both take the inputs by keyword. Of several references the run is
    right where it is under one. inputs, dtype, seed, axes, distribution: as of `inputs_of`. contract: words as
    --contract takes them (`operands=...,stored=...`), or a Contract; None: nothing is declared. arrays, device: a
    library and a device for what the function takes, where that is not as the inputs are; backend: where its kernels of
    numba.cuda run. gradients: those of all float inputs are judged, too, `d<input>`, through torch.autograd; gradients
    of results are inputs that the reference does not take, `d<result>`, or drawn from the seed.

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
    function = found.function()

    def once(given: Mapping[str, Any], graph: Graph | None) -> PlainRun:
        """A run on these inputs; with a graph, also the gradients of its inputs."""
        if graph is None:
            return run_plain(function, given, name=found.name, arrays=arrays, device=device, backend=backend)
        beside = cotangents(graph, given)
        own = {name: x for name, x in given.items() if name not in beside}
        through = ThroughAutograd(function, found.name, graph)
        numpy = any(isinstance(x, np.ndarray) for x in own.values())
        run = run_plain(function, own, name=found.name, arrays=arrays or ("torch" if numpy else None), device=device,
                        backend=backend, beside=beside, through=through)  # fmt: skip
        return replace(run, notes=(*run.notes, *through.notes))

    asked = {"dtype": dtype, "seed": seed or None, "distribution": distribution or None, "arrays": arrays,
             "device": device, "backend": None if backend == "auto" else backend, "contract": contract}  # fmt: skip
    words = repeat_command(found.name, reference, inputs, axes or {}, asked, gradients)
    case = ReferenceCase(axes or {}, of, seed, distribution).words
    forward = None if gradients else once(given, None)
    references = each(reference)

    def graph_of(one: str | Function, given: Mapping[str, Any], seed: int) -> tuple[Graph, str]:
        return traced(one, given, Gradients(seed, of) if gradients else None)

    def again(which: int, n: int) -> tuple[Graph, tuple[Matched, ...]]:
        fresh = inputs_of(inputs, dtype, seed + n, axes or {}, distribution)
        if _same(fresh, given):
            raise Refusal(f"inputs are the same with seed {seed + n}")
        graph, _ = graph_of(references[which], fresh, seed + n)
        call = once(fresh, graph if gradients else None).returned[0]
        return graph, matched(graph, call.arrays, call.unwritten, found.name)

    graphs = (graph_of(one, given, seed) for one in references)
    return judged_run(lambda graph: forward or once(given, graph), graphs, promise, of,
                      again if is_made(inputs) else None, case=case, repeat=words)  # fmt: skip


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

    def once(graph: Graph) -> PlainRun:
        names, made = graph.gradients.values(), run.returned[0].arrays
        if gradients and not (isinstance(made, Mapping) and any(name in made for name in names)):
            raise Refusal(f"with gradients actual is a dict that has some of them: {', '.join(names)}")
        return run

    graphs = (traced(one, given, Gradients() if gradients else None) for one in each(reference))
    return judged_run(once, graphs, promise, of, case=of)


def judged_run(
    run: Callable[[Graph], PlainRun],
    graphs: Iterable[tuple[Graph, str]],
    contract: Contract | None,
    dtype: str,
    again: Again | None = None,
    **more: Any,
) -> ReferenceDiff:
    """The mildest judgement of all references, graphs with their names, each the worst of all calls."""
    found: list[ReferenceDiff] = []
    for which, (graph, name) in enumerate(graphs):
        made, more["again"] = run(graph), None if again is None else partial(again, which)
        calls = [
            diff_arrays(graph, call.arrays, call.unwritten, target=made.target, reference=name, contract=contract,
                        dtype=dtype, gpu=call.gpu, gates=made.gates, notes=made.notes, **more)
            for call in made.returned
        ]  # fmt: skip
        found.append(max(calls, key=attrgetter("severity")))
        if not found[-1].fails and found[-1].verdict != "suspicious":
            break
    best = min(found, key=attrgetter("severity"))
    return replace(best, tried=tuple(one.reference for one in found if one is not best))


def _same(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether two sets of inputs hold the same arrays."""
    arrays = [(x, b.get(name)) for name, x in a.items() if is_array(x)]
    return all(y is not None and x.shape == y.shape and bool((x == y).all()) for x, y in arrays)
