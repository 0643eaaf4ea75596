"""Failures of a sweep that belong together: of one wrong stage and one class of causes, or that ended in one way."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from workbench.explore.sweep.causes import size
from workbench.explore.sweep.row import Named, Row, without_numbers
from workbench.explore.sweep.rules import Boundary, Rule, boundaries, rule_of
from workbench.judge.stage import RIGHT_VERDICTS

#: of a wrong stage that nothing explains, on the cases of it that were searched
UNEXPLAINED = "unexplained"


@dataclass(frozen=True)
class Group:
    """Failures that belong together."""

    origin: str | None  #: the wrong stage; None where the kernel did not return, or nothing could be judged
    kind: str  #: class of the causes, or UNEXPLAINED; without an origin the outcome
    text: str  #: the cause on the smallest case, or how that ended
    rows: tuple[Row, ...]  #: the smallest first
    rule: Rule | None
    boundaries: tuple[Boundary, ...]

    @property
    def searched(self) -> int:
        """Cases of which the causes were searched; to the others what was found there was held."""
        found = (cause for row in self.rows for stage, cause in row.causes.items() if stage == self.origin)
        return sum(cause is None or cause.searched for cause in found)

    @property
    def smallest(self) -> Row:
        """The smallest case."""
        return self.rows[0]


def groups(rows: Sequence[Row]) -> tuple[Group, ...]:
    """The groups of the failures of a sweep, the largest first. A case in which two stages are wrong on their own
    inputs is in two.
    """
    found: dict[tuple[str | None, str], list[Row]] = defaultdict(list)
    for row in sorted(rows, key=size):
        for key in _keys(row) if row.fails else ():
            found[key].append(row)
    made = []
    for (origin, kind), some in found.items():
        others = [row for row in rows if _is_other(row, origin)]
        text = _text(some[0], origin)
        rule, where = rule_of(some, others), boundaries(some, others)
        made.append(Group(origin, kind.split("\n")[0], text, tuple(some), rule, where))
    return tuple(sorted(made, key=lambda one: -len(one.rows)))


def _keys(row: Row) -> list[tuple[str | None, str]]:
    """The groups that a failing row is in."""
    if not row.origins or row.outcome == "gate":
        return [(None, f"{row.outcome}\n{without_numbers(_how(row))}")]
    return [(stage, _kind(row, stage)) for stage in row.origins]


def _kind(row: Row, stage: str) -> str:
    cause = row.causes.get(stage)
    return UNEXPLAINED if cause is None else cause.kind


def _is_other(row: Row, origin: str | None) -> bool:
    """Whether a row is right where those of a group are wrong: it passes, or the stage is right on its own inputs; the
    kernel returned, where those of the group did not.
    """
    if origin is None:
        return row.judged and row.outcome not in ("gate", "untestable")
    return (row.judged and not row.fails) or row.stages.get(origin, ("", None))[0] in RIGHT_VERDICTS


def _text(row: Row, origin: str | None) -> str:
    cause: Named | None = None if origin is None else row.causes.get(origin)
    if cause is not None:
        return cause.text
    return _how(row) if origin is None else (row.reason or "no known cause reproduces it")


def _how(row: Row) -> str:
    """How a row failed that has no wrong stage, in a line: the last of a traceback, else the first."""
    lines = [line for line in row.reason.splitlines() if line.strip()]
    if not lines:
        return row.outcome
    return (lines[-1] if row.outcome == "raised" else lines[0]).strip().removesuffix(":")
