"""What a backward pass made of its laws, on a terminal."""

import click

from workbench.explore.laws.backward_every import GradientLaws
from workbench.report.laws import show_findings
from workbench.report.operation import operation_command


def report(found: GradientLaws) -> None:
    """Print what was run, a row a law, a sentence for each that is broken, and what repeats it."""
    run, findings = found.subject.first.diff.run, found.findings
    click.echo(f"{run.target}: laws of {run.case.operation.name}, {found.subject.case}")
    told = found.subject.adopted
    words = ",".join(f"{name}={x}" for name, x in told.items())
    show_findings(findings, [f"held with conventions that were not told: {words}"] if told else [])
    if command := operation_command("laws", run):
        click.echo(f"repeat: {command}")
