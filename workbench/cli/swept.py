"""What `workbench sweep` prints of an operation and of a function with a plain reference."""

import json
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from workbench.explore.swept import Swept


def print_swept(found: "Swept", *, as_json: bool) -> None:
    """A table of rows and their groups, or the JSON document."""
    from workbench.report.swept import document, report
    from workbench.report.text import console

    if as_json:
        click.echo(json.dumps(document(found)))
    else:
        screen = console()
        screen.print(report(found, unicode=screen.is_terminal), crop=False)
