"""The command line's `check`, which watches a run."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from workbench.case.options import FOREIGN, flag_of
from workbench.case.spellings import flag
from workbench.cli.commands import Command
from workbench.cli.completion import complete
from workbench.cli.html import html_option
from workbench.cli.operation import check_operation, operation_options, refuse_of_operation
from workbench.cli.options import (
    CASE_OPTIONS,
    case_options,
    cases_of,
    fault_option,
    given,
    json_option,
    needs_of,
    run_option,
)
from workbench.refusal import Refusal

if TYPE_CHECKING:
    from workbench.case.case import Case
    from workbench.cuda.check import Checked

FOUND = 1  #: exit code


@click.command(cls=Command)
@click.argument("target", metavar="TARGET", shell_complete=complete)
@fault_option
@case_options
@click.option("--backend", default="emulator", help="emulator, or cuda: your function under compute-sanitizer")
@run_option("probes", "arrays", "device", "layout")
@click.option(
    "--schedules",
    type=click.IntRange(min=1),
    default=1,
    help="Run N orders of blocks and threads and compare their bits [1]",
)
@json_option
@html_option
@operation_options
def check(target: str, as_json: bool, html: Path | None, operation: str | None, **options: Any) -> None:
    """Watch every access of TARGET on the emulator: uninitialised reads, races, divergent barriers, out of bounds.

    TARGET is a built-in kernel, or a function path.py:function that launches numba.cuda kernels. Several built-in
    kernels are separated by commas. The function takes q, k and v as for `workbench diff`, or has no parameters and
    launches any kernels. TARGET may also be a kernel path.py:kernel, which the function `launch` of its file launches.
    Case options take comma-separated lists; every combination is run. Exits with 1 if anything is found.

    With --operation, TARGET is a built-in kernel of that operation, as in `workbench diff`.

    With --backend cuda, NVIDIA's compute-sanitizer watches a function in any language on a GPU: memcheck, racecheck,
    initcheck, synccheck. Compile kernels with -lineinfo to get source lines.
    """
    from workbench.progress import shown

    if operation is None:
        refuse_of_operation(options)
    with shown():
        if options["backend"] not in ("emulator", "cuda"):
            raise Refusal(f"check runs on emulator or cuda; got --backend {options['backend']!r}")
        if operation is not None:
            checked = check_operation(target, operation, options)
        else:
            run = _on_gpu if options.pop("backend") == "cuda" else _of_ours if _is_ours(target) else _emulated
            checked = run(target, **options)
    if html is not None:
        from workbench.report.page import checked as page
        from workbench.report.page.page import save

        save(page.page(checked), html)
    if as_json:
        from workbench.report.findings import check_document, checks_document

        click.echo(json.dumps(check_document(checked[0]) if len(checked) == 1 else checks_document(checked)))
    else:
        from workbench.report import findings, text

        text.console().print(findings.report(checked), soft_wrap=True)
        if html is not None:
            click.echo(f"page: {html}")
    sys.exit(0 if all(one.passed for one in checked) else FOUND)


def _is_ours(target: str) -> bool:
    """Whether TARGET names kernels of ours."""
    from workbench.foreign.target import targets_of

    return targets_of(target)[0].kernel is not None


def _of_ours(target: str, faults: tuple[str, ...], probes: str, schedules: int, **options: Any) -> list["Checked"]:
    """Kernels of ours, watched on the emulator."""
    from workbench.cuda.check import check as check_kernel
    from workbench.progress import step

    targets = target.split(",")
    if foreign := given(options, FOREIGN):
        raise Refusal(f"{flag_of(next(iter(foreign)))} is for your own functions; {target} is built in")
    cases = cases_of({**options, **needs_of(faults, options)})
    checked: list[Checked] = []
    runs = len(cases) * len(targets)
    with step(f"watch {runs} run{'s' * (runs > 1)}") as tick:
        for name in targets:
            for case in cases:
                tick(f"{len(checked)} done")
                checked.append(check_kernel(name, case, faults=faults, probes=probes, schedules=schedules))
    return checked


def _emulated(target: str, faults: tuple[str, ...], probes: str, schedules: int, **options: Any) -> list["Checked"]:
    """What a foreign function launches, watched on the emulator."""
    from workbench.foreign.check import check as check_function
    from workbench.foreign.check import takes_nothing, watchable
    from workbench.foreign.target import target_of
    from workbench.progress import step

    _refuse(target, {"--fault": faults, "--probes": probes != "all"})
    asked = given(options, FOREIGN)
    called = watchable(target_of(target))
    if takes_nothing(called.function()):
        of_case = [flag(name) for name in CASE_OPTIONS if options.get(name)]
        if of_case or asked:
            other = [*of_case, *map(flag, asked)][0]
            raise Refusal(f"{called.name} has no parameters, so it takes no {other}")
        cases: list[Case | None] = [None]
    else:
        cases = [*cases_of(options)]
    checked: list[Checked] = []
    with step(f"watch {len(cases)} run{'s' * (len(cases) > 1)}", None) as tick:
        for case in cases:
            tick(f"{len(checked)} done")
            checked.append(check_function(target, case, schedules=schedules, **asked))
    return checked


def _on_gpu(target: str, faults: tuple[str, ...], probes: str, schedules: int, **options: Any) -> list["Checked"]:
    """A foreign function on a GPU, watched by compute-sanitizer."""
    from workbench.cuda.kernels import KERNELS
    from workbench.foreign.sanitizer import check as check_function
    from workbench.progress import step

    if target in KERNELS:
        raise Refusal(f"--backend cuda is for your own functions (path.py:function); {target} is built in")
    _refuse(target, {"--fault": faults, "--probes": probes != "all"})
    if schedules != 1:
        raise Refusal("--schedules is for the emulator; got it with --backend cuda")
    cases = cases_of(options)
    checked: list[Checked] = []
    with step(f"watch {len(cases)} case{'s' * (len(cases) > 1)} under each tool", None) as tick:
        for case in cases:
            tick(f"{len(checked)} done")
            checked.append(check_function(target, case, given(options, FOREIGN)))
    return checked


def _refuse(target: str, given: dict[str, Any]) -> None:
    """Refusal for options of kernels of ours that were given for a foreign function."""
    from workbench.cuda.kernels import KERNELS

    if asked := [name for name, value in given.items() if value]:
        raise Refusal(f"{asked[0]} is for built-in kernels ({', '.join(KERNELS)}); {target} is not built in")
