"""The command line of the campaigns: `python -m campaigns NAME`, in a checkout of the repository."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from campaigns.cli_score import score
from workbench.arrays import DEVICES
from workbench.cli.bench import measured
from workbench.cli.commands import Commands
from workbench.cli.exits import BUG
from workbench.cli.main import GROUP, run
from workbench.cli.options import case_options, cases_of, json_option
from workbench.refusal import Refusal


def main() -> None:
    """`python -m campaigns`; exit codes are those of `workbench`."""
    run(commands, "python -m campaigns")


@click.group(cls=Commands, context_settings=GROUP)
def commands() -> None:
    """Measure how reliable verdicts and causes are, on many random cases; each campaign takes minutes to hours."""


commands.add_command(score)


@commands.command()
@json_option
def sanitizer(as_json: bool) -> None:
    """Compare watched runs with NVIDIA's compute-sanitizer, fault by fault; needs a GPU."""
    from campaigns import sanitizer as sanitizer_campaign

    measured(sanitizer_campaign, as_json)


@commands.command()
@click.option("--correct", type=click.IntRange(min=1), default=2000, help="Random cases of correct kernels [2000]")
@click.option("--per-fault", type=click.IntRange(min=1), default=20, help="Random cases per fault [20]")
@click.option("--seed", default=0, help="Seed of the cases [0]")
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Worker processes [1]")
@click.option("--foreign", is_flag=True, help="Instead, judge PyTorch's own attention without its contract")
@click.option("--styles", is_flag=True, help="Instead, judge third-party-style kernels, correct and faulty")
@click.option("--subsets", is_flag=True, help="Instead, judge every fault from every small subset of its stages")
@json_option
def verdicts(
    correct: int, per_fault: int, seed: int, jobs: int, foreign: bool, styles: bool, subsets: bool, as_json: bool
) -> None:
    """Measure how reliable verdicts are: false alarms on correct kernels, and faults found."""
    from campaigns import foreign as foreign_campaign
    from campaigns import subsets as subsets_campaign
    from campaigns import verdicts as verdicts_campaign
    from campaigns.styles import measure as styles_campaign

    if foreign + styles + subsets > 1:
        raise Refusal("--foreign, --styles and --subsets are separate campaigns; give one of them")
    if styles:
        measured(styles_campaign, as_json, per_fault, seed, jobs)
    elif subsets:
        measured(subsets_campaign, as_json, seed=seed, jobs=jobs)
    elif foreign:
        measured(foreign_campaign, as_json, per_fault=per_fault, seed=seed, jobs=jobs)
    else:
        measured(verdicts_campaign, as_json, correct, per_fault, seed, jobs)


@commands.command()
@click.option("--runs", type=click.IntRange(min=1), default=2000, help="Right runs [2000]")
@click.option("--seed", default=0, help="Seed of the cases [0]")
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Processes to spread the runs over [1]")
@json_option
def plain(runs: int, seed: int, jobs: int, as_json: bool) -> None:
    """Judge right kernels by plain NumPy functions, and small faults beside them; 1 where a right one is outside."""
    from campaigns.plain import measure as plain_campaign

    results = measured(plain_campaign, as_json, runs, seed, jobs)
    sys.exit(BUG if plain_campaign.wrong(results) else 0)


@commands.command()
@click.option("--runs", type=click.IntRange(min=1), default=540, help="Random cases [540]")
@click.option("--seed", default=0, help="Seed of the cases [0]")
@click.option("--device", default="cpu", help="Device that runs them, cpu or cuda; judging runs on the CPU [cpu]")
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Worker processes [1]")
@json_option
def gradients(runs: int, seed: int, device: str, jobs: int, as_json: bool) -> None:
    """Judge correct gradients of PyTorch's own attention, compared with assert_close."""
    from campaigns import gradients as gradients_campaign

    results = measured(gradients_campaign, as_json, runs, seed, device, jobs)
    sys.exit(BUG if gradients_campaign.wrong(results) else 0)


@commands.command("in-models")
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Worker processes [1]")
@click.option("--name", "names", multiple=True, metavar="NAME", help="Only this bug or pair; repeatable [all]")
@json_option
def in_models(jobs: int, names: tuple[str, ...], as_json: bool) -> None:
    """Capture 48 wrong functions in tiny models and compare 30 pairs of runs; exit 1 if a result misses its truth."""
    from campaigns.in_models import score as in_models_campaign

    results = measured(in_models_campaign, as_json, jobs, names)
    sys.exit(0 if in_models_campaign.holds(results) else BUG)


@commands.command()
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Worker processes [1]")
@click.option("--kernel", "names", multiple=True, metavar="NAME", help="Only this one; repeatable [all]")
@json_option
def reports(jobs: int, names: tuple[str, ...], as_json: bool) -> None:
    """Explain 150 wrong kernels, rebuilt from bug reports, from out and lse."""
    from campaigns.reports import measure as reports_campaign

    measured(reports_campaign, as_json, jobs, names)


@commands.command()
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Worker processes [1]")
@click.option("--function", "names", multiple=True, metavar="NAME", help="Only this one; repeatable [all]")
@json_option
def twins(jobs: int, names: tuple[str, ...], as_json: bool) -> None:
    """Run `diff` on 15 wrong functions and their right twins; exit 1 if a verdict or cause is wrong."""
    from campaigns import twins as twins_campaign

    sys.exit(BUG if measured(twins_campaign, as_json, jobs, names)["false"] else 0)


@commands.command()
@click.option("--right", type=click.IntRange(min=0), default=40, help="Right functions in random styles [40]")
@click.option(
    "--seconds", type=click.FloatRange(min=0.0, min_open=True), default=10.0, help="Seconds per function [10]"
)
@click.option("--seed", default=0, help="Seed that picks the styles [0]")
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Worker processes [1]")
@click.option("--cheat", "names", multiple=True, metavar="NAME", help="Only this one, no right functions; repeatable")
@click.option("--device", type=click.Choice(DEVICES), help="Run the torch functions there [the NumPy functions]")
@json_option
def accept(
    right: int, seconds: float, seed: int, jobs: int, names: tuple[str, ...], device: str | None, as_json: bool
) -> None:
    """Run `accept` on cheating and right functions; exit 1 if it is wrong about one that is not in ALLOWED."""
    from campaigns import accepted as accept_campaign

    results = measured(accept_campaign, as_json, right, seconds, seed, jobs, names, device)
    sys.exit(BUG if accept_campaign.wrong(results) else 0)


@commands.command("measured")
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Worker processes [1]")
@click.option("--function", "names", multiple=True, metavar="NAME", help="Only this one; repeatable [all]")
@click.option("--explain", is_flag=True, help="Also run `explain` on the wrong ones, and time it")
@json_option
def measured_functions(jobs: int, names: tuple[str, ...], explain: bool, as_json: bool) -> None:
    """Measure 510 wrong functions and their right twins."""
    from campaigns import measured as measured_campaign

    measured(measured_campaign, as_json, jobs, names, explain=explain)


@commands.command()
@click.option("--per-style", type=click.IntRange(min=1), default=2, help="Random cases per style [2]")
@click.option("--seed", default=0, help="Seed of the cases [0]")
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Worker processes [1]")
@click.option("--style", "names", multiple=True, metavar="NAME", help="Only this one; repeatable [all]")
@json_option
def contracts(per_style: int, seed: int, jobs: int, names: tuple[str, ...], as_json: bool) -> None:
    """Fit contracts of correct kernels that declare none, and judge with them; exit 1 if a field is wrong."""
    from campaigns import contracts as contracts_campaign

    results = measured(contracts_campaign, as_json, per_style, seed, jobs, names)
    sys.exit(BUG if any(one["wrong"] for one in results["cases"]) else 0)


@commands.command()
@click.option("--calls", type=click.IntRange(min=1), default=100_000, help="Right calls to judge [100000]")
@click.option("--seed", default=0, help="Seed of the calls [0]")
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Worker processes [1]")
@click.option("--gpu", is_flag=True, help="Instead, measure a capture's overhead on a GPU, and backends' bits")
@json_option
def capture(calls: int, seed: int, jobs: int, gpu: bool, as_json: bool) -> None:
    """Capture right calls of PyTorch's attention; exit 1 if the capture keeps one."""
    from campaigns import capture as capture_campaign
    from campaigns import capture_gpu

    if gpu:
        found = measured(capture_gpu, as_json)
        sys.exit(BUG if any(row["wrong"] or not row["judged"] for row in found["overhead"]) else 0)
    results = measured(capture_campaign, as_json, calls, seed, jobs)
    sys.exit(BUG if results["kept"] or not results["rows"][-1]["judged"] else 0)


@commands.command()
@click.option("--seed", default=0, help="Seed of weights and prompts [0]")
@json_option
def clients(seed: int, as_json: bool) -> None:
    """Capture right models of transformers, x-transformers, torch, NumPy, JAX; exit 1 if a call is not judged right."""
    from campaigns import clients as clients_campaign

    results = measured(clients_campaign, as_json, seed)
    sys.exit(0 if clients_campaign.holds(results) else BUG)


@commands.command()
@click.option("--tries", type=click.IntRange(min=1), default=100, help="Captures [100]")
@click.option("--sample", type=click.FloatRange(0, 1, min_open=True), default=0.01, help="Share of judged calls [0.01]")
@click.option("--seed", default=0, help="Seed of the calls [0]")
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Worker processes [1]")
@json_option
def rare(tries: int, sample: float, seed: int, jobs: int, as_json: bool) -> None:
    """Capture calls of which one in 1000 is wrong, until it is caught; exit 1 if a wrong call is judged right."""
    from campaigns import rare as rare_campaign

    results = measured(rare_campaign, as_json, tries, sample, seed, jobs)
    sys.exit(BUG if results["missed"] else 0)


@commands.command()
@click.option("--per-fault", type=click.IntRange(min=1), default=5, help="Random cases per fault [5]")
@click.option("--seed", default=0, help="Seed of the cases [0]")
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Worker processes [1]")
@json_option
def faults(per_fault: int, seed: int, jobs: int, as_json: bool) -> None:
    """Check bit by bit that every fault shows at its stages, and judge benign changes; exit 1 on any miss."""
    from campaigns import bits

    results = measured(bits, as_json, per_fault, seed, jobs)
    sys.exit(BUG if bits.wrong(results) else 0)


@commands.command()
@click.option("--correct", type=click.IntRange(min=1), default=200, help="Random correct merges [200]")
@click.option("--per-fault", type=click.IntRange(min=1), default=5, help="Random cases per faulty merge [5]")
@click.option("--seed", default=0, help="Seed of the cases [0]")
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Worker processes [1]")
@json_option
def merges(correct: int, per_fault: int, seed: int, jobs: int, as_json: bool) -> None:
    """Measure how reliable verdicts on merges across ranks are: false alarms, faults found, causes named."""
    from campaigns.merges import measure as merges_campaign

    measured(merges_campaign, as_json, correct, per_fault, seed, jobs)


@commands.command()
@click.option("--correct", type=click.IntRange(min=1), default=1000, help="Random cases of right kernels [1000]")
@click.option("--per-fault", type=click.IntRange(min=1), default=5, help="Random cases per fault [5]")
@click.option("--seed", default=0, help="Seed of the cases [0]")
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Worker processes [1]")
@json_option
def backward(correct: int, per_fault: int, seed: int, jobs: int, as_json: bool) -> None:
    """Judge the built-in backward kernels, right and with each fault; exit 1 on a false alarm or a wrong origin."""
    from campaigns import backward as backward_campaign

    results = measured(backward_campaign, as_json, correct, per_fault, seed, jobs)
    sys.exit(BUG if backward_campaign.wrong(results) else 0)


@commands.command("backward-speed")
@json_option
def backward_speed(as_json: bool) -> None:
    """Time `backward_mma` against the backward pass of PyTorch's flash backend; needs a GPU."""
    from campaigns import backward_speed as speed_campaign

    measured(speed_campaign, as_json)


@commands.command("backward-reports")
@click.option("--seeds", type=click.IntRange(min=1), default=2, help="Runs per distribution [2]")
@click.option("--cases", type=click.IntRange(min=1), default=1000, help="Random cases per search [1000]")
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Worker processes [1]")
@click.option("--function", "names", multiple=True, metavar="NAME", help="Only this one; repeatable [all]")
@json_option
def backward_reports(seeds: int, cases: int, jobs: int, names: tuple[str, ...], as_json: bool) -> None:
    """Judge 11 backward passes rebuilt from bug reports; exit 1 on a wrong origin or a right twin called wrong."""
    from campaigns.backward_reports import measure as reports_campaign

    results = measured(reports_campaign, as_json, seeds, jobs, names, cases)
    sys.exit(BUG if reports_campaign.wrong(results) else 0)


@commands.command()
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Worker processes [1]")
@json_option
def laws(jobs: int, as_json: bool) -> None:
    """Check every fault against the laws of attention; exit 1 if a kernel without a fault breaks a law."""
    from campaigns import laws as laws_campaign

    results = measured(laws_campaign, as_json, jobs=jobs)
    sys.exit(BUG if results["clean"] else 0)


@commands.command()
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Worker processes [1]")
@json_option
def shrink(jobs: int, as_json: bool) -> None:
    """Shrink a large case of every fault; report its final size and whether it still fails in the same way."""
    from campaigns import shrink as shrink_campaign

    measured(shrink_campaign, as_json, jobs)


@commands.command()
@click.option("--cases", type=click.IntRange(min=1), default=500, help="Random cases [500]")
@click.option("--exact", type=click.IntRange(min=1), default=200, help="Random cases of exact inputs [200]")
@click.option("--seed", default=0, help="Seed of the cases [0]")
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Worker processes [1]")
@json_option
def assertions(cases: int, exact: int, seed: int, jobs: int, as_json: bool) -> None:
    """Run `assert_attention` and assert_close on PyTorch's attention; exit 1 if assert_attention fails."""
    from campaigns import assertions as assertions_campaign

    results = measured(assertions_campaign, as_json, cases, exact, seed, jobs)
    sys.exit(BUG if results["failed"] or any(row["off"] for row in results["exact"]) else 0)


@commands.command()
@click.option("--cases", default=200, help="Random cases per feature and target [200]")
@click.option("--target", "targets", multiple=True, help="A built-in kernel, or torch:FUNCTION; repeatable [all]")
@click.option("--feature", "features", multiple=True, help="A feature, e.g. sinks or paged; repeatable [all]")
@click.option("--device", default="cpu", help="cpu (built-in kernels on the emulator) or cuda [cpu]")
@click.option("--seed", default=0, help="Seed of the cases [0]")
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Worker processes [1]")
@json_option
def features(targets: tuple[str, ...], features: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Judge correct kernels on random cases with sinks, pages, packed sequences ...; exit 1 on a false alarm."""
    from campaigns import features as features_campaign

    given = {name: x for name, x in (("targets", targets), ("features", features)) if x}
    results = measured(features_campaign, as_json, **options, **given)
    for line in [] if as_json else results["wrong"]:
        click.echo(line)
    sys.exit(BUG if results["wrong"] else 0)


@commands.command()
@click.option("--backend", default="auto", help="auto, emulator or cuda [auto: a GPU if there is one]")
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Worker processes [1]")
@json_option
def fp8(backend: str, jobs: int, as_json: bool) -> None:
    """Judge the quantised kernel in all variants, compare its out with PyTorch's attention, and time it."""
    from campaigns import fp8 as fp8_campaign

    measured(fp8_campaign, as_json, backend, jobs)


@commands.command()
@click.argument("kernels", nargs=-1, metavar="[KERNEL]...")
@case_options
@json_option
def steps(kernels: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Time built-in kernels against PyTorch's flash and cuDNN attention; needs a GPU.

    Default KERNELs are flash, flash_tensor, flash_mma and flash_wgmma; for a single query, flash_mma and split_mma.
    Case options take comma-separated lists; the default cases are those of docs/trust/speed.md. Wrong kernels are not
    timed; the command then exits with 1.
    """
    from campaigns import steps as steps_campaign

    results = measured(steps_campaign, as_json, kernels, *([cases_of(options)] if any(options.values()) else []))
    for line in [] if as_json else steps_campaign.sentences(results):
        click.echo(line)
    sys.exit(BUG if steps_campaign.wrong(results) else 0)


@commands.command()
@click.argument("kernels", nargs=-1, metavar="[KERNEL]...")
@case_options
@json_option
def probes(kernels: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Time built-in kernels with and without probes, against a copy of as many bytes; needs a GPU.

    Default KERNELs are flash_tensor, flash_mma and flash_wgmma. Case options take comma-separated lists.
    """
    from campaigns import probes as probes_campaign

    cases = cases_of(options) if any(options.values()) else probes_campaign.CASES
    measured(probes_campaign, as_json, kernels or probes_campaign.NAMES, cases)


@commands.command()
@json_option
def emulator(as_json: bool) -> None:
    """Time the emulator against numba's own CUDA simulator."""
    from campaigns import emulator_speed

    measured(emulator_speed, as_json)


@commands.command()
@json_option
def diff(as_json: bool) -> None:
    """Measure the seconds and memory of a verdict, compared with assert_allclose and assert_close."""
    from campaigns import verdict_cost

    measured(verdict_cost, as_json)


@commands.command()
@click.option("--since", default="", metavar="REV", help="Also count what changed since a revision of git")
@click.option("--draw", default=0, help="List so many sentences at random [0]")
@click.option("--seed", default=0, help="Seed of the draw [0]")
@json_option
def sentences(since: str, draw: int, seed: int, as_json: bool) -> None:
    """List every sentence that a user may read: reports, messages, help, README and docs."""
    from campaigns import sentences as sentences_campaign

    measured(sentences_campaign, as_json, since, draw, seed)


@commands.command("naive-references")
@click.option("--seeds", type=click.IntRange(min=1), default=1, help="Seeds of each kernel's inputs [1]")
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Processes to spread the kernels over [1]")
@click.option("--causes", is_flag=True, help="Also search for the causes of wrong kernels")
@json_option
def naive_references(seeds: int, jobs: int, causes: bool, as_json: bool) -> None:
    """Judge kernels of 14 operations by naive references, written from the docs alone; 1 where a verdict is wrong."""
    from campaigns.naive_references import measure as naive_campaign

    sys.exit(BUG if naive_campaign.wrong(measured(naive_campaign, as_json, jobs, seeds, causes)) else 0)


@commands.command()
@click.option("--checkouts", metavar="DIR", required=True, help="A folder with flash-linear-attention at each commit")
@click.option("--device", type=click.Choice(DEVICES), default="cuda", help="Device that runs the kernels [cuda]")
@click.option("--wrong", is_flag=True, help="Also the bugs, at the commits before and after their fix")
@click.option("--faults", is_flag=True, help="Instead the smallest faults of plain functions")
@click.option("--forward", is_flag=True, help="Results alone, no gradients")
@click.option("--case", "names", multiple=True, metavar="NAME", help="Only this operation, or fix; repeatable [all]")
@click.option("--dtype", "dtypes", multiple=True, help="Only this dtype; repeatable [all]")
@click.option("--tokens", type=click.IntRange(min=1), help="Tokens of every case [its own]")
@click.option("--limit", type=click.FloatRange(min=1.0), default=60.0, help="Seconds of each process [60]")
@click.option("--all", "whole", type=click.FloatRange(min=1.0), default=3600.0, help="Seconds of all [3600]")
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Processes side by side [1]")
@click.option("--kernels", type=click.IntRange(min=1), default=4, help="Of these that run kernels, at most [4]")
@click.option("--runs", metavar="DIR", help="Keep runs there; judge those that are there without the device")
@click.option("--judge/--no-judge", "judged", default=True, help="Whether runs are judged [yes]")
@click.option("--json", "file", metavar="FILE", type=Path, help="Also write the document there")
def linear(file: Path | None, whole: float, **options: Any) -> None:
    """Judge kernels of flash-linear-attention by that project's naive references; 1 where a verdict is wrong."""
    from campaigns.linear import measure as linear_campaign

    found = measured(linear_campaign, False, whole=whole, **options)
    if file is not None:
        file.write_text(json.dumps(found))
    wrong = linear_campaign.wrong(found) if options["judged"] else found["rows"]
    sys.exit(BUG if wrong else 0)


@commands.command()
@click.option("--checkouts", metavar="DIR", required=True, help="A folder with a clone of each project")
@click.option("--device", type=click.Choice(DEVICES), default="cuda", help="cpu: Triton's interpreter [cuda]")
@click.option("--project", metavar="P", help="Only this project [all]")
@click.option("--row", "rows", multiple=True, type=click.IntRange(min=1), help="Only this bug; repeatable [all]")
@click.option("--audit", is_flag=True, help="Instead, judge functions of the newest commits, with nothing declared")
@click.option("--case", "names", multiple=True, metavar="NAME", help="Only this operation of it; repeatable [all]")
@click.option("--dtype", "dtypes", multiple=True, help="Only this dtype; repeatable [all]")
@click.option("--seed", default=0, help="Seed of all inputs [0]")
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Processes side by side [1]")
@click.option("--limit", type=click.FloatRange(min=1.0), default=60.0, help="Seconds of each process [60]")
@click.option("--all", "whole", type=click.FloatRange(min=1.0), default=3600.0, help="Seconds of all [3600]")
@click.option("--json", "file", metavar="FILE", type=Path, help="Also write the document there")
def real(file: Path | None, **options: Any) -> None:
    """Judge kernels of public projects before and after real fixes, or today's; 1 where a verdict is wrong."""
    from campaigns.real import measure as real_campaign

    found = measured(real_campaign, False, file=file, **options)
    sys.exit(BUG if real_campaign.wrong(found) else 0)


@commands.command("plain-references")
@click.option("--right", type=click.IntRange(min=0), default=1000, help="Runs of right kernels [1000]")
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Processes to spread the kernels over [1]")
@json_option
def plain_references(right: int, jobs: int, as_json: bool) -> None:
    """Judge right kernels and 60 faults of five operations by plain torch references; 1 where a verdict is wrong."""
    from campaigns.plain_references import judged

    found = measured(judged, as_json, jobs, right)
    sys.exit(BUG if not all(judged.as_true(one) for one in found["runs"]) else 0)


@commands.command("accept-references")
@click.option("--every", type=click.IntRange(min=1), default=1, help="Take one of so many kernels [1]")
@click.option("--seed", default=11, help="Seed of the cases [11]")
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Processes to spread the kernels over [1]")
@json_option
def accept_references(every: int, seed: int, jobs: int, as_json: bool) -> None:
    """Accept or reject the kernels of plain-references, on a case of each family; 1 where a verdict is wrong."""
    from campaigns.plain_references import accepted

    found = measured(accepted, as_json, jobs, every, seed)
    sys.exit(BUG if not all(accepted.as_true(one) for one in found["kernels"]) else 0)
