"""The command line's `explain`, which searches for causes."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from workbench.cli.commands import Command
from workbench.cli.completion import complete
from workbench.cli.exits import BUG
from workbench.cli.html import html_option
from workbench.cli.operation import explain_operation, explain_stored, operation_options, refuse_of_operation
from workbench.cli.options import (
    effort_option,
    json_option,
    mapping_option,
    one_target,
    run_options,
    seconds_option,
    values_option,
)
from workbench.cli.reference import explain_reference, reference_option, references_of
from workbench.judge.fails import classed, failing

if TYPE_CHECKING:
    from workbench.judge.diff import Diff
    from workbench.judge.explain.explain import Explained


@click.command(cls=Command)
@click.argument("target", metavar="TARGET", nargs=-1, callback=one_target, shell_complete=complete)
@run_options
@operation_options
@reference_option
@values_option
@mapping_option
@effort_option
@seconds_option
@click.option(
    "--symptoms",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Explain a table of largest errors, FILE.json, instead of a TARGET",
)
@click.option(
    "--script",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also write FILE.py, which reproduces the wrong run in NumPy, for a bug report",
)
@json_option
@html_option
def explain(
    target: str | None,
    effort: float,
    seconds: float | None,
    symptoms: Path | None,
    script: Path | None,
    as_json: bool,
    html: Path | None,
    **options: Any,
) -> None:
    """Name what is wrong in TARGET, and prove it by reproducing its wrong numbers.

    TARGET and options are those of `workbench diff`, traces included. Thousands of named faults are
    injected into the float64 reference, one and two at a time. A cause must reproduce the kernel's wrong numbers within
    the error budget, and again on a fresh case if the kernel can be run. Kernels in numba.cuda are first checked for
    races, whose cause the numbers cannot show. If no cause fits, the laws of attention that the kernel breaks are
    listed. Exits as `diff` does. With --operation, TARGET is a function or a built-in kernel of another operation, and
    the faults of that operation are tried. With --reference, the lines of that plain function are edited, and a cause
    must reproduce TARGET again on fresh inputs.
    """
    from workbench.cli.runs import runs
    from workbench.judge.diff import diff
    from workbench.progress import shown
    from workbench.trace.join import is_trace

    if references := references_of(options):
        asked = {**options, "symptoms": symptoms, "script": script, "html": html}
        return explain_reference(target, references, asked, effort=effort, seconds=seconds, as_json=as_json)
    if (operation := options.pop("operation")) is not None:
        asked = {**options, "symptoms": symptoms, "script": script, "html": html}
        return explain_operation(target, operation, asked, effort=effort, seconds=seconds, as_json=as_json)
    refuse_of_operation(options)
    if target is not None and is_trace(target):
        asked = {**options, "symptoms": symptoms, "script": script, "html": html}
        explain_stored(target, asked, effort=effort, seconds=seconds, as_json=as_json)
    if symptoms is not None:
        return _symptoms(target, symptoms, effort, as_json, html, options)
    found: list[Explained] = []
    with shown():
        for call in runs(target, **options):
            found.append(diff(call()).explain(effort, seconds=seconds))
            _ = found[-1].laws  # which runs the kernel: its progress is shown
        if html is not None:
            _write_page(found, html)
        if script is not None:
            _write_script([one.judged for one in found], script)
    if as_json:
        from workbench.report.document import explained_document, explaineds_document

        documents = [explained_document(one) for one in found]
        click.echo(json.dumps(documents[0] if len(documents) == 1 else explaineds_document(documents)))
    else:
        from workbench.report import text

        screen = text.console()
        for one in found:
            screen.print(text.explained(one, unicode=screen.is_terminal, width=screen.width), crop=False)
        if html is not None:
            click.echo(f"page: {html}")
    sys.exit(BUG if failing() & {classed(one.judged) for one in found} else 0)


def _write_script(judged: list["Diff"], path: Path) -> None:
    """Write the script of the one wrong run."""
    from workbench.files import write_atomically
    from workbench.refusal import Refusal
    from workbench.report.script import script

    if len(judged) != 1:
        raise Refusal(f"--script takes one run; the case options make {len(judged)}")
    write_atomically(path, script(judged[0]).encode())


def _write_page(found: list["Explained"], html: Path) -> None:
    """Write the page of one run and what explains it, or of several."""
    from workbench.judge.table import run_row
    from workbench.report.page import diff as page
    from workbench.report.page import runs
    from workbench.report.page.page import save

    if len(found) == 1:
        return save(page.page(found[0].judged, found[0]), html)
    save(runs.page([run_row(one.judged) for one in found], [page.short(one.judged, one) for one in found]), html)


def _symptoms(
    target: str | None, path: Path, effort: float, as_json: bool, html: Path | None, options: dict[str, Any]
) -> None:
    """Explain a table of largest errors, which takes no target and none of its options."""
    from workbench.cli.options import given
    from workbench.judge.explain.symptoms import symptoms
    from workbench.progress import shown
    from workbench.refusal import Refusal

    if target is not None or given(options) or html is not None:
        raise Refusal(f"--symptoms {path} replaces TARGET and takes no other option")
    with shown():
        found = symptoms(path, effort)
    if as_json:
        return click.echo(json.dumps(found.as_dict()))
    click.echo(str(found))
