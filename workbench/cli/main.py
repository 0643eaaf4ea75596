"""The command line. Results go to stdout, progress and errors to stderr.

Exit codes: 0 no bug, 1 a bug, or evidence of one, or nothing could be judged, 2 wrong usage, 3 the machine lacks
something, 70 a defect of the workbench itself, 130 stopped by Ctrl-C.
"""

import json
import sys
import traceback
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from workbench import process
from workbench.cli import against as cli_against
from workbench.cli.accept import accept
from workbench.cli.bench import bench
from workbench.cli.captured import diff_captured
from workbench.cli.check import check
from workbench.cli.commands import Commands
from workbench.cli.compare import compare
from workbench.cli.compare_runs import compare_runs
from workbench.cli.completion import complete
from workbench.cli.contract import contract
from workbench.cli.exits import BUG, DEFECT, ENVIRONMENT, USAGE
from workbench.cli.explain import explain
from workbench.cli.html import html_option
from workbench.cli.inputs import inputs
from workbench.cli.laws import laws
from workbench.cli.lists import faults, kernels
from workbench.cli.measure import measure
from workbench.cli.operation import diff_operation, diff_stored, operation_options, refuse_of_operation
from workbench.cli.options import (
    effort_option,
    json_option,
    mapping_option,
    measure_option,
    one_target,
    run_options,
    values_option,
)
from workbench.cli.reference import diff_reference, reference_option, references_of
from workbench.cli.show import show
from workbench.cli.shrink import shrink
from workbench.cli.sweep import sweep
from workbench.judge.fails import FAIL_ON, USUAL, classed, failing

if TYPE_CHECKING:
    from workbench.judge.diff import Diff
    from workbench.trace.trace import Trace

#: settings of a group of commands
GROUP: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 120}


def main() -> None:
    """Entry point of the console script."""
    run(commands, "workbench")


def run(group: click.Group, name: str) -> None:
    """Run a command line of that name; refusals become messages and exit codes."""
    process.keep_stdout()
    with process.interruptible():
        _run(group, name)


def _run(group: click.Group, name: str) -> None:
    from workbench.refusal import Refusal, Unavailable

    try:
        sys.exit(group.main(prog_name=name, standalone_mode=False))
    except click.ClickException as wrong:
        wrong.show()
        sys.exit(wrong.exit_code)
    except click.Abort:  # what click makes of Ctrl-C
        raise KeyboardInterrupt from None
    except Refusal as refusal:
        click.echo(f"{name}: {refusal}", err=True)
        sys.exit(USAGE)
    except Unavailable as missing:
        click.echo(f"{name}: {missing}", err=True)
        sys.exit(ENVIRONMENT)
    except MemoryError as error:
        said = str(error) or "an array could not be allocated"
        click.echo(f"{name}: this machine has too little memory for this run: {said}; choose smaller lengths", err=True)
        sys.exit(ENVIRONMENT)
    except Exception:
        click.echo(f"{name}: a defect of the workbench itself, not of the kernel\n{traceback.format_exc()}", err=True)
        sys.exit(DEFECT)


@click.group(cls=Commands, context_settings=GROUP)
@click.version_option(package_name="attention-workbench")
@click.pass_context
def commands(context: click.Context) -> None:
    """Find the first wrong stage of an attention kernel, and tell a bug from rounding.

    \b
    workbench diff split_k --fault reduce-double-counts-sum --causal    a built-in kernel with an injected fault
    workbench diff my_kernel.py:attention --dtype float16               your kernel
    workbench diff run.safetensors                                      a trace, judged without running the kernel
    workbench diff --values run.log                                     values that printf in your kernel wrote
    workbench diff my_kernel.py:attention --against flash               two kernels: the first stage where they differ
    workbench show my_kernel.py:attention 'scores[0,0,5,0:8]'           values next to the expected ones

    `workbench COMMAND --help` lists the common options, `workbench COMMAND --help-all` every option.
    """  # noqa: D301 - click wants the character \b, which keeps the lines below it apart
    from workbench.case.user_code import command

    context.with_resource(command())


for command in (
    *(accept, bench, check, compare, compare_runs, contract, explain, faults, inputs, kernels, laws, measure),
    *(show, shrink, sweep),
):
    commands.add_command(command)


def _of_pictures(_context: click.Context, _option: click.Parameter, folder: Path | None) -> Path | None:
    """The folder; Unavailable without what draws, before the run, whose results would be lost."""
    if folder is not None:
        from workbench.extras import require

        require("--out needs", "matplotlib")
    return folder


@commands.command()
@click.argument("target", metavar="TARGET", nargs=-1, callback=one_target, shell_complete=complete)
@run_options
@operation_options
@reference_option
@cli_against.against_option
@values_option
@mapping_option
@click.option(
    "--fail-on",
    default=USUAL,
    shell_complete=complete,
    help=f"Mildest verdict that exits with 1: {', '.join(FAIL_ON)} [{USUAL}]",
)
@measure_option
@effort_option
@json_option
@click.option("-v", "--verbose", is_flag=True, help="Also print budgets, other rules and assumptions")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    callback=_of_pictures,
    help="Write pictures and the trace to this folder",
)
@html_option
def diff(
    target: str | None,
    fail_on: str,
    as_json: bool,
    verbose: bool,
    out: Path | None,
    html: Path | None,
    measure: bool,
    effort: float,
    **options: Any,
) -> None:
    """Judge every stage of TARGET and name the first wrong one.

    TARGET is your kernel as path.py:function, a kernel of `workbench kernels`, or a trace as FILE.safetensors. Several
    built-in kernels are separated by commas. Several trace files, or a folder of them, are parts of one run. Case
    options take comma-separated lists; every combination gets one row.

    For the folder of a capture, the first wrong call is judged again; for its folder calls/, every call, one row each.

    LOG has lines `WB <stage> <indices> <value>`, as printf in a kernel writes them. The case options must give the case
    that the kernel ran; --block-k, --splits and --contract give its contract.

    With --against, both runs are judged and compared. The report names the first stage where they differ by more than
    the budgets of both.

    With --reference, TARGET is a function of any operation. Kernel and reference are called by keyword with the arrays
    that --inputs returns. The reference is a plain function in NumPy or torch; its lines are the stages.

    With --operation, TARGET is a function of another operation. It is called with its inputs in order and its numbers
    by name: rmsnorm(x, weight, *, eps). It returns its result, or a dict of stages.
    """
    from workbench.cli.runs import runs
    from workbench.progress import shown
    from workbench.refusal import Refusal
    from workbench.report.folder import write
    from workbench.trace.join import is_trace

    if references := references_of(options):
        asked = dict(options, measure=measure)
        fails = failing(fail_on)
        return diff_reference(
            target, references, asked, fails=fails, as_json=as_json, verbose=verbose, html=html, out=out
        )
    if (operation := options.pop("operation")) is not None:
        asked = {**options, "html": html, "measure": measure}
        return diff_operation(target, operation, asked, effort=effort, as_json=as_json, verbose=verbose, out=out)
    refuse_of_operation(options)
    if target is not None and is_trace(target):
        diff_captured(target, as_json)
        diff_stored(target, options, as_json=as_json, verbose=verbose, html=html, out=out)
    if fail_on not in FAIL_ON:
        raise Refusal(f"--fail-on must be one of {', '.join(FAIL_ON)}; got {fail_on!r}")
    if out is not None:
        try:
            out.mkdir(parents=True, exist_ok=True)  # before the runs, whose results would be lost
        except OSError as error:
            raise Refusal(f"--out {out}: {error.strerror}") from None
    second = cli_against.second_run(options.pop("against"))
    earlier = second.pop(cli_against.SINCE, None)
    if second and options.pop("mapping") is not None:
        raise Refusal("--mapping reads one run, but --against compares two; got both")
    if second and measure:
        raise Refusal("--measure judges one function, but --against compares two; got both")
    with shown():
        if second:
            pairs = list(cli_against.judged(target, second, options))
            verdicts = [verdict for pair in pairs for verdict in (pair.verdict, classed(pair.a))]
            for i, pair in enumerate(pairs):
                for side, judged in (("a", pair.a), ("b", pair.b)):
                    if out is not None:
                        write(judged, out / (side if len(pairs) == 1 else f"{i:03d}/{side}"))
            if html is not None:
                cli_against.write_page(pairs, html)
        else:
            calls = runs(target, **options)
            if earlier is not None:
                calls = [partial(_with_changes_since, call, earlier) for call in calls]
            printed, verdicts, kept = [], [], []
            beside = as_json or out is not None or html is not None or (verbose and len(calls) == 1)
            for i, judged in enumerate(_judged(calls, report=beside, measure=measure, effort=effort)):
                if out is not None:
                    write(judged, out if len(calls) == 1 else out / f"{i:03d}")
                if html is not None:
                    kept.append(_kept(judged, alone=len(calls) == 1))
                printed.append(_printed(judged, alone=len(calls) == 1, as_json=as_json))
                verdicts.append(classed(judged))
            if html is not None:
                _write_page(kept, html)
        # what a report computes shows its progress too
        if second:
            cli_against.show(pairs, as_json, out)
        else:
            _print(printed, as_json, verbose, out)
        if html is not None and not as_json:
            click.echo(f"page: {html}")
    fails = frozenset({"diverges", *failing(fail_on)})
    sys.exit(BUG if fails.intersection(verdicts) else 0)


def _with_changes_since(call: Callable[[], "Trace"], previous: str) -> "Trace":
    """The trace that a call gives, with what changed of its code since an earlier one."""
    from workbench.trace.stale import held_to

    return held_to(call(), previous)


def _judged(calls: list[Callable[[], "Trace"]], *, report: bool, measure: bool, effort: float) -> Iterable["Diff"]:
    """Run and judge, one after the other, with progress; the other arguments as of `judge.diff.diff`."""
    from workbench.judge import diff as judge
    from workbench.progress import step

    with step(f"run and judge {len(calls)} case{'s' * (len(calls) > 1)}") as tick:
        for i, call in enumerate(calls):
            tick(f"{i} of {len(calls)} done")
            yield judge.diff(call(), report=report, measure=measure, effort=effort)


def _printed(judged: "Diff", *, alone: bool, as_json: bool) -> Any:
    """What is printed of a run: of one of several no more than its document or its row, so that its trace can go."""
    if as_json:
        from workbench.report.document import diff_document

        return diff_document(judged)
    from workbench.judge.table import run_row

    return judged if alone else run_row(judged)


def _kept(judged: "Diff", *, alone: bool) -> Any:
    """What a page needs of a run: of one of several its row and its part of the page, so that its trace can go."""
    from workbench.judge.table import run_row
    from workbench.report.page import diff as page

    return page.page(judged) if alone else (run_row(judged), page.short(judged))


def _write_page(kept: list[Any], html: Path) -> None:
    from workbench.report.page import runs
    from workbench.report.page.page import save

    save(kept[0] if len(kept) == 1 else runs.page(*zip(*kept, strict=True)), html)


def _print(printed: list[Any], as_json: bool, verbose: bool, out: Path | None) -> None:
    if as_json:
        from workbench.report.document import diffs_document

        click.echo(json.dumps(printed[0] if len(printed) == 1 else diffs_document(printed)))
        return
    from workbench.report import text
    from workbench.report.summary import summary

    screen = text.console()
    unicode = screen.is_terminal
    if len(printed) == 1:
        screen.print(text.report(printed[0], unicode=unicode, width=screen.width, full=verbose), crop=False)
    else:
        screen.print(summary(printed, unicode=unicode))
    if out is not None:
        screen.print(f"pictures and traces: {out}/", soft_wrap=True)


@commands.command()
@click.argument("target", metavar="[FILE]", required=False)
@json_option
def doctor(target: str | None, as_json: bool) -> None:
    """Check what this machine has, and print the fix for what is missing.

    Prints one line per check. Exits with 3 if something required is missing.

    FILE is a compiled extension FILE.so, or the FILE.py that uses it: check whether it can work here.
    """
    from dataclasses import asdict

    if target is None:
        from workbench.cuda.doctor import checks as machine

        checks = machine()
    else:
        from workbench.foreign.doctor import checks_of

        checks = checks_of(target)
    if as_json:
        click.echo(json.dumps(_doctor([asdict(one) for one in checks])))
    for one in () if as_json else checks:
        mark = "ok" if one.ok else "WRONG" if one.required else "absent"
        click.echo(f"{mark:7}{one.name}: {one.detail}")
        if one.fix:
            click.echo(f"       fix: {one.fix}")
    sys.exit(ENVIRONMENT if any(one.required and not one.ok for one in checks) else 0)


def _doctor(checks: list[dict[str, Any]]) -> dict[str, Any]:
    """The document `workbench.doctor/1`.

    - `checks`: `name`, `ok`, `detail` (what was found), `fix`, `required`
    """
    return {"schema": "workbench.doctor/1", "checks": checks}


@commands.command()
@click.option("--backend", default="auto", help="Where to measure: auto, emulator or cuda [auto: a GPU if present]")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default="calibration.json",
    help="Write the calibration to this file [calibration.json]",
)
@json_option
def calibrate(backend: str, out: Path, as_json: bool) -> None:
    """Measure the arithmetic of this machine for contracts: errors of exp and log, tensor-core sums, roundings of
    casts.
    """
    from workbench.cuda.calibrate import record as calibration
    from workbench.cuda.calibrate.measure import measure
    from workbench.progress import shown

    calibration.check_free(out)
    with shown():
        measured = measure(backend)
    calibration.save(measured, out)
    if as_json:
        return click.echo(json.dumps(calibration.document(measured)))
    from workbench.report import calibration as table
    from workbench.report.text import show

    click.echo(table.headline(measured))
    show(table.rows(measured), table.COLUMNS)
    click.echo(f"written: {out}")
