"""Laws of the merge, of kernels that take partial results from outside."""

from collections.abc import Mapping

import numpy as np

from workbench.expectation.observed import Observed
from workbench.explore.laws.bits import SMALLEST
from workbench.explore.laws.compare import budgets, first, results
from workbench.explore.laws.law import Verdict
from workbench.explore.laws.run import Rows, Run
from workbench.explore.laws.subject import Subject
from workbench.floats import largest

PARTIALS = ("partial_O", "partial_max", "partial_sum")


def partials_doubled(s: Subject) -> Verdict:
    """Doubling partial outputs and sums changes no bit of out; doubling sums alone halves it. lse grows by log(2).

    Preconditions: a kernel whose partial results can be put in; of bits, products with weights none of whose digits
    leaves the normal range of float32: of other elements out is within the budgets.
    """
    partials = _partials(s)
    if isinstance(partials, str):
        return partials
    rows, o, l = Rows.all(s.case), partials["partial_O"], partials["partial_sum"]
    before = _merge(s, partials)
    both, sums = (
        _merge(s, {**partials, "partial_O": 2 * o, "partial_sum": 2 * l}),
        _merge(s, {**partials, "partial_sum": 2 * l}),
    )
    normal = _normal(before, partials)
    by = {"lse": lambda x: x.plus(np.log(2))}
    return first(
        results((before, rows), (both, rows), only=("out",), where=normal),
        results((before, rows), (sums, rows), {"out": 0.5}, only=("out",), where=normal),
        budgets((before, rows), (both, rows), by),
        budgets((before, rows), (sums, rows), {"out": lambda x: x.times(0.5)}, only=("out",)),
    )


def partial_maxima_moved(s: Subject) -> Verdict:
    """Adding a number to all partial maxima adds it to lse (in base e) and changes no bit of out.

    The maxima are rounded to multiples of 2^-10 first, so that adding 8 is exact. Preconditions: as of
    partials-doubled.
    """
    partials = _partials(s)
    if isinstance(partials, str):
        return partials
    rows, m = Rows.all(s.case), partials["partial_max"]
    m = np.round(m * 1024) / 1024
    if not np.array_equal((m + 8) - 8, m, equal_nan=True):
        return "partial maxima are too large for 8 to be added exactly"
    before, after = _merge(s, {**partials, "partial_max": m}), _merge(s, {**partials, "partial_max": m + 8})
    moved = 8 / Observed(s.first.trace).unit("partial_max")
    return first(
        results((before, rows), (after, rows), only=("out",)),
        budgets((before, rows), (after, rows), {"lse": lambda x: x.plus(moved)}, only=("lse",)),
    )


def _partials(s: Subject) -> dict[str, np.ndarray] | str:
    """The partial results of the case, those of a kernel that takes them; why there are none."""
    stages = s.first.trace.stages
    if s.feed is None or not {*PARTIALS} <= {*stages}:
        return "the kernel cannot be fed partial results, or does not return its own"
    if s.case.sinks is not None and s.first.trace.contract.sinks == "last":
        return "the sink comes last and has no partial result"
    found = {}
    for name in PARTIALS:
        there = s.first.there(name, Rows.all(s.case))
        nothing = -np.inf if name == "partial_max" else 0.0
        found[name] = stages[name] if there is None else np.where(there, stages[name], nothing)
    if not all(np.isfinite(found[name]).all() for name in ("partial_O", "partial_sum")):
        return "the partial results contain NaN or infinity"
    return {name: x.astype(np.float32) for name, x in found.items()}


def _normal(run: Run, partials: Mapping[str, np.ndarray]) -> np.ndarray:
    """Which elements of out are of products of weights with partial outputs and sums that are 0 or have all their
    digits in the normal range of float32, twice as large, too, bool [b, h, q, d].
    """
    m = Observed(run.trace).natural("partial_max", partials["partial_max"]).astype(np.float64)
    weights = np.exp(m - m.max(2, keepdims=True))[..., None]
    sure = []
    for x in (partials["partial_O"], partials["partial_sum"][..., None]):
        size = abs(x.astype(np.float64))
        sure.append((size == 0) | ((weights * size >= SMALLEST) & (size < largest("float32") / (4 * m.shape[2]))))
    return np.logical_and(*sure).all(2)


def _merge(s: Subject, partials: Mapping[str, np.ndarray]) -> Run:
    """The kernel's merge of partial results."""
    assert s.feed is not None
    return Run(s.feed(s.asked, partials))
