"""The command line's `bench` commands, which measure."""

import json
from typing import Any

import click

from workbench.options import json_option


@click.group()
def bench() -> None:
    """Measure speed and cost, and how far verdicts can be trusted, each beside a peer of the same run."""


@bench.command()
@json_option
def emulator(as_json: bool) -> None:
    """Measure the emulator against numba's own CUDA simulator."""
    from workbench.cuda import bench_emulator
    from workbench.progress import shown
    from workbench.report.text import show

    with shown():
        results = bench_emulator.measure()
    if as_json:
        return click.echo(json.dumps(results))
    for table in ("runs", "starts"):
        show(results[table], tuple(results[table][0]))


@bench.command()
@json_option
def sanitizer(as_json: bool) -> None:
    """Compare watched runs with NVIDIA's compute-sanitizer, fault by fault; needs a GPU."""
    from workbench.cuda import bench_sanitizer
    from workbench.progress import shown
    from workbench.report.text import show

    with shown():
        results = bench_sanitizer.measure()
    if as_json:
        return click.echo(json.dumps(results))
    rows = []
    for row in results["rows"]:
        cells = {name: bench_sanitizer.text(cell) for name, cell in row.items() if isinstance(cell, dict)}
        rows.append({"fault": row["fault"] or "none", "kernel": row["kernel"], **cells})
    show(rows, tuple(rows[0]))
    show([results["versions"]], tuple(results["versions"]))


@bench.command()
@json_option
def diff(as_json: bool) -> None:
    """Measure what a verdict costs, in seconds and memory, beside assert_allclose and assert_close."""
    from workbench import bench_diff
    from workbench.progress import shown

    with shown():
        results = bench_diff.measure()
    _print(results, bench_diff.tables(results), as_json)


@bench.command()
@click.option("--correct", type=click.IntRange(min=1), default=2000, help="Random cases of correct kernels [2000]")
@click.option("--per-fault", type=click.IntRange(min=1), default=20, help="Random cases of each fault [20]")
@click.option("--seed", default=0, help="Seed of the cases [0]")
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Processes to spread the cases over [1]")
@click.option("--foreign", is_flag=True, help="Instead, judge PyTorch's own attention, its contract unknown")
@json_option
def verdicts(correct: int, per_fault: int, seed: int, jobs: int, foreign: bool, as_json: bool) -> None:
    """Measure how far verdicts can be trusted: false alarms of correct kernels, and faults found."""
    from workbench.progress import shown

    with shown():
        if foreign:
            from workbench import bench_foreign

            results = bench_foreign.measure(per_fault=per_fault, seed=seed, jobs=jobs)
            tables = bench_foreign.tables(results)
        else:
            from workbench import bench_verdicts

            results = bench_verdicts.measure(correct, per_fault, seed, jobs)
            tables = bench_verdicts.tables(results)
    _print(results, tables, as_json)


def _print(results: dict[str, Any], tables: list[list[dict[str, Any]]], as_json: bool) -> None:
    """The document, or its tables."""
    from workbench.report.text import show

    if as_json:
        return click.echo(json.dumps(results))
    for rows in tables:
        show(rows, tuple(rows[0]))
