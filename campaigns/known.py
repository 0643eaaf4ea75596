"""Runs of which less is known: fewer stages, or no contract."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from workbench import Trace
from workbench.case.stages import PROBE_SETS, algorithm_of
from workbench.trace.seen import promise_of


def reduced(trace: Trace, probes: str) -> Trace:
    """The trace as a run with fewer probes (lean, output) would have left it."""
    return cut(trace, PROBE_SETS[probes])


def cut(trace: Trace, names: Collection[str]) -> Trace:
    """The trace of a kernel that gives these stages alone."""
    again = trace.rerun
    return replace(
        trace,
        stages={name: stage for name, stage in trace.stages.items() if name in names},
        requested=tuple(name for name in trace.requested if name in names),
        rerun=None if again is None else lambda case, inputs=None: cut(again(case, inputs), names),
    )


def unknown(trace: Trace, names: Sequence[str]) -> Trace:
    """The trace of a foreign kernel that gives these stages of it and declares nothing of its arithmetic."""
    case = trace.case.but(splits=None, block_q=None, block_k=None, probs_dtype=None)
    stages = {name: trace.stages[name] for name in names}
    promise = promise_of({}, stages, trace.inputs, case)
    return Trace(
        target=trace.target,
        algorithm=algorithm_of(stages, codes=case.codes is not None, scale_of=case.scale_of),
        case=case.but(block_k=promise.block_k, splits=promise.splits),
        contract=promise,
        inputs=trace.inputs,
        stages=stages,
        requested=(),
    )
