"""What a kernel made of laws, on a terminal: those that it broke first, and of those that were not asked why."""

from collections import Counter
from collections.abc import Mapping, Sequence

import click

from workbench.explore.laws.law import Finding
from workbench.report.text import show


def show_findings(findings: Sequence[Finding], between: Sequence[str] = ()) -> None:
    """Print a row a law that was asked, a sentence for each that is broken, lines that are to stand `between`, the
    counts, and which were not asked, by the reason.
    """
    words = {True: "held", False: "BROKEN"}
    asked = sorted((one for one in findings if one.held is not None), key=lambda one: bool(one.held))
    rows = [{"law": x.law.name, "class": x.law.kind, "verdict": words[bool(x.held)]} for x in asked]
    show(rows, ("law", "class", "verdict"))
    for one in asked:
        if one.broke is not None:
            click.echo(f"{one.law.name}: {one.law.says}\n  {one.broke.words}")
    for line in between:
        click.echo(line)
    counts = Counter(one.held for one in findings)
    click.echo(f"{counts[True]} laws held, {counts[False]} broken, {counts[None]} not asked")
    why: dict[str, list[str]] = {}
    for one in findings:
        if one.held is None:
            why.setdefault(one.lacking, []).append(one.law.name)
    if line := not_asked(why):
        click.echo(line)


def not_asked(why: Mapping[str, Sequence[str]]) -> str:
    """Which laws were not asked, in a line: reason -> their names; empty of none.

    >>> not_asked({"no splits": ["partials-doubled", "partial-maxima-moved"], "no pages": ["pages-in-another-order"]})
    '3 laws were not asked: no splits (partials-doubled, partial-maxima-moved); no pages (pages-in-another-order)'
    """
    count = sum(map(len, why.values()))
    if not count:
        return ""
    said = "; ".join(f"{reason} ({', '.join(names)})" for reason, names in why.items())
    return f"{count} law{'s were' if count > 1 else ' was'} not asked: {said}"
