"""A function that can be called again, on inputs of our choice: what each call should give, and how far off it may be.

Every experiment is a run of the user's own case with other numbers in q, k and v, so that what `out` should be, and its
budget, come of the same walk as any verdict. No reading has a tolerance of its own.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf

import numpy as np

from workbench.case.assumptions import usual
from workbench.case.case import Case
from workbench.case.fields import GIVEN
from workbench.case.masks import visible
from workbench.case.memory import POISONS, padded, poison_of
from workbench.case.stages import INPUTS, OUT, RESULTS
from workbench.expectation.compare import compared
from workbench.expectation.elements import Compared, State
from workbench.expectation.expectation import Expectation
from workbench.expectation.observed import Observed
from workbench.floats import DTYPES, to_float64
from workbench.readings.codebook import Codebook, codebooks
from workbench.reference.problem import Problem
from workbench.refusal import Refusal
from workbench.trace.trace import Trace
from workbench.work import TRIALS_OF_CALL, TRIALS_OF_READING, Work, trials

#: calls after which no map of elements is read on; words of codes, of two levels, are thrice as long
CALLS, CALLS_OF_CODES = 150, 250
#: times as many for more than FEW_KEYS keys, where reading all weights once takes 9 calls or more (head_dim 128)
OF_MANY_KEYS = 4
#: scores of a run that is measured, at most: each of a hundred runs is held against float64
LARGEST = 2**22
#: up to this many keys an experiment reads the weights of all; of more, of groups of RUN neighbours: more than a row of
#: a fragment, and than a swizzle reaches
FEW_KEYS, RUN = 1024, 32
#: digits that every dtype holds
DIGITS = 16
#: what float16 stores below 2^-14 has fewer bits; weights are read with this unit, so that those down to 2^-24 have all
UNIT_OF_FLOAT16 = 2.0**10


@dataclass(frozen=True, eq=False)
class Answer:
    """What a function returned for chosen inputs, in float64, with what it should have returned."""

    run: Trace  #: as it was made, on codes where the function takes these
    #: what codes of our choice stand for in this function, as far as its tables were read
    chosen: Mapping[str, np.ndarray] = field(default_factory=dict)
    #: whether budgets are those of a usual kernel in all that nobody declared, or of any that keeps the contract
    usual: bool = True

    @cached_property
    def trace(self) -> Trace:
        """The run of attention, of a run on codes that on what they stand for."""
        plain = Observed(self.run).dequantised.trace
        known = {name: x.astype(plain.inputs[name].dtype) for name, x in self.chosen.items()}
        stages = {name: x for name, x in plain.stages.items() if name in RESULTS}
        contract = usual(plain.contract) if self.usual else plain.contract
        inputs = {**plain.inputs, **known}
        return _settled(replace(plain, inputs=inputs, stages=stages, contract=contract, requested=(), rerun=None))

    @cached_property
    def _expectation(self) -> Expectation:
        return Expectation(Observed(self.trace), {}, statistics=False)

    @cached_property
    def compared(self) -> dict[str, Compared]:
        """out, and lse where it was returned, element by element."""
        return dict(compared(self._expectation, [*self.trace.stages]))

    @cached_property
    def out(self) -> np.ndarray:
        """[b, h, q, d] as it was returned, but for rows without keys that hold what some library makes of them."""
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
        return self.compared["out"].budget

    @property
    def wrong(self) -> np.ndarray:
        """Which elements of out are beyond their budgets, or not finite where they should be."""
        return _beyond(self.compared["out"])

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
        return self.compared["lse"].budget

    @property
    def wrong_lse(self) -> np.ndarray:
        """Which elements of lse are beyond their budgets."""
        return _beyond(self.compared["lse"])

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


def _settled(trace: Trace) -> Trace:
    """The trace with its rows without keys as they should be, where they hold what some library makes of them: the mean
    of v is nothing to be read.
    """
    e = Expectation(Observed(trace), {}, statistics=False)
    known = e.conventions
    if known is None and (trace.as_given is None or trace.case.sinks is None):
        return trace
    stages = dict(trace.stages)
    for name, found in compared(e, [*stages]):
        wrong = np.asarray(np.isin(found.state, (State.OUTSIDE, State.NAN, State.EMPTY)))
        wrong = np.asarray(wrong.any(-1)) if name == OUT else wrong
        # of finite numbers that hide and a sink the largest takes all: without it all keys count
        settled = ~visible(trace.case, trace.inputs).any(-1) if known is None else known.rows & ~wrong
        rows = np.broadcast_to(settled, wrong.shape)
        made = stages[name].copy()
        made[rows] = e.computed[name][rows]
        stages[name] = made
    return replace(trace, stages=stages, as_given=None)


def _beyond(found: Compared) -> np.ndarray:
    wrong = np.asarray(np.isin(found.state, (State.OUTSIDE, State.NAN, State.UNWRITTEN)))
    return wrong if wrong.any() else np.asarray(found.state == State.EMPTY)


class Target:
    """A traced function and the calls that were made of it."""

    def __init__(
        self, trace: Trace, effort: float = 1.0, work: Work | None = None, *, most: int = LARGEST, shared: bool = False
    ) -> None:
        """`effort`: how many times as many calls as usual read maps. `work`: after which a call is refused. `shared`: V
        may be a part of K, as nothing is chosen. Refusal for a trace at rest or of a part, one without `out`, and one
        of more than `most` scores.
        """
        self.effort = effort
        self.work = Work(inf) if work is None else work
        if trace.rerun is None:
            raise Refusal(
                f"{trace.called_with.trace or trace.target} is a dump: measure must call its target. "
                "Give a function or a kernel; diff, explain and show take a dump"
            )
        if (trace.case.shared_kv and not shared) or "out" not in trace.stages:
            why = "it returns no out" if "out" not in trace.stages else "its v is a part of its k"
            raise Refusal(f"{trace.target} cannot be measured: {why}")
        if (scores := trace.case.score_count) > most:
            raise Refusal(
                f"{trace.target} has too many scores to be called a hundred times: {scores:,}; the limit is {most:,}. "
                "Choose a smaller case: --seqlen 256 --heads 4"
            )
        if trace.box is not None:
            raise Refusal(f"{trace.target} can only be measured as a whole, not in {trace.box}: leave out --where")
        self.books: dict[str, Codebook] = codebooks(trace)  #: of inputs that are taken as codes
        self.coded = trace  #: as it was run
        self.trace = Observed(trace).dequantised.trace
        self.calls = 0
        self.whole: Target | None = None  #: of which this is a part: of a V that is a part of K the other dims
        # what stands behind the end of sequences is finite, so that it can be read
        self.behind = trace.case.ragged and trace.case.page_size is None
        turn = POISONS.index("benign") - trace.case.seed
        self.seed = trace.case.seed + (turn % len(POISONS) if self.behind else 0)
        self.natural = self() if self.behind else Answer(trace)

    @property
    def may_be_right(self) -> bool:
        """Whether out of the user's own run is within the budgets of some kernel, if not of a usual one."""
        return not Answer(self.coded, usual=False).wrong.any()

    @property
    def is_wrong(self) -> bool:
        """Whether out of the user's own run, or of that it is a part of, is beyond the budgets of any kernel."""
        some = [one for one in (self, self.whole) if one is not None]
        return any(one.natural.wrong.any() and not one.may_be_right for one in some)

    def use(self, name: str, values: np.ndarray, codes: np.ndarray) -> None:
        """Inputs of runs to come are made of these codes alone, bool for each code, which stand for `values` there; of
        all where they are too few.
        """
        book = replace(self.books[name], values=values, usable=codes & np.isfinite(values))
        if book.opposites.size:
            self.books[name] = book

    @property
    def spent(self) -> bool:
        """Whether so many calls were made that no more maps are read."""
        most = self.effort * (CALLS_OF_CODES if self.books else CALLS)
        return self.calls >= (most if self.some is None else OF_MANY_KEYS * most)

    @property
    def case(self) -> Case:
        """The user's own."""
        return self.trace.case

    @cached_property
    def unit(self) -> float:
        """What stands for 1 in V where weights are read."""
        return UNIT_OF_FLOAT16 if self.case.dtype == "float16" else 1.0

    @property
    def base(self) -> int:
        """Of the digits of which words in V are made: whole numbers that are exact there."""
        whole = "v" not in self.books or self.books["v"].holds(np.arange(DIGITS + 1))
        return DIGITS if whole else 2

    @cached_property
    def identity(self) -> "Weights":
        """The weights of the user's own q and k."""
        return self.weights()

    def inputs_of(self, x: np.ndarray, name: str) -> np.ndarray:
        """What the function gets for `x` in place of an input: of its shape and dtype, in float64."""
        whole = np.broadcast_to(x, self.trace.inputs[name].shape)
        if name in self.books:
            return self.books[name].decoded(*self.books[name].encoded(whole))
        return to_float64(np.ascontiguousarray(whole).astype(DTYPES[self.case.dtype]))

    def __call__(self, **chosen: np.ndarray) -> Answer:
        """The answer to q, k or v (broadcast to their shapes, rounded to the case's dtype or to codes), or to codes and
        scales as they are, in place of the user's.

        Raises Refusal where the function refuses its own case, and where `work` is over.
        """
        given: dict[str, np.ndarray] = {}
        read: dict[str, np.ndarray] = {}
        for name, x in chosen.items():
            if name not in self.trace.inputs:  # codes and scales as they are
                given[name] = x
                continue
            shape = self.trace.inputs[name].shape
            if name in self.books:
                codes, scale = self.books[name].encoded(x)  # what is alike in all heads once
                codes = np.ascontiguousarray(np.broadcast_to(codes, shape))
                given |= self.books[name].given(name, codes, scale)
                read[name] = self.books[name].decoded(codes, scale)
            else:
                given[name] = np.broadcast_to(np.asarray(x).astype(DTYPES[self.coded.case.dtype]), shape)
        assert self.coded.rerun is not None
        own = {name: x for name, x in self.coded.inputs.items() if name not in self.books}
        own |= {name: x for name, x in self.coded.stages.items() if self.books and name in self.coded.put_in}
        self._count()
        case = self.coded.case.but(distribution=GIVEN, seed=self.seed)
        return Answer(self.coded.rerun(case, {**own, **given}), read)

    def drawn(self, seed: int) -> Answer:
        """The answer on the user's case with other random numbers."""
        assert self.coded.rerun is not None
        self._count()
        return Answer(self.coded.rerun(self.coded.case.but(seed=seed)))

    def computes(self, reading: str) -> None:
        """Count what a reading, a key of TRIALS_OF_READING, computes beside calls; Refusal where `work` is over."""
        self._take(TRIALS_OF_READING[reading])

    def _count(self) -> None:
        """Count a call; Refusal where `work` allows no more."""
        self._take(TRIALS_OF_CALL)
        self.calls += 1

    def _take(self, cost: float) -> None:
        if self.work.over:
            why = "--seconds ran out" if self.work.late else "the effort ran out"
            raise Refusal(f"{self.coded.target} was not measured: {why} after {self.calls} calls")
        self.work.take(cost * trials(self.coded.case.score_count))

    @cached_property
    def some(self) -> np.ndarray | None:
        """Keys whose weights are read to find maps of q and k: as many as V has dims, RUN neighbours at a time; None
        (all) for at most FEW_KEYS keys.
        """
        keys, width = self.trace.inputs["v"].shape[2:]
        if keys <= FEW_KEYS:
            return None
        runs = max(1, width // RUN)
        begins = np.linspace(0, keys - RUN, runs).astype(int)
        return np.unique(begins[:, None] + np.arange(min(RUN, width)))

    def weights(
        self, dims: np.ndarray | None = None, keys: np.ndarray | None = None, **chosen: np.ndarray
    ) -> "Weights":
        """What `out` makes of columns of the identity in place of V, for the natural q and k or the `chosen` ones; of
        those `dims` of V alone, where others are not read, and of some `keys` [ascending].
        """
        count, width = self.trace.inputs["v"].shape[2:]
        columns = np.arange(width) if dims is None else dims
        asked = np.arange(count) if keys is None else keys
        answers, placed = [], []
        for first in range(0, len(asked), len(columns)):
            some = asked[first : first + len(columns)]
            v = np.zeros((count, width))
            v[some, columns[: len(some)]] = self.unit
            answers.append(self(**chosen, v=v))
            placed.append(v)
        base = self(**chosen, v=np.zeros(1)) if self.behind else None
        return Weights(tuple(answers), tuple(placed), self.unit, tuple(columns.tolist()), base, asked)


@dataclass(frozen=True, eq=False)
class Weights:
    """The weights of every key, [b, h, q, k]: as read, as they should be, and how far off they may be."""

    answers: tuple[Answer, ...]
    placed: tuple[np.ndarray, ...]  #: V of each of these, [k, d]
    unit: float
    dims: tuple[int, ...]  #: of V that were used
    #: of V that is 0, where there are rows behind the end of sequences, which are not ours to choose
    base: Answer | None
    keys: np.ndarray  #: those that were asked for, ascending

    def joined(self, outs: Sequence[np.ndarray]) -> np.ndarray:
        """The weights [b, h, q, k], each from the run whose V had a unit for its key; NaN for keys not asked for."""
        read = np.concatenate([out[..., at] for out, at in zip(outs, self._columns, strict=True)], -1) / self.unit
        count = len(self.placed[0])
        if len(self.keys) == count:
            return read
        found = np.full((*read.shape[:-1], count), np.nan)
        found[..., self.keys] = read
        return found

    @property
    def _columns(self) -> list[np.ndarray]:
        """For each run the dims of out that hold weights."""
        asked, count = len(self.keys), len(self.dims)
        return [np.array(self.dims[: min(count, asked - first)]) for first in range(0, asked, count)]

    @cached_property
    def read(self) -> np.ndarray:
        """As read, where V is what it should be."""
        return self.joined([one.out for one in self.answers])

    @cached_property
    def whole(self) -> Answer:
        """All runs as one, whose V has a dim for each key. A column of V has one entry that is not 0, whatever stands
        in the others, so that budgets are those of the single runs.
        """
        trace, columns = self.answers[0].trace, self._columns

        def wide(of: Callable[[Trace], np.ndarray]) -> np.ndarray:
            return np.concatenate([of(one.trace)[..., at] for one, at in zip(self.answers, columns, strict=True)], -1)

        v = wide(lambda x: x.inputs["v"])
        errors = dict(trace.input_errors)
        if "v" in errors:
            errors["v"] = wide(lambda x: np.broadcast_to(x.input_errors["v"], x.inputs["v"].shape))
        made = replace(
            trace, case=trace.case.but(head_dim_v=v.shape[-1]), inputs={**trace.inputs, "v": v}, input_errors=errors,
            stages={**trace.stages, "out": wide(lambda x: x.stages["out"])},
        )  # fmt: skip
        return Answer(made, usual=self.answers[0].usual)

    @cached_property
    def expected(self) -> np.ndarray:
        """As they should be, float64."""
        return self.whole.expected / self.unit

    @cached_property
    def allowed(self) -> np.ndarray:
        """How far each may be off."""
        return self.whole.allowed / self.unit

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
