"""What of a trace is in a box, a part of its run, as a trace of its own."""

from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np

from workbench.case.box import Box, case_of, parse, with_causal
from workbench.case.case import Case
from workbench.case.stages import ALGORITHMS, INPUT_AXES, MASKS, Stage, before_attention
from workbench.refusal import Refusal
from workbench.trace.trace import Rerun, Trace


def first_of(trace: Trace, stage: Stage) -> dict[str, int]:
    """Axis letter -> the first index of a stage of a trace, where that holds a part of a run."""
    if trace.box is None or trace.whole is None:
        return {}
    box = trace.box.of_kv(trace.whole) if stage.of_kv else trace.box
    return {axis: first for axis, (first, _) in box.edges().items() if axis in stage.axes}


def narrowed(
    trace: Trace,
    part: Box | str,
    *,
    already: Collection[str] = (),
    rerun: Rerun | None = None,
) -> Trace:
    """What of a trace is in a box, as a trace of its own that knows the whole case; stages `already` hold no more.

    `part` is the box, or words as of `parse`. `rerun` makes such a trace of another whole case. Refusal of a part of a
    part, and where scales of codes that the kernel did not give are of more than the box holds.
    """
    case, known = trace.case, ALGORITHMS[trace.algorithm]
    said = str(part)
    if trace.box is not None:
        raise Refusal(f"{trace.target} is already limited to {trace.box}")
    box = parse(part, case) if isinstance(part, str) else part
    bounds = box.edges()
    cut_through = "qkv" if bounds["b"] != (0, case.batch) else "q" if bounds["q"] != (0, case.seqlen_q) else ""
    unseen = [name for x in cut_through if x in case.coded and (name := f"scale_{x}") not in trace.stages]
    if before_attention(trace.algorithm) and case.codes is not None and unseen:
        raise Refusal(
            f"{trace.target} did not return {', '.join(unseen)}, which depend on all batches and rows: choose whole "
            f"heads; got {box}"
        )

    def cut(array: np.ndarray, axes: str, of_kv: bool) -> np.ndarray:
        return (box.of_kv(case) if of_kv else box).of(array, axes)

    def again(sub: Case, inputs: Mapping[str, np.ndarray] | None = None) -> Trace:
        assert rerun is not None
        return rerun(case.but(seed=sub.seed, distribution=sub.distribution), inputs)

    inputs = {
        name: cut(trace.inputs[name], axes, name != "q") for name, axes in INPUT_AXES.items() if name in trace.inputs
    }
    inputs |= {name: cut(x, "bhqk"[4 - x.ndim :], False) for name in MASKS if (x := trace.inputs.get(name)) is not None}
    return replace(
        trace,
        case=case_of(case, box),
        box=box,
        whole=case,
        inputs=with_causal(inputs, case, box),
        as_given=None if trace.as_given is None else narrowed(trace.as_given, box, already=already),
        called_with=replace(trace.called_with, where=said),
        stages={
            name: stage if name in already else cut(stage, known[name].axes, known[name].of_kv)
            for name, stage in trace.stages.items()
        },
        sparse={name: cut(off, known[name].axes, known[name].of_kv) for name, off in trace.sparse.items()},
        rerun=None if rerun is None else again,
    )
