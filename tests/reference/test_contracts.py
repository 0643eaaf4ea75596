"""Kernels of other arithmetic, computed in NumPy: right by the contract that they declare, wrong by another."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from workbench import Case, Refusal, diff, run
from workbench.case.contract import Contract, of_foreign
from workbench.case.stages import QUANTISED_INPUTS
from workbench.expectation.elements import State
from workbench.floats import round_to

CASE = Case(seqlen_q=48, seqlen_k=40, heads=2, head_dim=32, dtype="float16")
#: what the NumPy kernel below keeps
EXACT = {
    "block_k": 40,
    "scores_dtype": "float32",
    "probs_dtype": "float32",
    "accumulation": "nearest",
    "exp_ulps": 1.0,
    "exp_ulps_per_x": 0.0,
    "fast_math": False,
    "base2": False,
    "out_rounding": "nearest",
}
Stages = dict[str, np.ndarray]


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float, causal: bool, base: float = np.e) -> Stages:
    """Attention in one key tile, every stage rounded to float32 once; rows without keys as the definition has them.

    In base 2 scores and row_max are in units of log2, as kernels have them that call exp2.
    """
    unit = np.log(base)
    with np.errstate(all="ignore"):
        q, k, v = (x.astype(np.float64) for x in (q, k, v))
        qk = _f32(q @ k.swapaxes(-1, -2))
        hidden = np.tril(np.ones(qk.shape[-2:]), qk.shape[-1] - qk.shape[-2]) == 0 if causal else False
        scores = np.where(hidden, -np.inf, _f32(qk * _f32(np.float32(scale) / unit)))
        row_max = scores.max(axis=-1)
        probs = np.where(scores == -np.inf, 0.0, _f32(np.exp(unit * _f32(scores - row_max[..., None]))))
        row_sum, acc = _f32(probs.sum(axis=-1)), _f32(probs @ v)
        out = np.where(row_sum[..., None] == 0, 0.0, acc / row_sum[..., None])
        lse = np.where(row_sum == 0, -np.inf, unit * row_max + np.log(row_sum))
    wide = {"qk": qk, "scores": scores, "row_max": row_max[..., None], "probs": probs, "lse": lse}
    wide |= {"row_sum": row_sum[..., None], "acc": acc[..., None, :]}
    return {name: x.astype(np.float32) for name, x in wide.items()} | {
        "out": round_to(out, "float16").astype(np.float16)
    }


def _f32(x: np.ndarray) -> np.ndarray:
    return round_to(x, "float32")


def judged(
    change: Callable[[Stages], Stages], *, case: Case = CASE, keep: tuple[str, ...] = (), **contract: Any
) -> Any:
    """The diff of the kernel with some of its stages changed, under EXACT with other fields."""

    def kernel(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float, causal: bool) -> dict[str, Any]:
        stages = change(attention(q, k, v, scale=scale, causal=causal))
        return {name: x for name, x in stages.items() if not keep or name in keep} | {"contract": EXACT | contract}

    return diff(run(kernel, case))


def same(stages: Stages) -> Stages:
    return stages


def test_the_kernel_itself_keeps_its_contract() -> None:
    assert judged(same).verdict == "rounding"
    assert judged(same, case=CASE.but(causal=True, seqlen_q=60)).verdict == "rounding"  # 20 rows without keys


def test_scores_in_units_of_log2_have_to_be_declared() -> None:
    def found(base2: bool) -> Any:
        def kernel(*args: Any, **options: Any) -> dict[str, Any]:
            return attention(*args, **options, base=2.0) | {"contract": EXACT | {"base2": base2}}

        return diff(run(kernel, CASE))

    assert found(True).verdict == "rounding" and found(True)["scores"].isolated.summary.judged == 2 * 48 * 40
    assert "scores" in found(False).origins


@pytest.mark.parametrize("keep", [("row_sum",), ("scores", "row_sum", "lse"), ("lse",)])
def test_a_sum_of_cast_probs_is_judged_whatever_else_was_given(keep: tuple[str, ...]) -> None:
    def summed(stages: Stages) -> Stages:
        cast = stages["probs"].astype(np.float16).astype(np.float64)
        row_sum = cast.sum(axis=-1)
        lse = stages["row_max"][..., 0] + np.log(row_sum)
        return stages | {"row_sum": _f32(row_sum[..., None]).astype(np.float32), "lse": lse.astype(np.float32)}

    promise = {"probs_dtype": "float16", "probs_rounding": "nearest", "row_sum_of_cast": True}
    found = judged(summed, keep=keep, **promise)
    assert found.verdict == "rounding" and [stage.name for stage in found] == list(keep)


def with_sentinel(stages: Stages) -> Stages:
    return stages | {name: np.maximum(stages[name], np.float32(-1e30)) for name in ("scores", "row_max")}


def test_a_finite_sentinel_is_declared_or_read_off_the_scores() -> None:
    """One that is declared wrongly is no sentinel."""
    case = CASE.but(causal=True, seqlen_q=60)
    for declared in ({}, {"mask_sentinel": -1e30}):
        assert judged(with_sentinel, case=case, **declared).verdict == "rounding"
    assert "scores" in judged(with_sentinel, case=case, mask_sentinel=-np.inf).origins


@pytest.mark.parametrize(("name", "field", "value"), [("out", "empty_out", np.nan), ("lse", "empty_lse", np.inf)])
def test_rows_without_keys_hold_what_is_declared(name: str, field: str, value: float) -> None:
    case = CASE.but(causal=True, seqlen_q=60)

    def other(stages: Stages) -> Stages:
        changed = stages[name].copy()
        changed[:, :, :20] = value
        return stages | {name: changed}

    assert judged(other, case=case, **{field: value}).verdict == "rounding"
    assert judged(other, case=case).origins == (name,)
    assert judged(same, case=case, **{field: value}).origins == (name,)


@pytest.mark.campaign
@pytest.mark.parametrize("value", [np.nan, 7.0])
def test_rows_without_keys_may_hold_anything_where_that_is_declared(value: float) -> None:
    """They are not judged, which is said; all others are."""
    case = CASE.but(causal=True, seqlen_q=60)

    def other(stages: Stages, row: int = 20) -> Stages:
        changed = stages["out"].copy()
        changed[:, :, :row] = value
        return stages | {"out": changed}

    found = judged(other, case=case, empty_out="any")
    assert found.verdict == "rounding"
    summary = found["out"].isolated.summary
    unjudged = case.batch * case.heads * 20 * case.head_dim
    assert summary.count(State.VACUOUS) == unjudged < summary.size
    said = [line.strip() for line in str(found).splitlines() if "not judged" in line]
    assert said == [f"out: {unjudged} of {summary.size} elements not judged: they are in empty rows (empty_out=any)"]
    hint = "only empty rows are wrong: if your kernel may leave anything there, declare --contract empty_out=any"
    beyond, closed = judged(partial(other, row=21), case=case, empty_out="any"), judged(other, case=case, empty_out=0.0)
    assert beyond.origins == closed.origins == ("out",) and hint in str(closed) and hint not in str(beyond)


def truncated_out(stages: Stages) -> Stages:
    with np.errstate(all="ignore"):
        quotient = stages["acc"][..., 0, :].astype(np.float64) / stages["row_sum"].astype(np.float64)
    return stages | {"out": round_to(quotient, "float16", toward_zero=True).astype(np.float16)}


@pytest.mark.parametrize(("rounding", "verdict"), [("nearest", "bug"), ("toward-zero", "rounding"), ("any", "biased")])
def test_the_rounding_of_out_is_the_declared_one(rounding: str, verdict: str) -> None:
    found = judged(truncated_out, out_rounding=rounding)
    assert found["out"].verdict == verdict
    assert found.origins == (("out",) if verdict == "bug" else ())


@pytest.mark.parametrize("saturates", [False, True])
def test_what_is_too_large_for_the_dtype_is_infinite_or_the_largest_value(saturates: bool) -> None:
    def large(stages: Stages, held: float) -> Stages:
        return {
            "acc": stages["acc"] * np.float32(1e6) + 1e9,
            "row_sum": stages["row_sum"],
            "out": np.full_like(stages["out"], held),
        }

    for held in (np.inf, 65504.0, 60000.0):
        right = held == (65504.0 if saturates else np.inf)
        found = judged(lambda stages, held=held: large(stages, held), saturates=saturates)["out"]
        assert found.verdict == ("exact" if right else "bug"), held


def on_tensor_cores(a: np.ndarray, b: np.ndarray, block: int, extra_bits: int) -> np.ndarray:
    """a @ b as a tensor core adds up: blocks of products and the accumulator aligned to the largest and cut off."""
    terms = a.astype(np.float64)[..., None] * b.astype(np.float64)[..., None, :, :]
    total = np.zeros(terms.shape[:-2] + terms.shape[-1:])
    for first in range(0, terms.shape[-2], block):
        part = np.concatenate([total[..., None, :], terms[..., first : first + block, :]], axis=-2)
        _, exponent = np.frexp(np.abs(part).max(axis=-2, keepdims=True))
        last = np.ldexp(1.0, exponent - 24 - extra_bits)
        total = (np.trunc(part / last) * last).sum(axis=-2)
        total = round_to(total, "float32", toward_zero=True)
    return total


@pytest.mark.parametrize("extra_bits", [2, 0, -10])
def test_tensor_cores_lose_what_their_blocks_and_bits_say(extra_bits: int) -> None:
    case = Case(seqlen_q=48, seqlen_k=40, head_dim=128, dtype="float16")

    def kernel_of(contract: dict[str, Any]) -> Any:
        def kernel(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float, causal: bool) -> dict[str, Any]:
            qk = on_tensor_cores(q, k.swapaxes(-1, -2), 16, extra_bits).astype(np.float32)
            return {"qk": qk, "contract": EXACT | contract}

        return kernel

    tensor = {"accumulation": "tensor-core", "mma_block": 16, "mma_extra_bits": extra_bits}
    found = diff(run(kernel_of(tensor), case))
    assert found.verdict == "rounding" and found["qk"].isolated.summary.judged == 48 * 40
    if extra_bits == -10:  # as 8-bit inputs on Hopper: 13 bits, which no bound of float32 sums covers
        assert diff(run(kernel_of({}), case)).origins == ("qk",)


def test_a_last_block_of_one_product_loses_as_much_again() -> None:
    """1 and 14 products below 2^-25, which are cut off one by one; one below 2^-23, and another in the second block."""
    ones = np.ones((1, 1, 48, 1))
    q = np.concatenate([ones, np.full((1, 1, 48, 16), 2.0**-12)], axis=-1).astype(np.float16)
    below = 1 - 2.0**-11
    k = np.concatenate(
        [ones, np.full((1, 1, 48, 14), 2.0**-13 * below), 2.0**-11 * below * ones, 2.0**-11 * below * ones], -1
    )

    def kernel(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float, causal: bool) -> dict[str, Any]:
        qk = on_tensor_cores(q, k.swapaxes(-1, -2), 16, 2).astype(np.float32)
        return {"qk": qk, "contract": EXACT | {"accumulation": "tensor-core", "mma_block": 16, "mma_extra_bits": 2}}

    case = Case(seqlen=48, head_dim=17, dtype="float16")
    found = diff(run(kernel, case, inputs=(q, k.astype(np.float16), q)))["qk"].isolated.summary
    assert found.max_abs > 5.4 * 2.0**-23 and found.outside == 0 and found.judged == 48 * 48


@pytest.mark.parametrize("narrow", ["qk", "acc"])
@pytest.mark.parametrize("of_acc", ["nearest", "tensor-core", None])
@pytest.mark.parametrize("of_qk", ["nearest", "tensor-core"])
def test_qk_and_acc_are_accumulated_each_as_declared(of_qk: str, of_acc: str | None, narrow: str) -> None:
    """13 bits are within the budget of the sum that has a narrow accumulator, and of no other."""
    q, k, v = CASE.inputs()

    def change(stages: Stages) -> Stages:
        if narrow == "qk":
            return {"qk": on_tensor_cores(q, k.swapaxes(-1, -2), 16, -10).astype(np.float32)}
        probs = stages["probs"]
        return {"probs": probs, "acc": on_tensor_cores(probs, v, 16, -10).astype(np.float32)[..., None, :]}

    declared = {} if of_acc is None else {"acc_accumulation": of_acc}
    found = judged(change, accumulation=of_qk, **declared, mma_block=16, mma_extra_bits=-10)
    own = of_qk if narrow == "qk" or of_acc is None else of_acc
    assert found.origins == (() if own == "tensor-core" else (narrow,))


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("options", "bits", "verdict"),  # builds of other tests; what is said of qk asks for none
    [
        ({"codes": "e4m3", "probs_dtype": "float32"}, -10, "suspicious"),
        ({"codes": "e5m2", "scores": "scalar"}, -10, "suspicious"),
        ({"codes": "simulated"}, 0, "bug"),
    ],
    ids=["e4m3", "e5m2", "simulated"],
)
def test_float8_operands_may_meet_in_13_bits(options: dict[str, str], bits: int, verdict: str) -> None:
    """As on Hopper, whose wgmma takes 32 of them at once; simulated codes have to be decoded first. It is suspicious until
    it is declared.
    """
    case = Case(seqlen=40, head_dim=64, **options)
    trace = run("fp8", case, backend="emulator")
    promise = of_foreign({"out_dtype": "float16"}, trace.case)
    assert (promise.accumulation, promise.mma_block, promise.mma_extra_bits) == ("any", 4, bits)
    assert of_foreign({"mma_extra_bits": 2}, trace.case).mma_extra_bits == 2
    q, k = (trace.stages[f"dequant_{name}"] for name in "qk")
    qk = on_tensor_cores(q, k.swapaxes(-1, -2), 32, -10).astype(np.float32)
    stages = {name: trace.stages[name] for name in (*QUANTISED_INPUTS, "dequant_q", "dequant_k")} | {"qk": qk}
    found = diff(replace(trace, stages=stages, contract=promise, requested=(), rerun=None))
    assert found["qk"].verdict == verdict and found["qk"].isolated.summary.judged == 40 * 40
    declared = of_foreign({"out_dtype": "float16", "mma_block": 32, "mma_extra_bits": -10}, trace.case)
    told = diff(replace(trace, stages=stages, contract=declared, requested=(), rerun=None))
    assert told["qk"].verdict == "rounding"


def test_unknown_fields_take_the_weakest_choice() -> None:
    """Whatever a kernel may be, it is right under the contract that nobody declared."""
    weakest = of_foreign({}, CASE)
    assert weakest.accumulation == "any" and weakest.out_rounding == "any" and weakest.fast_math
    for change in (same, truncated_out):
        declared = {name: getattr(weakest, name) for name in ("accumulation", "out_rounding", "fast_math")}
        assert judged(change, keep=("out", "lse"), **declared).verdict in ("exact", "rounding")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("accumulation", "fp32", "one of nearest, tensor-core, any; got 'fp32'"),
        ("mma_block", None, "a whole number from 1 to 4096; got None"),
        ("acc_accumulation", "fp16", "one of nearest, tensor-core, any; got 'fp16'"),
        ("mma_extra_bits", 1.5, "a whole number from -23 to 64; got 1.5"),
        ("exp_ulps", -1, "a number of at least 0; got -1"),
        ("mask_sentinel", 0.0, "a negative number; got 0.0"),
        ("empty_lse", "inf", "a number, inf, nan or libraries; got 'inf'"),
        ("out_rounding", "up", "one of nearest, toward-zero, any; got 'up'"),
    ],
)
def test_values_outside_their_rule_are_refused(field: str, value: Any, message: str) -> None:
    with pytest.raises(Refusal) as refusal:
        of_foreign({field: value}, CASE)
    assert str(refusal.value) == f'"contract" field {field} must be {message}'


def test_what_was_not_declared_is_listed() -> None:
    promise = of_foreign({"out_dtype": "float16", "splits": 3}, CASE)
    # what results of splits are concerns those that gave some;
    # what codes are decoded to does not concern other kernels, nor how tanh is computed those without a softcap,
    # what sinks do those without any, or a score_mod loses; row_sum is kept whole;
    # how far a maximum lags, and where probs get an offset, those that have one, and exp is no polynomial;
    # how operands are rounded to TF32 those that are not; no GPU tells its tensor cores; acc is accumulated as
    # `accumulation` says
    named = set(promise.assumed) | {
        "out_dtype",
        "splits",
        "operands_dtype",
        "tanh",
        "assumed",
        "acc_accumulation",
        "split_bounds",
        "tensor_core",
        "input_rounding",
        "sinks",
        "lse_includes_sink",
        "score_mod_ulps",
        "row_sum_lanes",
        "partials",
        "partial_stats",
        "row_max_lag",
        "probs_offset",
        "offset_in",
        "exp_polynomial",
        "lse_base2",
        "of_preset",
    }
    assert named == set(Contract.__dataclass_fields__) and promise.splits == 3
    assert "operands_dtype" in of_foreign({}, CASE.but(codes="e4m3")).assumed
    assert "tanh" in of_foreign({}, CASE.but(softcap=30.0)).assumed
