"""What a backward pass made of its laws, on a terminal."""

from collections import Counter

import click

from workbench.explore.laws.backward_every import GradientLaws
from workbench.report.operation import operation_command
from workbench.report.text import show

_WORDS = {True: "held", False: "BROKEN", None: "not asked"}


def report(found: GradientLaws) -> None:
    """Print what was run, a row a law, a sentence for each that is broken, and what repeats it."""
    run, findings = found.subject.first.diff.run, found.findings
    click.echo(f"{run.target}: laws of {run.case.operation.name}, {found.subject.case}")
    rows = [{"law": x.law.name, "class": x.law.kind, "verdict": _WORDS[x.held], "why": x.lacking} for x in findings]
    show(rows, ("law", "class", "verdict", "why"))
    for one in found.broken:
        assert one.broke is not None
        click.echo(f"{one.law.name}: {one.law.says}\n  {one.broke.words}")
    if told := found.subject.adopted:
        click.echo("held with conventions that were not told: " + ",".join(f"{name}={x}" for name, x in told.items()))
    counts = Counter(one.held for one in findings)
    click.echo(f"{counts[True]} laws held, {counts[False]} broken, {counts[None]} not asked")
    if command := operation_command("laws", run):
        click.echo(f"repeat: {command}")
