"""The page of two captured runs of one model: a line a call, which is a layer, and what is said of each."""

import shlex
from pathlib import Path

from workbench.judge.against.runs import CallPair, Runs
from workbench.report.numbers import number
from workbench.report.page import page as pages
from workbench.report.page.page import Page, Part
from workbench.report.runs import percent, rows, verdict
from workbench.report.tables import Table
from workbench.suggested import command

#: verdict of two runs -> kind of the page
_KINDS = {
    **dict.fromkeys(("bug", "differs", "diverges"), "origin"),
    "untestable": "untestable",
    "suspicious": "doubtful",
}
#: columns of words
_WORDS = ("A", "B", "of own")


def page(found: Runs) -> Page:
    """The page of two runs."""
    of_calls = rows(found)
    columns = [*of_calls[0]]
    cells = [[str(row[column]) for column in columns] for row in of_calls]
    table = Table(columns, cells, [_kind(pair, pair is found.first) for pair in found.pairs], left=_WORDS)
    return Page(
        title=f"{found.a} and {found.b}: {found.verdict}",
        verdict=found.verdict,
        kind=_KINDS.get(found.verdict, "clean"),
        lines=[*verdict(found), *found.alone],
        about=[f"A: {found.a}", f"B: {found.b}"],
        commands=[("repeat", command("compare-runs", found.a, [shlex.quote(found.b)]))] if found.folders else [],
        parts=[Part("All calls", table=table, opened=True), *map(_part, found.pairs)],
    )


def save(path: str | Path, found: Runs) -> None:
    """Write the page of two runs to a file."""
    pages.save(page(found), path)


def _kind(pair: CallPair, first: bool) -> str:
    if first or pair.wrong or pair.asked:
        return "origin"
    if "untestable" in (pair.a.verdict, pair.b.verdict):
        return "not judged"
    return "clean" if pair.a.right and pair.b.right else "doubtful"


def _part(pair: CallPair) -> Part:
    """What is known of one call, folded."""
    lines = [
        f"A and B differ by at most {number(pair.largest)}, RMS {number(pair.difference)}",
        f"q, k and v differ by at most {number(pair.apart.largest)} relative to their size",
        f"of the difference between A and B, {number(pair.carried)} comes from the inputs and {number(pair.own)} from "
        "this call",
        *(f"{what}: {a} in A, {b} in B" for what, (a, b) in pair.asked.items()),
        *(f"{name} is over budget at {side.stage}" for name, side in (("A", pair.a), ("B", pair.b)) if side.wrong),
        *(f"{percent(one.share)} of its own difference: {one.words}" for one in pair.shares),
    ]
    return Part(f"Call {pair.call}", lines)
