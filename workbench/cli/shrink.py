"""The command line's `shrink`, which makes a failing case small."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from workbench import process
from workbench.cli.commands import Command
from workbench.cli.completion import complete
from workbench.cli.exits import BUG
from workbench.cli.operation import operation_options, refuse_of_operation, shrink_operation
from workbench.cli.options import effort_option, json_option, one_target, run_options, seconds_option
from workbench.cli.reference import reference_option, references_of, shrink_reference


@click.command(cls=Command)
@click.argument("target", metavar="TARGET", nargs=-1, callback=one_target, shell_complete=complete)
@run_options
@operation_options
@reference_option
@effort_option
@seconds_option
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the test to this file, test_NAME.py, instead of printing it",
)
@json_option
def shrink(
    target: str | None, effort: float, seconds: float | None, out: Path | None, as_json: bool, **options: Any
) -> None:
    """Find the smallest case on which TARGET fails in the same way, and write a test of it.

    TARGET and options are those of `workbench diff`, for one case. In the same way: with the same first wrong stage,
    and the same cause in `workbench explain`. Counts become smaller, options and inputs plainer; dtype and contract
    stay. Then the boundaries are listed: which lengths, heads and options next to the smallest case fail, and which
    pass. Ctrl-C prints the smallest case so far. Exits with 1, or with 2 if no stage is wrong. With --operation, axes
    are halved and unusual values dropped while verdict and first wrong stage stay. So it is with --reference, whose
    axes are those of --axes and the keywords of --inputs with whole numbers.
    """
    if references := references_of(options):
        asked = dict(options, out=out)
        return shrink_reference(target, references, asked, effort=effort, seconds=seconds, as_json=as_json)
    if (operation := options.pop("operation")) is not None:
        return shrink_operation(
            target, operation, dict(options, out=out), effort=effort, seconds=seconds, as_json=as_json
        )
    refuse_of_operation(options)
    from workbench.cli.runs import runs
    from workbench.explore.shrink.shrink import NEEDS, shrink
    from workbench.extras import require
    from workbench.files import write_atomically
    from workbench.judge.diff import diff
    from workbench.progress import shown
    from workbench.refusal import Refusal
    from workbench.report.shrunk import document, lines
    from workbench.report.written import test_file

    require(NEEDS, "hypothesis")
    calls = runs(target, **options)
    if len(calls) != 1:
        raise Refusal(f"shrink takes one case; TARGET and options make {len(calls)}")
    if out is not None and out.exists():
        raise Refusal(f"--out {out} exists; name a new file, or remove it")
    with shown(), process.patient():
        found = shrink(diff(calls[0]()), effort, seconds=seconds)
    if out is not None:
        write_atomically(out, test_file(found).encode())
    if as_json:
        click.echo(json.dumps(document(found)))
    else:
        click.echo("\n".join(lines(found)))
        click.echo(f"written: {out}" if out is not None else f"\n{test_file(found)}", nl=out is not None)
    sys.exit(process.STOPPED if found.ended == "interrupt" else BUG)
