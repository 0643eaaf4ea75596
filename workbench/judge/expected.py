"""What a stage should be in float64 from q, k and v alone, whether its kernel dumped it or not."""

import numpy as np

from workbench.case.box import Box
from workbench.case.stages import before_attention, shape, stage_of
from workbench.expectation.decoding import attention_of, decoding
from workbench.expectation.expectation import Expectation
from workbench.expectation.judgeable import sizes_of, unjudgeable
from workbench.judge.selection import Index, Selection, chosen, grid
from workbench.reference.walk import values
from workbench.refusal import Refusal
from workbench.trace.narrow import first_of
from workbench.trace.trace import Trace


def truth(trace: Trace, name: str, index: Index = ()) -> Selection:
    """The elements of stage `name` at `index` as q, k and v make them, in natural units; of a quantised kernel as its
    codes and scales do.

    Only the batches, heads and queries that were chosen are computed. Refusal for a stage that the kernel does not
    have, and where its contract does not tell the keys that belong to it.
    """
    stage = stage_of(trace.algorithm, name, trace.target, trace.case.numbers)
    if why := unjudgeable(trace, name):
        raise Refusal(f"stage {name} of {trace.target}: {why}")
    first = first_of(trace, stage)
    absolute = chosen(name, stage.axes, shape(stage, sizes_of(trace)), index, first)
    if name in before_attention(trace.algorithm):
        return Selection(name, absolute, None, _before_attention(trace, name)[grid(absolute, first)])
    indices = {
        axis: range(one.start - (n := first.get(axis, 0)), one.stop - n, one.step) for axis, one in absolute.items()
    }
    spans = {axis: _span(indices[axis]) for axis in "bhq"}
    if len(range(trace.case.heads)[spans["h"]]) > 1:
        spans["h"] = slice(0, trace.case.heads)  # a part has one head or whole groups
    computed = Expectation(attention_of(trace, from_codes=True), {}, Box(**spans)).computed[name]
    within = {axis: [i - spans[axis].start if axis in spans else i for i in one] for axis, one in indices.items()}
    return Selection(name, absolute, None, computed[np.ix_(*within.values())], of_ranks=bool(trace.ranks))


def _span(chosen: range) -> slice:
    """From the first to the last of some indices, in whatever order."""
    return slice(min(chosen), max(chosen) + 1)


def _before_attention(trace: Trace, name: str) -> np.ndarray:
    """A scale and codes from q, k and v; a table and what is decoded from codes and scales, where they were given. The
    scale of codes in a part of a run, which holds less than it is of, is the dumped one.
    """
    of_scale = [f"scale_{name[-1]}"]
    known = {"scale": [], "codes": of_scale if trace.box is not None else [], "lut": of_scale}
    given = known.get(name.split("_")[0], [*of_scale, f"codes_{name[-1]}"])
    return values(decoding(trace, given), [name])[name]
