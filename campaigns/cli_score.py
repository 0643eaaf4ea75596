"""The campaign `score`, which measures how far named causes can be trusted."""

import json

import click

from workbench.cli.commands import Command
from workbench.cli.options import json_option


@click.command(cls=Command)
@click.option("--per-fault", type=click.IntRange(min=1), default=5, help="Random cases per fault [5]")
@click.option("--seed", default=0, help="Seed of the cases [0]")
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Worker processes [1]")
@click.option("--kernel", "kernels", multiple=True, help="Run the faults of this kernel; repeatable [all]")
@click.option("--known", multiple=True, help="Dumped stages, e.g. full or lean; repeatable [all]")
@click.option("--independent", is_flag=True, help="Instead, explain third-party-style kernels")
@click.option("--pairs", type=click.IntRange(min=1), help="Instead, explain this many random pairs of faults")
@click.option(
    "--left-out", is_flag=True, help="Instead, remove each fault's family of causes: its cause must be unknown"
)
@click.option("--symptoms", is_flag=True, help="Instead, explain --symptoms on tables of 20 faults")
@json_option
def score(
    per_fault: int,
    seed: int,
    jobs: int,
    kernels: tuple[str, ...],
    known: tuple[str, ...],
    independent: bool,
    pairs: int | None,
    left_out: bool,
    symptoms: bool,
    as_json: bool,
) -> None:
    """Measure how reliable the causes of `explain` are, with all stages dumped and with fewer.

    A cause is right if it reproduces the faulty kernel on fresh cases. Right kernels must have no cause.
    """
    from campaigns import left_out as left_out_campaign
    from campaigns import pairs as pairs_campaign
    from campaigns import score as score_campaign
    from campaigns import symptoms as symptoms_campaign
    from workbench.cuda.kernels import KERNELS
    from workbench.progress import shown
    from workbench.refusal import Refusal
    from workbench.report.text import show

    if independent + left_out + symptoms + (pairs is not None) > 1:
        raise Refusal("--independent, --pairs, --left-out and --symptoms are separate campaigns; give one of them")
    if (kernels or known) and (independent or left_out or symptoms or pairs is not None):
        raise Refusal("--kernel and --known work only without --independent, --pairs, --left-out and --symptoms")
    for flag, names, allowed in (("--kernel", kernels, KERNELS), ("--known", known, score_campaign.KNOWN)):
        if other := [name for name in names if name not in allowed]:
            raise Refusal(f"{flag} takes {', '.join(allowed)}; got {other[0]}")
    tables = score_campaign.tables
    with shown():
        if pairs is not None:
            results, tables = pairs_campaign.measure(pairs, seed, jobs), pairs_campaign.tables
        elif symptoms:
            results, tables = symptoms_campaign.measure(seed, jobs), symptoms_campaign.tables
        elif left_out:
            results, tables = left_out_campaign.measure(per_fault, seed, jobs), left_out_campaign.tables
        elif independent:
            results = score_campaign.measure_independent(per_fault, seed, jobs)
        else:
            results = score_campaign.measure(per_fault, seed, jobs, kernels, known)
    if as_json:
        return click.echo(json.dumps(results))
    for rows in tables(results):
        show(rows, tuple(rows[0]))
