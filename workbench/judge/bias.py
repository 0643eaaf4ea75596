"""Whether a stage's errors are biased to one side although each of them is inside its budget: truncation, not rounding.

Rounding to nearest may be biased as well: terms that are nearly equal share one rounding error, and a large sum absorbs
small terms. What counts is therefore the difference from a control, the same stage recomputed in float32 with rounding
to nearest from the same inputs; each error is paired with the control's in the same element. The errors of a row share
its inputs, so that a row is one observation, however many elements it has (cluster-robust variance: Liang and Zeger,
Biometrika 73, 1986). Rows that err alike are one observation together: with a scale of 0 all queries of a head do.

Stages with exp, log or tanh in them are not tested: an implementation promises ulps, and may be biased within them. On
an H200 CUDA's math.exp is biased away from zero by 0.12 (4 million x in [-40, 0]) to 0.25 ([-1, 0]) standard deviations
of such a paired difference, math.log by 0.08 to 0.13, so that every correct kernel would be called biased; its
math.tanh was, in 3 of 245 runs on an H100, few of them with a softcap. What a score_mod computes, nobody knows.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from workbench.case.box import Box
from workbench.case.case import Case
from workbench.case.contract import Contract
from workbench.case.stages import INPUTS, OUT, Stage
from workbench.expectation.compare import compared
from workbench.expectation.elements import Compared, State
from workbench.expectation.expectation import Expectation
from workbench.expectation.observed import Observed
from workbench.floats import round_to
from workbench.judge.control import control, sampled
from workbench.reference.dataflow import direct, nearest_dumped, unseen_upstream

#: below so few rows their variance says nothing
FEWEST_ROWS = 8
#: standard errors beyond which a mean is no chance, and standard deviations beyond which it is no trifle
Z, DELTA = 6.0, 0.1
#: and beyond which, seen twice, a sum or cast that was promised to round to nearest does not: of 2000 correct runs none
#: is biased by half as much
DOUBTLESS_Z, DOUBTLESS_DELTA = 12.0, 0.5
#: share of a stage's largest error to which errors of two rows agree where they are of the same roundings: expectations
#: differ by 2^-52 of themselves there, which is 2^-28 of an ulp of float32
SAME = 2.0**-20


@dataclass(frozen=True)
class Lean:
    """The mean of signed errors in units of budget, negative toward zero: a test statistic and an effect size."""

    mean: float
    z: float  #: mean / its standard error, clustered by distinct row; 0 without a variance, which decides nothing
    delta: float  #: effect size: |mean| / standard deviation of the elements

    @property
    def strong(self) -> bool:
        """Whether the mean is significant (z) and not small (delta)."""
        return abs(self.z) > Z and self.delta > DELTA

    @property
    def doubtless(self) -> bool:
        """Whether no rounding to nearest is so far biased."""
        return abs(self.z) > DOUBTLESS_Z and self.delta > DOUBTLESS_DELTA


@dataclass(frozen=True)
class Bias:
    """The bias of the errors of one stage in one run."""

    own: Lean  #: of the kernel's errors
    excess: Lean  #: of the kernel's errors less those of the control
    rows: int  #: distinct rows (batch, head, query) that have an element to look at
    elements: int
    promised: bool = True  #: whether the contract promises rounding to nearest, and does not leave it open

    @property
    def sufficient(self) -> bool:
        """Whether there are rows enough to tell."""
        return self.rows >= FEWEST_ROWS

    @property
    def trips(self) -> bool:
        """Whether the kernel's errors are biased farther than the control's: where the control alone is biased, its
        order of summation is the worse one.
        """
        return self.sufficient and self.own.strong and self.excess.strong and self.own.mean * self.excess.mean > 0

    @property
    def toward(self) -> str:
        """zero or infinity."""
        return "zero" if self.excess.mean < 0 else "infinity"


@np.errstate(all="ignore")
def biases(run: Observed, names: Iterable[str]) -> dict[str, Bias]:
    """The Bias of those stages of `run` among `names` that can be tested, stage -> Bias.

    Left out are stages that were judged end to end, stages with exp or log between them and their dumped ancestors,
    sums and casts that the contract lets truncate, float32 out, stages without an element to look at, and stages of
    which only some elements were given.
    """
    run = run.dequantised
    tested = [name for name in names if name in run.whole and _testable(run, run.known[name])]
    if not tested:
        return {}
    expectation = Expectation(run, run.readable, Box(q=sampled(run.case)), statistics=False)
    controls = control(expectation, _cast_as_declared(run.contract))
    found = {
        name: _bias(one, run.dumped[name].dtype, controls[name], run.axes(name))
        for name, one in compared(expectation, tested)
    }
    left_open = {name for name in tested if _left_open(run, run.known[name])}
    return {name: replace(x, promised=name not in left_open) for name, x in found.items() if x is not None}


def second_case(case: Case) -> Case:
    """The case on which a bias must be seen again: the next seed, with normal inputs.

    Other distributions may draw nothing from the seed (one-hot) or make all rows share their rounding errors, whatever
    the seed (tiny): 27 of 1960 correct runs that add up in another order than the control trip at two seeds of the
    same distribution, none in a second run with normal inputs.
    """
    return case.but(seed=case.seed + 1, distribution="normal")


def verdicts(first: Mapping[str, Bias], second: Mapping[str, Bias] | None) -> dict[str, tuple[str, str]]:
    """Stage -> (bug, biased or rounding, why) of the stages that trip in the `first` run; `second` is what `biases`
    says of a run on `second_case`, None where the kernel cannot be run again.
    """
    return {name: _verdict(bias, second, name) for name, bias in first.items() if bias.trips}


def _verdict(first: Bias, second: Mapping[str, Bias] | None, name: str) -> tuple[str, str]:
    biased = (
        f"errors lean toward {first.toward} by {first.excess.delta:.2g} standard deviations more than rounding to "
        f"nearest gives (z = {first.excess.z:.3g}, {first.rows} rows)"
    )
    if second is None:
        return "rounding", f"{biased}; not called biased: a trace cannot be rerun on other inputs"
    again = second.get(name)
    if again is not None and again.trips and again.toward == first.toward:
        proved = first.promised and first.excess.doubtless and again.excess.doubtless
        verdict = "bug" if proved else "biased"
        return verdict, f"{biased}, again on other inputs (z = {again.excess.z:.3g}, {again.rows} rows)"
    return "rounding", f"{biased}, but not on other inputs"


def _testable(run: Observed, stage: Stage) -> bool:
    contract, steps, name = run.contract, run.table, stage.name
    if not nearest_dumped(steps, name, run.readable) and not set(direct(steps, name)) <= set(INPUTS):
        return False
    if name == OUT and run.dumped[name].dtype == np.float32:
        return False  # a correct one that multiplies by a reciprocal trips in 21 of 240 first runs
    if _rounding(run, stage) == "toward-zero":
        return False
    through = _through(run, name)
    accumulated = [getattr(contract, x.accumulation) for x in through if x.accumulation]
    # operands may be cut off; sums in 16 bits absorb small terms, which those of the control do not
    narrow = contract.input_precision != "ieee" or contract.accumulator_dtype != "float32"
    if any(how != "nearest" or narrow or run.trace.input_errors for how in accumulated):
        return False
    other = contract.base2 or not contract.scores_scaled or contract.scaled_q_dtype != "float32"
    other = other or contract.scale_in in ("q", "k", "both")
    if other and any(x.unit for x in through):
        return False  # the control scales what it adds up, in natural units
    if run.case.dropout_p is not None and run.known["probs_cast"] in through:
        return False  # a correct one multiplies by 1 / (1 - p), which was rounded once for all elements
    return all(x.bias_tested for x in through)


def _through(run: Observed, name: str) -> list[Stage]:
    """A stage and those between it and what it was judged from."""
    return [run.known[x] for x in (name, *unseen_upstream(run.table, name, run.readable))]


def _left_open(run: Observed, stage: Stage) -> bool:
    """Whether the contract leaves open how a stage is rounded: the square of a scale's rounded root is biased."""
    scaled = {"qk", "scores"} <= {x.name for x in _through(run, stage.name)}
    return _rounding(run, stage) == "any" or (run.contract.scale_in == "any" and scaled)


def _rounding(run: Observed, stage: Stage) -> str:
    """How a stage is rounded when it is stored."""
    return str(getattr(run.contract, stage.rounding)) if stage.rounding else "nearest"


def _bias(one: Compared, dtype: np.dtype, control: np.ndarray, axes: str) -> Bias | None:
    """The Bias of a stage of `dtype` from its `control`; None without an element to look at."""
    if dtype != np.float32:
        control = round_to(control, dtype)
    expected, budget = one.expected, one.budget
    side = np.sign(expected)  # an expectation of 0 has none
    judged = one.state <= State.SUSPICIOUS
    seen = judged & np.isfinite(expected) & np.isfinite(control) & (side != 0) & (budget > 0)
    # within the budget it scales with sum|t|, as rounding errors do: beside the root of the sum of squared prefixes it
    # finds 133 truncated sums where that finds 136
    own, controls = (np.clip(side * (x - expected) / budget, -1, 1) for x in (one.actual, control))
    if not seen.any():
        return None
    errors, own, excess, seen = (by_row(x, axes) for x in (one.actual - expected, own, own - controls, seen))
    of = distinct(errors, seen)
    return Bias(lean(own, seen, of), lean(excess, seen, of), rows_seen(seen, of), int(seen.sum()))


def _cast_as_declared(contract: Contract) -> Contract:
    """The contract with no casts but those that were declared: one that may not have happened has errors of its own."""
    casts = ("scores_dtype", "probs_dtype", "partials_dtype")
    uncast: dict[str, Any] = {name: "float32" for name in casts if name in contract.open}
    return replace(contract, **uncast)


def by_row(stage: np.ndarray, axes: str) -> np.ndarray:
    """The stage as [row, element], a row for each batch, head and query."""
    moved = np.moveaxis(stage, axes.index("q"), 2)
    return moved.reshape(int(np.prod(moved.shape[:3])), -1)


def distinct(errors: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """For each row of the signed errors [row, element] that are `seen` the number of the distinct row that it is."""
    step = SAME * np.max(abs(errors), where=seen, initial=np.finfo(np.float64).tiny)
    alike = np.where(seen, np.round(errors / step) + 0.0, np.nan)
    numbers: dict[bytes, int] = {}
    return np.array([numbers.setdefault(row.tobytes(), len(numbers)) for row in alike])


def rows_seen(seen: np.ndarray, of: np.ndarray) -> int:
    """How many distinct rows (`distinct`) have an element that is `seen` [row, element]."""
    return len({*of[seen.any(axis=1)].tolist()})


def lean(errors: np.ndarray, seen: np.ndarray, of: np.ndarray) -> Lean:
    """The Lean of the signed errors [row, element] that are `seen` (bool, at least one), of the distinct rows `of`.

    Variance of the mean: G / (G - 1) sum over G distinct rows of (sum over the elements of a distinct row, wherever it
    recurs, of (e - mean))^2 / n^2, n elements in all.
    """
    n, rows = seen.sum(), rows_seen(seen, of)
    mean = np.where(seen, errors, 0.0).sum() / n
    deviations = np.where(seen, errors - mean, 0.0)
    spread = np.sqrt((deviations**2).sum() / n)
    error = np.sqrt(rows / max(rows - 1, 1) * (np.bincount(of, deviations.sum(axis=1)) ** 2).sum()) / n
    z = mean / error if rows > 1 and error > 0 else 0.0
    return Lean(float(mean), float(z), abs(_ratio(mean, spread)))


def _ratio(mean: float, spread: float) -> float:
    """mean / spread; 0 for 0 / 0."""
    return 0.0 if mean == 0 else float(mean / spread) if spread else float(np.copysign(np.inf, mean))
