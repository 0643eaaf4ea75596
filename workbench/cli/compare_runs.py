"""The command line's `compare-runs`, which holds two captured runs of one model beside each other."""

import json
import sys
from pathlib import Path

import click

from workbench.cli.commands import Command
from workbench.cli.exits import BUG
from workbench.cli.html import html_option
from workbench.cli.options import json_option

_FOLDER = click.Path(path_type=Path, file_okay=False)


@click.command("compare-runs", cls=Command)
@click.argument("a", type=_FOLDER)
@click.argument("b", type=_FOLDER)
@html_option
@json_option
def compare_runs(a: Path, b: Path, html: Path | None, as_json: bool) -> None:
    """Find the first wrong call, different input or different rounding between two runs of a model.

    A and B are folders of workbench.capture(..., keep="all") on the same tokens: training and inference, two engines,
    or two versions. Both sides of each call are judged on their own inputs, and the inputs are compared. Exits with 1
    if a side is over budget, inputs differ by more than rounding, the two ask for different things, or a call could not
    be judged.
    """
    from workbench.judge.against.calls import compare_runs as compared
    from workbench.progress import shown

    with shown():
        found = compared(a, b)
    if html is not None:
        found.save_html(html)
    click.echo(json.dumps(found.as_dict()) if as_json else str(found))
    if html is not None and not as_json:
        click.echo(f"page: {html}")
    sys.exit(BUG if found.verdict in ("bug", "differs", "diverges", "untestable") else 0)
