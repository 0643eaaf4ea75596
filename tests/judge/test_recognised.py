"""Conventions of dumps that nobody declared, or a preset alone: they are read off, and what is wrong stays wrong."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.numpy_kernels import LOG2E, Style, kernel
from workbench import Case, Diff, diff, run
from workbench.case.inputs import by_name
from workbench.judge.stage import RIGHT_VERDICTS
from workbench.report.words import findings

CASE = Case(seqlen=96, head_dim=32, dtype="float16", causal=True)
EMPTY = CASE.but(seqlen_q=96, seqlen_k=64)  # 32 rows without keys
NAMES = ("scores", "row_max", "probs", "row_sum", "acc", "out", "lse")
SENTINELS = (-1e4, -65504.0, -1e9, -1e30, float(np.finfo(np.float32).min))


def readme(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> dict[str, Any]:
    """The kernel of docs/how-to/testing.md, its bug fixed."""
    q, k, v = (x.astype(np.float32) for x in (q, k, v))
    scores = q @ np.swapaxes(k, -1, -2) * np.float32(scale)
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], k.shape[2] - q.shape[2], dtype=bool), scores, -np.inf)
    row_max = scores.max(-1)
    probs = np.exp(scores - row_max[..., None])
    row_sum = probs.sum(-1)
    return {
        "scores": scores,
        "out": (probs @ v / row_sum[..., None]).astype(np.float16),
        "lse": row_max + np.log(row_sum),
    }


def judged(function: Any, contract: str | None, case: Case = CASE) -> Diff:
    return diff(run(function, case, contract=contract), report=True)


def is_right(found: Diff, *names: str) -> bool:
    """Whether the stages `names` were judged, and are right, and no cause is told of anything."""
    told = [x for x in findings(found) if "cause:" in x or "accumulator_dtype" in x]
    right = [found[name].verdict in RIGHT_VERDICTS for name in names]
    return found.verdict in RIGHT_VERDICTS and all(right) and len(right) > 0 and not told


def test_the_kernel_of_the_readme_is_right_with_its_preset() -> None:
    found = judged(readme, "triton,block_k=64", Case(dtype="float16", causal=True))
    assert is_right(found, "scores", "out", "lse")
    assert "the dump shows base2=false; the preset has base2=true" in found.trace.notes


def test_probs_that_stay_in_float32_are_within_a_preset() -> None:
    """A true block_k is no trap: with it probs are judged, and out from them."""
    made = kernel(Style(block_k=32), {}, ("scores", "probs", "out", "lse"))
    assert is_right(judged(made, "triton,block_k=32"), "scores", "probs", "out", "lse")
    assert is_right(judged(made, "triton"), "scores", "out", "lse")


@pytest.mark.campaign(but=4)
@pytest.mark.parametrize(
    ("preset", "style"),
    [
        ("triton", Style(units="raw")),
        ("flash-attention-2", Style(units="natural")),
        ("flash-attention-2", Style(units="log2", exp_argument="fma")),
        ("flash-attention-2", Style(units="raw", probs_dtype="float16")),
        ("torch-eager", Style(units="log2")),
        ("torch-sdpa", Style(units="raw", tile_order="descending")),
    ],
)
@pytest.mark.parametrize("block_k", [",block_k=16", ""])
def test_stages_in_any_unit_and_order_are_right_where_a_preset_alone_says_which(
    preset: str, style: Style, block_k: str
) -> None:
    names = NAMES if block_k else ("scores", "out", "lse")
    assert is_right(judged(kernel(style, {}, NAMES), preset + block_k), *names)


@pytest.mark.parametrize("units", ["log2", "raw"])
@pytest.mark.parametrize("block_k", [{"block_k": 16}, {}])
def test_units_that_nobody_said_are_read_off_and_noted(units: str, block_k: dict[str, int]) -> None:
    found = judged(kernel(Style(units=units), block_k, NAMES), None)
    field = {"log2": "base2=true", "raw": "scores_scaled=false"}[units]
    assert is_right(found, "scores", "out", "lse") and f"the dump shows {field}" in found.trace.notes


def test_what_the_user_said_himself_is_not_overruled() -> None:
    assert judged(readme, "base2=true").origin == "scores"
    assert judged(kernel(Style(units="log2"), {}), "base2=false").origin == "scores"
    assert judged(kernel(Style(units="log2"), {"base2": False}), "triton").origin == "scores"
    assert judged(kernel(Style(), {"base2": False}), "triton").verdict in RIGHT_VERDICTS


def test_scores_alone_do_not_tell_their_unit() -> None:
    """A forgotten scale looks alike."""
    found = judged(kernel(Style(units="raw"), {}, ("scores",)), None)
    assert found.origin == "scores"


def changed(style: Style, names: tuple[str, ...], **wrong: Any) -> Any:
    """A kernel of a style of whose stages some are changed."""
    made = kernel(style, {"block_k": style.block_k}, names)

    def attention(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> dict[str, Any]:
        found = made(q, k, v, scale=scale, causal=causal)
        return found | {name: change(found[name]) for name, change in wrong.items()}

    return attention


def bumped(x: np.ndarray) -> np.ndarray:
    """One more element in a hundred is larger by a hundredth."""
    x = x.copy()
    x.reshape(-1)[::100] *= np.asarray(1.01, x.dtype)
    return x


@pytest.mark.campaign(but=5)
@pytest.mark.parametrize("units", ["natural", "log2", "raw"])
@pytest.mark.parametrize("stage", ["scores", "probs", "row_sum", "out", "lse"])
def test_in_units_that_were_read_off_what_is_wrong_is_wrong_alone(units: str, stage: str) -> None:
    found = judged(changed(Style(units=units), NAMES, **{stage: bumped}), "triton,accumulation=nearest")
    assert found.origin == stage and found["scores"].verdict in (*RIGHT_VERDICTS, "bug")
    assert {*found.origins} & {"scores", "row_max"} == ({"scores", "row_max"} if stage == "scores" else set())


@pytest.mark.parametrize("contract", [None, "triton", "flash-attention-2"])
def test_exp2_without_its_factor_is_a_bug_in_any_unit(contract: str | None) -> None:
    """exp2 of natural scores: its probs are none in any base."""

    def attention(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> dict[str, Any]:
        found = readme(q, k, v, scale=scale, causal=causal)
        probs = np.exp2(found["scores"] - found["scores"].max(-1, keepdims=True))
        total = probs.sum(-1, keepdims=True)
        found |= {"out": (probs @ v.astype(np.float32) / total).astype(np.float16)}
        return found | {"lse": found["scores"].max(-1) + np.log(total[..., 0])}

    assert judged(attention, contract).verdict == "bug"


def test_an_lse_in_the_base_of_a_preset_is_no_bug_and_said() -> None:
    in_base_2 = changed(Style(units="log2"), ("scores", "out", "lse"), lse=lambda x: x * LOG2E)
    for contract in ("triton", None):
        found = judged(in_base_2, contract)
        assert found.verdict == "suspicious" and "lse_base2=true" in found["lse"].reason
    assert judged(in_base_2, "base2=true").origin == "lse"
    assert judged(in_base_2, "triton,lse_base2=true").verdict in RIGHT_VERDICTS
    both = changed(Style(units="log2"), ("scores", "out", "lse"), lse=lambda x: x * LOG2E, out=lambda x: 2 * x)
    assert judged(both, "triton").origins == ("out",) and judged(both, "triton")["lse"].verdict == "suspicious"
    natural = changed(Style(), ("scores", "out", "lse"), lse=lambda x: x * LOG2E)
    assert judged(natural, None).origin == "lse"


@pytest.mark.parametrize("value", [-np.inf, np.inf])
def test_rows_without_keys_hold_what_a_kernel_likes_where_a_preset_alone_says_what(value: float) -> None:
    made = changed(Style(), NAMES, lse=lambda x: np.where(np.isinf(x), np.float32(value), x))
    for preset in ("flash-attention-2", "torch-eager", "triton"):
        said = "" if value < 0 or preset == "flash-attention-2" else ",empty_lse=inf"
        assert judged(made, f"{preset}{said}", EMPTY).verdict in RIGHT_VERDICTS, preset
    assert judged(changed(Style(), NAMES, lse=lambda x: np.where(np.isinf(x), 3.0, x)), "triton", EMPTY).origin == "lse"


def test_partial_results_are_what_they_are_where_a_preset_says_otherwise() -> None:
    made = kernel(Style(splits=3), {"block_k": 16, "splits": 3})
    found = judged(made, "flash-attention-2")
    assert is_right(found, "partial_max", "partial_sum", "partial_O", "merge_weight", "out", "lse")


def test_a_low_bias_is_no_mask_where_a_preset_alone_has_a_sentinel() -> None:
    def attention(q: Any, k: Any, v: Any, *, scale: float, causal: bool, bias: Any) -> dict[str, Any]:
        return {"scores": q @ k.swapaxes(-1, -2) * np.float32(scale) + bias}

    case = Case(seqlen=32, head_dim=16)
    bias = np.where(np.arange(32) < 20, 0, -1e9).astype(np.float32)[None, None, None]
    inputs = by_name(case, None) | {"bias": np.broadcast_to(bias, (1, 1, 32, 32)).copy()}
    for contract in (None, "triton"):
        assert is_right(diff(run(attention, case, inputs=inputs, contract=contract)), "scores")


@pytest.mark.campaign(but=6)
@pytest.mark.parametrize("sentinel", SENTINELS)
@pytest.mark.parametrize("contract", [None, "triton", "torch-eager,block_k=16", "flash-attention-2"])
def test_a_number_that_stands_for_minus_infinity_is_recognised(sentinel: float, contract: str | None) -> None:
    made = changed(Style(), NAMES, scores=lambda x: np.where(x == -np.inf, np.float32(sentinel), x))
    found = judged(made, contract)
    assert is_right(found, "scores", "out", "lse") and found["scores"].decisive.summary.outside == 0
    assert found.trace.contract.mask_sentinel <= sentinel / 2


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_least_number_of_a_dtype_is_recognised_in_its_dtype(dtype: str) -> None:
    stored = np.dtype(dtype if dtype == "float16" else ml_dtypes.bfloat16)
    least = np.asarray(ml_dtypes.finfo(stored).min, stored)
    made = changed(Style(), ("scores", "out", "lse"), scores=lambda x: np.where(x == -np.inf, least, x.astype(stored)))
    found = judged(made, "torch-eager", CASE.but(dtype=dtype))
    assert found["scores"].verdict in RIGHT_VERDICTS and found["out"].verdict != "bug"


@pytest.mark.campaign(but=5)
@pytest.mark.parametrize("units", ["natural", "log2", "raw"])
@pytest.mark.parametrize("case", [CASE, EMPTY, CASE.but(window=(8, 0)), CASE.but(heads=2, kv_heads=1, batch=2)])
def test_it_is_in_maxima_and_lse_too_and_may_have_been_added(units: str, case: Case) -> None:
    """In rows without keys, and in tiles before the first visible one, what exp makes of it is no weight."""

    def attention(q: Any, k: Any, v: Any, *, scale: float, causal: bool, window_size: Any = None) -> dict[str, Any]:
        k, v = (np.repeat(x, q.shape[1] // k.shape[1], 1) for x in (k, v))
        factor = np.float32({"natural": scale, "log2": scale * LOG2E, "raw": 1}[units])
        base = {"natural": np.float32(1), "log2": np.float32(np.log(2)), "raw": np.float32(scale)}[units]
        scores = q.astype(np.float32) @ k.astype(np.float32).swapaxes(-1, -2) * factor
        row, key = np.indices(scores.shape[-2:])
        row = row + k.shape[2] - q.shape[2]
        seen = (key <= row) & (key >= row - (window_size or (10**6,))[0])
        scores = scores + np.where(seen, np.float32(0), np.float32(-1e9))
        top = np.maximum.accumulate(scores.reshape(*scores.shape[:-1], -1, 16).max(-1), -1)
        probs = np.exp((scores - top.repeat(16, -1)) * base)
        last = np.exp((scores - top[..., -1:]) * base)
        total = last.sum(-1, keepdims=True)
        out = np.where(seen.any(-1, keepdims=True), last @ v.astype(np.float32) / total, np.float32(0))
        lse = top[..., -1] * base + np.log(total[..., 0])
        stages = {"scores": scores, "row_max": top, "probs": probs, "out": out.astype(q.dtype), "lse": lse}
        return stages | {"contract": {"block_k": 16}}

    found = judged(attention, None, case)
    assert is_right(found, "scores", "row_max", "probs", "out", "lse")


@pytest.mark.parametrize(
    ("moved", "wrong"),
    [((1, 0), "a hidden key seen"), ((-1, 0), "a visible key hidden"), ((0, 40), "of another alignment")],
)
def test_a_wrong_mask_shows_beside_it_where_it_is_wrong(moved: tuple[int, int], wrong: str) -> None:
    """A diagonal that is moved, or, of the last 40 rows, missing by 40."""

    def attention(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> dict[str, Any]:
        q, k, v = (x.astype(np.float32) for x in (q, k, v))
        scores = q @ k.swapaxes(-1, -2) * np.float32(scale)
        row, key = np.indices(scores.shape[-2:])
        seen = key <= row + moved[0] + moved[1] * (row >= 56)
        scores = np.where(seen | (key == 0), scores, np.float32(-1e30))
        probs = np.exp(scores - scores.max(-1, keepdims=True))
        out = probs @ v / probs.sum(-1, keepdims=True)
        return {"scores": scores, "out": out.astype(np.float16)}

    found = judged(attention, None)
    right = np.tri(96, dtype=bool)
    row, key = np.indices((96, 96))
    off = int((right != ((key <= row + moved[0] + moved[1] * (row >= 56)) | (key == 0))).sum())
    assert found.origins == ("scores",) and found["scores"].decisive.summary.outside == off > 0


def test_large_scores_are_no_masks() -> None:
    """Scores as low as a stand-in, hidden ones -inf; and a mask that was forgotten on them."""
    made = kernel(Style(), {}, ("scores", "out"))
    case = CASE.but(dtype="float32", input_std=60.0)
    assert judged(made, None, case).verdict in RIGHT_VERDICTS

    def forgotten(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> dict[str, Any]:
        return made(q, k, v, scale=scale, causal=False)

    assert judged(forgotten, None, case).origin == "scores"


def test_what_is_read_off_holds_of_the_kernel_on_other_inputs() -> None:
    """Which are run where something leans to one side, and to explain."""
    found = judged(kernel(Style(units="log2"), {"block_k": 16}), "flash-attention-2")
    again = found.trace.rerun(CASE.but(seed=1))
    assert again.contract.base2 and again.contract.scores_scaled and again.contract == found.trace.contract
