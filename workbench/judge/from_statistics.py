"""Stages of which only statistics were given: what they prove.

A NaN or an infinity too many, or a minimum, a maximum or a mean that no kernel within its budgets gives, is a bug.
Statistics that such a kernel may give prove nothing of the elements: the stage is then not judged, and never green.
"""

import math
from dataclasses import dataclass, fields

import numpy as np

from workbench.expectation.compare import as_stored
from workbench.expectation.expectation import Expectation
from workbench.expectation.observed import Observed
from workbench.floats import DTYPES, largest, ulp
from workbench.judge.blocks import determined, parts_of
from workbench.reference.graph import nearest_dumped
from workbench.trace.statistics import Statistics


@dataclass(frozen=True)
class Allowed:
    """What the statistics of a kernel within its budgets may be."""

    nan: tuple[int, int]
    pos_inf: tuple[int, int]
    neg_inf: tuple[int, int]
    min: tuple[float, float]
    max: tuple[float, float]
    mean: tuple[float, float]

    def broken(self, given: Statistics) -> list[str]:
        """Each statistic that is outside, in words."""
        lines = []
        for name, (low, high) in ((field.name, getattr(self, field.name)) for field in fields(self)):
            value = getattr(given, name)
            if value is not None and not low <= value <= high:
                may = f"{low:.6g}" if low == high else f"{low:.6g} to {high:.6g}"
                lines.append(f"{name} is {value:.6g}, and of a kernel within its budgets {may}")
        return lines


@dataclass(frozen=True)
class _Sums:
    """What a part of a stage adds to `Allowed`."""

    nan: int = 0  #: that must be NaN
    open_: int = 0  #: that may be anything: their own inputs are NaN, or they may overflow
    pos_inf: int = 0
    neg_inf: int = 0
    finite: int = 0
    #: of the finite: the largest of the least values, the largest of the most, and likewise the smallest
    max: tuple[float, float] = (-math.inf, -math.inf)
    min: tuple[float, float] = (math.inf, math.inf)
    total: float = 0.0
    magnitude: float = 0.0
    allowed: float = 0.0

    def __add__(self, other: "_Sums") -> "_Sums":
        added = {field.name: getattr(self, field.name) + getattr(other, field.name) for field in fields(self)}
        most = (max(self.max[0], other.max[0]), max(self.max[1], other.max[1]))
        least = (min(self.min[0], other.min[0]), min(self.min[1], other.min[1]))
        return _Sums(**{**added, "max": most, "min": least})


def allowed(run: Observed, name: str) -> Allowed | str:
    """What the statistics of a stage may be, given its nearest dumped ancestors, else q, k and v; or why that is not
    known.
    """
    if run.before_attention:
        return "statistics of a kernel on quantised codes are not judged"
    if not nearest_dumped(run.table, name, run.readable) and not determined(run, name):
        return "the contract does not declare splits"
    sums = _Sums()
    for part in parts_of(run.case, "cpu"):
        sums += _sums(Expectation(run, run.readable, part, statistics=False), name)
    return _range(sums, bool(run.known[name].unit) and math.isfinite(run.contract.mask_sentinel))


@np.errstate(all="ignore")
def _sums(e: Expectation, name: str) -> _Sums:
    """The sums of one part."""
    stage, given = e.run.known[name], e.run.trace.statistics[name]
    expected, budget = as_stored(e.run, name, e.computed[name], e.budgets([name])[name])
    bound = np.maximum(budget.bound, ulp(expected, DTYPES[given.dtype]) / 2)
    nan, free = np.zeros(expected.shape, bool), np.zeros(expected.shape, bool)
    if stage.empty:
        empty, value = e.empty, getattr(e.run.contract, stage.empty)
        empty = np.broadcast_to(empty[..., None] if "d" in stage.axes else empty, expected.shape)
        if value == "any":
            free = empty
        else:
            nan, expected = empty & np.isnan(value), np.where(empty, value, expected)
    top = largest(DTYPES[given.dtype])
    overflows = np.isfinite(expected) & ~(abs(expected) + bound <= top)
    open_ = free | (np.isnan(expected) & ~nan) | overflows | ~(np.isinf(budget.size) | (budget.size <= top))
    fixed = ~open_ & ~nan
    finite = fixed & np.isfinite(expected)
    x, off = expected[finite], bound[finite]
    loose, wide = expected[overflows], bound[overflows]
    return _Sums(
        nan=int(nan.sum()),
        open_=int(open_.sum()),
        pos_inf=int((fixed & (expected == np.inf)).sum()),
        neg_inf=int((fixed & (expected == -np.inf)).sum()),
        finite=x.size,
        max=((x - off).max(initial=-math.inf), np.append(x + off, loose + wide).max(initial=-math.inf)),
        min=(np.append(x - off, loose - wide).min(initial=math.inf), (x + off).min(initial=math.inf)),
        total=float(x.sum()),
        magnitude=float((abs(x) + off).sum()),
        allowed=float(off.sum()),
    )


def _range(sums: _Sums, sentinel: bool) -> Allowed:
    """What the sums allow; `sentinel`: what should be -inf is a finite number, as large as any."""
    unbounded = sums.open_ > 0
    anything = (-math.inf, math.inf)
    mean = anything
    if sums.finite and not unbounded and not sentinel:
        # of a sum in float64, in any order
        rounding = 2 * sums.finite * 2.0**-53 * sums.magnitude
        middle, reach = sums.total / sums.finite, (sums.allowed + rounding) / sums.finite
        mean = (middle - reach, middle + reach)
    least = (-math.inf if unbounded or sentinel else sums.min[0], sums.min[1])
    most = (sums.max[0], math.inf if unbounded else sums.max[1])
    if not sums.finite:
        least = most = anything
    return Allowed(
        nan=(sums.nan, sums.nan + sums.open_),
        pos_inf=(sums.pos_inf, sums.pos_inf + sums.open_),
        neg_inf=(0 if sentinel else sums.neg_inf, sums.neg_inf + sums.open_),
        min=least,
        max=most,
        mean=mean,
    )
