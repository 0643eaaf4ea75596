"""The command line's `check`, which watches a run."""

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from workbench.case.options import FOREIGN
from workbench.cli.commands import Command
from workbench.cli.completion import complete
from workbench.cli.options import case_options, cases_of, fault_option, given, json_option, needs_of

if TYPE_CHECKING:
    from workbench.cuda.check import Checked

FOUND = 1  #: exit code


@click.command(cls=Command)
@click.argument("target", metavar="TARGET", shell_complete=complete)
@fault_option
@case_options
@click.option("--probes", default="all", shell_complete=complete, help="Stages to dump: all, lean or output [all]")
@click.option("--backend", default="emulator", help="emulator, or cuda: a foreign function under compute-sanitizer")
@click.option("--arrays", help="With cuda, what the function takes, as of `workbench diff`")
@click.option("--device", help="With cuda, where it wants its arrays, as of `workbench diff`")
@click.option("--layout", help="With cuda, layout of its q, k, v and out, as of `workbench diff`")
@click.option(
    "--schedules",
    type=click.IntRange(min=1),
    default=1,
    help="Orders of blocks and threads to run, each with other bits looked for [1]",
)
@json_option
def check(target: str, as_json: bool, **options: Any) -> None:
    """Watch every access of TARGET on the emulator: unwritten reads, races, divergent barriers, out-of-bounds.

    TARGET is a kernel of ours, or several, separated by commas. Case options take comma-separated lists; every
    combination is run. Exits with 1 where something was found.

    With --backend cuda, TARGET is a foreign function, path.py:function, and NVIDIA's compute-sanitizer watches it on a
    GPU: memcheck, racecheck, initcheck, synccheck. Lines are known of kernels compiled with -lineinfo.
    """
    from workbench.progress import shown

    with shown():
        checked = _on_gpu(target, **options) if options["backend"] == "cuda" else _emulated(target, **options)
    if as_json:
        from workbench.report.findings import check_document, checks_document

        click.echo(json.dumps(check_document(checked[0]) if len(checked) == 1 else checks_document(checked)))
    else:
        from workbench.report import findings, text

        text.console().print(findings.report(checked), soft_wrap=True)
    sys.exit(0 if all(one.passed for one in checked) else FOUND)


def _emulated(
    target: str, faults: tuple[str, ...], probes: str, schedules: int, backend: str, **options: Any
) -> list["Checked"]:
    """Kernels of ours, watched on the emulator."""
    from workbench.cuda.check import check as check_kernel
    from workbench.cuda.check import estimate_s
    from workbench.cuda.kernels import KERNELS
    from workbench.progress import step
    from workbench.refusal import Refusal

    if backend != "emulator":
        raise Refusal(f"check runs on emulator or cuda; got --backend {backend!r}")
    targets = target.split(",")
    if unknown := [name for name in targets if name not in KERNELS]:
        raise Refusal(
            f"check runs kernels of ours ({', '.join(KERNELS)}) on the emulator, and path.py:function with --backend "
            f"cuda; got {unknown[0]!r}"
        )
    if foreign := given(options, FOREIGN):
        raise Refusal(f"{', '.join(foreign)} are for foreign functions, with --backend cuda; {target} is one of ours")
    cases = cases_of({**options, **needs_of(faults, options)})
    checked: list[Checked] = []
    runs = len(cases) * len(targets)
    with step(f"watch {runs} run{'s' * (runs > 1)}", estimate_s(targets, cases, faults, probes)) as tick:
        for name in targets:
            for case in cases:
                tick(f"{len(checked)} done")
                checked.append(check_kernel(name, case, faults=faults, probes=probes, schedules=schedules))
    return checked


def _on_gpu(
    target: str, faults: tuple[str, ...], probes: str, schedules: int, backend: str, **options: Any
) -> list["Checked"]:
    """A foreign function on a GPU, watched by compute-sanitizer."""
    from workbench.cuda.kernels import KERNELS
    from workbench.foreign.sanitizer import check as check_function
    from workbench.progress import step
    from workbench.refusal import Refusal

    if target in KERNELS:
        raise Refusal(f"--backend cuda is for foreign functions (path.py:function); {target} is one of ours")
    ours = {"--fault": faults, "--probes": probes != "all", "--schedules": schedules != 1}
    if asked := [name for name, value in ours.items() if value]:
        raise Refusal(f"{asked[0]} is for kernels of ours ({', '.join(KERNELS)}); {target} is a foreign one")
    cases = cases_of(options)
    checked: list[Checked] = []
    with step(f"watch {len(cases)} case{'s' * (len(cases) > 1)} under each tool", None) as tick:
        for case in cases:
            tick(f"{len(checked)} done")
            checked.append(check_function(target, case, given(options, FOREIGN)))
    return checked
