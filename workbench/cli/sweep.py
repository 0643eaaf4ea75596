"""The command line's `sweep`, which judges a target on thousands of cases and keeps what comes of them."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from workbench.cli.commands import Command
from workbench.cli.completion import complete
from workbench.cli.exits import BUG, DEFECT, USAGE
from workbench.cli.html import html_option
from workbench.cli.operation import operation_options, refuse_of_operation, sweep_operation
from workbench.cli.options import (
    TARGETS,
    case_options,
    cases_of,
    fault_option,
    given,
    inputs_option,
    json_option,
    random_limits,
    run_option,
)
from workbench.cli.reference import reference_option, references_of, sweep_reference
from workbench.refusal import Refusal


@click.command(cls=Command)
@click.argument("target", metavar="TARGET", shell_complete=complete)
@fault_option
@case_options
@run_option(*TARGETS, "limit_gb")
@operation_options
@reference_option
@inputs_option
@click.option("--random", type=click.IntRange(min=1), metavar="N", help="Run N random cases; case options limit them")
@click.option(
    "--timeout",
    "case_timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="End a case that takes longer [300]",
)
@click.option(
    "--memory-gb",
    "case_memory_gb",
    type=click.FloatRange(min=0, min_open=True),
    help="End a case whose process uses more memory [half of the machine's]",
)
@click.option("--disk-gb", type=click.FloatRange(min=0), help="Disk space for traces of failing cases [1]")
@click.option("--jobs", type=click.IntRange(min=1), help="Number of processes that run cases [number of CPUs]")
@click.option("--scheduler", metavar="tcp://HOST:PORT", help="Run cases on the workers of a running Dask scheduler")
@click.option("--resume", is_flag=True, help="Resume the stopped sweep in --out")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default="sweep.sqlite",
    help="File of the sweep; traces are written next to it [sweep.sqlite]",
)
@json_option
@html_option
def sweep(
    target: str,
    random: int | None,
    disk_gb: float | None,
    jobs: int | None,
    scheduler: str | None,
    resume: bool,
    out: Path,
    as_json: bool,
    html: Path | None,
    case_timeout: float | None,
    case_memory_gb: float | None,
    **options: Any,
) -> None:
    """Judge TARGET on every combination of the case options, or on N random cases, and group the failures.

    TARGET and options are those of `workbench diff`; case options take lists. Your kernel also runs each combination on
    the inputs comb and needle, which expose any missing key. Each case runs in a process that may crash, hang or run
    out of memory, and is written to the file --out once judged. Failures are grouped by first wrong stage and cause.
    Each group shows its smallest case and a rule for where it fails. Exits with 1 if a case fails, with 2 if none fails
    and one was refused.

    With --operation, every combination of axes, numbers and lists, such as rmsnorm,rows=1/64/65,eps=1e-6/1e-5, is
    judged in this process and printed as a table. So it is with --reference and --inputs, whose --axes take lists such
    as T=64/65/128.
    """
    of_attention: dict[str, Any] = {
        "random": random,
        "timeout": case_timeout,
        "memory_gb": case_memory_gb,
        "disk_gb": disk_gb,
    }
    of_attention |= {"jobs": jobs, "scheduler": scheduler, "resume": resume, "html": html}
    if references := references_of(options):
        return sweep_reference(target, references, {**options, **of_attention}, as_json=as_json)
    if options.pop("inputs"):
        raise Refusal("--inputs of a sweep needs --reference")
    if (operation := options.pop("operation")) is not None:
        return sweep_operation(target, operation, {**options, **of_attention}, as_json=as_json)
    refuse_of_operation(options)
    from workbench.explore.sweep.plan import TIMEOUT_S, random_cases, with_exposing
    from workbench.explore.sweep.sweep import DISK_GB
    from workbench.explore.sweep.sweep import sweep as swept
    from workbench.progress import shown

    beside = ""
    if random is None:
        asked_for = [*dict.fromkeys(cases_of(options))]
        cases = with_exposing(target, asked_for)
        if added := len(cases) - len(asked_for):
            each = f"{len(asked_for)} combination{'s' * (len(asked_for) != 1)}"
            beside = f"{len(cases)} cases: {each}, plus {added} with comb or needle inputs\n"
    else:
        seeds = options["seed"] or (0,)
        cases = [case for seed in seeds for case in random_cases(target, random, seed, **random_limits(options))]
    with shown():
        found = swept(
            target,
            cases,
            out=out,
            resume=resume,
            timeout=TIMEOUT_S if case_timeout is None else case_timeout,
            memory_gb=case_memory_gb,
            disk_gb=DISK_GB if disk_gb is None else disk_gb,
            jobs=jobs,
            scheduler=scheduler,
            **given(options),
        )
    if html is not None:
        found.save_html(html)
    click.echo(json.dumps(found.as_dict()) if as_json else f"{beside}{found}")
    if html is not None and not as_json:
        click.echo(f"page: {html}")
    if any(row.fails for row in found.rows):
        sys.exit(BUG)
    sys.exit(DEFECT if found.defects else USAGE if found.refused else 0)
