"""The command line's `explain`, which searches for causes."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from workbench.cli.commands import Command
from workbench.cli.completion import complete
from workbench.cli.exits import BUG
from workbench.cli.options import json_option, one_target, run_options
from workbench.judge.fails import failing, outcome

if TYPE_CHECKING:
    from workbench.explore.laws.law import Laws
    from workbench.judge.diff import Diff
    from workbench.judge.explain.explain import Explained


@click.command(cls=Command)
@click.argument("target", metavar="TARGET", nargs=-1, callback=one_target, shell_complete=complete)
@run_options
@click.option(
    "--seconds", type=click.FloatRange(min=0.1), default=30.0, help="For the search, pairs of faults included [30]"
)
@click.option(
    "--symptoms",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Instead of a TARGET: a table of largest errors, FILE.json, which is all that was written down",
)
@json_option
def explain(target: str | None, seconds: float, symptoms: Path | None, as_json: bool, **options: Any) -> None:
    """Name what is wrong in TARGET, and prove it by reproducing its wrong numbers.

    TARGET and options are those of `workbench diff`. Thousands of named faults are put into the float64 reference, one
    and two at a time; a cause is one that gives the kernel's wrong numbers within the error budget, and gives them
    again on a fresh case where the kernel can be run. Where nothing does, the kernel is held to the laws of attention,
    and known faults that break the same ones are named. Exits as `diff` does.
    """
    from workbench.cli.runs import runs
    from workbench.explore.laws.alike import as_dict, of_trace
    from workbench.judge.diff import diff
    from workbench.progress import shown

    if symptoms is not None:
        return _symptoms(target, symptoms, as_json, options)
    found: list[tuple[Diff, Explained]] = []
    broken: list[Laws | None] = []
    with shown():
        calls, _ = runs(target, **options)
        for call in calls:
            judged = diff(call())
            explained = judged.explain(seconds)
            found.append((judged, explained))
            broken.append(of_trace(judged.trace) if explained.unexplained else None)
    if as_json:
        from workbench.report.document import explained_document, explaineds_document

        of_laws = [None if laws is None else as_dict(laws) for laws in broken]
        documents = [explained_document(*one, laws) for one, laws in zip(found, of_laws, strict=True)]
        click.echo(json.dumps(documents[0] if len(documents) == 1 else explaineds_document(documents)))
    else:
        from workbench.report import text

        screen = text.console()
        for one, laws in zip(found, broken, strict=True):
            screen.print(text.explained(*one, laws, unicode=screen.is_terminal, width=screen.width), crop=False)
    sys.exit(BUG if failing() & {outcome(judged) for judged, _ in found} else 0)


def _symptoms(target: str | None, path: Path, as_json: bool, options: dict[str, Any]) -> None:
    """Explain a table of largest errors, which takes no target and none of its options."""
    from workbench.cli.options import given
    from workbench.judge.explain.symptoms import symptoms
    from workbench.progress import shown
    from workbench.refusal import Refusal
    from workbench.report.symptoms import lines

    if target is not None or given(options):
        raise Refusal(f"--symptoms {path} holds all that is known of a kernel, and takes no TARGET and no other option")
    with shown():
        found = symptoms(path)
    if as_json:
        return click.echo(json.dumps(found.as_dict()))
    for line in lines(found):
        click.echo(line)
