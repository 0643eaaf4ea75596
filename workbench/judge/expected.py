"""What a stage should be in float64 from q, k and v alone, whether its kernel dumped it or not."""

import numpy as np

from workbench.case.box import Box
from workbench.case.stages import shape, stage_of
from workbench.expectation.expectation import Expectation
from workbench.expectation.observed import Observed
from workbench.judge.selection import Index, Selection, chosen, grid
from workbench.reference.walk import values
from workbench.refusal import Refusal
from workbench.trace.narrow import first_of


def truth(run: Observed, name: str, index: Index = ()) -> Selection:
    """The elements of stage `name` at `index` as q, k and v make them, in natural units; of a quantised kernel as its
    codes and scales do.

    Only the batches, heads and queries that were chosen are computed. Refusal for a stage that the kernel does not
    have, and where its contract does not declare the keys that belong to it.
    """
    trace = run.trace
    stage = stage_of(trace.algorithm, name, trace.target, trace.case.numbers)
    if why := run.unjudgeable.get(name):
        raise Refusal(f"stage {name} of {trace.target}: {why}")
    first = first_of(trace, stage)
    absolute = chosen(name, stage.axes, shape(stage, run.sizes), index, first)
    if name in run.before_attention:
        return Selection(name, absolute, None, _before_attention(run, name)[grid(absolute, first)])
    indices = {
        axis: range(one.start - (n := first.get(axis, 0)), one.stop - n, one.step) for axis, one in absolute.items()
    }
    spans = {axis: _span(indices[axis]) for axis in "bhq"}
    if len(range(trace.case.heads)[spans["h"]]) > 1:
        spans["h"] = slice(0, trace.case.heads)  # a part has one head or whole groups
    computed = Expectation(run.right_attention, {}, Box(**spans)).computed[name]
    within = {axis: [i - spans[axis].start if axis in spans else i for i in one] for axis, one in indices.items()}
    return Selection(name, absolute, None, computed[np.ix_(*within.values())], of_ranks=bool(trace.ranks))


def _span(chosen: range) -> slice:
    """From the first to the last of some indices, in whatever order."""
    return slice(min(chosen), max(chosen) + 1)


def _before_attention(run: Observed, name: str) -> np.ndarray:
    """A scale and codes from q, k and v; a table and what is decoded from codes and scales, where they were given. The
    scale of codes in a part of a run, which holds less than it is of, is the dumped one.
    """
    of_scale = [f"scale_{name[-1]}"]
    known = {"scale": [], "codes": of_scale if run.trace.box is not None else [], "lut": of_scale}
    given = known.get(name.split("_")[0], [*of_scale, f"codes_{name[-1]}"])
    return values(run.decoding(given), [name])[name]
