"""Two sweeps of the same cases, such as of a kernel before and after a change: what is worse, better, of other bits."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from workbench.case.case import Case
from workbench.explore.sweep.row import Row
from workbench.explore.sweep.sweep import Sweep, load
from workbench.judge.stage import RIGHT_VERDICTS
from workbench.refusal import Refusal
from workbench.shown import shown_by

WORSE, BETTER, CHANGED, SAME, ONLY_OLD, ONLY_NEW = "worse", "better", "changed", "same", "only in OLD", "only in NEW"
#: outcomes that are neither right nor wrong, from mild to bad: a case that is not judged is worse than a doubt, and a
#: wrong result is worse than none
_DOUBTS = ("suspicious", "evidence", "biased")


@dataclass(frozen=True)
class Pair:
    """A case in two sweeps."""

    old: Row | None
    new: Row | None

    @property
    def case(self) -> Case:
        """The case."""
        row = self.new or self.old
        assert row is not None
        return row.case

    @property
    def id(self) -> str:
        """Of the case."""
        row = self.new or self.old
        assert row is not None
        return row.id

    @cached_property
    def change(self) -> str:
        """Worse or better by the class of the outcome: right (exact, rounding), suspicious, evidence, biased, not
        judged (refused, or a defect of the workbench), failing. In one class: changed where out has other bits, or it
        fails otherwise.
        """
        if self.old is None or self.new is None:
            return ONLY_NEW if self.old is None else ONLY_OLD
        before, now = _class(self.old), _class(self.new)
        if before != now:
            return WORSE if now > before else BETTER
        return SAME if _alike(self.old) == _alike(self.new) else CHANGED


@dataclass(frozen=True, repr=False)
class Comparison:
    """Two sweeps, case by case."""

    old: Sweep
    new: Sweep
    pairs: tuple[Pair, ...]  #: in the order of the new sweep, then those of the old one alone

    @property
    def counts(self) -> dict[str, int]:
        """Change -> how many cases."""
        found = Counter(pair.change for pair in self.pairs)
        return {kind: found[kind] for kind in (WORSE, BETTER, CHANGED, SAME, ONLY_OLD, ONLY_NEW)}

    def of(self, *changes: str) -> tuple[Pair, ...]:
        """The pairs of some changes."""
        return tuple(pair for pair in self.pairs if pair.change in changes)

    @property
    def worse(self) -> tuple[Pair, ...]:
        """The cases that got worse."""
        return self.of(WORSE)

    @property
    def better(self) -> tuple[Pair, ...]:
        """The cases that got better."""
        return self.of(BETTER)

    @property
    def changed(self) -> tuple[Pair, ...]:
        """The cases of which nothing but the bits changed, or how they fail."""
        return self.of(CHANGED)

    @cached_property
    def conditions(self) -> dict[str, tuple[str, str]]:
        """What else differs between the sweeps, in words: what was asked, the source, machines and versions."""
        before, now = (_conditions(one) for one in (self.old, self.new))
        return {name: (before.get(name, ""), x) for name, x in now.items() if x != before.get(name, "")}

    def as_dict(self) -> dict[str, Any]:
        """The document `workbench.compare/1`, of plain Python values."""
        return shown_by("compared.document", self)

    def __str__(self) -> str:
        return "\n".join(shown_by("compared.lines", self))

    def __repr__(self) -> str:
        return f"<Comparison: {', '.join(f'{n} {kind}' for kind, n in self.counts.items())}>"


def compare(old: str | Path, new: str | Path) -> Comparison:
    """The sweeps in two files, case by case. Refusal for what is no sweep, and where they have no case in common."""
    before, now = load(old), load(new)
    rows = {row.id: row for row in before.rows}
    pairs = [Pair(rows.pop(row.id, None), row) for row in now.rows]
    if not any(pair.old for pair in pairs):
        raise Refusal(f"{old} and {new} have no case in common: there is nothing to compare")
    return Comparison(before, now, (*pairs, *(Pair(row, None) for row in rows.values())))


def _class(row: Row) -> int:
    """How bad an outcome is."""
    if row.outcome in RIGHT_VERDICTS:
        return 0
    if row.outcome in _DOUBTS:
        return 1 + _DOUBTS.index(row.outcome)
    return len(_DOUBTS) + (2 if row.fails else 1)


def _alike(row: Row) -> tuple[object, ...]:
    """What two rows of one class have alike: the bits, and how they fail."""
    return row.bits, row.origins, row.outcome if row.fails else ""


def _conditions(one: Sweep) -> dict[str, str]:
    """What a sweep was run with, in words."""
    ran = [row.ran for row in one.rows if row.ran]
    versions = (f"{name} {x}" for each in ran for name, x in each["versions"].items())
    found = {name: x for name, x in one.plan.identity().items() if name not in ("cases", "source of TARGET")}
    found |= {f"{name}s": _each(each[name] for each in ran) for name in ("machine", "device")}
    return found | {"versions": _each(versions), "code": _each(each["code"][:12] for each in ran)}


def _each(words: Iterable[str]) -> str:
    return ", ".join(sorted({*words}))
