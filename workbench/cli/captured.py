"""What the command line makes of the folder of a capture, and that a capture is a call of Python."""

import json
import sys
from pathlib import Path

import click

from workbench.cli.exits import BUG

#: what is said in place of a command
IN_PYTHON = """call capture in Python, where the model runs:

    with workbench.capture(model, "seen") as c:
        model(**inputs)
    print(c.report)

The first wrong call is kept in the folder seen; judge it again with diff"""


def diff_captured(target: str, as_json: bool) -> None:
    """Say what a capture without a wrong call judged, and exit: with 0 where it judged any and none was wrong. Nothing
    for any other TARGET.
    """
    from workbench.trace.join import SUFFIX
    from workbench.trace.kept import nothing_kept, report_of

    folder = Path(target)
    report = report_of(folder)
    if report is None or any(folder.glob(f"*{SUFFIX}")):
        return
    click.echo(json.dumps(report) if as_json else f"{target}: {nothing_kept(folder)}")
    sys.exit(0 if report["verdict"] == "rounding" else BUG)
