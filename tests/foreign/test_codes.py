"""Foreign kernels on codes: they are given codes, or quantise themselves, and tell some stages of it or none."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from workbench import Case, Refusal, diff, run
from workbench.case import formats
from workbench.case.stages import QUANTISED_INPUTS
from workbench.cuda.quantize import quantize
from workbench.report.causes import lines
from workbench.report.document import explained_document
from workbench.report.remarks import notes

CASE = Case(heads=4, kv_heads=2, seqlen=40, head_dim=32)
KINDS = ("simulated", "e4m3", "e5m2")
DECLARED = {"probs_dtype": "float32", "accumulation": "nearest", "exp_ulps_per_x": 0.0, "scores_dtype": "float32"}


def decoded(kind: str, codes: np.ndarray, scale: np.ndarray, dtype: type = np.float16) -> np.ndarray:
    return (formats.FORMATS[kind].values.astype(np.float32)[codes] * scale[:, None, None]).astype(dtype)


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float, **faults: float) -> dict[str, np.ndarray]:
    """Plain float32 attention on decoded inputs, its products and out in float16's company."""
    group = q.shape[1] // k.shape[1]
    wide = [x.astype(np.float32) for x in (q, np.repeat(k, group, 1), np.repeat(v, group, 1))]
    scores = wide[0] @ wide[1].swapaxes(-1, -2) * np.float32(scale * faults.get("scale_by", 1))
    probs = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return {"scores": scores, "out": (probs @ wide[2] / probs.sum(axis=-1, keepdims=True)).astype(np.float16)}


def given_codes(
    kind: str, *names: str, dtype: type = np.float16, contract: dict | None = None, **faults: float
) -> Callable[..., Any]:
    """A kernel that takes codes and tells the stages `names`."""

    def kernel(q: Any, k: Any, v: Any, *, scale_q: Any, scale_k: Any, scale_v: Any, scale: float, causal: bool) -> Any:
        assert not causal and q.dtype == k.dtype == v.dtype == np.uint8 and scale_k.shape == (2,)
        read = [decoded(kind, x, s, dtype) for x, s in ((q, scale_q), (k, scale_k), (v, scale_v))]
        read[2] = (read[2] * dtype(faults.get("v_by", 1))).astype(dtype)
        stages: dict[str, Any] = dict(zip(("dequant_q", "dequant_k", "dequant_v"), read, strict=True))
        stages |= attention(*read, scale, **faults)
        return {name: stages[name] for name in names} | ({} if contract is None else {"contract": contract})

    return kernel


def given_floats(kind: str, *names: str, **faults: float) -> Callable[..., Any]:
    """A kernel that quantises by itself and tells the stages `names`."""

    def kernel(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
        stages: dict[str, Any] = {}
        for x, array in zip("qkv", (q, k, v), strict=True):
            stages[f"codes_{x}"], stages[f"scale_{x}"] = quantize(array, kind)
            stages[f"dequant_{x}"] = decoded(kind, stages[f"codes_{x}"], stages[f"scale_{x}"])
        stages["dequant_v"] = (stages["dequant_v"] * np.float16(faults.get("v_by", 1))).astype(np.float16)
        stages |= attention(*(stages[f"dequant_{x}"] for x in "qkv"), scale, **faults)
        return {name: stages[name] for name in names}

    return kernel


@pytest.mark.campaign(but=2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", [given_codes, given_floats])
def test_a_kernel_that_tells_decoded_v_and_out(make: Callable[..., Any], kind: str) -> None:
    case = CASE.but(codes=kind)
    right = diff(run(make(kind, "dequant_v", "out"), case))
    assert right.verdict in ("exact", "rounding") and [stage.name for stage in right][-2:] == ["dequant_v", "out"]
    decoding = diff(run(make(kind, "dequant_v", "out", v_by=1.02), case))
    assert decoding.origins == ("dequant_v",) and decoding.victims == ("out",)
    scores = diff(run(make(kind, "dequant_v", "out", scale_by=1.5), case))
    assert scores.origins == ("out",) and {"qk", "scores", "dequant_q"} <= set(scores["out"].upstream)


def test_what_was_given_is_not_judged_and_what_was_not_is_upstream() -> None:
    told, untold = (
        diff(run(make("e4m3", "dequant_v", "out"), CASE.but(codes="e4m3"))) for make in (given_codes, given_floats)
    )
    assert told.trace.put_in == QUANTISED_INPUTS and told["codes_k"].reason == "it was fed into the run"
    assert told["dequant_v"].isolated is not None and told["dequant_v"].judged_from == ("scale_v", "codes_v")
    assert untold["dequant_v"].isolated is None and untold["dequant_v"].upstream == ("scale_v", "codes_v", "lut_v")
    assert untold["out"].judged_from == ("dequant_v",)


@pytest.mark.campaign(but=2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_a_kernel_that_tells_out_alone(kind: str, dtype: type) -> None:
    """It may decode to any dtype: nobody saw that."""
    case = CASE.but(codes=kind)
    judged = diff(run(given_codes(kind, "out", dtype=dtype), case))
    assert judged.verdict == "rounding" and "operands_dtype" in judged.trace.contract.assumed
    assert diff(run(given_codes(kind, "out", dtype=dtype, v_by=3.0), case)).origin == "out"
    # what is declared makes budgets tighter
    known = DECLARED | {"operands_dtype": np.dtype(dtype).name}
    assert diff(run(given_codes(kind, "out", dtype=dtype, contract=known), case)).verdict == "rounding"
    assert diff(run(given_codes(kind, "out", dtype=dtype, contract=known, v_by=1.02), case)).origin == "out"


def test_probs_that_nobody_saw_may_be_of_float16_which_loses_what_bfloat16_keeps() -> None:
    """The first key has all the weight and a v of 0: out is what the probs of the others, below 2^-24, make of it."""
    case = Case(seqlen_q=8, seqlen_k=24, head_dim=16, codes="simulated")
    q, k, v = (np.zeros((1, 1, n, 16), np.float32) for n in (8, 24, 24))
    q[...], k[:, :, 0], v[:, :, 1:] = 4.0, 1.25, 1.0

    def kernel(q: Any, k: Any, v: Any, *, scale_q: Any, scale_k: Any, scale_v: Any, scale: float, causal: bool) -> Any:
        read = [decoded("simulated", x, s) for x, s in ((q, scale_q), (k, scale_k), (v, scale_v))]
        q, k, v = (x.astype(np.float32) for x in read)
        scores = q @ k.swapaxes(-1, -2) * np.float32(scale)
        probs = np.exp(scores - scores.max(axis=-1, keepdims=True)).astype(np.float16).astype(np.float32)
        return {"scores": scores, "out": probs @ v / probs.sum(axis=-1, keepdims=True)}

    judged = diff(run(kernel, case, inputs={"q": q, "k": k, "v": v}))
    out = judged["out"].decisive
    assert out is not None and np.all(out.actual == 0) and np.all(out.expected > 2e-8)
    assert judged.verdict == "rounding"


def test_a_kernel_that_tells_its_codes_is_judged_from_them() -> None:
    every = (*QUANTISED_INPUTS, "dequant_v", "scores", "out")
    judged = diff(run(given_floats("e4m3", *every), CASE.but(codes="e4m3")))
    assert judged.verdict == "rounding" and judged["codes_k"].verdict == judged["scale_v"].verdict == "exact"
    wrong = diff(run(given_floats("e4m3", *every), CASE.but(codes="e4m3", quantiser_scale="static")))
    assert wrong.origins[:3] == ("scale_q", "scale_k", "scale_v")


def test_without_a_format_a_decoded_input_is_held_to_the_coarsest() -> None:
    """Nobody told how v was quantised: what no 8-bit format loses is wrong, anything less is right of some format."""
    judged = diff(run(lambda q, k, v, **_: _half(q, k, v, 1.0), CASE))
    assert judged.trace.algorithm == "fp8" and judged.verdict == "suspicious" and judged.origins == ()
    assert judged["dequant_v"].reason == "within the loss of the coarsest 8-bit format; declare the format (--codes)"
    for by in (1.5, 0.0, np.nan):
        wrong = diff(run(lambda q, k, v, by=by, **_: _half(q, k, v, by), CASE))
        assert wrong.verdict == "bug" and wrong.origin == "dequant_v"
    wrong = diff(run(lambda q, k, v, **_: _half(q, k, v, 1.5), CASE))
    parts = [float(np.abs(diff.loss.of_out).max()) for diff in (judged, wrong) if diff.loss is not None]
    assert parts[0] < 0.1 < 0.3 < parts[1]
    assert any(f"{parts[1]:.3g} from quantisation" in line for line in notes(wrong))


def _half(q: np.ndarray, k: np.ndarray, v: np.ndarray, by: float) -> dict[str, Any]:
    read = (np.round(v * 16) / 16 * by).astype(np.float32)
    out = attention(q, k, read, CASE.scale)["out"]
    return {"dequant_v": read, "out": out, "contract": {"out_dtype": "float16"}}


def test_torch_kernels_take_codes_in_any_layout() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")

    def kernel(q: Any, k: Any, v: Any, *, scale_q: Any, scale_k: Any, scale_v: Any, scale: float, causal: bool) -> Any:
        q, k, v = (
            (x.view(torch.float8_e4m3fn).float() * s[:, None]).half()
            for x, s in ((q, scale_q), (k, scale_k), (v, scale_v))
        )
        made = torch.nn.functional.scaled_dot_product_attention(
            *(x.transpose(1, 2).float() for x in (q, k, v)), scale=scale, enable_gqa=True
        )
        return {"dequant_v": v.transpose(1, 2), "out": made.transpose(1, 2)}

    judged = diff(run(kernel, CASE.but(codes="e4m3"), arrays="torch", layout="bshd"))
    assert judged.verdict in ("exact", "rounding") and judged["dequant_v"].verdict == "exact"


@pytest.mark.campaign
def test_what_only_weak_choices_explain_is_a_bug_as_no_library_makes_them() -> None:
    """The weakest contract, of probs in float8 and sums in 14 bits, covers most bugs of V; so would sums in 16 bits and a
    coarse exp.
    """

    def kernel(q: Any, k: Any, v: Any, *, scale_q: Any, scale_k: Any, scale_v: Any, scale: float, causal: bool) -> Any:
        read = [decoded("e4m3", x, s, np.float32) for x, s in ((q, scale_q), (k, scale_k), (v, scale_v[:1]))]
        return attention(*read, scale) | ({} if contract is None else {"contract": contract})

    contract: dict[str, Any] | None = None
    case = Case(heads=4, seqlen=128, codes="e4m3")
    out = diff(run(kernel, case))["out"]
    assert out.verdict == "bug" and out.worst(1)[0].over_budget < 1
    would = "accumulator_dtype=float16, probs_dtype=float8_e4m3fn or probs_dtype=float8_e5m2 (or 2 more)"
    assert f"{would} would explain it" in out.reason
    assert "but no known library computes like that" in out.reason
    contract = {"probs_dtype": "float16", "mma_extra_bits": 0}
    assert diff(run(kernel, case)).origins == ("out",)
    right = diff(run(given_codes("e4m3", "out"), CASE.but(codes="e4m3")))
    assert right["out"].verdict == "rounding" and not right["out"].reason


def test_a_kernel_with_probs_in_float8_is_right_where_it_says_so() -> None:
    import ml_dtypes

    def kernel(q: Any, k: Any, v: Any, *, scale_q: Any, scale_k: Any, scale_v: Any, scale: float, causal: bool) -> Any:
        q, k, v = (decoded("e4m3", x, s, np.float32) for x, s in ((q, scale_q), (k, scale_k), (v, scale_v)))
        scores = q @ k.swapaxes(-1, -2) * np.float32(scale)
        probs = np.exp(scores - scores.max(axis=-1, keepdims=True))
        cast = probs.astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
        out = (cast @ v / probs.sum(axis=-1, keepdims=True)).astype(np.float16)
        return {"out": out} | ({"contract": {"probs_dtype": "float8_e4m3fn"}} if declares else {})

    declares = True
    case = Case(heads=4, seqlen=128, codes="e4m3")
    assert diff(run(kernel, case)).verdict in ("exact", "rounding")
    declares = False
    assert diff(run(kernel, case)).origins == ()


def test_wrong_usage_is_refused() -> None:
    def refusal(function: Callable[..., Any], case: Case, **options: Any) -> str:
        with pytest.raises(Refusal) as refused:
            run(function, case, **options)
        return str(refused.value)

    takes, plain = given_codes("e4m3", "out"), given_floats("e4m3", "out")
    assert refusal(takes, CASE) == (
        "kernel takes quantised codes (keyword scale_q): choose codes, one of simulated, e4m3, e5m2, "
        "mxfp8-e4m3, mxfp8-e5m2, nvfp4, int8, int4"
    )
    codes: dict[str, Any] = {}
    for x, array in zip("qkv", CASE.inputs(), strict=True):
        codes[f"codes_{x}"], codes[f"scale_{x}"] = quantize(array, "e4m3")
    assert diff(run(takes, CASE.but(codes="e4m3"), inputs=codes)).verdict == "rounding"
    assert refusal(plain, CASE.but(codes="e4m3"), inputs=codes) == (
        "kernel takes no quantised codes, but the inputs hold some: add the keywords scale_q, scale_k, "
        "scale_v, or the last two for codes of k and v"
    )

    def changes(q: Any, k: Any, v: Any, *, scale_q: Any, scale_k: Any, scale_v: Any, **_: Any) -> Any:
        return {"scale_k": 2 * scale_k, "codes_q": q}

    assert refusal(changes, CASE.but(codes="e4m3")) == (
        "changes was fed scale_k and must return it unchanged; got other values"
    )


def splitting(fault: str = "", **contract: Any) -> Callable[..., Any]:
    """A split-K kernel that takes e4m3 codes, of two splits with a tile each, and tells every stage but the tables and
    those that one tile a split leaves out.
    """

    def kernel(q: Any, k: Any, v: Any, *, scale_q: Any, scale_k: Any, scale_v: Any, scale: float, causal: bool) -> Any:
        q, k, v = (decoded("e4m3", x, s) for x, s in ((q, scale_q), (k, scale_k), (v, scale_v)))
        if fault == "zero point":
            k = k + scale_k[:, None, None].astype(np.float16)
        stages: dict[str, Any] = {"dequant_q": q, "dequant_k": k, "dequant_v": v}
        group = q.shape[1] // k.shape[1]
        k, v = (np.repeat(x, group, 1).astype(np.float32) for x in (k, v))
        stages["qk"] = q.astype(np.float32) @ k.swapaxes(-1, -2)
        stages["scores"] = stages["qk"] * np.float32(scale)
        tiles = stages["scores"].reshape(*q.shape[:3], 2, -1)
        stages["row_max"] = tiles.max(axis=-1)
        probs = np.exp(tiles - stages["row_max"][..., None])
        stages["probs"], stages["row_sum"] = probs.reshape(stages["scores"].shape), probs.sum(axis=-1)
        stages["acc"] = np.einsum("bhqsk,bhskd->bhqsd", probs, v.reshape(*v.shape[:2], 2, -1, v.shape[3]))
        for own, last in (("partial_max", "row_max"), ("partial_sum", "row_sum"), ("partial_O", "acc")):
            stages[own] = np.moveaxis(stages[last], 3, 2)
        stages["merge_max"] = stages["partial_max"].max(axis=2)
        weight = np.exp(stages["partial_max"] - stages["merge_max"][:, :, None])
        stages["merge_sum"] = (weight * stages["partial_sum"]).sum(axis=2)
        stages["merge_weight"] = weight * stages["partial_sum"] if fault == "merge" else weight
        merged = (stages["merge_weight"][..., None] * stages["partial_O"]).sum(axis=2)
        stages["out"] = merged / stages["merge_sum"][..., None]
        stages["lse"] = stages["merge_max"] + np.log(stages["merge_sum"])
        return stages | {"contract": DECLARED | {"block_k": 20} | contract}

    return kernel


def test_a_split_k_kernel_on_codes_is_judged_in_all_its_stages() -> None:
    case = CASE.but(codes="e4m3")
    right = diff(run(splitting(splits=2), case))
    assert right.trace.algorithm == "fp8_split_k" and right.verdict == "rounding"
    assert [stage.name for stage in right] == [name for name in right.trace.stages if name not in QUANTISED_INPUTS]
    assert len(right.stages) == 17 and right["merge_weight"].isolated is not None
    for fault, origin in (("zero point", "dequant_k"), ("merge", "merge_weight")):
        wrong = diff(run(splitting(fault, splits=2), case))
        assert (wrong.verdict, wrong.origins) == ("bug", (origin,))
        assert set(wrong.victims) <= set(list(right.trace.stages)[list(right.trace.stages).index(origin) :])
    bounds = diff(run(splitting(split_bounds=[0, 20, 40]), case))
    assert bounds.trace.algorithm == "fp8_split_k" and bounds.verdict == "rounding"


@pytest.mark.campaign
@pytest.mark.parametrize("kind", KINDS)
def test_what_was_decoded_without_its_scale_is_named_where_nobody_gave_the_scale(kind: str) -> None:
    def kernel(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
        found = quantize(k, kind)
        without = decoded(kind, found.codes, np.ones_like(found.scale))
        return {"dequant_k": without.astype(np.float32), "out": np.zeros_like(q)}

    judged = diff(run(kernel, CASE.but(codes=kind)))
    assert judged.origin == "dequant_k"
    (cause,) = judged.explained.causes
    assert cause.text == "codes are decoded without their scale (k)" and cause.text in str(judged)


def with_the_scale_of_k(
    q: Any, k: Any, v: Any, *, scale_q: Any, scale_k: Any, scale_v: Any, scale: float, causal: bool
) -> Any:
    q, k, v = (decoded("e4m3", x, s).astype(np.float32) for x, s in ((q, scale_q), (k, scale_k), (v, scale_k)))
    scores = q @ k.swapaxes(-1, -2) * np.float32(scale)
    probs = np.exp(scores - scores.max(-1, keepdims=True))
    return (probs @ v / probs.sum(-1, keepdims=True)).astype(np.float16)


def test_what_no_library_does_is_explained_as_of_a_usual_kernel() -> None:
    """Ten times the budget of a usual kernel, and within that of one that casts probs to float8, which it may."""
    judged = diff(
        run(with_the_scale_of_k, Case(batch=1, heads=2, seqlen=24, head_dim=16, dtype="float16", codes="e4m3"))
    )
    assert judged.verdict == "bug" and judged["out"].worst(1)[0].over_budget < 1
    found = judged.explain(0.1)
    assert found.usual == ("out",) and [one.text for one in found.causes] == [
        "codes are decoded with the scale of k (v)"
    ]
    assert found.causes[0].trial is not None and found.causes[0].stands
    first, second, *_ = lines(judged, found)
    assert first == "below: what differs from default arithmetic, in out"
    assert second == "out: codes are decoded with the scale of k (v)"
    assert explained_document(found)["wrong_if_usual"] == ["out"]
