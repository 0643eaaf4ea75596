"""Budgets of RMSNorm and RoPE from the graphs of their plain functions."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.operations import norms, ropes
from workbench.floats import to_float64, ulp
from workbench.operations.case import OperationCase
from workbench.operations.causes import scene_of
from workbench.operations.every import OPERATIONS
from workbench.operations.expected import Reference
from workbench.operations.judge import judged
from workbench.operations.run import OperationRun, run_operation
from workbench.reference.graph import Expected

CASES = 60


def norm_as_told(offset: int, cast: str) -> Any:
    right = norms.rmsnorm()

    def function(x: np.ndarray, weight: np.ndarray, *, eps: float) -> dict[str, np.ndarray]:
        made, scale = right(x, weight, eps=eps), weight.astype(np.float32) + np.float32(offset)
        normed = made["normed"]
        if cast == "before weight" and x.dtype != np.float32:
            made["normed_cast"] = normed.astype(x.dtype)
            normed = made["normed_cast"].astype(np.float32)
        return {**made, "out": (normed * scale).astype(x.dtype)}

    return function


def runs(name: str, dtype: str) -> Iterator[OperationRun]:
    """Right ones, in float32 but for what is cast."""
    of = OPERATIONS[name]
    for seed in range(CASES):
        rng = np.random.default_rng(seed)
        sizes = {axis: int(rng.integers(1, 3 if axis in "bh" else 40)) for axis in of.axes}
        told = {convention: some[rng.integers(len(some))] for convention, some in of.conventions.items()}
        distribution = str(rng.choice([*of.distributions]))
        if name == "rope":
            sizes["d"] += sizes["d"] % 2
            numbers, function = {"base": float(rng.choice([100.0, 1e4, 5e5]))}, ropes.rope(**told)
        else:
            numbers = {"eps": float(rng.choice([1e-6, 1e-5, 1e-2]))}
            function = norm_as_told(told["weight_offset"], told["cast"])
        yield run_operation(function, OperationCase(of, sizes, dtype, distribution, seed, numbers, told), name="right")


def inside(actual: np.ndarray, expected: Expected) -> bool:
    allowed = expected.budget.bound
    if actual.dtype.itemsize < 4:  # half an ulp of what it is stored in
        allowed = allowed + ulp(abs(expected.value) + allowed, actual.dtype) / 2
    return bool(np.all(abs(to_float64(actual) - expected.value) <= allowed))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", ["rmsnorm", "rope"])
def test_right_runs_are_within_the_worst_cases_of_plain_functions(name: str, dtype: str) -> None:
    for run in runs(name, dtype):
        stages = {stage: to_float64(x) for stage, x in run.stages.items()}
        for given in ({}, stages):
            expected = Reference(run).expected(given, [*stages])
            for stage, x in run.stages.items():
                assert inside(x, expected[stage]), (run.headline, stage)
                bound = expected[stage].budget.bound
                assert bound.shape == x.shape and np.all(np.isfinite(bound))


def test_a_judgement_and_its_causes_are_by_the_plain_function() -> None:
    def eps_outside(x: Any, weight: Any, *, eps: float, weight_offset: int, cast: str) -> Any:
        squares = (x * x).sum(axis=-1)
        rstd = 1 / (np.sqrt(squares / x.shape[-1]) + eps)
        normed = x * rstd[..., None]
        out = normed * weight
        return out, rstd

    of, sizes = OPERATIONS["rmsnorm"], {"rows": 5, "dim": 24}
    for reference, wrong in ((of.reference, ()), (eps_outside, ("rstd",))):
        case = OperationCase(replace(of, reference=reference), sizes, numbers={"eps": 0.1})
        run = run_operation(norms.rmsnorm(), case, name="right")
        assert judged(run).origins == tuple(stage.name for stage in scene_of(run).origins) == wrong
