"""Whether a stage's errors are larger than roundings add up to, although each of them is inside its budget.

A budget is the worst case: all roundings at once, all to one side. Errors of a correct kernel are far smaller, and how
much smaller depends on the data. So they are held against controls: the same stage in float32 from the same inputs,
with the contract's casts, in every evaluation mode that the contract leaves open; each error is paired with the largest
of theirs. The errors of a row share its inputs, so that a row is one observation (cluster-robust variance: Liang and
Zeger, Biometrika 73, 1986), and so are rows that err alike.

A lane that goes wrong by a little, one in WARP, is lost in the mean over all: each is looked at by itself as well.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from workbench.case.box import Box
from workbench.case.contract import Contract
from workbench.expectation.compare import compared, on_host
from workbench.expectation.elements import Compared, State
from workbench.expectation.expectation import Expectation
from workbench.expectation.observed import Observed
from workbench.floats import round_to
from workbench.judge.bias import FEWEST_ROWS, Z, by_row, distinct, lean, rows_seen
from workbench.judge.control import control, has_control, in_float32, sampled
from workbench.reference.bound import NEGLIGIBLE
from workbench.reference.losses import U
from workbench.reference.mode import Mode

#: rows that are looked at: a quarter of those of a test of bias, since several controls are computed
ROWS = 64
#: times the controls' root mean square beyond which errors are no rounding: another order of summation, other tiles and
#: another base move it by less than 2
BEYOND = 4.0
#: the same where more than chance is needed to doubt, and less than proof: of what a cast dominates it is 1.00
DOUBTFUL = 1.0
#: rows below which nothing is doubted either
FEWEST_TO_DOUBT = 4
#: least error that a control is credited with, in typical ones: on data whose sums are exact in its order it has none
LEAST = 0.01
#: threads that execute one instruction, and so the distance at which the elements of one of them recur
WARP = 32
#: x of a typical error beyond which an element counts no more: one element is for its own budget
LARGEST = 100.0


@dataclass(frozen=True)
class Excess:
    """Errors of a stage, or of every WARP-th element of its last axis, that are larger than roundings add up to."""

    times: float  #: root mean square error, over that of the controls
    #: test statistic of "the mean square error is at most BEYOND^2 times the controls'": the mean of what is beyond it
    #: over its standard error, clustered by row
    z: float
    rows: int  #: distinct ones
    axis: str  #: letter of the last axis
    lane: int | None  #: its index modulo WARP; None: all elements

    @property
    def words(self) -> str:
        """The excess in words."""
        where = "" if self.lane is None else f" at {self.axis} % {WARP} == {self.lane}"
        return (
            f"errors{where} are {self.times:.3g} times those of plain float32 arithmetic on the same inputs "
            f"(RMS, {self.rows} rows, z = {self.z:.3g})"
        )


@np.errstate(all="ignore")
def excesses(
    run: Observed, names: Iterable[str], beyond: float = BEYOND, device: str = "cpu", z: float = Z
) -> dict[str, Excess]:
    """Those of the judged stages `names` of a run whose errors are larger than roundings add up to, by a factor of
    `beyond`, and by `z` standard errors.

    Left out are stages of a kernel on codes before attention, and all of them where it may have decoded others
    than the control reads; stages of which only some elements were given; scores and maxima in base 2 or without the
    scale, which the control has otherwise; and kernels of an arithmetic that the control does not have. `device`: where
    expectations and budgets are computed; controls are NumPy's.
    """
    run = run.dequantised
    own_units = run.contract.base2 or not run.contract.scores_scaled
    whole = [name for name in names if name in run.whole]
    tested = [name for name in whole if not (own_units and run.known[name].unit not in ("", "logarithm"))]
    tested = [name for name in tested if run.unit(name) == 1]
    if not tested or run.trace.input_errors or not has_control(run):
        return {}
    e = Expectation(run, run.readable, Box(q=sampled(run.case, ROWS)), device, typical=True)
    held = {name: on_host(one) for name, one in compared(e, tested)}
    e = e if device == "cpu" else in_float32(e)
    controls: list[dict[str, np.ndarray]] = []
    found: dict[str, Excess] = {}
    for contract, mode in _ways(run.contract):
        controls.append(control(e, contract, mode))
        # errors that one control's account for are not larger than the largest of all
        of_all = {
            name: _largest(one, [some[name] for some in controls], run.dumped[name].dtype, e.run.axes(name), beyond, z)
            for name, one in held.items()
        }
        found = {name: excess for name, excess in of_all.items() if excess is not None}
        held = {name: held[name] for name in found}
        if not held:
            break
    return found


def _ways(contract: Contract) -> list[tuple[Contract, Mode]]:
    """Every arithmetic that the contract leaves open, first those that lose most for what they cost: at 4096 keys one
    that adds as tensor cores do takes as long as three others.
    """
    ways = [(one, mode) for one in _contracts(contract) for mode in _modes(one)]
    return sorted(ways, key=lambda way: (not way[1].biased, way[1].tensor_core))


def _contracts(contract: Contract) -> Iterator[Contract]:
    """The contract, of which row_sum may add either probs, and these be normalised before their cast; of codes that
    nobody saw decoded also with probs in float16, which keeps less below 2^-24.
    """
    narrow = "operands_dtype" in contract.assumed and contract.probs_dtype == "bfloat16"
    for dtype in (contract.probs_dtype, *(["float16"] if narrow else [])):
        either = contract.row_sum_of_cast is None and dtype != "float32"
        for of_cast in (False, True) if either else (contract.row_sum_of_cast,):
            yield replace(contract, probs_dtype=dtype, row_sum_of_cast=of_cast)
    # probs that are all but alike lose all but the same, which is another loss of theirs divided by their sum
    if contract.probs_normalised is None and contract.probs_dtype != "float32":
        yield replace(contract, probs_normalised=True, row_sum_of_cast=False)


def _modes(contract: Contract) -> Iterator[Mode]:
    """Every evaluation mode that the contract leaves open."""
    accumulations = {contract.accumulation, contract.accumulation_of_acc}
    for tensor_core in (False, True):
        if not tensor_core or accumulations != {"nearest"}:
            yield from (Mode(tensor_core, biased) for biased in (False, True))


def _largest(
    one: Compared, controls: Sequence[np.ndarray], dtype: np.dtype, axes: str, beyond: float, z: float
) -> Excess | None:
    """The excess of all elements, else of the lane with the largest z; None where there is none."""
    if dtype != np.float32:
        controls = [round_to(x, dtype) for x in controls]
    typical = np.maximum(one.statistical * one.budget, np.finfo(np.float64).tiny)
    seen = (one.state <= State.SUSPICIOUS) & np.isfinite(one.expected) & (one.budget > 0)
    seen &= np.logical_and.reduce([np.isfinite(x) for x in controls])
    # what exp makes of masked keys, and of others as far below the maximum
    seen &= (abs(one.expected) >= NEGLIGIBLE) | (abs(one.actual) >= NEGLIGIBLE)

    def square(x: np.ndarray) -> np.ndarray:
        return np.where(seen, np.minimum(abs(x - one.expected) / typical, LARGEST), 0.0) ** 2

    # a result is not nearer than half an ulp of float32
    least = LEAST**2 + (U * abs(np.where(seen, one.expected, 0.0)) / typical) ** 2
    other = np.maximum.reduce([square(x) for x in controls]) + least
    lanes = np.broadcast_to(np.arange(other.shape[-1]) % WARP, other.shape)
    squares = (square(one.actual), beyond**2 * other)
    errors, own, most, here, lanes = (by_row(x, axes) for x in (one.actual - one.expected, *squares, seen, lanes))
    tripped = [
        excess
        for lane, some in _groups(here, lanes, axes)
        if (excess := _excess(errors, own, most, some, (axes[-1], lane), beyond, z))
    ]
    # what is beyond doubt first, and all elements before a lane of them
    return min(tripped, key=lambda excess: (excess.z <= Z, excess.lane is not None, -excess.z), default=None)


def _groups(seen: np.ndarray, lanes: np.ndarray, axes: str) -> Iterator[tuple[int | None, np.ndarray]]:
    """All elements that are seen, and those of each lane where the last axis has several of a lane."""
    yield None, seen
    if axes[-1] in "kd" and lanes.max(initial=0) == WARP - 1:
        for lane in range(WARP):
            yield lane, seen & (lanes == lane)


def _excess(
    errors: np.ndarray,
    own: np.ndarray,
    most: np.ndarray,
    seen: np.ndarray,
    where: tuple[str, int | None],
    beyond: float,
    z: float,
) -> Excess | None:
    """The excess of the squared `errors` [row, element] in typical ones (`own`) that are `seen`, of the last axis and
    lane `where`, over the `most` that a correct kernel's are; None where there is none, or too few distinct rows.
    """
    if not seen.any() or own[seen].mean() <= most[seen].mean():
        return None
    of = distinct(errors, seen)
    rows = rows_seen(seen, of)
    if rows < FEWEST_TO_DOUBT:
        return None
    found = lean(own - most, seen, of)
    # too few rows for a variance: what would be beyond doubt is doubted
    far = beyond == DOUBTFUL and bool(own[seen].mean() > BEYOND**2 * most[seen].mean())
    if not (found.z > z if rows >= FEWEST_ROWS else far):
        return None
    return Excess(beyond * float(np.sqrt(own[seen].mean() / most[seen].mean())), found.z, rows, *where)
