"""A function that can be called again, on inputs of our choice: what each call should give, and how far off it may be.

Every experiment is a run of the user's own case with other numbers in q, k and v, so that what `out` should be, and its
budget, come of the same walk as any verdict. No reading has a tolerance of its own.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

import numpy as np

from workbench.case.assumptions import usual
from workbench.case.case import Case
from workbench.case.fields import GIVEN
from workbench.case.memory import POISONS, padded, poison_of
from workbench.case.stages import INPUTS
from workbench.expectation.compare import compared
from workbench.expectation.elements import Compared, State
from workbench.expectation.expectation import Expectation
from workbench.floats import DTYPES, to_float64
from workbench.reference.problem import Problem
from workbench.refusal import Refusal
from workbench.trace.trace import Trace

#: calls after which no map of elements is read on
CALLS = 150
#: what float16 stores below 2^-14 has fewer bits; weights are read with this unit, so that those down to 2^-24 have all
UNIT_OF_FLOAT16 = 2.0**10


@dataclass(frozen=True, eq=False)
class Answer:
    """What a function returned for chosen inputs, in float64, with what it should have returned."""

    trace: Trace

    @cached_property
    def _expectation(self) -> Expectation:
        return Expectation(self.trace, {}, statistics=False)

    @cached_property
    def _compared(self) -> dict[str, Compared]:
        return dict(compared(self._expectation, [*self.trace.stages]))

    @cached_property
    def out(self) -> np.ndarray:
        """[b, h, q, d] as it was returned."""
        return to_float64(self.trace.stages["out"])

    @property
    def expected(self) -> np.ndarray:
        """What out should be."""
        return self._expectation.computed["out"]

    @property
    def allowed(self) -> np.ndarray:
        """How far each element of out may be from that by the arithmetic of a usual kernel, half an ulp of the dtype in
        which it is stored at least.
        """
        return self._compared["out"].budget

    @property
    def wrong(self) -> np.ndarray:
        """Which elements of out are beyond their budgets, or not finite where they should be."""
        return _beyond(self._compared["out"])

    @cached_property
    def lse(self) -> np.ndarray | None:
        """[b, h, q] in natural units; None where it is not returned."""
        return self._expectation.value("lse") if "lse" in self.trace.stages else None

    @property
    def expected_lse(self) -> np.ndarray:
        """What lse should be, in natural units."""
        return self._expectation.computed["lse"]

    @property
    def allowed_lse(self) -> np.ndarray:
        """As `allowed`, of lse."""
        return self._compared["lse"].budget

    @property
    def wrong_lse(self) -> np.ndarray:
        """Which elements of lse are beyond their budgets."""
        return _beyond(self._compared["lse"])

    @cached_property
    def memory(self) -> dict[str, np.ndarray]:
        """q, k and v in float64 as they lay in memory, with what stood behind the end of sequences."""
        found = {name: to_float64(self.trace.inputs[name]) for name in INPUTS}
        case = self.trace.case
        if case.ragged and case.page_size is None:
            for name in "kv":
                rows = padded(self.trace.inputs[name], case.lengths_k, poison_of(case), case.seed)
                found[name] = to_float64(rows)
        return found

    @property
    def sinks(self) -> np.ndarray | None:
        """Logits of sinks, [1, h, 1]."""
        return self.problem.inputs.get("sinks")

    @cached_property
    def problem(self) -> Problem:
        """The run in float64."""
        return self._expectation.problem


def _beyond(found: Compared) -> np.ndarray:
    return np.asarray(np.isin(found.state, (State.OUTSIDE, State.NAN, State.UNWRITTEN)))


class Target:
    """A traced function and the calls that were made of it."""

    def __init__(self, trace: Trace, seconds: float = inf) -> None:
        """Refusal for a trace at rest, and for one without `out`. `seconds`: after which a call is refused."""
        self.until = time.monotonic() + seconds
        if trace.rerun is None:
            raise Refusal(f"{trace.target} cannot be measured: its trace is at rest, and nothing can be run again")
        if trace.case.codes is not None or trace.case.shared_kv or "out" not in trace.stages:
            raise Refusal(
                f"{trace.target} cannot be measured: it takes q, k and v as codes, v as a part of k, or gives no out"
            )
        self.trace = trace
        self.calls = 0
        # what stands behind the end of sequences is finite, so that it can be read
        self.behind = trace.case.ragged and trace.case.page_size is None
        turn = POISONS.index("benign") - trace.case.seed
        self.seed = trace.case.seed + (turn % len(POISONS) if self.behind else 0)
        self.natural = self() if self.behind else Answer(_as_usual(trace))

    @property
    def may_be_right(self) -> bool:
        """Whether out of the user's own run is within the budgets of some kernel, if not of a usual one."""
        kept = {name: x for name, x in self.trace.stages.items() if name in ("out", "lse")}
        return not Answer(replace(self.trace, stages=kept, requested=(), rerun=None)).wrong.any()

    @property
    def spent(self) -> bool:
        """Whether so many calls were made that no more maps are read."""
        return self.calls >= CALLS

    @property
    def case(self) -> Case:
        """The user's own."""
        return self.trace.case

    @cached_property
    def unit(self) -> float:
        """What stands for 1 in V where weights are read."""
        return UNIT_OF_FLOAT16 if self.case.dtype == "float16" else 1.0

    @cached_property
    def identity(self) -> "Weights":
        """The weights of the user's own q and k."""
        return self.weights()

    def inputs_of(self, x: np.ndarray, name: str) -> np.ndarray:
        """What the function gets for `x` in place of an input: of its shape and dtype, in float64."""
        whole = np.broadcast_to(x, self.trace.inputs[name].shape)
        return to_float64(np.ascontiguousarray(whole).astype(DTYPES[self.case.dtype]))

    def __call__(self, **chosen: np.ndarray) -> Answer:
        """The answer to q, k or v (broadcast to their shapes, rounded to the case's dtype) in place of the user's.

        Raises Refusal where the function refuses its own case, and where time is up.
        """
        assert self.trace.rerun is not None
        if time.monotonic() > self.until:
            raise Refusal(f"{self.trace.target}: time was up after {self.calls} calls")
        given: dict[str, np.ndarray] = dict(self.trace.inputs)
        for name, x in chosen.items():
            shape = self.trace.inputs[name].shape
            given[name] = np.ascontiguousarray(np.broadcast_to(x, shape)).astype(DTYPES[self.case.dtype])
        self.calls += 1
        return Answer(_as_usual(self.trace.rerun(self.case.but(distribution=GIVEN, seed=self.seed), given)))

    def drawn(self, seed: int) -> Answer:
        """The answer on the user's case with other random numbers."""
        assert self.trace.rerun is not None
        self.calls += 1
        kind = "normal" if self.case.distribution == GIVEN else self.case.distribution
        return Answer(_as_usual(self.trace.rerun(self.case.but(seed=seed, distribution=kind))))

    def weights(self, dims: np.ndarray | None = None, **chosen: np.ndarray) -> "Weights":
        """What `out` makes of columns of the identity in place of V, for the natural q and k or the `chosen` ones; of
        those `dims` of V alone, where others are not read.
        """
        keys, width = self.trace.inputs["v"].shape[2:]
        columns = np.arange(width) if dims is None else dims
        answers, placed = [], []
        for first in range(0, keys, len(columns)):
            count = min(len(columns), keys - first)
            v = np.zeros((keys, width))
            v[first + np.arange(count), columns[:count]] = self.unit
            answers.append(self(**chosen, v=v))
            placed.append(v)
        base = self(**chosen, v=np.zeros(1)) if self.behind else None
        return Weights(tuple(answers), tuple(placed), self.unit, tuple(columns.tolist()), base)


@dataclass(frozen=True, eq=False)
class Weights:
    """The weights of every key, [b, h, q, k]: as read, as they should be, and how far off they may be."""

    answers: tuple[Answer, ...]
    placed: tuple[np.ndarray, ...]  #: V of each of these, [k, d]
    unit: float
    dims: tuple[int, ...]  #: of V that were used
    #: of V that is 0, where there are rows behind the end of sequences, which are not ours to choose
    base: Answer | None

    def joined(self, outs: Sequence[np.ndarray]) -> np.ndarray:
        """[b, h, q, k] of what each answer has at the dims of its keys."""
        keys, count = len(self.placed[0]), len(self.dims)
        parts = [
            out[..., self.dims[: min(count, keys - first)]]
            for out, first in zip(outs, range(0, keys, count), strict=True)
        ]
        return np.concatenate(parts, -1) / self.unit

    @cached_property
    def read(self) -> np.ndarray:
        """As read, where V is what it should be."""
        return self.joined([one.out for one in self.answers])

    @cached_property
    def expected(self) -> np.ndarray:
        """As they should be, float64."""
        return self.joined([one.expected for one in self.answers])

    @cached_property
    def allowed(self) -> np.ndarray:
        """How far each may be off."""
        return self.joined([one.allowed for one in self.answers])

    @cached_property
    def share(self) -> tuple[np.ndarray, float]:
        """How far weights of a row may be off as a share of what they are, [b, h, q, 1], and the least that one may."""
        with np.errstate(all="ignore"):
            share = np.where(self.expected > 0, self.allowed / self.expected, np.nan)
            of_row = np.nanmedian(share, -1, keepdims=True)
        of_all = np.nanmedian(share) if np.isfinite(share).any() else 0.0
        return np.where(np.isfinite(of_row), of_row, of_all), float(np.nanmin(self.allowed))

    @cached_property
    def wrong(self) -> np.ndarray:
        """Which are beyond their budget."""
        with np.errstate(invalid="ignore"):
            return ~(abs(self.read - self.expected) <= self.allowed)


def _as_usual(trace: Trace) -> Trace:
    """`out` and `lse` alone, promised to be those of a usual kernel in all that nobody declared."""
    stages = {name: x for name, x in trace.stages.items() if name in ("out", "lse")}
    return replace(trace, stages=stages, contract=usual(trace.contract), requested=(), rerun=None)
