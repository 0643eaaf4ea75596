"""The command line's `bench` commands, which measure."""

import json
import sys
from types import ModuleType
from typing import Any

import click

from workbench.case.options import FOREIGN
from workbench.cli.commands import Commands
from workbench.cli.exits import BUG
from workbench.cli.options import (
    case_options,
    cases_of,
    fault_option,
    given,
    json_option,
    needs_of,
    target_options,
)


@click.group(cls=Commands)
def bench() -> None:
    """Measure speed against a peer in the same run."""


def measured(what: ModuleType, as_json: bool, *given: Any, **options: Any) -> dict[str, Any]:
    """What a module with `measure` and `tables` measures, with progress; printed as the document or as tables."""
    from workbench.progress import shown
    from workbench.report.text import show

    with shown():
        results = what.measure(*given, **options)
    if as_json:
        click.echo(json.dumps(results))
    for rows in [] if as_json else what.tables(results):
        show(rows, tuple(rows[0]))
    return results


@bench.command()
@click.argument("target", metavar="TARGET")
@fault_option
@case_options
@target_options
@json_option
def kernel(target: str, faults: tuple[str, ...], backend: str, probes: str, as_json: bool, **options: Any) -> None:
    """Time TARGET against PyTorch's scaled_dot_product_attention, where TARGET is right.

    TARGET is a built-in kernel, on a GPU, or your kernel as path.py:function. It is judged first; wrong cases are not
    timed, and the command then exits with 1. Case options take comma-separated lists. Without a length or head_dim the
    shapes (seqlen, head_dim) are (4,4) (64,64) (65,64) (128,64) (192,64) (256,64) (512,64).
    """
    from workbench.bench import kernel as bench_kernel

    options |= needs_of(faults, options)
    shaped = any(options[name] for name in ("seqlen", "seqlen_q", "seqlen_k", "head_dim"))
    shapes = [{}] if shaped else [{"seqlen": (n,), "head_dim": (dim,)} for n, dim in bench_kernel.SHAPES]
    cases = [case for shape in shapes for case in cases_of({**options, **shape})]
    asked = {"faults": faults, "probes": probes, "backend": backend, **given(options, FOREIGN)}
    results = measured(bench_kernel, as_json, target, cases, **asked)
    for line in [] if as_json else bench_kernel.sentences(results):
        click.echo(line)
    sys.exit(BUG if bench_kernel.wrong(results) else 0)
