"""Kernels that lose more than others, by narrow accumulators, operands, exponentials or normalisers, and say so."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.numpy_kernels import F32, Style, accumulated, cubic_exp2, on_tf32
from tests.reference.test_numpy_kernels import (
    CASE,
    CASES,
    CAUSAL,
    ENDS,
    PLAIN,
    explained,
    is_of,
    is_right,
    judged,
    traced,
    worst,
)
from tests.tensor_cores import on_tf32_of
from workbench import Diff, diff, run
from workbench.case.contract import of_foreign

#: stages of a kernel that scales q: it has no raw products
SCALED = ("scores", "row_max", "correction", "probs", "probs_cast", "row_sum", "acc", *ENDS)
SIXTEEN = ("float16", "bfloat16")


def narrow(dtype: str, **contract: Any) -> dict[str, Any]:
    return PLAIN | {"probs_dtype": dtype, "probs_rounding": "nearest"} | contract


def largest(found: Diff) -> dict[str, float]:
    is_right(found)
    return {stage.name: worst(found, stage.name) for stage in found}


# -------------------------------------------------------------------------------------------------------------- products


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("dtype", SIXTEEN)
def test_accumulators_of_16_bits(dtype: str, fused: bool) -> None:
    multiply = accumulated(dtype, fused=fused)
    style = Style(qk=multiply, pv=multiply, acc_dtype=dtype, probs_dtype=dtype)
    said, seen = narrow(dtype, accumulator_dtype=dtype), {"qk": 0.0, "acc": 0.0}
    for case in (CASE, CAUSAL, CASES[2], CASES[5]):
        found = largest(judged(style, case.but(dtype=dtype), **said))
        seen = {name: max(top, found[name]) for name, top in seen.items()}
    # n u in the worst case, where errors of either sign make the root of n u
    assert all(0.05 < top <= 1 for top in seen.values()), seen
    is_right(judged(style, CASE.but(dtype=dtype, input_std=0.5), ENDS, **said))
    assert judged(style, CASE.but(dtype=dtype), **narrow(dtype)).origins == ("qk", "acc")
    if fused:
        assert explained(traced(style, CASE.but(dtype=dtype), block_k=16)) == {"accumulator_dtype"}


def test_a_tensor_core_rounds_its_16_bit_accumulator_once_a_block() -> None:
    dtype = "float16"
    multiply = accumulated(dtype, fused=True, block=16)
    style, case = Style(qk=multiply), CASE.but(dtype=dtype, head_dim=128)
    said = narrow(dtype, accumulator_dtype=dtype, accumulation="tensor-core", mma_block=16)
    by_block = largest(judged(style, case, ("qk",), **said))["qk"]
    one_by_one = largest(judged(style, case, ("qk",), **said | {"accumulation": "nearest"}))["qk"]
    assert 4 * one_by_one < by_block <= 1
    assert judged(Style(qk=accumulated(dtype, fused=True)), case, ("qk",), **narrow(dtype)).origins == ("qk",)


@pytest.mark.campaign
@pytest.mark.parametrize("truncated", [True, False])
@pytest.mark.parametrize(("precision", "terms"), [("tf32", 1), ("tf32x3", 3)])
def test_operands_in_tf32(precision: str, terms: int, truncated: bool) -> None:
    multiply = on_tf32(terms, truncated=truncated)
    style, seen = Style(qk=multiply, pv=multiply), {"qk": 0.0, "acc": 0.0}
    for case in CASES:
        found = largest(judged(style, case, **PLAIN | {"input_precision": precision}))
        seen = {name: max(top, found[name]) for name, top in seen.items()}
        is_right(judged(style, case, ENDS, input_precision=precision))
    assert all(0.01 < top <= 1 for top in seen.values()), seen
    assert of_foreign({"input_precision": precision}, CASE).accumulation == "any"  # on tensor cores
    if precision == "tf32":
        assert explained(traced(style, CAUSAL, block_k=16)) == {"input_precision"}
        # what 2^-11 of q and k does to out and lse, an exponential that is off by 2^-9 may do as well
        assert explained(traced(style, CAUSAL, ENDS)) - {"exp_ulps"} == {"input_precision"}
        assert judged(style, **PLAIN | {"input_precision": "tf32x3"}).origins[0] == "qk"


@pytest.mark.campaign
@pytest.mark.parametrize("nearest", [True, False])
@pytest.mark.parametrize("generation", ["ampere", "hopper"])
def test_float32_attention_on_tensor_cores(generation: str, nearest: bool) -> None:
    """The emulator's steps on operands in TF32: right as declared, and wrong as anything tighter."""
    multiply = on_tf32_of(generation, nearest=nearest)
    style, seen = Style(qk=multiply, pv=multiply), {"qk": 0.0, "acc": 0.0}
    rounding = "nearest" if nearest else "toward-zero"
    # PLAIN says how sums are rounded, which tensor_core resolves
    plain = {name: x for name, x in PLAIN.items() if name != "accumulation"}
    said = plain | {"input_precision": "tf32", "input_rounding": rounding, "tensor_core": generation}
    for case in (CASE, CAUSAL, CASES[2]):
        found = largest(judged(style, case, **said))
        seen = {name: max(top, found[name]) for name, top in seen.items()}
        is_right(judged(style, case, ENDS, input_precision="tf32", tensor_core=generation))
    assert all(0.05 < top <= 1 for top in seen.values()), seen
    assert judged(style, CAUSAL, **plain | {"tensor_core": generation}).origins == ("qk", "acc")
    # a key of one dim: nothing is lost but by the two operands
    case, said = CASE.but(head_dim=1, seed=3), said | {"tensor_core": generation}
    assert 0.5 < largest(judged(style, case, ("qk",), **said))["qk"] <= 1
    tighter = judged(style, case, ("qk",), **said | {"input_rounding": "nearest"})
    assert tighter.origins == (() if nearest else ("qk",))


@pytest.mark.parametrize("dtype", SIXTEEN)
def test_float32_probs_in_tf32_meet_16_bit_values(dtype: str) -> None:
    style, case = Style(pv=on_tf32(1, truncated=True)), CASE.but(dtype=dtype)
    top = largest(judged(style, case, **PLAIN | {"input_precision": "tf32"}))
    assert 0.3 < top["acc"] <= 1
    assert judged(style, case, **PLAIN).origins == ("acc",)


@pytest.mark.campaign
@pytest.mark.parametrize("dtype", SIXTEEN)
def test_q_that_is_scaled_and_rounded_before_the_product(dtype: str) -> None:
    style, seen = Style(scale_q=dtype, probs_dtype=dtype), 0.0
    for case in CASES:
        found = largest(judged(style, case.but(dtype=dtype), SCALED, **narrow(dtype, scaled_q_dtype=dtype)))
        seen = max(seen, found["scores"])
    assert 0.3 < seen <= 1
    case = CAUSAL.but(dtype=dtype)
    is_right(judged(style, case, ENDS, **narrow(dtype, scaled_q_dtype=dtype)))
    assert "scores" in judged(style, case, SCALED, **narrow(dtype)).origins
    assert "scaled_q_dtype" in explained(traced(style, case, SCALED, block_k=16))
    assert "scaled_q_dtype" in explained(traced(style, case, ENDS))


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize("scale_in", ["q", "k", "both"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_scale_that_is_multiplied_into_operands_in_float32(dtype: str, scale_in: str) -> None:
    """Declared it is not even suspicious, undeclared no bug, and two roots are no product; a wrong scale is a bug."""
    said, otherwise = PLAIN | {"scale_in": scale_in}, set()
    for seed in range(2):
        for head_dim in (1, 16):
            case = CAUSAL.but(dtype=dtype, head_dim=head_dim, seed=seed, scale=0.3)
            found = judged(Style(scale_in=scale_in), case, SCALED, **said)
            assert found.verdict == "rounding", [(stage.name, stage.reason) for stage in found]
            is_right(judged(Style(scale_in=scale_in), case, SCALED, block_k=16))
            is_right(judged(Style(scale_in=scale_in), case, ENDS))
            otherwise.add(judged(Style(scale_in=scale_in), case, SCALED, **PLAIN | {"scale_in": "scores"}).verdict)
    # 4 roundings where 16-bit operands leave room for 2
    assert ("bug" in otherwise) == (scale_in == "both" and dtype == "float16"), otherwise
    wrong = replace(traced(Style(scale_in=scale_in), case, SCALED, **said), case=case.but(scale=0.3 * (1 + 1e-5)))
    assert "scores" in diff(wrong).origins


# -------------------------------------------------------------------------------------------------------------------- exp


@pytest.mark.campaign
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_exponential_of_degree_3(dtype: str) -> None:
    style, said = Style(exp2=cubic_exp2, probs_dtype=dtype), narrow(dtype, exp_ulps=800.0, exp_floor=-127)
    seen = 0.0
    for case in (CASE, CAUSAL, CASES[2]):
        found = largest(judged(style, case.but(dtype=dtype), **said))
        seen = max(seen, found["probs"])
        is_right(judged(style, case.but(dtype=dtype), ENDS, **said))
    assert 0.8 < seen <= 1  # 8.8e-5 is 738 ulps of 2^-23
    case = CAUSAL.but(dtype=dtype)
    assert "probs" in judged(style, case, **said | {"exp_ulps": 500.0}).origins
    assert explained(traced(style, case, block_k=16)) == {"exp_ulps"}
    assert "exp_ulps" in explained(traced(style, case, ENDS))


@pytest.mark.campaign
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_an_exponential_with_a_floor(dtype: str) -> None:
    style = Style(floor=-127.0, probs_dtype=dtype)
    case = CAUSAL.but(dtype=dtype)
    found = judged(style, case, **narrow(dtype, exp_floor=-127))
    is_right(found)
    masked = found["probs"].dumped[0, 0, 0, 1:]  # type: ignore[index]
    assert np.all(masked == 2.0**-127) and masked.size  # what should be 0
    is_right(
        judged(Style(probs_dtype=dtype), case, **narrow(dtype, exp_floor=-127))
    )  # only part of them may be clamped
    is_right(judged(style, case, ENDS))
    assert judged(style, case, **narrow(dtype, exp_floor=None)).origins[0] in ("correction", "probs")
    undeclared = judged(style, case, **narrow(dtype))
    is_of(undeclared, "exp_floor=-127.0", *(x.name for x in undeclared if x.verdict == "suspicious"))
    assert explained(traced(style, case, block_k=16)) == {"exp_floor", "exp_ulps"}


def test_a_floor_is_no_licence() -> None:
    """A floor of -60 is found under one of -127, and a leak of 1e-30 is."""
    assert "probs" in judged(Style(floor=-60.0), CAUSAL, **PLAIN | {"exp_floor": -127}).origins
    is_right(judged(Style(floor=-60.0), CAUSAL, **PLAIN | {"exp_floor": -60}))
    is_right(judged(Style(floor=-60.0), CAUSAL, ENDS, **PLAIN | {"exp_floor": -60}))
    assert "probs" in judged(Style(floor=-99.0), CAUSAL, block_k=16, exp_floor=-127.0).origins


# ------------------------------------------------------------------------------------------------------------- normalisers


def _chunk(scores: np.ndarray, v: np.ndarray, keys: slice) -> tuple[np.ndarray, np.ndarray]:
    """out and lse of some keys."""
    x = scores[..., keys]
    top = x.max(-1, keepdims=True)
    p = np.exp(x - top)
    total = p.sum(-1, keepdims=True)
    return (p @ v[:, :, keys]) / total, (top + np.log(total))[..., 0]


def _two_pass(chunks: list[tuple[np.ndarray, np.ndarray]], scores: np.ndarray, v: np.ndarray) -> Any:
    _, lse = _chunk(scores, v, slice(None))
    return np.exp(scores - lse[..., None]) @ v, lse


def _combine(chunks: list[tuple[np.ndarray, np.ndarray]], *_: np.ndarray) -> Any:
    all_lse = np.stack([lse for _, lse in chunks])
    top = all_lse.max(0)
    lse = top + np.log(np.exp(all_lse - top).sum(0, dtype=F32))
    return sum(np.exp(one - lse)[..., None] * out for out, one in chunks), lse


def _one_after_the_other(chunks: list[tuple[np.ndarray, np.ndarray]], *_: np.ndarray) -> Any:
    out, lse = chunks[0]
    for new, of_new in chunks[1:]:
        both = np.logaddexp(lse, of_new).astype(F32)
        out = np.exp(lse - both)[..., None] * out + np.exp(of_new - both)[..., None] * new
        lse = both
    return out, lse


def _ring(chunks: list[tuple[np.ndarray, np.ndarray]], *_: np.ndarray) -> Any:
    out, lse = chunks[0]
    for new, of_new in chunks[1:]:
        with np.errstate(over="ignore"):
            share = (F32(1) / (F32(1) + np.exp(lse - of_new)))[..., None]
        out = out - share * (out - new)
        x = lse - of_new
        lse = lse - (np.minimum(x, F32(0)) - np.log1p(np.exp(-abs(x))))
    return out, lse


def merging(merge: Callable[..., Any], pieces: int, **contract: Any) -> Callable[..., Any]:
    """A kernel that puts chunks of keys together."""

    def kernel(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float, causal: bool) -> Any:
        q, k, v = (x.astype(F32) for x in (q, k, v))
        scores = (q @ k.swapaxes(-1, -2)) * F32(scale)
        edges = np.linspace(0, k.shape[2], pieces + 1).astype(int)
        chunks = [_chunk(scores, v, slice(a, b)) for a, b in zip(edges, edges[1:], strict=False)]
        out, lse = merge(chunks, scores, v)
        assert out.dtype == lse.dtype == F32
        return {"out": out, "lse": lse, "contract": contract}

    return kernel


#: exact scores of thousands: nothing is lost but what the normaliser loses
EXACT = CASE.but(distribution="exact", scale=0.0625, head_dim=16, input_std=1.0)
PEAKED = [CASE.but(distribution="peaked", seed=seed, input_std=3.0) for seed in range(4)]


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize(
    ("merge", "pieces"), [(_two_pass, 1), (_combine, 4), (_one_after_the_other, 6), (_ring, 4), (_ring, 6)]
)
def test_normalising_by_lse(merge: Callable[..., Any], pieces: int) -> None:
    for case in (CASE, EXACT, PEAKED[0], CASES[3], CASES[5]):
        plain = {name: value for name, value in PLAIN.items() if name not in ("block_k", "exp_ulps_per_x")}
        said = plain | {"normalisation": "lse", "splits": pieces, "exp_ulps": 2.0}
        is_right(diff(run(merging(merge, pieces, **said), case)))
        is_right(diff(run(merging(merge, pieces, normalisation="lse"), case)))
        is_right(diff(run(merging(merge, pieces), case)))
    assert explained(run(merging(merge, pieces), EXACT)) >= {"normalisation"}


def test_a_division_leaves_no_room_for_a_ring() -> None:
    trace = [run(merging(_ring, 6, scores_dtype="float32"), case) for case in PEAKED]
    assert any("usual" not in explained(one) for one in trace)


@pytest.mark.parametrize("merge", [_combine, _one_after_the_other, _ring])
def test_a_merge_that_forgets_a_chunk_is_wrong(merge: Callable[..., Any]) -> None:
    def forgetful(chunks: list[tuple[np.ndarray, np.ndarray]], *rest: np.ndarray) -> Any:
        return merge(chunks[:-1], *rest)

    for case in (CASE, EXACT):
        assert diff(run(merging(forgetful, 6, normalisation="lse"), case)).verdict == "bug"


def test_partials_merged_by_lse() -> None:
    style = Style(splits=3, normalisation="lse")
    names = ("row_max", "row_sum", "acc", *ENDS)
    for case in (CASE, PEAKED[0]):
        is_right(judged(style, case, names, **PLAIN | {"splits": 3, "normalisation": "lse"}))
        is_right(judged(style, case, names, block_k=16, splits=3))
