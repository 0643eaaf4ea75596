"""What a backward pass made of its laws, in words."""

from rich.console import Group, RenderableType

from workbench.explore.laws.backward_every import GradientLaws
from workbench.report import laws
from workbench.report.operation import operation_command
from workbench.report.text import plain, wrapped


def report(found: GradientLaws, *, unicode: bool) -> RenderableType:
    """What was run, a row a law, a sentence for each that is broken, and what repeats it."""
    run = found.subject.first.diff.run
    head = f"{run.target}: laws of {run.case.operation.name}, {found.subject.case}"
    told = ",".join(f"{name}={x}" for name, x in found.subject.adopted.items())
    between = [f"assumed conventions under which they hold: {told}"] if told else []
    below = laws.report(found.findings, operation_command("laws", run), unicode=unicode, between=between)
    return Group(*wrapped(head, "", None), below)


def in_short(found: GradientLaws) -> str:
    """What `workbench laws --operation attention_backward` shows, for `print`."""
    return plain(report(found, unicode=False))
