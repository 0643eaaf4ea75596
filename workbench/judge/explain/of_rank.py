"""The part of a run of several ranks that is explained: where one rank alone is wrong, its queries."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from workbench.case.box import Box
from workbench.expectation.elements import Comparison, Elements, whole
from workbench.expectation.observed import Observed
from workbench.judge.stage import StageDiff
from workbench.trace.narrow import narrowed


def of_one_rank(run: Observed, stages: Sequence[StageDiff]) -> tuple[Observed, Sequence[StageDiff]]:
    """A judged run, narrowed to the queries of the one rank whose queries hold all that is wrong; of queries in
    several pieces to the piece that holds most of it. As it is where there is no such rank. What one rank does to its
    queries no formula of all rows makes.
    """
    trace = run.trace
    if not any(one.queries for one in trace.ranks):
        return run, stages
    outside = np.zeros(trace.case.seqlen_q, int)
    for stage in stages:
        if stage.role == "origin" and stage.decisive is not None and "q" in stage.axes:
            axis = stage.axes.index("q")
            outside += stage.decisive.outside.sum(axis=tuple(i for i in range(len(stage.axes)) if i != axis))
    held = [one.queries for one in trace.ranks if any(outside[x.start : x.stop : x.step].any() for x in one.queries)]
    pieces = [x for x in held[0] if x.step == 1] if len(held) == 1 and trace.box is None else []
    if not pieces:
        return run, stages
    piece = max(pieces, key=lambda x: int(outside[x.start : x.stop].sum()))
    queries = slice(piece.start, piece.stop)
    box = Box(slice(0, trace.case.batch), slice(0, trace.case.heads), queries)
    return Observed(narrowed(trace, box)), [_narrowed(stage, queries) for stage in stages]


def _narrowed(stage: StageDiff, queries: slice) -> StageDiff:
    where = tuple(queries if axis == "q" else slice(None) for axis in stage.axes)

    def cut(one: Comparison | None) -> Comparison | None:
        if one is None:
            return None
        arrays = (one.actual, one.expected, one.budget, one.statistical, one.over_budget, one.state)
        return whole(Elements(*(np.asarray(x[where]) for x in arrays)))

    dumped = None if stage.dumped is None else stage.dumped[where]
    first = {**stage.first, "q": queries.start}
    return replace(stage, isolated=cut(stage.isolated), propagated=cut(stage.propagated), dumped=dumped, first=first)
