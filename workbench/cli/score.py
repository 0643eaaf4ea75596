"""The command line's `score`, which measures how far named causes can be trusted."""

import json

import click

from workbench.cli.commands import Command
from workbench.cli.options import json_option


@click.command(cls=Command)
@click.option("--per-fault", type=click.IntRange(min=1), default=5, help="Random cases of each fault [5]")
@click.option("--seed", default=0, help="Seed of the cases [0]")
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Processes to spread the faults over [1]")
@click.option("--independent", is_flag=True, help="Instead, kernels whose bugs were written without a look at this one")
@json_option
def score(per_fault: int, seed: int, jobs: int, independent: bool, as_json: bool) -> None:
    """Measure how far the causes that `explain` names can be trusted, with all stages dumped and with fewer.

    A name is right where it reproduces the faulty kernel on fresh cases. Right kernels must have no cause.
    """
    from workbench.bench import score as bench_score
    from workbench.progress import shown
    from workbench.report.text import show

    with shown():
        measure = bench_score.measure_independent if independent else bench_score.measure
        results = measure(per_fault, seed, jobs)
    if as_json:
        return click.echo(json.dumps(results))
    for rows in bench_score.tables(results):
        show(rows, tuple(rows[0]))
