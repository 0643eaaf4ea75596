"""A verdict on a function that may be lazy or hostile: cases of a spec until one fails, or time is up."""

import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from workbench.case.case import Case
from workbench.case.fields import GIVEN
from workbench.case.inputs import anew, by_name
from workbench.case.options import Options
from workbench.case.stages import INPUTS
from workbench.explore.acceptance.arena import Lying
from workbench.explore.acceptance.caller import LOAD_S, LSE, OUT, Answer, Caller, Fault, started
from workbench.explore.acceptance.families import Problem, families_of, problem
from workbench.explore.acceptance.file import check, of_plain, read
from workbench.explore.acceptance.spec import Spec
from workbench.explore.shrink.shrink import Shrunk, shrink
from workbench.foreign import adapters
from workbench.foreign.call import run_foreign
from workbench.foreign.find import name_of
from workbench.judge.diff import Diff, diff
from workbench.judge.explain.explain import Explained
from workbench.judge.fails import classed, failing
from workbench.judge.table import run_row
from workbench.progress import step
from workbench.refusal import Refusal
from workbench.shown import shown_by
from workbench.trace.trace import Trace

PASS, FAIL, UNFINISHED = "pass", "fail", "unfinished"
#: what fails; a case of which nothing could be judged does not count
_FAILS = failing("bug") - {"untestable"}
#: what fails as of assertions in tests, but on other inputs of the case, too: within their budgets right kernels leave
#: what is usual on one case of some hundred, mostly where sums cancel (transposed_scores of campaigns/styles did)
_DOUBTED = failing("evidence") - _FAILS - {"untestable"}
#: other inputs, all of which have to leave it
_OTHERS = 2
#: every so many problems the call is made twice
_TWICE = 4
#: seconds for the cause and the smallest case, where these are asked for
EXPLAIN_S = 30.0


@dataclass(frozen=True, eq=False)
class Failure:
    """The first case that failed."""

    problem: Problem
    index: int  #: its place in the order of problems
    kind: str  #: wrong, raised, overwritten, dtype, time, memory, ended, or bits: other ones than without its batch
    words: str
    judged: Diff | None = None  #: where numbers are wrong


@dataclass(frozen=True, eq=False, repr=False)
class Acceptance:
    """The verdict on a function."""

    target: str
    spec: Spec
    spec_file: str | None
    options: Mapping[str, Any]  #: seconds, dtype, unsafe and memory_gb, as they were asked
    seed: int  #: of the problems
    families: Mapping[str, int]  #: family -> cases that were judged
    due: tuple[str, ...]  #: families of a round, all of which a pass needs
    untestable: Mapping[str, int]  #: family -> cases of which nothing could be judged: any kernel may overflow there
    suspicious: int  #: cases that passed, and are suspicious by what nobody declared
    calls: int
    seconds: float  #: since the function's process had answered once
    loading: float  #: seconds before that
    worst: float | None  #: x of budget, of all cases that passed
    deterministic: bool | None  #: whether the bits of calls that were made twice were the same; None of none
    failure: Failure | None

    @property
    def cases(self) -> int:
        """Cases that were judged."""
        return sum(self.families.values())

    @property
    def lacking(self) -> tuple[str, ...]:
        """Families of which time was too short for a case."""
        return tuple(name for name in dict.fromkeys(self.due) if name not in {*self.families, *self.untestable})

    @property
    def unjudged(self) -> tuple[str, ...]:
        """Families of none of whose cases anything could be judged."""
        return tuple(name for name in dict.fromkeys(self.due) if name in self.untestable and name not in self.families)

    @property
    def verdict(self) -> str:
        """pass: every family was run, most cases were judged, and nothing failed; fail; unfinished: nothing failed, and
        time was too short, or too little could be judged.
        """
        if self.failure is not None:
            return FAIL
        return UNFINISHED if self.lacking or self.cases <= sum(self.untestable.values()) else PASS

    @property
    def passed(self) -> bool:
        """Whether the verdict is pass."""
        return self.verdict == PASS

    def explain(self, seconds: float = EXPLAIN_S) -> "Explained | Shrunk | None":
        """Why the first failing case fails, in a new process: its smallest form with the cause, or where its inputs are
        arrays the cause alone. None where nothing failed by numbers.
        """
        failure = self.failure
        if failure is None or failure.judged is None:
            return None
        asked = partial(_process, self.target, self.spec, self.options["unsafe"], self.options["memory_gb"])
        with asked() as caller:
            judge = _Judge(caller, self.spec)
            judged = judge.judged(failure.problem, judge.called(failure.problem))
            if judged.origin is None:
                return None
            if failure.problem.inputs is None:
                return shrink(judged, seconds=seconds)
            return judged.explain(seconds)

    def as_dict(self) -> dict[str, Any]:
        """The document `workbench.accept/1`, of plain Python values."""
        return shown_by("acceptance.document", self)

    def __str__(self) -> str:
        return "\n".join(shown_by("acceptance.lines", self))

    def __repr__(self) -> str:
        return f"<Acceptance of {self.target}: {self.verdict}, {self.cases} cases>"

    def __bool__(self) -> bool:
        raise TypeError('the truth of an Acceptance is ambiguous; use its verdict, such as .verdict == "pass"')


def accept(
    function: str | Callable[..., Any],
    spec: Spec | str | Path | Mapping[str, Any] | None = None,
    *,
    seconds: float = 10.0,
    dtype: str | None = None,
    unsafe: bool = False,
    memory_gb: float = 8.0,
    seed: int | None = None,
    only: int | None = None,
) -> Acceptance:
    """The verdict on a function that may be lazy, or hostile: whether it does what `spec` says, on cases that it cannot
    know, within error budgets.

    `function` is path.py:function, the name of a function of an installed package, or a function at the top of a file,
    which is loaded anew in a process of its own, without network. `spec`: a TOML file, or its contents as a mapping;
    None: forward attention, full and causal, grouped heads, lengths to 256. `dtype` in place of the spec's. `seconds`:
    for cases, from the first answer on; the first failure ends them. `unsafe`: in a process beside this one, where
    Linux allows no namespaces. `memory_gb`: 1e9 bytes that its process may take. `seed`, None: of the operating system;
    `only`: one problem of that seed, its place in their order, to repeat it.

    Refusal for a spec that is none, and a function that cannot be found; Unavailable where there are no namespaces, and
    for a missing library or GPU.
    """
    file = str(spec) if isinstance(spec, str | Path) else None
    found = _spec(spec)
    if dtype is not None:
        found = replace(found, case={**found.case, "dtype": dtype})
        check(found, "dtype")
    if not seconds > 0 or not memory_gb > 0:
        raise Refusal(f"seconds and memory_gb must be above 0; got {seconds!r} and {memory_gb!r}")
    target = _named(function)
    seed = secrets.randbits(63) if seed is None else seed
    asked = {"seconds": seconds, "dtype": dtype, "unsafe": unsafe, "memory_gb": memory_gb}
    begun = time.monotonic()
    with _process(target, found, unsafe, memory_gb) as caller:
        judge = _Judge(caller, found)
        indices = iter([only]) if only is not None else _endless()
        failure = None
        due = tuple(families_of(found)) if only is None else (problem(found, seed, only).family,)
        with step(f"judge cases of {target}, {seconds:g} s", seconds) as tick:
            since, until = begun, float("inf")
            for index in indices:
                if time.monotonic() >= until:
                    break
                failure = judge.failure_at(problem(found, seed, index), index)
                if until == float("inf"):  # it was loaded, and had compiled what it compiles
                    since = time.monotonic()
                    until = since + seconds
                    caller.limit_s = max(seconds, _LEAST_S)
                if failure is not None:
                    break
                tick(f"{judge.judged_cases.total()} cases judged")
    loading, taken = since - begun, time.monotonic() - since
    return Acceptance(
        target, found, file, asked, seed, dict(judge.judged_cases), due, dict(judge.untestable), judge.suspicious,
        judge.calls, taken, loading, judge.worst, judge.deterministic, failure,
    )  # fmt: skip


#: seconds that a call may take, however little time there is for all
_LEAST_S = 10.0


def _endless() -> Iterator[int]:
    index = 0
    while True:
        yield index
        index += 1


def _spec(given: Spec | str | Path | Mapping[str, Any] | None) -> Spec:
    if given is None:
        return Spec()
    if isinstance(given, Spec):
        check(given, "spec")
        return given
    return of_plain(given, "spec") if isinstance(given, Mapping) else read(given)


def _named(function: str | Callable[..., Any]) -> str:
    """The name by which another process finds a function; Refusal of one that has none."""
    if isinstance(function, str):
        return function
    if (name := name_of(function)) is None:
        raise Refusal(
            f"{function!r} is a callable that no other process has: give it as path.py:function, so that it can be "
            "loaded in a process of its own"
        )
    return name


@contextmanager
def _process(target: str, spec: Spec, unsafe: bool, memory_gb: float) -> Iterator[Caller]:
    where: dict[str, Any] = {"arrays": spec.arrays, "device": spec.device, "layout": spec.layout}
    with started(target, **where, unsafe=unsafe, memory_gb=memory_gb) as caller:
        caller.limit_s = LOAD_S
        yield caller


@dataclass(eq=False)
class _Judge:
    """Judges calls, and counts."""

    caller: Caller
    spec: Spec
    judged_cases: Counter[str] = field(default_factory=Counter)
    untestable: Counter[str] = field(default_factory=Counter)
    suspicious: int = 0
    calls: int = 0
    worst: float | None = None
    deterministic: bool | None = None
    stale: np.ndarray | None = None  #: a right answer of another case

    def failure_at(self, one: Problem, index: int) -> Failure | None:
        """What fails on a problem; None where nothing does."""
        failure = partial(Failure, one, index)
        try:
            answer = self.called(one)
            if self.spec.lse and LSE not in answer.stages:
                return failure("raised", "it returned no lse, which the spec asks for")
            judged = self.judged(one, answer)
            if classed(judged) in _FAILS:
                return failure("wrong", "numbers are outside their budgets", judged)
            if classed(judged) in _DOUBTED and self._doubted_again(one):
                return failure("wrong", "numbers are within their budgets, but those of no known kernel", judged)
            if index % _TWICE == 0 and (second := self._other_bits(one, answer)) is not None:
                judged = self.judged(one, second)
                if classed(judged) in _FAILS:
                    return failure("wrong", "the second of two calls gives wrong numbers", judged)
            if one.alone is not None and (said := self._parts_alone(one, answer)):
                return failure("bits", said)
        except Fault as fault:
            return failure(fault.kind, str(fault))
        if judged.verdict == "untestable":
            self.untestable[one.family] += 1
            return None
        self.judged_cases[one.family] += 1
        self.suspicious += judged.verdict in ("suspicious", "biased")
        over = run_row(judged).over_budget
        self.worst = over if self.worst is None or (over is not None and over > self.worst) else self.worst
        self.stale = answer.stages[OUT]
        return None

    def called(self, one: Problem) -> Answer:
        """The answer to a problem."""
        if one.before is not None:
            self._call(one.case, one.before, one.lying)
        return self._call(one.case, one.arrays, one.lying)

    def judged(self, one: Problem, answer: Answer) -> Diff:
        """The judgement of an answer, made after it is here."""
        return diff(self._trace(one.case, one.inputs, answer))

    def _doubted_again(self, one: Problem) -> bool:
        """Whether on other inputs of a case, of N(0, 1), a function leaves what is usual, too."""
        for seed in np.random.default_rng(one.case.seed).integers(2**32, size=_OTHERS):
            other = Problem("random", one.case.but(distribution="normal", input_std=1.0, seed=int(seed)))
            if classed(self.judged(other, self.called(other))) not in {*_FAILS, *_DOUBTED}:
                return False
        return True

    def _call(self, case: Case, arrays: Mapping[str, np.ndarray], lying: Lying) -> Answer:
        self.calls += 1
        return self.caller.call(case, arrays, lying, self.stale if self.calls % 2 else None)

    def _other_bits(self, one: Problem, answer: Answer) -> Answer | None:
        """A second answer to the same call, where its bits are others."""
        second = self._call(one.case, one.arrays, one.lying)
        same = {name: x.tobytes() for name, x in second.stages.items()} == {
            name: x.tobytes() for name, x in answer.stages.items()
        }
        self.deterministic = same and self.deterministic is not False
        return None if same else second

    def _parts_alone(self, one: Problem, answer: Answer) -> str:
        """Where a sequence without the others of its batch has other bits; empty where it has none."""
        b, case = one.alone, one.case
        if b is None or case.ragged or case.batch == 1:
            return ""
        arrays = {name: x[b : b + 1] for name, x in one.arrays.items()}
        alone = self._call(case.but(batch=1), arrays, one.lying)
        for name, x in alone.stages.items():
            if name in answer.stages and x.tobytes() != np.ascontiguousarray(answer.stages[name][b : b + 1]).tobytes():
                return f"{name} of sequence {b} has other bits in a batch of {case.batch} than alone"
        return ""

    def _trace(self, case: Case, inputs: Mapping[str, np.ndarray] | None, answer: Answer) -> Trace:
        """The run as a trace, which can be run again in the function's process."""
        target, stages = self.caller.target, dict(answer.stages)
        boxes = case.but(page_size=None) if case.page_size is not None else case
        if inputs is not None:
            boxes = boxes.but(distribution=GIVEN)

        def gave(q: Any, k: Any, v: Any, *, seqlens_q: Any = None, seqlens_k: Any = None, **_: Any) -> Any:
            return stages  # lengths are keywords, so that q, k and v come in boxes

        options = Options(inputs=None if inputs is None else by_name(case, inputs), contract=self._contract(case))
        trace = run_foreign(gave, boxes, options, name=target)

        def again(other: Case, given: Mapping[str, np.ndarray] | None = None) -> Trace:
            if given is None:
                other, given = anew(other, options.inputs)
            arrays = {name: x for name, x in by_name(other, given).items() if name in INPUTS}
            run = other if case.page_size is None else other.but(page_size=case.page_size)
            try:
                return self._trace(run, given, self._call(run, arrays, Lying()))
            except Fault as fault:
                raise Refusal(f"{target}: {fault}") from None

        called = Options(
            arrays=self.spec.arrays, device=self.spec.device, layout=self.spec.layout, contract=self.spec.contract
        )
        return replace(
            trace, rerun=again, resident=None, provenance=None, find_lines=dict, called_with=called.printable()
        )

    def _contract(self, case: Case) -> Any:
        """What the function promises: what the spec says, else what is known of a function of a package."""
        if self.spec.contract is not None:
            return self.spec.contract
        adapter = adapters.known(self.caller.target)
        return None if adapter is None or not adapter.contract else adapter.contract
