"""Whether a stage's errors lean to one side although each of them is inside its budget: truncation, not rounding.

Rounding to nearest may lean as well: terms that are nearly equal share one rounding error, and a large sum absorbs
small terms. What counts is therefore the difference from a control, the same stage recomputed in float32 with rounding
to nearest from the same inputs; each error is paired with the control's in the same element. The errors of a row share
its inputs, so that a row is one observation, however many elements it has (cluster-robust variance: Liang and Zeger,
Biometrika 73, 1986).

Stages with exp or log in them are not tested: an implementation promises ulps, and may lean within them. On an H200
CUDA's math.exp leans away from zero by 0.12 (4 million x in [-40, 0]) to 0.25 ([-1, 0]) standard deviations of such a
paired difference, math.log by 0.08 to 0.13, so that every correct kernel would be called biased.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from workbench import mask
from workbench.case import Case
from workbench.comparison import Found, State
from workbench.errors import round_to
from workbench.expectation import Expectation, Part, readable, tiling_of
from workbench.held import compared
from workbench.quantisation import attention_of
from workbench.reference import online
from workbench.reference.split_k import last_states
from workbench.stages import ALGORITHMS, INPUTS, nearest_dumped, unseen_upstream
from workbench.tiling import Tiling
from workbench.trace import Trace

Arrays = Mapping[str, np.ndarray]

#: stages that evaluate exp or log, and maxima, which are exact
UNTESTED = frozenset({"correction", "probs", "merge_weight", "merge_sum", "lse", "row_max", "partial_max", "merge_max"})
#: below so few rows their variance says nothing
FEWEST_ROWS = 8
#: rows that are looked at, evenly spread over the queries. z grows with the root of their number, and the median z of
#: truncating sums is 44 (qk), 22 (acc) and 7 (row_sum) at 64 to 128 rows already; what the control costs grows with it
ROWS = 256
#: standard errors beyond which a mean is no chance, and standard deviations beyond which it is no trifle
Z, DELTA = 6.0, 0.1


@dataclass(frozen=True)
class Lean:
    """The mean of signed errors in units of budget, negative toward zero."""

    mean: float
    z: float  #: mean / its standard error, clustered by row; infinite where all rows agree
    delta: float  #: |mean| / standard deviation of the elements

    @property
    def strong(self) -> bool:
        """Whether the mean is neither chance nor a trifle."""
        return abs(self.z) > Z and self.delta > DELTA


@dataclass(frozen=True)
class Bias:
    """How the errors of one stage lean in one run."""

    own: Lean  #: of the kernel's errors
    excess: Lean  #: of the kernel's errors less those of the control
    rows: int  #: rows (batch, head, query) that have an element to look at
    elements: int

    @property
    def sufficient(self) -> bool:
        """Whether there are rows enough to tell."""
        return self.rows >= FEWEST_ROWS

    @property
    def trips(self) -> bool:
        """Whether the kernel's errors lean, farther than the control's, to one side: where the control alone leans, its
        order of summation is the worse one.
        """
        return self.sufficient and self.own.strong and self.excess.strong and self.own.mean * self.excess.mean > 0

    @property
    def toward(self) -> str:
        """zero or infinity."""
        return "zero" if self.excess.mean < 0 else "infinity"


@np.errstate(all="ignore")
def biases(trace: Trace, names: Iterable[str]) -> dict[str, Bias]:
    """The Bias of those stages of `trace` among `names` that can be tested, stage -> Bias.

    Left out are stages that were judged end to end, stages with exp or log between them and their dumped ancestors,
    sums and casts that the contract lets truncate, float32 out, stages without an element to look at, and stages of
    which only some elements were given.
    """
    trace = attention_of(trace)
    dumped = readable(trace)
    names = [name for name in names if name in trace.stages and name not in trace.sparse]
    tested = [name for name in names if _testable(trace, name, dumped)]
    if not tested:
        return {}
    rows = sampled(trace.case)
    expectation = Expectation(trace, dumped, Part(q=rows), statistics=False)
    controls = control(trace, {name: x.astype(np.float32) for name, x in expectation.given.items()}, rows)
    dtypes = {name: trace.stages[name].dtype for name in tested}
    axes = {name: expectation.axes(name) for name in tested}
    found = {name: _bias(one, dtypes[name], controls[name], axes[name]) for name, one in compared(expectation, tested)}
    return {name: bias for name, bias in found.items() if bias is not None}


def second_case(case: Case) -> Case:
    """The case on which a lean must be seen again: the next seed, with normal inputs.

    Other distributions may draw nothing from the seed (one-hot) or make all rows share their rounding errors, whatever
    the seed (tiny): 27 of 1960 correct runs that add up in another order than the control trip at two seeds of the
    same distribution, none in a second run with normal inputs.
    """
    return case.but(seed=case.seed + 1, distribution="normal")


def verdicts(first: Mapping[str, Bias], second: Mapping[str, Bias] | None) -> dict[str, tuple[str, str]]:
    """Stage -> (biased or rounding, why) for the stages that trip in the `first` run; `second` is what `biases` says of
    a run on `second_case`, None where the kernel cannot be run again.
    """
    return {name: _verdict(bias, second, name) for name, bias in first.items() if bias.trips}


def _verdict(first: Bias, second: Mapping[str, Bias] | None, name: str) -> tuple[str, str]:
    leans = (
        f"errors lean toward {first.toward}, {first.excess.delta:.2g} standard deviations farther than by rounding to "
        f"nearest (z = {first.excess.z:.3g}, {first.rows} rows)"
    )
    if second is None:
        return "rounding", f"{leans}; not called biased, since a trace cannot be run again on other inputs"
    again = second.get(name)
    if again is not None and again.trips and again.toward == first.toward:
        return "biased", f"{leans}, and on other inputs again (z = {again.excess.z:.3g}, {again.rows} rows)"
    return "rounding", f"{leans}, but not on other inputs"


def sampled(case: Case) -> np.ndarray:
    """Indices of the queries that are looked at: ROWS rows over all batches and heads, or one query of each head."""
    n = min(case.seqlen_q, max(1, ROWS // (case.batch * case.heads)))
    return np.linspace(0, case.seqlen_q - 1, n).round().astype(int)


def _testable(trace: Trace, name: str, dumped: Arrays) -> bool:
    contract, algorithm = trace.contract, trace.algorithm
    reads = set(ALGORITHMS[algorithm][name].reads)
    if not nearest_dumped(algorithm, name, dumped) and not reads <= set(INPUTS):
        return False
    if name == "out" and trace.stages[name].dtype == np.float32:
        return False  # a correct one that multiplies by a reciprocal trips in 21 of 240 first runs
    declared = {"out": contract.out_rounding, "partial_O": contract.partials_rounding}
    if declared.get(name) == "toward-zero":
        return False
    through = {name, *unseen_upstream(algorithm, name, dumped)}
    accumulated = {"qk": contract.accumulation, "acc": contract.accumulation_of_acc}
    # operands may be cut off; sums in 16 bits absorb small terms, which those of the control do not
    narrow = contract.input_precision != "ieee" or contract.accumulator_dtype != "float32"
    if any(how != "nearest" or narrow or trace.input_errors for stage, how in accumulated.items() if stage in through):
        return False
    if contract.base2 and "scores" in through:
        return False  # the control has natural scores
    return not UNTESTED & through


def _bias(one: Found, dtype: np.dtype, control: np.ndarray, axes: str) -> Bias | None:
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
    own, excess, seen = (_by_row(x, axes) for x in (own, own - controls, seen))
    return Bias(lean(own, seen), lean(excess, seen), int(seen.any(axis=1).sum()), int(seen.sum()))


def _by_row(stage: np.ndarray, axes: str) -> np.ndarray:
    """The stage as [row, element], a row for each batch, head and query."""
    moved = np.moveaxis(stage, axes.index("q"), 2)
    return moved.reshape(int(np.prod(moved.shape[:3])), -1)


def lean(errors: np.ndarray, seen: np.ndarray) -> Lean:
    """The Lean of the signed errors [row, element] that are `seen` (bool, at least one).

    Variance of the mean: G / (G - 1) sum over G rows of (sum over the row's elements of (e - mean))^2 / n^2, n elements
    in all.
    """
    n, rows = seen.sum(), seen.any(axis=1).sum()
    mean = np.where(seen, errors, 0.0).sum() / n
    deviations = np.where(seen, errors - mean, 0.0)
    spread = np.sqrt((deviations**2).sum() / n)
    error = np.sqrt(rows / max(rows - 1, 1) * (deviations.sum(axis=1) ** 2).sum()) / n
    return Lean(float(mean), _ratio(mean, error), abs(_ratio(mean, spread)))


def _ratio(mean: float, spread: float) -> float:
    """mean / spread; 0 for 0 / 0."""
    return 0.0 if mean == 0 else float(mean / spread) if spread else float(np.copysign(np.inf, mean))


def control(trace: Trace, given: Arrays, rows: np.ndarray) -> dict[str, np.ndarray]:
    """The stages that need no exp, at the queries `rows` alone, in float32 with every operation rounded to nearest.

    They are computed from the stages `given` (float32, at `rows`) where there are any, else from q, k and v; stages
    after an exp that was not given are left out. A sum starts at the rescaled previous state and adds one term after
    the other, in the order of dims, keys or splits: of all orders this one absorbs the most.
    """
    contract, case = trace.contract, trace.case
    q, k, v = (trace.inputs[name].astype(np.float32) for name in INPUTS)
    q, (k, v) = q[:, :, rows], (np.repeat(x, case.heads // case.kv_heads, axis=1) for x in (k, v))
    seen = dict(given)
    computed: dict[str, np.ndarray] = {}

    def keep(name: str, value: np.ndarray) -> None:
        computed[name] = value
        seen.setdefault(name, value)

    keep("qk", _inner_products(q, k))
    added = mask.bias(case, trace.inputs)
    shifted = 0 if added is None else added[..., rows, :].astype(np.float32)
    scaled = seen["qk"] * np.float32(case.scale) + shifted
    keep("scores", np.where(mask.visible(case, trace.inputs)[..., rows, :], scaled, np.float32(-np.inf)))
    if "probs" in seen:
        declared = "probs_dtype" not in contract.assumed
        p = seen["probs"]
        keep("probs_cast", round_to(p, contract.probs_dtype).astype(np.float32) if declared else p)
    tiles = tiling_of(trace)
    summed = "probs_cast" if contract.row_sum_of_cast else "probs"
    if {"correction", summed} <= set(seen):
        state = given["row_sum"][..., None] if "row_sum" in given else None
        ones = np.ones_like(v[..., :1])
        keep("row_sum", _running(seen["correction"], seen[summed], ones, state, tiles)[..., 0])
    if {"correction", "probs_cast"} <= set(seen):
        keep("acc", _running(seen["correction"], seen["probs_cast"], v, given.get("acc"), tiles))
    if trace.algorithm == "flash":
        if {"acc", "row_sum"} <= set(seen):
            keep("out", online.out(seen["acc"][..., tiles.last, :], seen["row_sum"][..., tiles.last]))
        return computed
    for name, running in (("partial_sum", "row_sum"), ("partial_O", "acc")):
        if running in seen:
            keep(name, last_states(seen[running], tiles.splits, 0.0))
    if {"merge_weight", "partial_O", "merge_sum"} <= set(seen):
        weight, partial_o = seen["merge_weight"], seen["partial_O"]
        total = np.zeros_like(partial_o[:, :, 0])
        for s in range(weight.shape[2]):
            total = total + weight[:, :, s, :, None] * partial_o[:, :, s]
        keep("out", online.out(total, seen["merge_sum"]))
    return computed


def _inner_products(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    """sum_d q k, [b, h, q, k], of q [b, h, q, d] and k [b, h, k, d]."""
    total = np.zeros((*q.shape[:3], k.shape[2]), np.float32)
    product = np.empty_like(total)
    for d, keys in enumerate(np.ascontiguousarray(np.moveaxis(k, -1, 0))):
        np.multiply(q[..., d, None], keys[:, :, None, :], out=product)
        total += product
    return total


def _running(
    correction: np.ndarray,
    weights: np.ndarray,
    values: np.ndarray,
    state: np.ndarray | None,
    tiles: Tiling,
) -> np.ndarray:
    """correction * previous state + sum of weights * values over a tile's keys, [b, h, q, t, d].

    correction [b, h, q, t], weights [b, h, q, k], values [b, h, k, d]; the `state` [b, h, q, t, d] where it was dumped,
    else what comes out here; 0 before the first tile of a split.
    """
    found = np.empty((*correction.shape, values.shape[-1]), np.float32)
    product = np.empty_like(found[..., 0, :])
    for t, before in tiles.order:
        keys, states = tiles.keys[t], found if state is None else state
        previous = np.zeros_like(found[..., t, :]) if before is None else states[..., before, :]
        total = correction[..., t, None] * previous
        for key in range(keys.start, keys.stop):
            np.multiply(weights[..., key, None], values[:, :, key, None, :], out=product)
            total += product
        found[..., t, :] = total
    return found
