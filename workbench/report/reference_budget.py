"""Elements of a stage that a plain reference judged, and where their budgets come from."""

from collections.abc import Sequence

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


def budget_lines(diff: ReferenceDiff, name: str, at: Sequence[int]) -> list[str]:
    """Shares of the budget of an element by line of the reference, the largest first, and its own rounding."""
    stage, found = diff[name], diff.sources(name, at)
    assert stage.dumped is not None and stage.decisive is not None
    total, dtype = sum(one.worst for one in found), stage.dumped.dtype
    if dtype.kind in "biu":
        return ["no rounding: it holds whole numbers"]
    half = float(ulp(stage.decisive.expected[tuple(at)], dtype)) / 2
    if dtype.itemsize >= 4 and total < half:
        return [f"100% its own rounding to {dtype}"]
    parts = [(one.worst, f"{short(one.line)}: {code(one.line)}") for one in found]
    parts += [(half, f"its own rounding to {dtype}")] if dtype.itemsize < 4 else []
    parts.sort(key=lambda one: -one[0])
    total += half * (dtype.itemsize < 4)
    said = [f"{share / total:4.0%} {words}" for share, words in parts[:SOURCES]]
    rest = sum(share for share, _ in parts[SOURCES:])
    return said + ([f"{rest / total:4.0%} {len(parts) - SOURCES} more lines"] if rest else [])


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
