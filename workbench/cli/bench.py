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
    """Measure speed and cost, and how far verdicts can be trusted, each beside a peer of the same run."""


def _measured(bench: ModuleType, as_json: bool, *given: Any, **options: Any) -> dict[str, Any]:
    """What a module of the room `bench` measures, with progress; printed as the document or as tables."""
    from workbench.progress import shown
    from workbench.report.text import show

    with shown():
        results = bench.measure(*given, **options)
    if as_json:
        click.echo(json.dumps(results))
    for rows in [] if as_json else bench.tables(results):
        show(rows, tuple(rows[0]))
    return results


@bench.command()
@json_option
def emulator(as_json: bool) -> None:
    """Measure the emulator against numba's own CUDA simulator."""
    from workbench.bench import emulator as bench_emulator

    _measured(bench_emulator, as_json)


@bench.command()
@json_option
def sanitizer(as_json: bool) -> None:
    """Compare watched runs with NVIDIA's compute-sanitizer, fault by fault; needs a GPU."""
    from workbench.bench import sanitizer as bench_sanitizer

    _measured(bench_sanitizer, as_json)


@bench.command()
@json_option
def diff(as_json: bool) -> None:
    """Measure what a verdict costs, in seconds and memory, beside assert_allclose and assert_close."""
    from workbench.bench import diff as bench_diff

    _measured(bench_diff, as_json)


@bench.command()
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
    from workbench.bench import foreign as bench_foreign
    from workbench.bench import subsets as bench_subsets
    from workbench.bench import verdicts as bench_verdicts
    from workbench.bench.styles import measure as bench_styles
    from workbench.refusal import Refusal

    if foreign + styles + subsets > 1:
        raise Refusal("--foreign, --styles and --subsets are campaigns of their own; got several")
    if styles:
        _measured(bench_styles, as_json, per_fault, seed, jobs)
    elif subsets:
        _measured(bench_subsets, as_json, seed=seed, jobs=jobs)
    elif foreign:
        _measured(bench_foreign, as_json, per_fault=per_fault, seed=seed, jobs=jobs)
    else:
        _measured(bench_verdicts, as_json, correct, per_fault, seed, jobs)


@bench.command()
@click.option("--per-fault", type=click.IntRange(min=1), default=5, help="Random cases of each fault [5]")
@click.option("--seed", default=0, help="Seed of the cases [0]")
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Processes to spread the faults over [1]")
@json_option
def faults(per_fault: int, seed: int, jobs: int, as_json: bool) -> None:
    """Check, by bits, that every fault shows where it says, and judge changes that are none; 1 where not all holds."""
    from workbench.bench import bits as bench_bits

    results = _measured(bench_bits, as_json, per_fault, seed, jobs)
    sys.exit(BUG if bench_bits.wrong(results) else 0)


@bench.command()
@click.option("--correct", type=click.IntRange(min=1), default=200, help="Random correct merges [200]")
@click.option("--per-fault", type=click.IntRange(min=1), default=5, help="Random cases of each faulty merge [5]")
@click.option("--seed", default=0, help="Seed of the cases [0]")
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Processes to spread the cases over [1]")
@json_option
def merges(correct: int, per_fault: int, seed: int, jobs: int, as_json: bool) -> None:
    """Measure how far verdicts on merges of ranks can be trusted: false alarms, faults found, causes named."""
    from workbench.bench.merges import measure as bench_merges

    _measured(bench_merges, as_json, correct, per_fault, seed, jobs)


@bench.command()
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Processes to spread the faults over [1]")
@json_option
def shrink(jobs: int, as_json: bool) -> None:
    """Shrink a large case of every fault, and say how small it became, and whether it fails in the same way."""
    from workbench.bench import shrink as bench_shrink

    _measured(bench_shrink, as_json, jobs)


@bench.command()
@click.option("--cases", type=click.IntRange(min=1), default=500, help="Random cases [500]")
@click.option("--exact", type=click.IntRange(min=1), default=200, help="Random cases of exact inputs [200]")
@click.option("--seed", default=0, help="Seed of the cases [0]")
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Processes to spread the cases over [1]")
@json_option
def assertions(cases: int, exact: int, seed: int, jobs: int, as_json: bool) -> None:
    """Put PyTorch's attention through `assert_attention` and assert_close; 1 where assert_attention fails one."""
    from workbench.bench import assertions as bench_assertions

    results = _measured(bench_assertions, as_json, cases, exact, seed, jobs)
    sys.exit(BUG if results["failed"] or any(row["off"] for row in results["exact"]) else 0)


@bench.command()
@click.option("--cases", default=200, help="Random cases of each feature and target [200]")
@click.option("--target", "targets", multiple=True, help="A kernel of ours, or torch:FUNCTION; may be repeated [all]")
@click.option("--feature", "features", multiple=True, help="Such as sinks, paged; may be repeated [all]")
@click.option("--device", default="cpu", help="Where they run: cpu, kernels of ours on the emulator, or cuda [cpu]")
@click.option("--seed", default=0, help="Seed of the cases [0]")
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Processes to spread the cases over [1]")
@json_option
def features(targets: tuple[str, ...], features: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Judge correct kernels on random cases of sinks, pages, packed sequences ...; 1 where one is called wrong."""
    from workbench.bench import features as bench_features

    given = {name: x for name, x in (("targets", targets), ("features", features)) if x}
    results = _measured(bench_features, as_json, **options, **given)
    for line in [] if as_json else results["wrong"]:
        click.echo(line)
    sys.exit(BUG if results["wrong"] else 0)


@bench.command()
@click.argument("target", metavar="TARGET")
@fault_option
@case_options
@target_options
@json_option
def kernel(target: str, faults: tuple[str, ...], backend: str, probes: str, as_json: bool, **options: Any) -> None:
    """Time TARGET beside PyTorch's scaled_dot_product_attention, where it is right.

    TARGET is a kernel of ours, on a GPU, or a foreign one as path.py:function. It is judged first, and what is wrong is
    not timed; the command then exits with 1. Case options take comma-separated lists; unless a length or head_dim is
    given, the shapes (seqlen, head_dim) are (4,4) (64,64) (65,64) (128,64) (192,64) (256,64) (512,64).
    """
    from workbench.bench import kernel as bench_kernel

    options |= needs_of(faults, options)
    shaped = any(options[name] for name in ("seqlen", "seqlen_q", "seqlen_k", "head_dim"))
    shapes = [{}] if shaped else [{"seqlen": (n,), "head_dim": (dim,)} for n, dim in bench_kernel.SHAPES]
    cases = [case for shape in shapes for case in cases_of({**options, **shape})]
    asked = {"faults": faults, "probes": probes, "backend": backend, **given(options, FOREIGN)}
    results = _measured(bench_kernel, as_json, target, cases, **asked)
    for line in [] if as_json else bench_kernel.sentences(results):
        click.echo(line)
    sys.exit(BUG if bench_kernel.wrong(results) else 0)


@bench.command()
@click.argument("kernels", nargs=-1, metavar="[KERNEL]...")
@case_options
@json_option
def steps(kernels: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Time kernels of ours beside each other and PyTorch's flash and cuDNN attention, where they are right; on a GPU.

    KERNELs that are not named are flash, flash_tensor, flash_mma and flash_wgmma, and for a single query flash_mma and
    split_mma. Without case options, which take comma-separated lists, cases are those of docs/steps.md. What is wrong
    is not timed; the command then exits with 1.
    """
    from workbench.bench import steps as bench_steps

    results = _measured(bench_steps, as_json, kernels, *([cases_of(options)] if any(options.values()) else []))
    for line in [] if as_json else bench_steps.sentences(results):
        click.echo(line)
    sys.exit(BUG if bench_steps.wrong(results) else 0)


@bench.command()
@click.argument("kernels", nargs=-1, metavar="[KERNEL]...")
@case_options
@json_option
def probes(kernels: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Time kernels of ours with every probe and without, beside a copy of as many bytes; on a GPU.

    KERNELs that are not named are flash_tensor, flash_mma and flash_wgmma. Case options take comma-separated lists.
    """
    from workbench.bench import probes as bench_probes

    cases = cases_of(options) if any(options.values()) else bench_probes.CASES
    _measured(bench_probes, as_json, kernels or bench_probes.NAMES, cases)


@bench.command()
@click.option("--backend", default="auto", help="auto, emulator or cuda [auto: a GPU where there is one]")
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Processes to spread the variants over [1]")
@json_option
def fp8(backend: str, jobs: int, as_json: bool) -> None:
    """Judge the kernel on quantised codes in all variants, hold its out against PyTorch's attention, and time it."""
    from workbench.bench import fp8 as bench_fp8

    _measured(bench_fp8, as_json, backend, jobs)
