"""The laws that a kernel breaks, keeps, and those that do not apply to it, in words."""

from collections import Counter
from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType

from workbench.explore.laws.law import Finding, Laws
from workbench.report.command import laws_command
from workbench.report.text import listing, plain, wrapped


def report(findings: Sequence[Finding], command: str, *, unicode: bool, between: Sequence[str] = ()) -> RenderableType:
    """A row a law that was asked, a sentence for each that is broken, lines that are to stand `between`, the counts,
    which laws were not asked, by the reason, and the `command` that asks the same again.
    """
    words = {True: "held", False: "BROKEN"}
    asked = sorted((one for one in findings if one.held is not None), key=lambda one: bool(one.held))
    rows = [{"law": x.law.name, "class": x.law.kind, "verdict": words[bool(x.held)]} for x in asked]
    lines: list[str] = []
    for one in asked:
        if one.broke is not None:
            lines += [f"{one.law.name}: {one.law.says}", *f"  {one.broke.words}".splitlines()]
    counts = Counter(one.held for one in findings)
    lines += [*between, f"{counts[True]} laws held, {counts[False]} broken, {counts[None]} not applicable"]
    why: dict[str, list[str]] = {}
    for one in findings:
        if one.held is None:
            why.setdefault(one.lacking, []).append(one.law.name)
    lines += [not_asked(why), f"repeat: {command}" if command else ""]
    table = listing(rows, ("law", "class", "verdict"), unicode=unicode)
    return Group(table, *(text for line in lines if line for text in wrapped(line, "", None)))


def in_short(found: Laws) -> str:
    """What `workbench laws` shows of one case, for `print`."""
    return plain(report(found.findings, laws_command(found), unicode=False))


#: reasons why laws do not apply that are listed; the document has all
LISTED = 3


def not_asked(why: Mapping[str, Sequence[str]]) -> str:
    """Which laws were not asked, in a line: reason -> their names; empty of none.

    >>> not_asked({"no splits": ["partials-doubled", "partial-maxima-moved"], "no pages": ["pages-in-another-order"]})
    '3 laws not applicable: no splits (partials-doubled, partial-maxima-moved); no pages (pages-in-another-order)'
    """
    count = sum(map(len, why.values()))
    if not count:
        return ""
    said = "; ".join(f"{reason} ({', '.join(names)})" for reason, names in [*why.items()][:LISTED])
    said += f"; {len(why) - LISTED} more reasons in --json" if len(why) > LISTED else ""
    return f"{count} law{'s' * (count > 1)} not applicable: {said}"
