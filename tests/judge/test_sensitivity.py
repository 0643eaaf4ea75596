"""What is right for an assumption alone is suspicious, and the report says for which."""

from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from campaigns.styles import CORRECT, cases, declared
from tests.stored import stored
from workbench import Case, diff, run
from workbench.case.assumptions import LIBRARIES, weaker
from workbench.case.contract import of_foreign
from workbench.judge.fails import classed, failing

CASE = Case(seqlen_q=64, seqlen_k=256, head_dim=32, dtype="bfloat16", heads=2)


def kernel(**change: Any) -> Any:
    def attention(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
        dtype = q.dtype
        q, k, v = (x.astype(np.float32) for x in (q, k, v))
        if change.get("tf32"):
            q, k = (_tf32(x) for x in (q, k))
        scores = q @ k.swapaxes(-1, -2) * np.float32(scale * change.get("scale", 1.0))
        if change.get("round_scores"):
            scores = scores.astype(dtype).astype(np.float32)
        scores[..., scores.shape[-1] - change.get("drop", 0) :] = -np.inf
        if causal:
            scores = np.where(
                np.tri(*scores.shape[-2:], scores.shape[-1] - scores.shape[-2], dtype=bool), scores, -np.inf
            )
        top = scores.max(axis=-1, keepdims=True)
        probs = np.exp2(
            np.maximum((scores - top) * np.float32(np.log2(np.e)), np.float32(change.get("floor", -np.inf)))
        )
        total = probs.sum(axis=-1, keepdims=True) * np.float32(change.get("total", 1))
        out = probs.astype(change.get("probs", dtype)).astype(np.float32) @ v / total
        stages = {"scores": scores, "row_max": top, "probs": probs} if change.get("dumps") else {}
        said = {key: change[key] for key in ("contract",) if key in change}
        return {**stages, "out": out.astype(dtype), "lse": (top + np.log(total))[..., 0], **said}

    return attention


def _tf32(x: np.ndarray) -> np.ndarray:
    bits = (x.view(np.uint32) + np.uint32(1 << 12)) & np.uint32(0xFFFFE000)
    return bits.view(np.float32)


@pytest.mark.campaign(but=2)
@pytest.mark.parametrize("change", [{"drop": 1}, {"scale": 1.005}, {"probs": ml_dtypes.float8_e4m3fn}])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_fault_that_the_weakest_contract_covers_is_not_green(change: dict[str, Any], dtype: str) -> None:
    """One key in 256, half a percent of the scale, probs in e4m3: each within half an ulp of bfloat16 of the scores."""
    assert diff(run(kernel(), CASE.but(dtype=dtype))).verdict == "rounding"
    judged = diff(run(kernel(**change), CASE.but(dtype=dtype)))
    assert judged.verdict in ("suspicious", "bug")
    for name in ("scores_dtype=", "probs_dtype="):
        if judged["out"].verdict == "suspicious" and name in judged["out"].reason:
            assert "within budget only with " in judged["out"].reason


@pytest.mark.parametrize("change", [{"scale": 1.005}, {"total": 1.01}])
def test_what_no_known_library_does_is_a_bug_and_names_what_would_explain_it(change: dict[str, Any]) -> None:
    """Scores in bfloat16 that are cut off may be off by as much, but eager attention rounds them to nearest."""
    judged = diff(run(kernel(**change), CASE))
    assert judged.verdict == "bug" and "lse" in judged.origins
    reason = judged["lse"].reason
    assert "x its budget under default arithmetic; " in reason and " would explain it, " in reason
    assert reason.endswith("but no known library computes like that; if yours does, declare it")


def test_known_libraries_are_told_with_their_source() -> None:
    open_fields = {*weaker(of_foreign({}, CASE))}
    for library in LIBRARIES:
        assert "(" in library.source and {*library.fields} <= open_fields, library
        assert {*library.others} <= {*of_foreign({}, CASE).assumed}, library


def because(stage: Any) -> str:
    """Why it has its verdict, and what would make it right."""
    return stage.reason + ("" if stage.if_declared is None else stage.if_declared.words)


@pytest.mark.parametrize(
    ("maximum", "verdict", "named"),
    [("late", "suspicious", "lagging"), ("of the tile", "bug", "any"), ("of the first tile", "bug", "any")],
)
def test_a_maximum_that_no_library_has_is_a_bug(maximum: str, verdict: str, named: str) -> None:
    """out and lse are right by any; FlashAttention-4 raises it late, and none lets it fall, or leaves it far behind."""

    def attention(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
        scores = q @ k.swapaxes(-1, -2) * np.float32(scale)
        tiles = scores.reshape(*scores.shape[:-1], -1, 32).max(axis=-1)
        running = np.maximum.accumulate(tiles, axis=-1)
        late = running.copy()
        for t in range(1, late.shape[-1]):
            late[..., t] = np.where(running[..., t] - late[..., t - 1] > 5, running[..., t], late[..., t - 1])
        first = np.broadcast_to(tiles[..., :1], tiles.shape).copy()
        row_max = {"late": late, "of the tile": tiles, "of the first tile": first}[maximum]
        top = running[..., -1:]
        probs = np.exp(scores - top)
        total = probs.sum(axis=-1, keepdims=True)
        said = {"block_k": 32}
        return {"row_max": row_max, "out": probs @ v / total, "lse": (top + np.log(total))[..., 0], "contract": said}

    judged = diff(run(attention, CASE.but(dtype="float32", input_std=3.0)))
    assert judged["row_max"].verdict == judged.verdict == verdict and f"row_max={named}" in because(judged["row_max"])


@pytest.mark.campaign
def test_the_choice_that_decides_is_named_with_the_verdict_without_it() -> None:
    """Scores in bfloat16, as torch's eager attention has them: undeclared suspicious, declared rounding."""
    judged = diff(run(kernel(round_scores=True), CASE))
    assert judged.verdict == "suspicious" and judged.origins == ()
    reason = judged["lse"].reason
    assert reason.startswith("within budget only with scores_dtype=bfloat16")
    assert "; under default arithmetic it would be a bug (" in reason and reason.endswith(
        "x its budget): declare yours in the contract"
    )
    declared = diff(run(kernel(round_scores=True, contract={"scores_dtype": "bfloat16"}), CASE))
    assert declared.verdict == "rounding"


def test_what_is_wrong_names_the_field_that_would_explain_it() -> None:
    case = CASE.but(dtype="float32")
    judged = diff(run(kernel(tf32=True), case))
    assert judged.origin == "out" and "input_precision=tf32" in judged["out"].if_declared.words
    assert "if your kernel really has " in judged["out"].if_declared.words
    assert judged["out"].if_declared.words.endswith(", declare it in the contract")
    assert diff(run(kernel(tf32=True, contract={"input_precision": "tf32"}), case)).origins == ()


def test_a_floor_of_the_exponent_is_forgiven_and_said() -> None:
    """exp2 clamped at -127 leaves 5.9e-39 where an exact 0 belongs."""
    case = CASE.but(causal=True, dtype="float32")
    contract = {"block_k": 256}
    judged = diff(run(kernel(floor=-127.0, dumps=True, contract=contract), case))
    assert judged.origins == () and judged["probs"].verdict == "suspicious"
    assert judged["probs"].reason.startswith("within budget only with exp_floor=-127.0; otherwise a bug (")
    wrong = diff(run(kernel(floor=-20.0, dumps=True, contract=contract), case))
    assert wrong.origin == "probs"


@pytest.mark.parametrize(
    ("dtype", "by", "wrong"), [("float16", {"acc": 1.01}, "acc"), ("float32", {"out": 1.001}, "out")]
)
def test_a_choice_by_which_a_stage_cannot_be_judged_excuses_none(dtype: str, by: dict[str, float], wrong: str) -> None:
    """Without row_max, nobody can judge acc of a kernel that was free to choose it, nor out by acc."""

    def attention(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
        q, k, v = (x.astype(np.float32) for x in (q, k, v))
        scores = q @ k.swapaxes(-1, -2) * np.float32(scale)
        top = scores.max(axis=-1, keepdims=True)
        probs = np.exp(scores - top)
        total = probs.sum(axis=-1, keepdims=True)
        acc = probs @ v * np.float32(by.get("acc", 1))
        out, lse = acc / total * np.float32(by.get("out", 1)), (top + np.log(total))[..., 0]
        said = {"block_k": k.shape[2]}
        return {"probs": probs, "acc": acc[..., None, :], "out": out, "lse": lse, "contract": said}

    judged = diff(run(attention, CASE.but(dtype=dtype)))
    assert judged.origins == (wrong,) and "row_max" not in judged[wrong].reason


def test_a_budget_that_says_nothing_is_no_explanation_and_is_said_so() -> None:
    """lse in base 2, as FlashInfer returns it: sums in bfloat16 may be off by as much, and by anything else."""

    def in_base_2(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
        stages = kernel()(q, k, v, scale=scale, causal=causal)
        return stages | {"lse": stages["lse"] * np.float32(np.log2(np.e))}

    judged = diff(run(in_base_2, CASE.but(dtype="float16", head_dim=128)))
    assert judged.origins == ("lse",)
    assert judged["lse"].if_declared == (
        "this is a bug, unless your kernel has accumulator_dtype=float16 or accumulator_dtype=bfloat16. "
        "If it has, declare it; the stage is then untestable, since its budget is too wide",
        False,
    )


def test_what_is_excused_is_no_victim() -> None:
    """It is not right on its own inputs: its row shows the error that is excused."""

    def shared_maximum(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
        scores = q @ k.swapaxes(-1, -2) * np.float32(scale)
        top = np.broadcast_to(scores.max(axis=(-2, -1), keepdims=True), (*scores.shape[:-1], 1))
        probs = np.exp(scores - top)
        total = probs.sum(axis=-1, keepdims=True)
        stages = {"scores": scores, "row_max": top, "probs": probs, "row_sum": total}
        return stages | {"out": probs @ v / total, "lse": (top + np.log(total))[..., 0], "contract": {"block_k": 256}}

    judged = diff(run(shared_maximum, CASE.but(dtype="float32")))
    row_max = judged["row_max"]
    assert row_max.verdict == "suspicious" and row_max.role == "clean" and row_max.reported is row_max.isolated
    assert "row_max=upper_bound" in row_max.reason and judged.origins == () and "row_max" not in judged.victims


def test_of_our_own_kernels_nothing_is_assumed() -> None:
    judged = diff(stored("flash", Case(seqlen=48, head_dim=32, block_q=16, block_k=16)))
    assert judged.trace.contract.assumed == () and not any(stage.reason for stage in judged)


def test_a_cast_below_a_maximum_that_nobody_saw_is_not_predicted() -> None:
    """P is below 4 more than the largest score: cast to float16 it rounds otherwise than below the largest itself."""

    def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float, causal: bool) -> dict[str, Any]:
        scores = (q.astype(np.float32) @ k.astype(np.float32).swapaxes(-1, -2)) * np.float32(scale)
        probs = np.exp(scores - (scores.max(-1, keepdims=True) + np.float32(4)))
        out = probs.astype(np.float16).astype(np.float32) @ v.astype(np.float32) / probs.sum(-1, keepdims=True)
        contract = {"block_k": 16, "probs_dtype": "float16", "probs_rounding": "nearest", "row_sum_of_cast": False}
        return {"out": out.astype(q.dtype), "contract": {**contract, "row_max": "upper_bound"}}

    judged = diff(run(attention, Case(heads=3, seqlen_q=257, seqlen_k=16, dtype="float16")))
    assert judged.verdict in ("rounding", "suspicious")


def test_a_bound_that_nobody_saw_makes_weights_subnormal() -> None:
    """In float16 weights below 2^-14 lose bits, which of one that is e^-4 below the maximum those of e^-6 do: whether
    probs are normalised before that cast or not, nobody says here.
    """

    def bounded(q: Any, k: Any, v: Any, *, scale: float, causal: bool, wrong: bool = False) -> Any:
        q, k, v = (np.repeat(x.astype(np.float32), q.shape[1] // x.shape[1], axis=1) for x in (q, k, v))
        scores = q @ k.swapaxes(-1, -2) * np.float32(scale)
        probs = np.exp(scores - (scores.max(-1, keepdims=True) + np.float32(4)))
        cast = probs.astype(np.float16).astype(np.float32)
        out = (np.roll(cast, 1, -1) if wrong else cast) @ v / probs.sum(-1, keepdims=True)
        return {"out": out.astype(np.float16)}

    contract = dict.fromkeys(("scores_dtype", "partials_dtype", "accumulator_dtype"), "float32")
    contract |= dict.fromkeys(("out_rounding", "probs_rounding", "accumulation"), "nearest")
    contract |= {"row_max": "upper_bound", "row_sum_of_cast": False, "probs_dtype": "float16", "fast_math": False}
    contract |= {"exp_ulps": 4.0, "exp_ulps_per_x": 0.0, "exp_argument": "difference", "normalisation": "division"}
    of_large_scores = {"seqlen_q": 194, "seqlen_k": 45, "input_std": 3.0, "seed": 3691886014}
    for shape in (of_large_scores, {"seqlen": 64}):
        case = Case(heads=2, kv_heads=1, head_dim=32, dtype="float16", scale=0.125, **shape)
        assert diff(run(bounded, case, contract=contract)).verdict == "rounding"
        assert diff(run(partial(bounded, wrong=True), case, contract=contract)).verdict == "bug"


def test_of_a_bound_that_nobody_saw_there_is_no_control() -> None:
    """The weight of a single key is 1 below its own score, which a cast leaves alone, and below another bound is not."""

    def bounded(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
        q32, k32, v32 = (x.astype(np.float32) for x in (q, k, v))
        bound = np.linalg.norm(q32, axis=-1, keepdims=True) * np.linalg.norm(k32, axis=-1)[..., None, :].max() * scale
        probs = np.exp(q32 @ k32.swapaxes(-1, -2) * np.float32(scale) - bound)
        return {"out": (probs.astype(q.dtype).astype(np.float32) @ v32 / probs.sum(-1, keepdims=True)).astype(q.dtype)}

    contract = {"row_max": "upper_bound", "row_sum_of_cast": False, "probs_rounding": "nearest", "splits": 1}
    case = Case(batch=2, seqlen_q=255, seqlen_k=1, head_dim=32, dtype="bfloat16")
    assert diff(run(bounded, case, contract=contract)).verdict == "rounding"


def summed(dtype: Any, block: int, out: bool = True) -> Any:
    """A right kernel but for its sum, which is kept in `dtype` from tile to tile."""

    def attention(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
        storage = q.dtype
        q, k, v = (x.astype(np.float32) for x in (q, k, v))
        scores = q @ k.swapaxes(-1, -2) * np.float32(scale)
        if causal:
            scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
        top = scores.max(axis=-1, keepdims=True)
        probs = np.exp(scores - top)
        total = np.zeros(top.shape, np.float32)
        for first in range(0, scores.shape[-1], block):
            total = (total + probs[..., first : first + block].sum(-1, keepdims=True)).astype(dtype).astype(np.float32)
        made = probs.astype(storage).astype(np.float32) @ v / total
        return made.astype(storage), (top + np.log(total))[..., 0]

    return attention


@pytest.mark.parametrize(
    ("case", "block"),
    [
        (Case(seqlen=512, dtype="bfloat16"), 64),  # 88 x
        (Case(seqlen=64, dtype="bfloat16", causal=True), 32),  # so few rows that a sum of cast probs may be it
        (Case(seqlen=128, head_dim=128, dtype="bfloat16"), 64),
        (Case(seqlen=256, head_dim=128, dtype="bfloat16", heads=2, causal=True), 128),
    ],
    ids=str,
)
def test_a_sum_in_bfloat16_that_nobody_declared_fails(case: Case, block: int) -> None:
    """Libraries that round q to 16 bits lose as much, and are no excuse: who sums in 16 bits declares it."""
    judged = diff(run(summed(ml_dtypes.bfloat16, block), case))
    assert classed(judged) in ("evidence", "bug")
    lse = judged["lse"]
    assert lse.over_usual is None or lse.over_usual > 10
    assert judged.verdict == "bug" or "; under default arithmetic it would be a bug (" in lse.reason
    right = diff(run(summed(np.float32, block), case))
    assert right.verdict in ("exact", "rounding")


@pytest.mark.parametrize(("dtype", "of_case"), [(np.float16, "float16"), (np.float16, "bfloat16")])
def test_so_does_one_in_float16_of_every_key(dtype: Any, of_case: str) -> None:
    """A sum that is rounded at each key, as half2 arithmetic does."""
    assert classed(diff(run(summed(dtype, 1), Case(seqlen=256, dtype=of_case)))) in ("evidence", "bug")


@pytest.mark.parametrize("name", ["float16_hfma", "bfloat16_accumulators"])
def test_declared_they_are_right(name: str) -> None:
    style = {style.name: style for style in CORRECT}[name]
    case = Case(seqlen=96, head_dim=64, dtype=style.dtypes[0], seed=3, input_std=4.0)
    assert classed(diff(run(declared(style, "silent"), case))) in ("evidence", "bug")
    assert diff(run(declared(style, "full"), case)).verdict in ("exact", "rounding")


@pytest.mark.parametrize("name", ["sums_cast_probs", "row_sum_by_mma", "torch_eager", "minus_30000_float16"])
def test_an_excuse_of_a_library_that_sums_in_float32_stands(name: str) -> None:
    """They are 5 to 1,500 x of a usual kernel's budget, and pass."""
    style = {style.name: style for style in CORRECT}[name]
    judged = [diff(run(declared(style, "silent"), Case(**options))) for options in cases(style, 3)]
    assert all(classed(one) not in failing() for one in judged)
    assert any(one.doubt == "assumption" for one in judged)
