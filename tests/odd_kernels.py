"""Runs of a right kernel in NumPy with an odd bug in one stage, which nobody would look for by name."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from tests.numpy_kernels import Style, kernel
from workbench import Case, run
from workbench.case.stages import stages_of
from workbench.expectation.observed import Observed
from workbench.judge.diff import comparisons
from workbench.judge.stage import StageDiff
from workbench.trace.trace import Trace

CASE = Case(seqlen=96, heads=4, kv_heads=2, head_dim=32, block_q=16, block_k=16, causal=True, scale=0.2)
SPLITS = CASE.but(splits=3)

Change = Callable[[np.ndarray, dict[str, np.ndarray]], np.ndarray]


@cache
def right(case: Case) -> Trace:
    """The run without a bug, with all stages."""
    declared = {"block_k": case.block_k, "splits": case.splits or 1}
    return run(kernel(Style(block_k=case.block_k, splits=case.splits or 1), declared), case)


def judged(name: str, change: Change, case: Case = CASE, only: bool = False) -> tuple[Observed, StageDiff]:
    """A run that dumps the stages up to `name`, or that one `only`, with `change` of the stage and of what it was made
    of (all stages, and q, k and v by query heads); and the stage held against what it should be.
    """
    trace = right(case)
    known = [*stages_of(trace.algorithm, case.numbers)]
    kept = [name] if only else known[: known.index(name) + 1]
    group = case.heads // case.kv_heads
    read = {x: np.asarray(trace.inputs[x], np.float32).repeat(1 if x == "q" else group, axis=1) for x in "qkv"}
    stages = {stage: trace.stages[stage] for stage in kept if stage in trace.stages}
    stages[name] = np.asarray(change(stages[name].copy(), {**trace.stages, **read}), stages[name].dtype)
    run = Observed(replace(trace, stages=stages))
    axes = stages_of(trace.algorithm, case.numbers)[name].axes
    return run, StageDiff(name, axes, "bug", *comparisons(run, [name], "cpu")[name], dumped=stages[name])


def scaled(mask: Callable[[dict[str, np.ndarray]], Any]) -> Change:
    """A stage that is wrong where `mask` of what it was made of is True, by a factor of its own for each element."""

    def change(stage: np.ndarray, made: dict[str, np.ndarray]) -> np.ndarray:
        factor = np.random.default_rng(0).uniform(1.1, 1.5, stage.shape)
        return np.where(mask(made), stage * factor, stage)

    return change


def scaled_where(mask: Callable[..., Any]) -> Change:
    """As `scaled`, with a mask of the stage's indices."""
    return lambda stage, _: scaled(lambda _: mask(*np.indices(stage.shape)))(stage, {})
