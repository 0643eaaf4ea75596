"""The command line. Results go to stdout, progress and errors to stderr.

Exit codes: 0 no bug, 1 a bug (or nothing could be judged), 2 wrong usage, 3 the machine lacks something, 70 a defect of
the workbench itself.
"""

import itertools
import json
import sys
import traceback
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from workbench.case import Case
    from workbench.judge import Diff
    from workbench.trace import Trace

BUG, USAGE, ENVIRONMENT = 1, 2, 3
#: --fail-on -> verdicts that exit with 1 besides bug, missing and untestable
FAILS_ALSO = {"bug": (), "biased": ("biased",), "suspicious": ("biased", "suspicious")}
DEFECT = 70  # EX_SOFTWARE of sysexits.h: a crash must not look like a bug found


def main() -> None:
    """Entry point of the console script; turns refusals into messages and exit codes."""
    from workbench.refusal import Refusal, Unavailable

    try:
        commands(prog_name="workbench", standalone_mode=True)
    except Refusal as refusal:
        click.echo(f"workbench: {refusal}", err=True)
        sys.exit(USAGE)
    except Unavailable as missing:
        click.echo(f"workbench: {missing}", err=True)
        sys.exit(ENVIRONMENT)
    except Exception:
        click.echo(
            f"workbench: a defect of the workbench itself, not of the kernel\n{traceback.format_exc()}", err=True
        )
        sys.exit(DEFECT)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(package_name="attention-workbench")
def commands() -> None:
    """Name the first wrong stage of a wrong attention kernel, and tell a bug from rounding.

    \b
    workbench diff split_k --fault reduce-double-counts-sum --causal    a kernel of ours with a fault put in
    workbench diff my_kernel.py:attention --dtype float16              a kernel of yours
    workbench diff run.safetensors                                     a trace, judged without running anything
    """  # noqa: D301 - click wants the character \b, which keeps the lines below it apart


class ListOf(click.ParamType):
    """Comma-separated values: `4,64,65`."""

    def __init__(self, item: Callable[[str], Any], name: str) -> None:
        self.item, self.name = item, name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Any, ...]:
        """The values of one option."""
        if isinstance(value, tuple):
            return value
        try:
            return tuple(self.item(part.strip()) for part in value.split(","))
        except ValueError:
            self.fail(f"{value!r} is not a comma-separated list of {self.name}s", param, ctx)


INTEGERS, NUMBERS, WORDS = ListOf(int, "integer"), ListOf(float, "number"), ListOf(str, "word")

#: option -> (type, help); the field of a case has the option's name with underscores
CASE_OPTIONS: dict[str, tuple[click.ParamType, str]] = {
    "--batch": (INTEGERS, "Batch size [1]"),
    "--heads": (INTEGERS, "Query heads [1]"),
    "--kv-heads": (INTEGERS, "Key and value heads, a divisor of heads [as heads]"),
    "--seqlen": (INTEGERS, "Both sequence lengths [128]"),
    "--seqlen-q": (INTEGERS, "Query length [as --seqlen-k]"),
    "--seqlen-k": (INTEGERS, "Key length [as --seqlen-q]"),
    "--head-dim": (INTEGERS, "Head dimension [64]"),
    "--dtype": (WORDS, "float32, float16 or bfloat16 [float32]"),
    "--causal-alignment": (WORDS, "bottom-right (FlashAttention-2) or top-left (torch's is_causal) [bottom-right]"),
    "--scale": (NUMBERS, "Factor of the scores [1/sqrt(head_dim)]"),
    "--splits": (INTEGERS, "Splits of the keys, in kernels that have them [2]"),
    "--block-q": (INTEGERS, "Queries in a tile: 16, 32, 64 or 128 [by head_dim]"),
    "--block-k": (INTEGERS, "Keys in a tile: 16, 32, 64 or 128 [by head_dim]"),
    "--seed": (INTEGERS, "Seed of the inputs [0]"),
    "--distribution": (WORDS, "Distribution of the inputs [normal]; `workbench kernels` lists them"),
    "--input-std": (NUMBERS, "Standard deviation of the inputs [1]"),
}


def case_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the case options, each of which takes a list, to a command."""
    for flag, text in (
        ("--full", "No mask [default]; with --causal: both"),
        ("--causal", "Causal mask; with --full: both"),
    ):
        command = click.option(flag, is_flag=True, help=text)(command)
    for option, (kind, text) in reversed(CASE_OPTIONS.items()):
        command = click.option(option, type=kind, help=text, metavar=kind.name.upper() + "[,...]")(command)
    return command


def cases_of(options: dict[str, Any]) -> list["Case"]:
    """Every combination of the listed case options, in the order of the options, the last varying fastest."""
    from workbench.case import Case

    lists = {flag[2:].replace("-", "_"): options.get(flag[2:].replace("-", "_")) for flag in CASE_OPTIONS}
    lists["causal"] = (
        tuple(dict.fromkeys([*([False] if options["full"] else []), *([True] if options["causal"] else [])])) or None
    )
    given = {name: values for name, values in lists.items() if values is not None}
    return [Case(**dict(zip(given, values, strict=True))) for values in itertools.product(*given.values())]


@commands.command()
@click.argument("target", metavar="TARGET")
@click.option(
    "--fault",
    "faults",
    multiple=True,
    metavar="ID",
    help="Put a fault in; may be repeated. `workbench faults` lists them",
)
@case_options
@click.option("--backend", default="auto", help="auto, emulator or cuda [auto: a GPU where there is one]")
@click.option("--probes", default="all", help="Stages to dump: all, lean or output [all]")
@click.option("--arrays", help="What a foreign kernel takes: numpy, torch or cupy [numpy]")
@click.option("--device", help="Where a foreign kernel wants its arrays: cpu or cuda [cpu]")
@click.option("--layout", help="Layout of a foreign kernel's q, k, v and out: bhsd or bshd [bhsd]")
@click.option("--fail-on", default="bug", help="Mildest verdict that exits with 1: bug, biased or suspicious [bug]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document")
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), help="Write pictures and the trace into this folder"
)
def diff(
    target: str,
    faults: tuple[str, ...],
    backend: str,
    probes: str,
    fail_on: str,
    as_json: bool,
    out: Path | None,
    **options: Any,
) -> None:
    """Judge every stage of TARGET and name the first wrong one.

    TARGET is a kernel of ours (or several, separated by commas), a foreign one as path.py:function, or a trace as
    FILE.safetensors. Case options take comma-separated lists; every combination is run and gets one row.
    """
    from workbench.comparison import ORIGIN_VERDICTS
    from workbench.progress import shown
    from workbench.refusal import Refusal

    if fail_on not in FAILS_ALSO:
        raise Refusal(f"--fail-on is one of {', '.join(FAILS_ALSO)}; got {fail_on!r}")
    with shown():
        if target.endswith(".safetensors"):
            given = [name for name, value in {**options, "faults": faults}.items() if value]
            if given:
                raise Refusal(f"a trace brings its own case and takes no other options; got {', '.join(given)}")
            from workbench.trace import load

            diffs = list(_judged([lambda: load(Path(target))], None))
        else:
            runs = _runs(target, options, tuple(faults), probes, backend)
            diffs = list(_judged(*runs))
        if out is not None:
            _write_all(diffs, out)
    _print(diffs, as_json, out)
    failing = {*ORIGIN_VERDICTS, "untestable", *FAILS_ALSO[fail_on]}
    sys.exit(BUG if any(judged.verdict in failing for judged in diffs) else 0)


def _runs(
    target: str, options: dict[str, Any], faults: tuple[str, ...], probes: str, backend: str
) -> tuple[list[Callable[[], "Trace"]], float | None]:
    """What to run, one call for each case, and about how many seconds it takes where that is known."""
    from workbench.cuda.kernels import KERNELS
    from workbench.target import run

    targets = target.split(",") if set(target.split(",")) <= set(KERNELS) else [target]
    foreign = {name: options[name] for name in ("arrays", "device", "layout") if options[name] is not None}
    cases = cases_of({**options, **_needs(faults, options)})
    ours: dict[str, Any] = {"faults": faults, "probes": probes, "backend": backend}
    calls: list[Callable[[], Trace]] = [
        partial(run, name, case, **ours, **foreign) for name in targets for case in cases
    ]
    if targets[0] not in KERNELS:
        return calls, None
    from workbench.cuda.run import estimate_s

    return calls, sum(estimate_s(name, cases, faults, probes, backend) for name in targets)


def _needs(faults: tuple[str, ...], options: dict[str, Any]) -> dict[str, Any]:
    """Case options that the chosen faults need to show: defaults where the user is silent, else refused."""
    from workbench.faults import CATALOGUE
    from workbench.refusal import Refusal

    needs: dict[str, Any] = {}
    for fault in faults:
        for name, value in CATALOGUE[fault].needs.items() if fault in CATALOGUE else ():
            given = options[name]
            if name == "causal":
                if options["full"]:
                    raise Refusal(f"fault {fault} shows only with --causal; got --full")
                needs["causal"] = True
            elif given is None:
                needs[name] = (value,)
            elif any(item != value for item in given):
                listed = ",".join(map(str, given))
                raise Refusal(f"fault {fault} shows only with --{name.replace('_', '-')} {value}; got {listed}")
    return needs


def _judged(calls: list[Callable[[], "Trace"]], estimate_s: float | None) -> Iterable["Diff"]:
    """Run and judge, one after the other, with progress."""
    from workbench import judge
    from workbench.progress import step

    with step(f"run and judge {len(calls)} case{'s' * (len(calls) > 1)}", estimate_s) as tick:
        for i, call in enumerate(calls):
            tick(f"{i} of {len(calls)} done")
            yield judge.diff(call())


def _write_all(diffs: list["Diff"], out: Path) -> None:
    from workbench.progress import step
    from workbench.report import plots
    from workbench.trace import save

    with step("write pictures and traces", estimate_s=0.25 * sum(2 * len(judged.stages) for judged in diffs)):
        for i, judged in enumerate(diffs):
            folder = out if len(diffs) == 1 else out / f"{i:03d}"
            plots.save(judged.stages, judged.trace.case, folder)
            save(judged.trace, folder / "trace.safetensors")


def _print(diffs: list["Diff"], as_json: bool, out: Path | None) -> None:
    if as_json:
        from workbench.report.document import diff_document, diffs_document

        click.echo(json.dumps(diff_document(diffs[0]) if len(diffs) == 1 else diffs_document(diffs)))
        return
    from workbench.report import text

    screen = text.console()
    unicode = screen.is_terminal
    screen.print(
        text.report(diffs[0], unicode=unicode, width=screen.width)
        if len(diffs) == 1
        else text.summary(diffs, unicode=unicode),
        soft_wrap=False,
    )
    if out is not None:
        screen.print(f"pictures and traces: {out}/", soft_wrap=True)


@commands.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document")
def faults(as_json: bool) -> None:
    """List the faults that can be put into a kernel."""
    from workbench.faults import CATALOGUE

    entries = [
        {
            "id": fault.id,
            "kernel": fault.kernel,
            "summary": fault.summary,
            "stages": list(fault.stages),
            "needs": dict(fault.needs),
            "source": fault.source,
            "before": fault.before,
            "after": fault.after,
        }
        for fault in CATALOGUE.values()
    ]
    _list(as_json, "workbench.faults/1", "faults", entries, ("id", "kernel", "stages", "summary"))


@commands.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document")
def kernels(as_json: bool) -> None:
    """List the kernels, their stages, and the distributions of inputs."""
    from workbench.case import DISTRIBUTIONS
    from workbench.cuda.kernels import KERNELS
    from workbench.stages import ALGORITHMS

    entries = [
        {"name": k.name, "summary": k.summary, "stages": list(ALGORITHMS[k.algorithm]), "splits": k.splits}
        for k in KERNELS.values()
    ]
    if as_json:
        return _list(True, "workbench.kernels/1", "kernels", entries, ())
    _list(False, "", "kernels", entries, ("name", "stages", "summary"))
    inputs = [
        {"distribution": name, "formula": " ".join((draw.__doc__ or "").partition("\n\n")[0].split())}
        for name, draw in DISTRIBUTIONS.items()
    ]
    _list(False, "", "distributions", inputs, ("distribution", "formula"))


def _list(as_json: bool, schema: str, name: str, entries: list[dict[str, Any]], columns: tuple[str, ...]) -> None:
    if as_json:
        return click.echo(json.dumps({"schema": schema, name: entries}))
    from workbench.report.text import console, listing

    screen = console()
    screen.print(listing(entries, columns, unicode=screen.is_terminal))


@commands.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document")
def doctor(as_json: bool) -> None:
    """Check what this machine has: one line each, and the fix for what is wrong. Exits with 3 where something needed is
    missing.
    """
    from dataclasses import asdict

    from workbench import doctor as doctor_module

    checks = doctor_module.judge(doctor_module.facts())
    if as_json:
        click.echo(json.dumps({"schema": "workbench.doctor/1", "checks": [asdict(check) for check in checks]}))
    for check in () if as_json else checks:
        mark = "ok" if check.ok else "WRONG" if check.required else "absent"
        click.echo(f"{mark:7}{check.name}: {check.detail}")
        if check.fix:
            click.echo(f"       fix: {check.fix}")
    sys.exit(ENVIRONMENT if any(check.required and not check.ok for check in checks) else 0)


@commands.group()
def bench() -> None:
    """Measure speed: medians, and the ratio to a peer of the same run."""


@bench.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document")
def emulator(as_json: bool) -> None:
    """Measure the emulator against numba's own CUDA simulator."""
    from workbench.cuda import bench_emulator
    from workbench.progress import shown

    with shown():
        results = bench_emulator.measure()
    if as_json:
        return click.echo(json.dumps(results))
    for table in ("runs", "starts"):
        _list(False, "", table, results[table], tuple(results[table][0]))
