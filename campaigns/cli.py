"""The command line of the campaigns: `python -m campaigns NAME`, in a checkout of the repository."""

import sys
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
    """Measure how far verdicts and causes can be trusted, on random cases by the dozen; minutes to hours each."""


commands.add_command(score)


@commands.command()
@json_option
def sanitizer(as_json: bool) -> None:
    """Compare watched runs with NVIDIA's compute-sanitizer, fault by fault; needs a GPU."""
    from campaigns import sanitizer as sanitizer_campaign

    measured(sanitizer_campaign, as_json)


@commands.command()
@click.option("--correct", type=click.IntRange(min=1), default=2000, help="Random cases of correct kernels [2000]")
@click.option("--per-fault", type=click.IntRange(min=1), default=20, help="Random cases of each fault [20]")
@click.option("--seed", default=0, help="Seed of the cases [0]")
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Processes to spread the cases over [1]")
@click.option("--foreign", is_flag=True, help="Instead, judge PyTorch's own attention, its contract unknown")
@click.option("--styles", is_flag=True, help="Instead, judge kernels in the styles of the wild, correct and faulty")
@click.option("--subsets", is_flag=True, help="Instead, judge every fault from every small set of its stages")
@json_option
def verdicts(
    correct: int, per_fault: int, seed: int, jobs: int, foreign: bool, styles: bool, subsets: bool, as_json: bool
) -> None:
    """Measure how far verdicts can be trusted: false alarms of correct kernels, and faults found."""
    from campaigns import foreign as foreign_campaign
    from campaigns import subsets as subsets_campaign
    from campaigns import verdicts as verdicts_campaign
    from campaigns.styles import measure as styles_campaign

    if foreign + styles + subsets > 1:
        raise Refusal("--foreign, --styles and --subsets are campaigns of their own; got several")
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
@click.option("--device", default="cpu", help="Where they run: cpu or cuda; they are judged on the CPU [cpu]")
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Processes to spread the cases over [1]")
@json_option
def gradients(runs: int, seed: int, device: str, jobs: int, as_json: bool) -> None:
    """Judge gradients of PyTorch's own attention, in which nothing is wrong, beside assert_close."""
    from campaigns import gradients as gradients_campaign

    results = measured(gradients_campaign, as_json, runs, seed, device, jobs)
    sys.exit(BUG if gradients_campaign.wrong(results) else 0)


@commands.command("in-models")
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Processes to spread the runs over [1]")
@click.option("--name", "names", multiple=True, metavar="NAME", help="Only this bug or pair; repeatable [all]")
@json_option
def in_models(jobs: int, names: tuple[str, ...], as_json: bool) -> None:
    """Capture 48 wrong functions in tiny models, and compare 30 pairs of runs; 1 where one is not as its truth says."""
    from campaigns.in_models import score as in_models_campaign

    results = measured(in_models_campaign, as_json, jobs, names)
    sys.exit(0 if in_models_campaign.holds(results) else BUG)


@commands.command()
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Processes to spread the kernels over [1]")
@click.option("--kernel", "names", multiple=True, metavar="NAME", help="Only this one; repeatable [all]")
@json_option
def reports(jobs: int, names: tuple[str, ...], as_json: bool) -> None:
    """Explain 150 wrong kernels from bug reports, written by someone who never saw the judge, from out and lse."""
    from campaigns.reports import measure as reports_campaign

    measured(reports_campaign, as_json, jobs, names)


@commands.command()
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Processes to spread the functions over [1]")
@click.option("--function", "names", multiple=True, metavar="NAME", help="Only this one; repeatable [all]")
@json_option
def twins(jobs: int, names: tuple[str, ...], as_json: bool) -> None:
    """`diff` of 15 wrong functions and their right twins, written from README.md alone; 1 where it is wrong of one."""
    from campaigns import twins as twins_campaign

    sys.exit(BUG if measured(twins_campaign, as_json, jobs, names)["false"] else 0)


@commands.command()
@click.option("--right", type=click.IntRange(min=0), default=40, help="Right functions, in random styles [40]")
@click.option("--seconds", type=click.FloatRange(min=0.0, min_open=True), default=10.0, help="For each function [10]")
@click.option("--seed", default=0, help="Seed of which styles these are [0]")
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Processes to spread the functions over [1]")
@click.option("--cheat", "names", multiple=True, metavar="NAME", help="Only this one, and no right ones; repeatable")
@click.option("--device", type=click.Choice(DEVICES), help="Functions of torch tensors there [those of NumPy arrays]")
@json_option
def accept(
    right: int, seconds: float, seed: int, jobs: int, names: tuple[str, ...], device: str | None, as_json: bool
) -> None:
    """Hold functions that cheat, and right ones, to `accept`; 1 where it is wrong of one, but for those in ALLOWED."""
    from campaigns import accepted as accept_campaign

    results = measured(accept_campaign, as_json, right, seconds, seed, jobs, names, device)
    sys.exit(BUG if accept_campaign.wrong(results) else 0)


@commands.command("measured")
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Processes to spread the functions over [1]")
@click.option("--function", "names", multiple=True, metavar="NAME", help="Only this one; repeatable [all]")
@click.option("--explain", is_flag=True, help="What `explain` says of the wrong ones, and how long it takes")
@json_option
def measured_functions(jobs: int, names: tuple[str, ...], explain: bool, as_json: bool) -> None:
    """Measure 510 wrong functions and their right twins, written by people who never saw the readings."""
    from campaigns import measured as measured_campaign

    measured(measured_campaign, as_json, jobs, names, explain=explain)


@commands.command()
@click.option("--per-style", type=click.IntRange(min=1), default=2, help="Random cases of each style [2]")
@click.option("--seed", default=0, help="Seed of the cases [0]")
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Processes to spread the cases over [1]")
@click.option("--style", "names", multiple=True, metavar="NAME", help="Only this one; repeatable [all]")
@json_option
def contracts(per_style: int, seed: int, jobs: int, names: tuple[str, ...], as_json: bool) -> None:
    """Read the contracts of correct kernels that declare nothing, and judge them so; 1 where a field is wrong."""
    from campaigns import contracts as contracts_campaign

    results = measured(contracts_campaign, as_json, per_style, seed, jobs, names)
    sys.exit(BUG if any(one["wrong"] for one in results["cases"]) else 0)


@commands.command()
@click.option("--calls", type=click.IntRange(min=1), default=100_000, help="Right calls that are judged [100000]")
@click.option("--seed", default=0, help="Seed of the calls [0]")
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Processes to spread the calls over [1]")
@click.option("--gpu", is_flag=True, help="What a capture costs a model on a GPU, and whose bits depend on what")
@json_option
def capture(calls: int, seed: int, jobs: int, gpu: bool, as_json: bool) -> None:
    """Watch right calls of PyTorch's attention: a capture keeps none of them; 1 where it keeps one."""
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
    """Capture right models of transformers, x-transformers, torch, NumPy, JAX; 1 where a call is not judged right."""
    from campaigns import clients as clients_campaign

    results = measured(clients_campaign, as_json, seed)
    sys.exit(0 if clients_campaign.holds(results) else BUG)


@commands.command()
@click.option("--tries", type=click.IntRange(min=1), default=100, help="Captures [100]")
@click.option("--sample", type=click.FloatRange(0, 1, min_open=True), default=0.01, help="Share of judged calls [0.01]")
@click.option("--seed", default=0, help="Seed of the calls [0]")
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Processes to spread the captures over [1]")
@json_option
def rare(tries: int, sample: float, seed: int, jobs: int, as_json: bool) -> None:
    """Watch calls of which one of a thousand is wrong until a capture has it; 1 where one is judged right."""
    from campaigns import rare as rare_campaign

    results = measured(rare_campaign, as_json, tries, sample, seed, jobs)
    sys.exit(BUG if results["missed"] else 0)


@commands.command()
@click.option("--per-fault", type=click.IntRange(min=1), default=5, help="Random cases of each fault [5]")
@click.option("--seed", default=0, help="Seed of the cases [0]")
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Processes to spread the faults over [1]")
@json_option
def faults(per_fault: int, seed: int, jobs: int, as_json: bool) -> None:
    """Check, by bits, that every fault shows where it says, and judge changes that are none; 1 where not all holds."""
    from campaigns import bits

    results = measured(bits, as_json, per_fault, seed, jobs)
    sys.exit(BUG if bits.wrong(results) else 0)


@commands.command()
@click.option("--correct", type=click.IntRange(min=1), default=200, help="Random correct merges [200]")
@click.option("--per-fault", type=click.IntRange(min=1), default=5, help="Random cases of each faulty merge [5]")
@click.option("--seed", default=0, help="Seed of the cases [0]")
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Processes to spread the cases over [1]")
@json_option
def merges(correct: int, per_fault: int, seed: int, jobs: int, as_json: bool) -> None:
    """Measure how far verdicts on merges of ranks can be trusted: false alarms, faults found, causes named."""
    from campaigns.merges import measure as merges_campaign

    measured(merges_campaign, as_json, correct, per_fault, seed, jobs)


@commands.command()
@click.option("--correct", type=click.IntRange(min=1), default=1000, help="Random cases of right kernels [1000]")
@click.option("--per-fault", type=click.IntRange(min=1), default=5, help="Random cases of each fault [5]")
@click.option("--seed", default=0, help="Seed of the cases [0]")
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Processes to spread the cases over [1]")
@json_option
def backward(correct: int, per_fault: int, seed: int, jobs: int, as_json: bool) -> None:
    """Judge our backward kernels, right and with each fault; 1 where one is called wrong, or a fault elsewhere."""
    from campaigns import backward as backward_campaign

    results = measured(backward_campaign, as_json, correct, per_fault, seed, jobs)
    sys.exit(BUG if backward_campaign.wrong(results) else 0)


@commands.command("backward-speed")
@json_option
def backward_speed(as_json: bool) -> None:
    """Time `backward_mma` beside the backward pass of PyTorch's flash backend; needs a GPU."""
    from campaigns import backward_speed as speed_campaign

    measured(speed_campaign, as_json)


@commands.command("backward-reports")
@click.option("--seeds", type=click.IntRange(min=1), default=2, help="Runs of each distribution [2]")
@click.option("--cases", type=click.IntRange(min=1), default=1000, help="Random cases of a search [1000]")
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Processes to spread the functions over [1]")
@click.option("--function", "names", multiple=True, metavar="NAME", help="Only this one; repeatable [all]")
@json_option
def backward_reports(seeds: int, cases: int, jobs: int, names: tuple[str, ...], as_json: bool) -> None:
    """Judge eleven backward passes rebuilt from bug reports; 1 where one is named elsewhere, or a right twin wrong."""
    from campaigns.backward_reports import measure as reports_campaign

    results = measured(reports_campaign, as_json, seeds, jobs, names, cases)
    sys.exit(BUG if reports_campaign.wrong(results) else 0)


@commands.command()
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Processes to spread the faults over [1]")
@json_option
def laws(jobs: int, as_json: bool) -> None:
    """Hold every fault to the laws of attention; 1 where a kernel without a fault breaks one."""
    from campaigns import laws as laws_campaign

    results = measured(laws_campaign, as_json, jobs=jobs)
    sys.exit(BUG if results["clean"] else 0)


@commands.command()
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Processes to spread the faults over [1]")
@json_option
def shrink(jobs: int, as_json: bool) -> None:
    """Shrink a large case of every fault, and say how small it became, and whether it fails in the same way."""
    from campaigns import shrink as shrink_campaign

    measured(shrink_campaign, as_json, jobs)


@commands.command()
@click.option("--cases", type=click.IntRange(min=1), default=500, help="Random cases [500]")
@click.option("--exact", type=click.IntRange(min=1), default=200, help="Random cases of exact inputs [200]")
@click.option("--seed", default=0, help="Seed of the cases [0]")
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Processes to spread the cases over [1]")
@json_option
def assertions(cases: int, exact: int, seed: int, jobs: int, as_json: bool) -> None:
    """Put PyTorch's attention through `assert_attention` and assert_close; 1 where assert_attention fails one."""
    from campaigns import assertions as assertions_campaign

    results = measured(assertions_campaign, as_json, cases, exact, seed, jobs)
    sys.exit(BUG if results["failed"] or any(row["off"] for row in results["exact"]) else 0)


@commands.command()
@click.option("--cases", default=200, help="Random cases of each feature and target [200]")
@click.option("--target", "targets", multiple=True, help="A kernel of ours, or torch:FUNCTION; may be repeated [all]")
@click.option("--feature", "features", multiple=True, help="Such as sinks, paged; may be repeated [all]")
@click.option("--device", default="cpu", help="Where they run: cpu, kernels of ours on the emulator, or cuda [cpu]")
@click.option("--seed", default=0, help="Seed of the cases [0]")
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Processes to spread the cases over [1]")
@json_option
def features(targets: tuple[str, ...], features: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Judge correct kernels on random cases of sinks, pages, packed sequences ...; 1 where one is called wrong."""
    from campaigns import features as features_campaign

    given = {name: x for name, x in (("targets", targets), ("features", features)) if x}
    results = measured(features_campaign, as_json, **options, **given)
    for line in [] if as_json else results["wrong"]:
        click.echo(line)
    sys.exit(BUG if results["wrong"] else 0)


@commands.command()
@click.option("--backend", default="auto", help="auto, emulator or cuda [auto: a GPU where there is one]")
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Processes to spread the variants over [1]")
@json_option
def fp8(backend: str, jobs: int, as_json: bool) -> None:
    """Judge the kernel on quantised codes in all variants, hold its out against PyTorch's attention, and time it."""
    from campaigns import fp8 as fp8_campaign

    measured(fp8_campaign, as_json, backend, jobs)


@commands.command()
@click.argument("kernels", nargs=-1, metavar="[KERNEL]...")
@case_options
@json_option
def steps(kernels: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Time kernels of ours beside each other and PyTorch's flash and cuDNN attention, where they are right; on a GPU.

    KERNELs that are not named are flash, flash_tensor, flash_mma and flash_wgmma, and for a single query flash_mma and
    split_mma. Without case options, which take comma-separated lists, cases are those of docs/gpu.md. What is wrong
    is not timed; the command then exits with 1.
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
    """Time kernels of ours with every probe and without, beside a copy of as many bytes; on a GPU.

    KERNELs that are not named are flash_tensor, flash_mma and flash_wgmma. Case options take comma-separated lists.
    """
    from campaigns import probes as probes_campaign

    cases = cases_of(options) if any(options.values()) else probes_campaign.CASES
    measured(probes_campaign, as_json, kernels or probes_campaign.NAMES, cases)


@commands.command()
@json_option
def emulator(as_json: bool) -> None:
    """Measure the emulator against numba's own CUDA simulator."""
    from campaigns import emulator_speed

    measured(emulator_speed, as_json)


@commands.command()
@json_option
def diff(as_json: bool) -> None:
    """Measure what a verdict costs, in seconds and memory, beside assert_allclose and assert_close."""
    from campaigns import verdict_cost

    measured(verdict_cost, as_json)
