"""Two runs held against each other, or one against what must come out: by bits, or within their budgets."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from workbench.case.stages import ALGORITHMS, OUT
from workbench.explore.laws.law import Break, Verdict
from workbench.explore.laws.order import parting
from workbench.explore.laws.run import Bounded, Rows, Run, smaller
from workbench.explore.laws.subject import Subject
from workbench.floats import largest, smallest_normal

NOTHING = "no element can be checked: rows are empty, or numbers may overflow or lose all digits"
Change = Callable[[Bounded], Bounded]
#: relative error of what a law makes of numbers, and of what the budgets are around: a few operations of float64. An
#: error that is a cast's alone may be as large as its budget
_FLOAT64 = 2.0**-48


def same(x: Bounded) -> Bounded:
    """What the other run must give, where nothing may move."""
    return x


def first(*verdicts: Verdict) -> Verdict:
    """The first break; why nothing could be told where that goes for all; else None."""
    if broken := next((one for one in verdicts if isinstance(one, Break)), None):
        return broken
    return None if None in verdicts else next(iter(verdicts), "there is neither out nor lse")


def within(name: str, wanted: Bounded, found: Bounded, rows: Rows) -> Verdict:
    """Whether values are as far apart as the budgets of both allow, at most; `rows` are those of the case itself."""
    size = np.where(np.isfinite(wanted.value), abs(wanted.value), 0.0)  # NaN is no number that is not judged
    allowed = wanted.off + found.off + _FLOAT64 * size
    judged = np.isfinite(allowed)
    if not judged.any():
        return NOTHING
    with np.errstate(invalid="ignore", divide="ignore"):
        error = abs(found.value - wanted.value)
        broken = judged & ~(error <= allowed)
        how_far = np.where(broken, np.where(np.isnan(error), np.inf, error / allowed), -1.0)
    return _at_most(name, broken, how_far, wanted.value, found.value, allowed, int(judged.sum()), rows)


def equal(name: str, wanted: np.ndarray, found: np.ndarray, rows: Rows, judged: np.ndarray | None = None) -> Verdict:
    """Whether values are the same, zeros of either sign and NaN among them, where they are `judged`."""
    wanted, found = wanted.astype(np.float64), found.astype(np.float64)
    judged = np.ones(wanted.shape, bool) if judged is None else judged
    if not judged.any():
        return NOTHING
    broken = judged & ~((wanted == found) | (np.isnan(wanted) & np.isnan(found)))
    with np.errstate(invalid="ignore"):
        how_far = np.where(broken, np.nan_to_num(abs(wanted - found), nan=np.inf), -1.0)
    return _at_most(name, broken, how_far, wanted, found, np.zeros(wanted.shape), int(judged.sum()), rows)


def _at_most(
    name: str,
    broken: np.ndarray,
    how_far: np.ndarray,
    wanted: np.ndarray,
    found: np.ndarray,
    allowed: np.ndarray,
    of: int,
    rows: Rows,
) -> Break | None:
    if not broken.any():
        return None
    at = np.unravel_index(int(how_far.argmax()), how_far.shape)
    place = {axis: some[int(i)] for axis, some, i in zip("bhq", rows, at, strict=False)}
    place |= {"d": int(at[3])} if len(at) > 3 else {}
    return Break(name, place, float(found[at]), float(wanted[at]), float(allowed[at]), int(broken.sum()), of)


def by_pairs(compare: Callable[..., Verdict], a: Run, b: Run, pairs: Iterable[tuple[Rows, Rows]]) -> Verdict:
    """What comparing rows of two runs gives, one pair of them after the other."""
    return first(*(compare((a, x), (b, y)) for x, y in pairs))


def budgets(
    a: tuple[Run, Rows], b: tuple[Run, Rows], changes: Mapping[str, Change] | None = None, only: Sequence[str] = ()
) -> Verdict:
    """Whether run `b` gives what run `a` does, after the `changes` of a stage by name, within the budgets of both; rows
    of the two belong together in their order. `only`: these of out and lse.
    """
    (one, rows_a), (other, rows_b) = a, b
    rows_a, rows_b = smaller(rows_a, one, other), smaller(rows_b, one, other)
    names = [name for name in one.stages if name in other.stages and (not only or name in only)]
    if not len(rows_a.q):
        return NOTHING
    return first(
        *(
            within(
                name, (changes or {}).get(name, same)(one.bounded(name, rows_a)), other.bounded(name, rows_b), rows_a
            )
            for name in names
        )
    )


def results(
    a: tuple[Run, Rows],
    b: tuple[Run, Rows],
    factors: Mapping[str, float] | None = None,
    only: Sequence[str] = (),
    where: np.ndarray | None = None,
) -> Verdict:
    """Whether run `b` gives the values of run `a`, out and lse times exact `factors`, bit for bit; of out only what is
    within the normal range of its dtype in both, and `where` says, bool of its shape.
    """
    (one, rows_a), (other, rows_b) = a, b
    verdicts: list[Verdict] = []
    for name in one.stages:
        if name not in other.stages or (only and name not in only):
            continue
        factor, dtype = (factors or {}).get(name, 1.0), one.trace.stages[name].dtype
        x, y = one.values(name, rows_a) * factor, other.values(name, rows_b)
        size = max(abs(factor), 1 / abs(factor))
        least, most = smallest_normal(dtype) * size, largest(dtype) / size
        # twice and half: what rounds to the end of the range in one run may be beyond it in the other
        small = (abs(x) < 2 * least) & (abs(y) < 2 * least)
        large = (abs(x) > most / 2) & (abs(y) > most / 2)
        judged = ~((small | large) & (factor != 1)) & (True if where is None else where)
        there = one.there(name, rows_a)
        verdicts.append(equal(name, x, y, rows_a, judged if there is None else judged & there))
    return first(*verdicts)


def alike(s: Subject, a: tuple[Run, Rows], b: tuple[Run, Rows]) -> Verdict:
    """Whether two runs give the same: bit for bit in every stage, of which the first that parts is named, where the
    kernel claims it; else out and lse within the budgets of both.
    """
    if not s.claimed:
        return budgets(a, b)
    found = same_bits(a, b)
    if isinstance(found, Break) and found.stage == OUT and not s.ours:
        return replace(found, why=f"{found.why}; {parting(a, b)}")
    return found


def same_bits(a: tuple[Run, Rows], b: tuple[Run, Rows], why: str = "") -> Verdict:
    """Whether all stages of two runs that have the same tiles and splits in both have the same bits; of what a kernel
    made of its codes, those of attention.
    """
    (one, rows_a), (other, rows_b) = a, b
    verdicts: list[Verdict] = []
    for name, stage in ALGORITHMS[one.trace.algorithm].items():
        if name not in one.trace.stages or name not in other.trace.stages or stage.of_kv:
            continue
        x, y = (
            np.ascontiguousarray(rows.of(run.trace.stages[name], stage.axes))
            for run, rows in ((one, rows_a), (other, rows_b))
        )
        if x.shape != y.shape or x.dtype != y.dtype or x.size == 0:
            continue
        parts = x.view(f"u{x.dtype.itemsize}") != y.view(f"u{y.dtype.itemsize}")
        for there in (one.there(name, rows_a), other.there(name, rows_b)):
            parts &= True if there is None else there
        verdicts.append(_parting(name, stage.axes, x, y, parts, rows_a, why) if parts.any() else None)
    return first(*verdicts)


def _parting(name: str, axes: str, x: np.ndarray, y: np.ndarray, parts: np.ndarray, rows: Rows, why: str) -> Break:
    """The first element at which bits part."""
    at = np.unravel_index(int(parts.argmax()), parts.shape)
    own = dict(zip("bhq", rows, strict=True))
    place = {axis: own[axis][int(i)] if axis in own else int(i) for axis, i in zip(axes, at, strict=True)}
    said = f"{name} is the first stage whose bits differ{why and ' '}{why}"
    return Break(name, place, float(y[at]), float(x[at]), 0.0, int(parts.sum()), parts.size, said)
