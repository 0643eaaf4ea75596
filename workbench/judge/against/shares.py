"""How much of the difference of two right runs comes from which rounding: each run is computed again in float32 with
the casts and splits that its contract has, and with one after the other left out.

What a run's out is off float64, e, has a part for each of these, d = control(with) - control(without). Of D = e_a - e_b
the share of a rounding is <d_a - d_b, D> / <D, D>: 1 where the recomputed rounding is the difference, bit for bit.

A contract says what a kernel may do, and not what it did: a rounding is taken for one that happened where the errors
are nearer to what was recomputed with it than without it. One that did not happen has nothing in common with the
errors, and would have a share by chance, of several times the difference where it is large.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from workbench.case.assumptions import usual
from workbench.case.contract import Contract
from workbench.case.stages import OUT
from workbench.expectation.expectation import Expectation
from workbench.expectation.observed import Observed
from workbench.floats import round_to
from workbench.judge.control import control, has_control

#: dtypes of probs that are tried where nobody told which
PROBS = ("float32", "bfloat16", "float16")
#: of the square error that the next best dtype leaves, what the best may leave to be taken: chance leaves all but as
#: much, since roundings that did not happen have nothing in common with those that did
TELLS = 0.5


@dataclass(frozen=True)
class Rounding:
    """One rounding, or order, that a plain computation in float32 does not have."""

    kind: str  #: the same for both sides
    words: str
    plain: Callable[[Observed], Observed]  #: the same run without it


@dataclass(frozen=True)
class Errors:
    """What one side's out is off float64, and the part of each rounding in it."""

    own: np.ndarray  #: out - float64 [b, h, q, d]
    roundings: tuple[Rounding, ...]
    forward: Mapping[str, np.ndarray]  #: kind -> its part, where they are left out in the order of the data
    backward: Mapping[str, np.ndarray]  #: and in the other order

    def as_rows(self, rows: Callable[[np.ndarray], np.ndarray]) -> "Errors":
        """The same with every array as `rows` makes it."""
        forward, backward = ({kind: rows(x) for kind, x in of.items()} for of in (self.forward, self.backward))
        return Errors(rows(self.own), self.roundings, forward, backward)


@dataclass(frozen=True)
class Share:
    """The part of one rounding in the difference of two runs."""

    words: str
    dot: tuple[float, float]  #: <its part, D>, in both orders; of several calls they add up
    square: float  #: <D, D>

    @property
    def share(self) -> float:
        """Of the square difference, 1 for all; the mean of both orders."""
        return float(np.mean(self.dot)) / self.square if self.square else 0.0

    @property
    def interaction(self) -> float:
        """By how much both orders differ."""
        return abs(self.dot[0] - self.dot[1]) / self.square if self.square else 0.0


def errors(run: Observed, expected: np.ndarray) -> Errors | None:
    """Of a run whose out should be `expected` (float64); None where no control has its arithmetic."""
    if not has_control(run):
        return None
    own = run.dumped[OUT].astype(np.float64) - expected
    run = _as_seen(run.only((OUT,)), own, expected)
    run, roundings = _happened(run, own, expected)
    return Errors(own, roundings, _parts(run, roundings), _parts(run, roundings[::-1]))


def shares(a: Errors, b: Errors, names: tuple[str, str] = ("A", "B")) -> list[Share]:
    """The share of each rounding in what arises of the difference of out, the largest first."""
    difference = a.own - b.own
    square = float((difference**2).sum())
    found = []
    for kind in dict.fromkeys(one.kind for side in (a, b) for one in side.roundings):
        said = [
            f"{one.words} of {name}" for side, name in zip((a, b), names, strict=True) for one in side.roundings
            if one.kind == kind
        ]  # fmt: skip
        dots = tuple(
            float(((of_a.get(kind, 0.0) - of_b.get(kind, np.zeros(()))) * difference).sum())
            for of_a, of_b in ((a.forward, b.forward), (a.backward, b.backward))
        )
        found.append(Share(" and ".join(said), (dots[0], dots[1]), square))
    return sorted(found, key=lambda one: -abs(one.share))


def _roundings(run: Observed) -> tuple[Rounding, ...]:
    """Those of a run, in the order of the data."""
    contract, found = run.contract, []
    for field in ("scores_dtype", "probs_dtype"):
        if (dtype := getattr(contract, field)) != "float32":
            stage = field.removesuffix("_dtype")
            found.append(Rounding(field, f"{dtype} {stage}", _with(**{field: "float32"})))
    if contract.splits not in (None, 1):
        found.append(Rounding("splits", f"the split of keys into {contract.splits}", _unsplit))
    elif contract.block_k is not None and contract.block_k < run.case.seqlen_k:
        found.append(Rounding("tiles", f"tiles of {contract.block_k} keys", _with(block_k=None)))
    if contract.out_dtype != "float32":
        found.append(Rounding("out_dtype", f"{OUT} in {contract.out_dtype}", _with(out_dtype="float32")))
    return tuple(found)


def _happened(run: Observed, own: np.ndarray, expected: np.ndarray) -> tuple[Observed, tuple[Rounding, ...]]:
    """The run without what its errors are nearer to without, the farthest first, and the roundings that are left."""
    left, roundings = _left(run, own, expected), _roundings(run)
    while roundings:
        tried = [one.plain(run) for one in roundings]
        nearest = min(tried, key=lambda one: _left(one, own, expected))
        if (without := _left(nearest, own, expected)) > left:
            break
        run, left, roundings = (
            nearest,
            without,
            tuple(x for x, y in zip(roundings, tried, strict=True) if y is not nearest),
        )
    return run, roundings


def _left(run: Observed, own: np.ndarray, expected: np.ndarray) -> float:
    """What the recomputed run leaves of the errors, squared."""
    return float(((own - (_out(run) - expected)) ** 2).sum())


def _with(**fields: object) -> Callable[[Observed], Observed]:
    return lambda run: run.under(replace(run.contract, **fields))  # type: ignore[arg-type]


def _unsplit(run: Observed) -> Observed:
    """The run of a kernel that does not split the keys."""
    contract = replace(run.contract, splits=None, split_bounds=None, block_k=None)
    case = run.case.but(splits=None, block_k=None)
    return Observed(replace(run.trace, algorithm="flash", case=case, contract=contract))


def _parts(run: Observed, roundings: Sequence[Rounding]) -> dict[str, np.ndarray]:
    """The part of each rounding in out, as they are left out one after the other."""
    found, before = {}, _out(run)
    for one in roundings:
        run = one.plain(run)
        after = _out(run)
        found[one.kind] = before - after
        before = after
    return found


def _out(run: Observed) -> np.ndarray:
    """What the kernel's arithmetic makes of the inputs of a run."""
    made = control(Expectation(run, {}, statistics=False))[OUT]
    dtype = run.contract.out_dtype
    return (made if dtype == "float32" else round_to(made, dtype)).astype(np.float64)


def _as_seen(run: Observed, own: np.ndarray, expected: np.ndarray) -> Observed:
    """The run with what nobody declared as a usual kernel has it; but probs in the dtype that its errors tell."""
    promise: Contract = usual(run.contract)
    run = run.under(promise)
    if "probs_dtype" not in promise.open:
        return run
    left = {}
    for dtype in PROBS:
        left[dtype] = _left(run.under(replace(promise, probs_dtype=dtype)), own, expected)
    first, second = sorted(left, key=lambda dtype: left[dtype])[:2]
    return run.under(replace(promise, probs_dtype=first)) if left[first] < TELLS * left[second] else run
