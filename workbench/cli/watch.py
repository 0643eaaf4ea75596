"""The command line's `watch`, which judges a function again whenever its source is saved."""

import json
from typing import Any

import click

from workbench.cli.commands import Command
from workbench.cli.completion import complete
from workbench.cli.options import case_options, cases_of, given, json_option, target_options


@click.command(cls=Command)
@click.argument("target", metavar="FILE.py:FUNCTION", shell_complete=complete)
@case_options
@target_options
@json_option
def watch(target: str, as_json: bool, **options: Any) -> None:
    """Judge FUNCTION now, and again after each save of its source, or of an extension that it loads; Ctrl-C ends it.

    A line for each run: verdict, first wrong stage, cause, and what changed since the run before. Case options take
    lists: the case that failed last is judged first, and the others until one fails.
    """
    from workbench.explore.watch import watch as watched
    from workbench.report import watched as words

    cases, last = cases_of(options), None
    for seen in watched(target, cases, **given(options)):
        told = json.dumps(words.document(seen, last)) if as_json else words.line(seen, last, told=len(cases) > 1)
        click.echo(told)
        last = seen
