"""One target on many cases: each is run and judged in a process of its own, and kept in one file as it comes."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Unpack

from workbench.case.case import Case
from workbench.case.given import SweepOptions
from workbench.explore.sweep.ask import Answer, Ask
from workbench.explore.sweep.causes import seek
from workbench.explore.sweep.groups import Group, groups
from workbench.explore.sweep.kept import Kept, folder_of
from workbench.explore.sweep.place import check_place
from workbench.explore.sweep.place import executor as executor_of
from workbench.explore.sweep.plan import TIMEOUT_S, Plan
from workbench.explore.sweep.pool import answers
from workbench.explore.sweep.row import DEFECT, REFUSED, Row
from workbench.explore.sweep.store import Store, continued, created, opened, plan_of
from workbench.progress import Tick, duration, step
from workbench.refusal import Refusal
from workbench.shown import shown_by

#: 1e9 bytes of the traces of failing cases
DISK_GB = 1.0


@dataclass(frozen=True, repr=False)
class Sweep:
    """What came of a sweep, so far."""

    path: Path  #: of its file
    plan: Plan
    rows: tuple[Row, ...]  #: in the order of the cases

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The failures, those that belong together, the most first."""
        return groups(self.rows)

    @property
    def outcomes(self) -> dict[str, int]:
        """Outcome -> how many cases have it."""
        return dict(Counter(row.outcome for row in self.rows).most_common())

    @property
    def left(self) -> int:
        """Cases that have not run."""
        return len(self.plan.cases) - len(self.rows)

    @property
    def fails(self) -> bool:
        """Whether a case fails, or nothing was judged."""
        return any(row.fails for row in self.rows) or not any(row.judged for row in self.rows)

    @property
    def refused(self) -> dict[str, int]:
        """Why the target did not take cases -> how many."""
        words = (row.reason.strip().splitlines()[-1] for row in self.rows if row.outcome == REFUSED)
        return dict(Counter(words).most_common())

    @property
    def defects(self) -> tuple[Row, ...]:
        """Cases in which the workbench itself failed."""
        return tuple(row for row in self.rows if row.outcome == DEFECT)

    @property
    def codes(self) -> int:
        """How many versions of the code ran; more than one where it was edited meanwhile."""
        return len({row.ran["code"] for row in self.rows if "code" in row.ran})

    def trace_of(self, row: Row) -> Path | None:
        """The file of the trace of a case; None where it was not kept."""
        path = folder_of(self.path) / f"{row.id}.safetensors"
        return path if path.is_file() else None

    def as_dict(self) -> dict[str, Any]:
        """The document `workbench.sweep/1`, of plain Python values."""
        return shown_by("sweep.document", self)

    def save_html(self, path: str | Path) -> None:
        """Write a page for a browser into a file; Refusal where nothing can be written there."""
        shown_by("page.page.save", shown_by("page.sweep.page", self), path)

    def __str__(self) -> str:
        return "\n".join(shown_by("sweep.lines", self))

    def _repr_html_(self) -> str:
        """The page, in a cell of Jupyter."""
        return str(shown_by("page.page.cell", shown_by("page.sweep.page", self)))

    def __repr__(self) -> str:
        return f"<Sweep of {self.plan.target}: {self.outcomes}>"


def sweep(
    target: str,
    cases: Iterable[Case],
    *,
    out: str | Path = "sweep.sqlite",
    resume: bool = False,
    timeout: float = TIMEOUT_S,
    memory_gb: float | None = None,
    disk_gb: float = DISK_GB,
    jobs: int | None = None,
    scheduler: str | None = None,
    executor: Executor | None = None,
    **given: Unpack[SweepOptions],
) -> Sweep:
    """What comes of `target` on each of `cases` (`random_cases` draws some), kept in the file `out` as it comes.

    A case that does not return within `timeout` seconds, whose process takes more than `memory_gb` (1e9 bytes; None:
    half of its machine's memory) or ends, is a row with the reason. Then the causes of what failed are sought, as
    `causes.seek` says. Traces of failing cases lie in a folder beside the file, of `disk_gb` at most.

    Cases run in `jobs` processes here (None: as many as processors), on the cluster of a Dask `scheduler`, or in an
    `executor` of concurrent.futures, whose tasks start these processes themselves. `resume` continues the file of a
    sweep that was stopped, of the same target, cases, options and source. `given`: options of `run`, of `plan.TAKEN`.

    Refusal for what breaks a rule of `Plan`, where there is such a file already, or one of another sweep; Unavailable
    where the machine lacks what a case needs, and where the executor gives up: what was judged is kept.

    >>> from tempfile import TemporaryDirectory
    >>> cases = [Case(seqlen=n, head_dim=8) for n in (8, 16)]
    >>> with TemporaryDirectory() as folder:
    ...     sweep("examples/numpy_attention.py:attention", cases, out=f"{folder}/sweep.sqlite", jobs=1).outcomes
    {'rounding': 2}
    """
    plan, path = Plan(target, tuple(cases), given, timeout, memory_gb), Path(out)
    if not disk_gb >= 0:
        raise Refusal(f"disk_gb must be a number of at least 0; got {disk_gb!r}")
    check_place(jobs, scheduler, executor)
    if plan.is_ours:
        from workbench.cuda import compiler  # noqa: F401 - Unavailable where no kernel is compiled, and not in each row
    with (
        executor_of(jobs, scheduler, executor) as pool,
        continued(path, plan) if resume else created(path, plan) as store,
    ):
        kept = Kept(store, disk_gb * 1e9)
        done = {row.id for row in store.rows()}
        asked = partial(answers, pool, limits=plan.limits)
        _judge(plan, store, kept, done, asked)
        _explain(plan, store, kept, asked)
    return load(path)


def load(path: str | Path) -> Sweep:
    """The sweep in a file, finished or not; Refusal for what is none."""
    with opened(Path(path)) as store:
        return Sweep(Path(path), plan_of(store), tuple(store.rows()))


def _judge(plan: Plan, store: Store, kept: Kept, done: set[str], asked: Any) -> None:
    """Judge the cases that have no row yet."""
    of_id = {Row(case, "").id: case for case in plan.cases}
    left = [case for id, case in of_id.items() if id not in done]
    if not left:
        return
    seen = Counter(row.outcome for row in store.rows())

    def asks() -> Iterator[Ask]:
        for case in left:
            yield Ask(plan.target, case, plan.given, keep=not kept.full)

    with step(f"judge {len(left)} case{'s' * (len(left) > 1)} of {plan.target}") as tick:
        begun = time.monotonic()
        for count, (ask, answer) in enumerate(asked(asks()), 1):
            row = Row(ask.case, **answer.fields)
            store.add(row)
            if answer.trace is not None:
                kept.add(row.id, answer.trace)
            seen[row.outcome] += 1
            _say(tick, count, len(left), time.monotonic() - begun, seen)
    store.commit()


def _say(tick: Tick, count: int, of: int, seconds: float, seen: Counter[str]) -> None:
    rate = count / max(seconds, 1e-9)
    outcomes = ", ".join(f"{n} {outcome}" for outcome, n in seen.most_common())
    tick(f"{count} of {of} done, {60 * rate:.0f} a minute, {duration((of - count) / rate)} left: {outcomes}")


def _explain(plan: Plan, store: Store, kept: Kept, asked: Any) -> None:
    """Seek the causes of what failed."""
    rows = [row for row in store.rows() if row.fails]
    with step(f"find causes of {sum(bool(row.origins) for row in rows)} failures of {plan.target}") as tick:

        def told(row: Row, answer: Answer | None) -> None:
            store.add(row)
            if answer is not None and kept.has(row.id):
                kept.mark_first(row.id)
            elif answer is not None and answer.trace is not None:
                kept.add(row.id, answer.trace, first=True)
            tick(f"{row.id}: {', '.join(one.text if one else 'unexplained' for one in row.causes.values())}")

        seek(rows, plan, asked, told)
    store.commit()
