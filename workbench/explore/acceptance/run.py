"""A verdict on a function that may be lazy or hostile: cases of a spec until one fails, or time is up."""

import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from workbench.explore.acceptance import families, reference_families
from workbench.explore.acceptance.caller import LOAD_S, Caller, started
from workbench.explore.acceptance.failure import Failure
from workbench.explore.acceptance.file import check, read, spec_of
from workbench.explore.acceptance.judging import Judge
from workbench.explore.acceptance.reference_judging import ReferenceJudge, asked
from workbench.explore.acceptance.reference_spec import ReferenceSpec
from workbench.explore.acceptance.spec import Spec
from workbench.explore.reference_shrink import ReferenceShrunk, shrink_reference
from workbench.explore.shrink.shrink import Shrunk, shrink
from workbench.foreign.find import name_of
from workbench.judge.explain.explain import Explained
from workbench.operations.reference.traced import each
from workbench.progress import step
from workbench.refusal import Refusal
from workbench.shown import shown_by

PASS, FAIL, UNFINISHED = "pass", "fail", "unfinished"


@dataclass(frozen=True, eq=False, repr=False)
class Acceptance:
    """The verdict on a function."""

    target: str
    spec: Spec | ReferenceSpec
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
    why: str = ""  #: why the first of the untestable cases was not judged, where that is known

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

    def explain(self, effort: float = 1.0) -> "Explained | Shrunk | ReferenceShrunk | None":
        """Why the first failing case fails, in a new process: its smallest form with the cause, or where its inputs are
        arrays the cause alone; by a reference its smallest form. None where no number is wrong, and where the call
        before matters, or how inputs lie, which no case says.
        """
        failure = self.failure
        if failure is None or failure.judged is None:
            return None
        one = failure.problem
        process = partial(_process, self.target, self.spec, self.options["unsafe"], self.options["memory_gb"])
        if isinstance(self.spec, ReferenceSpec):
            assert isinstance(one, reference_families.ReferenceProblem)
            if one.again or one.nudged or one.lying.words:
                return None
            with process() as caller:
                return shrink_reference(ReferenceJudge(caller, self.spec).judged_case, one.case, effort)
        assert isinstance(one, families.Problem)
        if one.before:
            return None
        with process() as caller:
            judge = Judge(caller, self.spec)
            judged = judge.judged(one, judge.called(one))
            if judged.origin is None:
                return None
            if one.inputs is None:
                return shrink(judged, effort)
            return replace(judged.explain(effort), alone=True)  # the process of the function ends here

    def as_dict(self) -> dict[str, Any]:
        """The document `workbench.accept/1`, of plain Python values."""
        return shown_by("acceptance.document", self)

    def __str__(self) -> str:
        return "\n".join(shown_by("acceptance.lines", self))

    def __repr__(self) -> str:
        return f"<Acceptance of {self.target}: {self.verdict}, {self.cases} cases>"

    def __bool__(self) -> bool:
        raise TypeError('the truth value of an Acceptance is ambiguous; use its verdict, such as .verdict == "pass"')


def accept(
    function: str | Callable[..., Any],
    spec: Spec | ReferenceSpec | str | Path | Mapping[str, Any] | None = None,
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
    None: forward attention, full and causal, grouped heads, lengths to 256. With `reference` and `inputs` it is of any
    function (`ReferenceSpec`), and these run in this process. `dtype` in place of the spec's. `seconds`:
    for cases, from the first answer on; the first failure ends them. `unsafe`: in a process beside this one, where
    Linux allows no namespaces. `memory_gb`: 1e9 bytes that its process may take. `seed`, None: of the operating system;
    `only`: one problem of that seed, its place in their order, to repeat it.

    Refusal for a spec that is none, and a function that cannot be found; Unavailable where there are no namespaces, and
    for a missing library or GPU.

    >>> found = accept("examples/numpy_attention.py:scale_twice", seconds=2, unsafe=True, seed=0)
    >>> found.verdict, found.failure.kind
    ('fail', 'wrong')
    """
    file = str(spec) if isinstance(spec, str | Path) else None
    found = _spec(spec)
    if dtype is not None:
        if isinstance(found, ReferenceSpec):
            found = replace(found, dtype=dtype).checked("dtype")
        else:
            found = replace(found, case={**found.case, "dtype": dtype})
            check(found, "dtype")
    if not seconds > 0 or not memory_gb > 0:
        raise Refusal(f"seconds and memory_gb must be above 0; got {seconds!r} and {memory_gb!r}")
    target = _named(function)
    seed = secrets.randbits(63) if seed is None else seed
    options = {"seconds": seconds, "dtype": dtype, "unsafe": unsafe, "memory_gb": memory_gb}
    names, problem = _problems(found, target, seed, unsafe)
    begun = time.monotonic()
    with _process(target, found, unsafe, memory_gb) as caller:
        judge: Any = ReferenceJudge(caller, found) if isinstance(found, ReferenceSpec) else Judge(caller, found)
        indices = count() if only is None else [only]
        failure = None
        due = names if only is None else (problem(only).family,)
        with step(f"judge cases of {target}, {seconds:g} s", seconds) as tick:
            since, until = begun, float("inf")
            for index in indices:
                if time.monotonic() >= until:
                    break
                failure = judge.failure_at(problem(index), index)
                if until == float("inf"):  # it was loaded, and had compiled what it compiles
                    since = time.monotonic()
                    until = since + seconds
                    caller.limit_s = max(seconds, _LEAST_S)
                if failure is not None:
                    break
                tick(f"{judge.judged_cases.total()} cases judged")
    loading, taken = since - begun, time.monotonic() - since
    return Acceptance(
        target, found, file, options, seed, dict(judge.judged_cases), due, dict(judge.untestable), judge.suspicious,
        judge.calls, taken, loading, judge.worst, judge.deterministic, failure,
        getattr(judge, "why", ""),
    )  # fmt: skip


#: seconds that a call may take, however little time there is for all
_LEAST_S = 10.0


def _problems(
    spec: Spec | ReferenceSpec, target: str, seed: int, unsafe: bool
) -> tuple[tuple[str, ...], Callable[[int], Any]]:
    """The families of a round, and the problem of each place in the order of problems. Refusal for a reference that
    cannot be traced.
    """
    if not isinstance(spec, ReferenceSpec):
        return tuple(families.families_of(spec)), partial(families.problem, spec, seed)
    _check_apart(spec, target, unsafe)
    names = reference_families.families_of(spec, asked(spec, spec.usual).inputs)
    return tuple(names), partial(reference_families.problem, spec, names, seed)


def _check_apart(spec: ReferenceSpec, target: str, unsafe: bool) -> None:
    """Refusal for a function that lies in a file which this process imports."""
    ours = [one for one in (*each(spec.reference), spec.inputs) if isinstance(one, str)]
    same = [one for one in ours if Path(one.rpartition(":")[0]).resolve() == Path(target.rpartition(":")[0]).resolve()]
    if same and not unsafe:
        raise Refusal(
            f"{target} lies in the file of {same[0]}, which runs in this process: move it to a file of its own, or if "
            "you trust it, pass --unsafe"
        )


def _spec(given: Spec | ReferenceSpec | str | Path | Mapping[str, Any] | None) -> Spec | ReferenceSpec:
    if given is None:
        return Spec()
    if isinstance(given, ReferenceSpec):
        return given.checked("spec")
    if isinstance(given, Spec):
        check(given, "spec")
        return given
    return spec_of(given, "spec") if isinstance(given, Mapping) else read(given)


def _named(function: str | Callable[..., Any]) -> str:
    """The name by which another process finds a function; Refusal of one that has none."""
    if isinstance(function, str):
        return function
    if (name := name_of(function)) is None:
        raise Refusal(f"{function!r} cannot be loaded in another process: give it as path.py:function")
    return name


@contextmanager
def _process(target: str, spec: Spec | ReferenceSpec, unsafe: bool, memory_gb: float) -> Iterator[Caller]:
    where: dict[str, Any] = {"arrays": spec.arrays, "device": spec.device, "fresh": spec.fresh}
    where |= {"layout": spec.layout} if isinstance(spec, Spec) else {"plain": True}
    with started(target, **where, unsafe=unsafe, memory_gb=memory_gb) as caller:
        caller.limit_s = LOAD_S
        yield caller
