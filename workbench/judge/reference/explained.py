"""Whether errors are those of operands in TF32, which are known once the operands are: not only as large.

A factor that is off by 2^-10 is as large as what TF32 loses, and TF32 that is cut off makes products smaller by 0.7 of
that on average. So what such a factor at any contraction does is taken out of both first, and what is left of TF32's
errors, which differs from element to element, has to be there. A kernel by chunks has other operands, whose last digits
nobody knows: of one on a GPU, whose default TF32 is, what is left has to be of that size alone.
"""

from collections.abc import Sequence

import numpy as np

from workbench.floats import to_float64
from workbench.judge.reference.given import Given, is_whole
from workbench.judge.reference.held import dumps_of
from workbench.judge.stage import StageDiff
from workbench.reference.graph import Graph
from workbench.reference.graph.device import numpy_of
from workbench.reference.graph.node import Line
from workbench.reference.graph.operands import Change, cut_off, to_nearest, with_operands
from workbench.reference.graph.patterns import patterns_of

#: share of the mean square error that remains at most. Operands that a kernel has otherwise, as a flash kernel's
#: weights before they are normalised, are not predicted: a quarter to a half of it
REMAINS = 0.6
#: what is left of the errors beside what is left of the predicted ones, root mean square: of kernels of
#: flash-linear-attention by chunks 0.5 to 1.5, of a factor alone 0, of operands in bfloat16 8
SIZES = (0.25, 2.0)
#: share of the mean square error that factors may make beside a part of what cutting off does on average, which is MOST
#: times that average at most
SHARED, MOST = 0.25, 1.5
TINY = float(np.finfo(np.float64).tiny)
#: lines with contractions whose factors are looked at
LINES = 8
#: what a factor is off by in trials: any number as small does as well
FACTOR = 1 - 2.0**-12


@np.errstate(all="ignore")
def by_tf32(graph: Graph, given: Sequence[Given], stage: StageDiff) -> tuple[bool, bool]:
    """Whether the errors of a stage, given what it was judged from, are those of its operands in TF32; and whether they
    are as large as those, so that they may be of other operands in TF32.
    """
    one, found = next(one for one in given if one.name == stage.name), stage.decisive
    assert found is not None
    read = [other for other in given if stage.judged_from or is_whole(other.x.dtype)]
    dumps = {name: x for name, x in dumps_of(graph, read).items() if name not in one.places or len(one.places) > 1}

    def moved(change: Change) -> np.ndarray:
        made = with_operands(graph, one.places, dumps, change)
        whole = np.stack([*map(numpy_of, made)]) if len(made) > 1 else numpy_of(made[0])
        return (whole - found.expected) / found.budget

    lines = sorted({graph.nodes[i].line for i in patterns_of(graph).contractions})[:LINES]
    error = (to_float64(found.actual) - found.expected) / found.budget
    moves = [error, *map(moved, (to_nearest, cut_off)), *(moved(_factor(line)) for line in lines)]
    known = np.logical_and.reduce([np.isfinite(x) for x in moves])
    error, nearest, cut, *factors = (x[known] for x in moves)
    across = np.linalg.qr(np.stack([x for x in factors if x.any()], axis=1))[0] if any(map(np.any, factors)) else None
    predicted = as_large = False
    for one in (nearest, cut):
        left, wanted = _less(error, across), _less(one, across)
        predicted |= _remains(error, one) <= REMAINS and _remains(left, wanted) <= REMAINS
        by_factors = _remains(error - left, _part(error - left, one - wanted), of=error)
        as_large |= by_factors <= SHARED and SIZES[0] <= _size(left) / max(_size(wanted), TINY) <= SIZES[1]
    return predicted, as_large


def _factor(line: Line) -> Change:
    return lambda at, x: x * FACTOR if at == line else x


def _less(x: np.ndarray, across: np.ndarray | None) -> np.ndarray:
    """x without what lies in the span of orthonormal columns."""
    return x if across is None else x - across @ (across.T @ x)


def _remains(error: np.ndarray, predicted: np.ndarray, of: np.ndarray | None = None) -> float:
    """Share of the mean square error, or of that `of` others; 1 of none."""
    total = float(np.sum((error if of is None else of) ** 2))
    return float(np.sum((error - predicted) ** 2)) / total if total > 0 else 1.0


def _part(x: np.ndarray, of: np.ndarray) -> np.ndarray:
    """The part of others that x has, MOST times at most: a kernel may round operands of some of its products alone."""
    size = float(np.sum(of**2))
    return of * min(max(float(np.sum(x * of)) / size, 0.0), MOST) if size > 0 else of


def _size(x: np.ndarray) -> float:
    return float(np.sqrt(np.sum(x**2)))
