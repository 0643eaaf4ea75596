"""Why the failing cases of a sweep fail: a few are searched, and what explains them is held to the others.

A search for the causes of one case takes a second or more, and to hold a cause to another case as long as to judge it.
So the smallest case of each wrong stage that has evidence enough is searched, its cause is held to all others in which
that stage is wrong, and one of those that it does not reproduce is searched next.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from workbench.explore.shrink.space import elements
from workbench.explore.sweep.ask import Answer, Ask
from workbench.explore.sweep.plan import Plan
from workbench.explore.sweep.row import Named, Row

#: cases of a wrong stage that are searched, at most, one cause having another number for each size of tile; and of
#: these, those of which nothing is known, each of which takes all the seconds of a search
SEARCHES, IN_VAIN = 8, 2
#: scores of a case that is searched, at least, where there is one: a dozen of wrong numbers prove no cause
ENOUGH = 1024
#: what asks, and gives each question with its answer
Asked = Callable[[Iterable[Ask]], Iterator[tuple[Ask, Answer]]]
#: a row with its causes, and the answer of a search, None where a cause was held to it
Told = Callable[[Row, Answer | None], None]


def size(row: Row) -> tuple[int, int, str]:
    """By which rows are put in order, the smallest first: elements of q, k and v, fields that are not as usual."""
    return elements(row.case), len(row.case.unusual), row.id


def seek(rows: Sequence[Row], plan: Plan, asked: Asked, told: Told) -> None:
    """Find the causes of all rows that have a wrong stage, and tell each row that has another cause than before."""
    known: dict[str, Row] = {row.id: row for row in sorted(rows, key=_searched_by) if row.origins}
    held: set[tuple[str, str, str]] = set()

    def tell(row: Row, causes: dict[str, Named | None], answer: Answer | None) -> None:
        known[row.id] = replace(row, causes={**row.causes, **causes})
        told(known[row.id], answer)

    while True:
        tries = [one for one in _tries(known.values()) if (one[0].id, one[1], one[2].id) not in held]
        by_id = {(row.case, stage): (row, stage, cause) for row, stage, cause in reversed(tries)}
        asks = [Ask(plan.target, row.case, plan.given, fits=cause, stage=stage) for row, stage, cause in by_id.values()]
        for ask, answer in asked(asks):
            row, stage, cause = by_id[ask.case, ask.stage]
            held.add((row.id, stage, cause.id))
            if answer.fits:
                tell(known[row.id], {stage: replace(cause, searched=False)}, None)
        if asks:
            continue
        searches = {row.case: row for row in _searches(known.values())}
        if not searches:
            return
        for ask, answer in asked(Ask(plan.target, case, plan.given, True, True) for case in searches):
            row = known[searches[ask.case].id]
            found = {stage: answer.causes.get(stage) for stage in row.origins if stage not in row.causes}
            tell(row, found, answer)


def _searched_by(row: Row) -> tuple[bool, int, tuple[int, int, str]]:
    """In which order cases are searched: the smallest with ENOUGH scores, then the largest of the others."""
    scores = row.case.score_count
    return scores < ENOUGH, max(ENOUGH - scores, 0), size(row)


def _open(rows: Iterable[Row]) -> Iterator[tuple[Row, str]]:
    """Wrong stages of which nobody knows why."""
    return ((row, stage) for row in rows for stage in row.origins if stage not in row.causes)


def _tries(rows: Iterable[Row]) -> list[tuple[Row, str, Named]]:
    """Causes that may be those of a wrong stage: what a search found of the same stage elsewhere."""
    rows = list(rows)
    found: dict[str, dict[str, Named]] = defaultdict(dict)
    for row in rows:
        for stage, cause in row.causes.items():
            if cause is not None and cause.searched:
                found[stage].setdefault(cause.id, cause)
    return [(row, stage, cause) for row, stage in _open(rows) for cause in found[stage].values()]


def _searches(rows: Iterable[Row]) -> list[Row]:
    """The first case of each wrong stage of which nobody knows why, unless many were searched."""
    rows = list(rows)
    searched = [
        (stage, cause) for row in rows for stage, cause in row.causes.items() if cause is None or cause.searched
    ]
    done, in_vain = (
        Counter(stage for stage, _ in searched),
        Counter(stage for stage, cause in searched if cause is None),
    )
    first: dict[str, Row] = {}
    for row, stage in _open(rows):
        if done[stage] < SEARCHES and in_vain[stage] < IN_VAIN:
            first.setdefault(stage, row)
    return list(first.values())
