"""Budgets of RMSNorm and RoPE from the graphs of their plain functions, held against those of their tables."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.operations import norms, ropes
from workbench.floats import smallest_normal, to_float64, ulp
from workbench.operations.case import OperationCase
from workbench.operations.causes.scene import Scene
from workbench.operations.every import OPERATIONS
from workbench.operations.expected import Reference
from workbench.operations.judge import judged
from workbench.operations.run import OperationRun, run_operation
from workbench.reference.graph import Expected
from workbench.reference.losses import U

CASES = 60
#: budgets of the graph over those of the table, in the worst case, where none of the reasons below holds
LOW, HIGH = 0.5, 1.05
#: stages that a convention has rounded, and what follows
ROUNDED = {
    "cast": ("normed_cast", "out"),
    "table_dtype": ("cos_cast", "sin_cast", "kept", "turned", "kept_cast", "turned_cast", "out"),
    "product_dtype": ("kept_cast", "turned_cast", "out"),
}


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


def reasons(run: OperationRun, stage: str, old: Expected) -> dict[str, tuple[Any, Any, Any]]:
    """Why a budget may be sharper or wider -> where, from how many times the old one, and up to what."""
    case = run.case
    found: dict[str, tuple[Any, Any, Any]] = {}
    if stage == "squares" and case.sizes["d"] < 3 and case.dtype != "float32":
        # n products of 16 bits are exact, and n - 1 additions; n + 1 roundings stood for both
        found["few terms"] = True, 0.0, HIGH * old.budget.bound
    if stage in ("cos", "sin"):
        # the argument is reduced to an angle of its own ulps, and so near a root to 4 u of 1/8
        found["near a root"] = abs(old.value) < 2.0**-3, LOW, HIGH * old.budget.bound + 4 * U / 8
    if case.dtype != "float32" and any(
        stage in stages and case.conventions.get(one) in ("inputs", "before weight") for one, stages in ROUNDED.items()
    ):
        # which value it is rounded to is known, and an error may take it to the next: a whole ulp, of which half stood
        found["rounded as told"] = True, 0.0, 2 * HIGH * old.budget.bound + 4 * U / 8
    return found


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", ["rmsnorm", "rope"])
def test_budgets_of_plain_functions_are_those_of_tables_or_sharper(name: str, dtype: str) -> None:
    elements, outside = 0, Counter[str]()
    for run in runs(name, dtype):
        of_table = replace(run, case=replace(run.case, operation=replace(run.case.operation, reference=None)))
        references = Reference(run), Reference(of_table)
        stages = {stage: to_float64(x) for stage, x in run.stages.items()}
        for given in ({}, stages):
            new, old = (one.expected(given, [*stages]) for one in references)
            for stage, x in run.stages.items():
                assert inside(x, new[stage]) and inside(x, old[stage]), (run.headline, stage)
                a, b = new[stage].budget.bound, old[stage].budget.bound
                assert a.shape == b.shape == x.shape and np.all(np.isfinite(a)) and np.all(b > 0)
                # what is lost to underflow is counted where something is, 200 times at most
                usual = (a >= LOW * b - 200 * smallest_normal("float32")) & (a <= HIGH * b)
                elements += x.size
                for why, (where, low, high) in reasons(run, stage, old[stage]).items():
                    excused = ~usual & where & (a >= low * b) & (a <= high)
                    outside[why] += int(excused.sum())
                    usual = usual | excused
                assert np.all(usual), (run.headline, stage, given != {}, (a / b)[~usual])
    wanted = set() if name == "rmsnorm" else {"near a root"}
    wanted |= {"rounded as told"} if dtype != "float32" else set()
    wanted |= {"few terms"} if dtype != "float32" and name == "rmsnorm" else set()
    assert {*+outside} == wanted and elements > 10_000, outside


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
        assert judged(run).origins == Scene(run).wrong == wrong
