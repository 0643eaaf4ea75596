"""The command line's `compare`, which holds two sweeps beside each other."""

import json
import sys
from pathlib import Path

import click

from workbench.cli.exits import BUG
from workbench.cli.options import json_option

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.argument("old", type=_FILE)
@click.argument("new", type=_FILE)
@json_option
@click.option("--markdown", is_flag=True, help="Print GitHub-flavoured Markdown, for a pull request")
@click.option("--junit", type=_FILE, help="Write one test per case to this JUnit file, for CI")
def compare(old: Path, new: Path, as_json: bool, markdown: bool, junit: Path | None) -> None:
    """List the cases that got worse, got better or changed bits between two files of `workbench sweep`.

    A case is worse if its outcome moved down this list: right, suspicious, biased, not judged, failing. Exits with 1 if
    a case is worse.
    """
    from workbench.explore.sweep.compare import compare as compared
    from workbench.files import write_atomically
    from workbench.refusal import Refusal
    from workbench.report import compared as report

    if as_json and markdown:
        raise Refusal("--json and --markdown exclude each other; got both")
    found = compared(old, new)
    if junit is not None:
        write_atomically(junit, report.junit(found))
    if as_json:
        click.echo(json.dumps(found.as_dict()))
    else:
        click.echo("\n".join(report.markdown(found) if markdown else report.lines(found)))
    sys.exit(BUG if found.worse else 0)
