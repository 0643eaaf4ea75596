"""The gated delta rule in chunks: the recurrent one in float64, right functions right, each fault at its stage."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.operations import chunks
from tests.operations.deltas import gated_delta_rule
from workbench import Refusal
from workbench.floats import to_float64
from workbench.operations.case import OperationCase
from workbench.operations.every import OPERATIONS
from workbench.operations.expected import Reference
from workbench.operations.judge import OperationDiff, judged
from workbench.operations.run import run_operation

DELTA = OPERATIONS["gated_delta_rule"]
CASE = OperationCase(DELTA, {"tokens": 40, "dim": 16, "dim_v": 16}, numbers={"scale": 0.25})
RIGHT = ("exact", "rounding")


def diff(function: Any, case: OperationCase = CASE, arrays: str = "numpy") -> OperationDiff:
    return judged(run_operation(function, case, name="mine", arrays=arrays))


def drawn(seed: int) -> tuple[Any, OperationCase, str]:
    """A function in NumPy or torch that dumps all stages, some, or results alone, and its case."""
    rng = np.random.default_rng(seed)
    sizes = {axis: int(rng.integers(1, 4 if axis in "bh" else 150 if axis == "k" else 40)) for axis in DELTA.axes}
    dtype, distribution = str(rng.choice(["float32", "float16", "bfloat16"])), str(rng.choice([*DELTA.distributions]))
    some = tuple(name for name in chunks.STAGES if rng.integers(2)) or ("out",)
    names = [chunks.STAGES, some, ("out",), ("out", "state")][int(rng.integers(4))]
    chunk, in_torch = int(rng.choice([16, 32, 64])), bool(rng.integers(2))
    function = (chunks.in_torch if in_torch else chunks.in_numpy)(chunk, names=names)
    case = OperationCase(DELTA, sizes, dtype, distribution, seed, {"scale": float(rng.uniform(0.1, 1))})
    return function, case, "torch" if in_torch else "numpy"


def is_right(seed: int) -> None:
    got = diff(*drawn(seed))
    assert got.verdict in RIGHT and got.stages, (seed, str(got))


def test_right_functions_are_right() -> None:
    for seed in (2, 5, 9, 67):  # a last chunk of one token; several batches; of float16, whose operands underflow
        is_right(seed)


@pytest.mark.campaign
def test_no_right_function_of_500_is_called_wrong() -> None:
    for seed in range(500):
        is_right(seed)


@pytest.mark.parametrize("distribution", DELTA.distributions)
@pytest.mark.parametrize("chunk", [16, 64])
def test_it_is_the_recurrent_one_in_float64(distribution: str, chunk: int) -> None:
    case = OperationCase(DELTA, {"tokens": 130, "dim": 24, "dim_v": 20}, distribution=distribution)
    found = []
    for conventions in ({}, {"chunk": chunk}):
        one = replace(case, conventions=conventions)
        run = run_operation(lambda q, k, v, *rest, scale: np.zeros(v.shape, v.dtype), one, name="none")
        found.append(Reference(run).values({}, ["out", "state"]))
    by_token, by_chunk = found
    ends = [*range(chunk - 1, 130, chunk), 129]
    for name, of_tokens in (("out", by_token["out"]), ("state", by_token["state"][:, :, ends])):
        assert of_tokens.shape == by_chunk[name].shape
        assert np.max(abs(of_tokens - by_chunk[name])) < 1e-10 * np.max(abs(of_tokens)), name


@pytest.mark.campaign(every=3)
@pytest.mark.parametrize("fault", chunks.FAULTS)
def test_faults_are_found_at_their_stage(fault: str) -> None:
    got = diff(chunks.in_numpy(16, fault))
    assert got.origin == chunks.FAULTS[fault] and got.verdict == "bug"
    alone = ("out",) if fault != "last chunk decayed as a whole one" else ("out", "state")  # out does not read that
    assert diff(chunks.in_numpy(16, fault, names=alone)).verdict == "bug"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bit_operands_are_a_convention(dtype: str) -> None:
    case = OperationCase(DELTA, CASE.sizes, dtype)
    told = chunks.in_torch(16)

    def silent(*inputs: Any, **numbers: Any) -> Any:
        return {**told(*inputs, **numbers), "contract": {"chunk": 16}}

    assert diff(told, case, "torch").verdict in RIGHT
    assert diff(silent, case, "torch").origin == "u"


def test_an_inverse_of_blocks_is_right() -> None:
    """As kernels invert 64 tokens: diagonal blocks of 16, and products of these below."""

    def by_blocks(lower: Any, fault: str) -> Any:
        n, made = lower.shape[-1], chunks._inverse(np.array(lower), fault)
        for i in range(16, n, 16):
            rows = slice(i, i + 16)
            own = chunks._inverse(np.array(lower[..., rows, rows]), fault)
            made[..., rows, :i] = -(own @ (lower[..., rows, :i] @ made[..., :i, :i]))
            made[..., rows, rows] = own
        return made

    for seed in range(2):
        case = OperationCase(DELTA, {"tokens": 100, "dim": 16}, distribution="never-forgets", seed=seed)
        assert diff(chunks.in_numpy(64, inverse=by_blocks), case).verdict in RIGHT


@pytest.mark.parametrize(("tokens", "worst", "likely"), [(64, 2500, 50), (256, 100, 50)])
def test_budgets_of_out_alone(tokens: int, worst: float, likely: float) -> None:
    """Of one chunk its worst case decides; that of many explodes, and drawn roundings do."""
    case = OperationCase(DELTA, {"heads": 1, "tokens": tokens, "dim": 32, "dim_v": 32})
    judgement = diff(chunks.in_numpy(64, names=("out",)), case)
    assert ("samples alone judge" in judgement.drawn.get("out", "")) == (tokens > 64)
    found = judgement["out"].isolated
    assert found is not None
    error = np.median(abs(found.error)[found.error != 0])
    assert 1 < np.median(found.budget) / error < worst
    assert 1 < np.median(found.budget * found.elements.statistical) / error < likely


def test_shapes_are_those_of_chunks() -> None:
    def whole(*inputs: Any, **numbers: Any) -> Any:
        made = chunks.in_numpy(16)(*inputs, **numbers)
        return {**made, "scores": made["scores"][..., :8]}

    with pytest.raises(
        Refusal, match=r"scores has axes \[batch, heads, tokens, tile\] and must have shape \[1, 2, 40, 16\]"
    ):
        diff(whole)
    assert to_float64(diff(chunks.in_numpy(16))["state"].dumped).shape == (1, 2, 3, 16, 16)


def test_chunks_explain_no_state_of_tokens() -> None:
    """A dump of one state per token fits no chunk length; given out alone, every chunk length is tried."""

    def wrong(*inputs: Any, **numbers: Any) -> Any:
        made = gated_delta_rule("beta twice")(*inputs, **numbers)
        return {"state": made["state"], "out": made["out"]}

    got = diff(wrong)
    assert got.origin == "state" and {*got.assumed} == {"chunk"} and got.explained_by == ()
    alone = diff(gated_delta_rule("beta twice", dumps=False))
    assert alone.origin == "out" and alone.explained_by == ()
