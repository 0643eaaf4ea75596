"""Elements of a stage that a plain reference judged, and where their budgets come from."""

from collections.abc import Sequence
from typing import NamedTuple

from rich.console import Console, Group, RenderableType
from rich.text import Text

from workbench.floats import ulp
from workbench.judge.reference.diff import ReferenceDiff
from workbench.judge.reference.lines import code, short
from workbench.judge.selection import Selection
from workbench.report.numbers import value
from workbench.report.text import verdict
from workbench.report.values import Rows, elements

#: lines of a reference that are named
SOURCES = 5


class Share(NamedTuple):
    """What a line of the reference, or the rounding of the element itself, adds to a budget."""

    where: str  #: file:line; empty of its own rounding
    words: str  #: the line as it stands there
    share: float

    def __str__(self) -> str:
        return f"{self.where}{': ' * bool(self.where)}{self.words}"


def shares_of(diff: ReferenceDiff, name: str, at: Sequence[int]) -> list[Share]:
    """The shares of the budget of an element, the largest first; none of whole numbers.

    Refusal as of `ReferenceDiff.sources`.
    """
    stage, found = diff[name], diff.sources(name, at)
    assert stage.dumped is not None and stage.decisive is not None
    total, dtype = sum(one.worst for one in found), stage.dumped.dtype
    if dtype.kind in "biu":
        return []
    half = float(ulp(stage.decisive.expected[tuple(at)], dtype)) / 2
    own = f"its own rounding to {dtype}"
    if dtype.itemsize >= 4 and total < half:
        return [Share("", own, 1.0)]
    total += half * (dtype.itemsize < 4)
    parts = [Share(short(one.line), code(one.line), one.worst / total) for one in found]
    parts += [Share("", own, half / total)] if dtype.itemsize < 4 else []
    return sorted(parts, key=lambda one: -one.share)


def budget_lines(diff: ReferenceDiff, name: str, at: Sequence[int]) -> list[str]:
    """The largest shares of the budget of an element, a line each."""
    parts = shares_of(diff, name, at)
    if not parts:
        return ["no rounding: it holds whole numbers"]
    said = [f"{one.share:4.0%} {one}" for one in parts[:SOURCES]]
    rest = sum(one.share for one in parts[SOURCES:])
    return said + ([f"{rest:4.0%} {len(parts) - SOURCES} more lines"] if rest else [])


def elements_report(
    diff: ReferenceDiff, name: str, chosen: Selection, rows: Rows | None, screen: Console
) -> RenderableType:
    """Some elements of a stage, and where the budget of the worst of them comes from."""
    stage = diff[name]
    source = ", ".join(stage.judged_from) or "the inputs"
    lines = [diff.headline, f"{name} = {diff.definition(name)}"]
    lines.append(f"{verdict(stage)}{f' ({stage.reason})' if stage.reason else ''}; expected: float64 from {source}")
    listed = chosen.rows() if rows is None else rows
    place_ = max(listed, key=lambda row: -1.0 if row["over_budget"] != row["over_budget"] else row["over_budget"])
    at = tuple(place_["index"].values())
    below = [f"the budget of {name}[{', '.join(map(str, at))}], {value(place_['budget'])}, comes from"]
    below += [f"  {line}" for line in budget_lines(diff, name, at)]
    return Group(*map(Text, lines), *elements(chosen, rows, screen), *map(Text, below))
