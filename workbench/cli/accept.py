"""The command line's `accept`, a verdict on a function that may be lazy or hostile."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from workbench.cli.completion import complete
from workbench.cli.exits import BUG
from workbench.cli.options import json_option

if TYPE_CHECKING:
    from workbench.explore.acceptance.run import Acceptance

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.argument("target", metavar="FILE.py:FUNCTION", shell_complete=complete)
@click.option("--spec", metavar="FILE", help="TOML spec of the function [forward attention, lengths up to 256]")
@click.option(
    "--seconds", type=click.FloatRange(min=0.0, min_open=True), default=10.0, help="Seconds for the cases [10]"
)
@click.option("--dtype", help="float32, float16 or bfloat16, overriding the spec [float32]")
@click.option("--unsafe", is_flag=True, help="Run in a process without isolation, where Linux forbids namespaces")
@click.option(
    "--memory-gb", type=click.FloatRange(min=0.0, min_open=True), default=8.0, help="Memory limit of its process [8]"
)
@click.option("--explain", is_flag=True, help="Find the cause and the smallest failing case; up to 30 s more")
@click.option("--seed", type=int, help="Seed of the cases, to repeat them [from the operating system]")
@click.option("--only", type=click.IntRange(min=0), help="Run only the case with this index; needs --seed")
@click.option("--junit", type=_FILE, help="Write one test per family to this JUnit file, for CI")
@json_option
def accept(
    target: str, spec: str | None, seconds: float, dtype: str | None, unsafe: bool, memory_gb: float, explain: bool,
    seed: int | None, only: int | None, junit: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Check a function against a spec, on cases that it cannot know, in a process without network.

    The function may be written to game the check. Random and adversarial cases are judged until one fails or --seconds
    are over. Exits with 1 if a case fails, or if time was too short for every family of cases.
    """
    from workbench.explore.acceptance.run import PASS
    from workbench.explore.acceptance.run import accept as accepted
    from workbench.files import write_atomically
    from workbench.progress import shown
    from workbench.refusal import Refusal
    from workbench.report import acceptance as report

    if only is not None and seed is None:
        raise Refusal("--only is the index of a case of a --seed; pass that --seed too")
    with shown():
        found = accepted(
            target, spec, seconds=seconds, dtype=dtype, unsafe=unsafe, memory_gb=memory_gb, seed=seed, only=only
        )
        why = _explained(found) if explain else []
    if junit is not None:
        write_atomically(junit, report.junit(found))
    if as_json:
        click.echo(json.dumps(report.document(found) | ({"explained": why} if explain else {})))
    else:
        click.echo("\n".join([*report.lines(found), *why]))
    sys.exit(0 if found.verdict == PASS else BUG)


def _explained(found: "Acceptance") -> list[str]:
    """Why it fails, in lines; or what that needs and is not installed: the verdict stands without."""
    from workbench.refusal import Unavailable
    from workbench.report import acceptance as report

    try:
        return report.explained(found.explain())
    except Unavailable as missing:
        return [f"no cause was searched for: {missing}"]
