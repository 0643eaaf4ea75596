"""Measured stages beside dumped ones: of a function that returns out alone the first wrong stage is the one that is
wrong, of its right twin nothing; and where a dump and what was measured do not agree, that is said.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from tests.readings.kernels import attention, kernel
from workbench import Case, Diff, Refusal, diff, run
from workbench.expectation.elements import State
from workbench.expectation.observed import Observed
from workbench.judge.measured import measurement
from workbench.judge.stage import StageDiff
from workbench.trace.narrow import narrowed

CASE = Case(heads=2, kv_heads=1, seqlen_q=16, seqlen_k=48, head_dim=16)
FULL = CASE.but(kv_heads=2, seqlen_q=48)
SMALL = Case(seqlen_q=8, seqlen_k=32, head_dim=8)
RIGHT = ("exact", "rounding")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library of faults is not what is tried here."""
    monkeypatch.setattr("workbench.judge.diff.QUICK", 0.0)


def judged(function: Callable[..., Any], case: Case = CASE) -> Diff:
    return diff(run(function, case), measure=True)


def changed(
    *,
    scores: Callable[[np.ndarray], np.ndarray] = lambda s: s,
    weights: Callable[[np.ndarray], np.ndarray] = lambda p: p,
    out: Callable[[np.ndarray], np.ndarray] = lambda x: x,
) -> Callable[..., Any]:
    """Eager attention, with one step changed."""

    def function(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> np.ndarray:
        group = q.shape[1] // k.shape[1]
        q, k, v = (x.astype(np.float32) for x in (q, np.repeat(k, group, 1), np.repeat(v, group, 1)))
        s = q @ k.swapaxes(-1, -2) * np.float32(scale)
        i, j = np.indices(s.shape[-2:])
        s = scores(np.where(j <= i + s.shape[-1] - s.shape[-2], s, -np.inf) if causal else s)
        p = np.exp(s - s.max(-1, keepdims=True))
        return out(weights(p / p.sum(-1, keepdims=True)) @ v)

    return function


def biased(s: np.ndarray) -> np.ndarray:
    return s + np.linspace(0, 0.5, s.shape[-1], dtype=np.float32)


def with_nan(out: np.ndarray) -> np.ndarray:
    return np.where(np.arange(out.shape[2])[:, None] == 5, np.float32(np.nan), out)


#: what is wrong -> the function, its case, the first wrong stage and words of what was measured
WRONG: Mapping[str, tuple[Callable[..., Any], Case, str, str]] = {
    "scale": (kernel("scale 1 % off"), CASE, "scores", "scores are multiplied by 1.01"),
    "map of K": (kernel("k transposed"), CASE, "scores", "each 8 x 8 block is transposed"),
    "map of V": (kernel("v swizzled"), CASE, "out", "V is read wrong"),
    "heads of K": (kernel("heads of k"), CASE.but(heads=4, kv_heads=2), "scores", "head 1 reads kv head 1"),
    "mask": (
        kernel("strict"),
        FULL.but(causal=True),
        "scores",
        "keys at offset +0 from the diagonal in rows 0-47 get no weight",
    ),
    "bias": (changed(scores=biased), CASE, "scores", "(measured with all of q set to 0)"),
    "normaliser": (kernel("undivided"), SMALL, "row_sum", "weights are not divided by their sum"),
    "merge steps": (kernel("no correction"), SMALL, "correction", "the correction of the accumulator is left out"),
    "rows that are NaN": (changed(out=with_nan), CASE, "out", "rows 5"),
    "rows of others": (kernel("rows moved"), CASE, "out", "rows of out are stored in the wrong place"),
}


@cache
def wrong(what: str) -> Diff:
    function, case, *_ = WRONG[what]
    return judged(function, case)


@pytest.mark.parametrize("what", WRONG)
def test_of_out_alone_the_first_wrong_stage_is_the_one_that_is_wrong(what: str) -> None:
    *_, stage, words = WRONG[what]
    found = wrong(what)
    assert found.verdict == "bug" and found.origin == stage and found.origins == (stage,)
    assert found[stage].measured and words in found[stage].reason
    assert found.measured is not None and found.measured.stage == stage
    if stage != "out":
        assert found.victims == ("out",) and found["weights"].verdict == "bug" and found["weights"].role == "victim"
        assert stage not in [one.name for one in found.not_judged]
    assert f"first wrong stage: {stage} (measured), should be " in str(found)


@pytest.mark.parametrize("case", [CASE.but(heads=4, kv_heads=2), FULL, SMALL], ids=["grouped", "full", "small"])
def test_the_right_twin_of_each_case_stays_right(case: Case) -> None:
    for causal in (False, True):
        found = judged(kernel(""), case.but(causal=causal))
        assert found.verdict in RIGHT and not found.origins and found["weights"].verdict in RIGHT


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("function", [kernel(""), changed()], ids=["tiles", "eager"])
def test_the_right_twins_stay_right(function: Callable[..., Any], dtype: str, causal: bool) -> None:
    found = judged(function, CASE.but(dtype=dtype, causal=causal))
    assert found.verdict in RIGHT and not found.origins and found["weights"].verdict in RIGHT
    assert found["weights"].measured and found["weights"].right_from_inputs
    assert found.of_measure is not None and not found.of_measure.said


def with_window(q: Any, k: Any, v: Any, *, scale: float, causal: bool, window_size: Any) -> np.ndarray:
    def hidden(s: np.ndarray) -> np.ndarray:
        i, j = np.indices(s.shape[-2:])
        return np.where((j >= i - window_size[0]) & (j <= i), s, -np.inf)

    return changed(scores=hidden)(q, k, v, scale=scale, causal=causal)


def with_lengths(q: Any, k: Any, v: Any, *, scale: float, causal: bool, seqlens_k: Any) -> np.ndarray:
    def hidden(s: np.ndarray) -> np.ndarray:
        return np.where(np.arange(s.shape[-1]) < np.asarray(seqlens_k)[:, None, None, None], s, -np.inf)

    return changed(scores=hidden)(q, k, np.nan_to_num(v, posinf=0, neginf=0), scale=scale, causal=causal)


@pytest.mark.parametrize(
    ("function", "case"),
    [
        (with_window, Case(seqlen=32, head_dim=8, window=(4, 0))),
        (with_lengths, Case(batch=2, seqlen=32, head_dim=8, seqlens_k=(20, 32))),
        (changed(), Case(seqlen_q=1, seqlen_k=100, head_dim=8)),
    ],
    ids=["window", "lengths", "decoding"],
)
def test_of_right_functions_of_other_cases_nothing_is_wrong(function: Callable[..., Any], case: Case) -> None:
    found = judged(function, case)
    assert found.verdict in RIGHT and found["weights"].verdict in RIGHT
    assert found.unseen is None
    told = [line for line in str(found).splitlines() if line.startswith("measured in ")]
    assert found.measured is not None and len(told) == 1
    assert told[0].startswith(f"measured in {found.measured.calls} calls: weights, within budget, ")


def test_pytorch_is_right() -> None:
    pytest.importorskip("torch")
    found = diff(run("torch:scaled_dot_product_attention", CASE.but(kv_heads=2, dtype="bfloat16")), measure=True)
    assert found.verdict in RIGHT and found["weights"].verdict in RIGHT


@pytest.mark.campaign  # a build of its own
def test_a_kernel_of_ours_is_right_on_the_emulator_and_a_fault_of_it_agrees_with_its_dumps() -> None:
    case = Case(seqlen=48, head_dim=16, block_q=16, block_k=16)
    assert diff(run("flash", case), measure=True)["weights"].verdict in RIGHT
    faulty = diff(run("flash", case, faults=["flash-no-correction"]), measure=True)
    assert faulty.of_measure is not None and not faulty.of_measure.said and faulty.origin in ("correction", "acc")


def test_lse_has_a_verdict_of_its_own() -> None:
    found = judged(kernel("base 2", lse=True), SMALL)
    assert found.origins == ("lse",) and found["weights"].verdict in RIGHT and "lse is in base 2" in found["lse"].reason
    assert judged(kernel("", lse=True), SMALL).verdict in RIGHT


@pytest.mark.campaign  # of some seconds each, as are others below
def test_of_a_right_lse_the_sum_is_right_and_the_division_is_wrong() -> None:
    found = judged(kernel("undivided", lse=True), SMALL)
    assert found.origins == ("out",) and found["out"].measured


def dumping(bug: str, **factors: float) -> Callable[..., Any]:
    """A kernel in tiles that dumps right stages of its own, some times a factor, whatever it computes with."""

    def function(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> dict[str, Any]:
        out, _ = attention(q, k, v, scale=scale, causal=causal, bug=bug)
        scores = q @ np.repeat(k, q.shape[1] // k.shape[1], 1).swapaxes(-1, -2) * np.float32(scale)
        stages = {"scores": scores, "probs": np.exp(scores - scores.max(-1, keepdims=True))}
        dumped = {name: stages[name] * np.float32(factor) for name, factor in factors.items()}
        return {**dumped, "out": out, "contract": {"block_k": k.shape[2]}}

    return function


@pytest.mark.parametrize(("dumped", "reads"), [("scores", "probs"), ("probs", "acc")])
def test_a_dump_that_is_right_where_the_weights_are_not(dumped: str, reads: str) -> None:
    found = judged(dumping("scale 1 % off", **{dumped: 1}))
    assert found.origins == (reads,) and found.victims == ("out",) and found.of_measure is not None
    assert found.of_measure.said == (
        f"{dumped} is right as dumped, but the measured weights look as if scores were wrong. First suspect the probe "
        f"of {dumped}: it may store a value that {reads} does not read. Then suspect {reads}",
    )
    right = judged(dumping("", **{dumped: 1}))
    assert right.verdict in RIGHT and right.of_measure is not None and not right.of_measure.said


def test_a_dump_that_is_wrong_where_the_weights_are_right() -> None:
    found = judged(dumping("", scores=2))
    assert found.origin == "scores" and not found["scores"].measured and found.of_measure is not None
    (said,) = found.of_measure.said
    assert said.startswith("scores is wrong as dumped, but the measured weights are right. First suspect its probe")
    assert said in str(found)


@pytest.mark.campaign
def test_a_dump_that_is_wrong_beside_something_else_that_was_measured() -> None:
    found = judged(dumping("undivided", scores=2), SMALL)
    assert found.origins == ("scores", "row_sum") and found.of_measure is not None
    assert "the measured weights are wrong for another reason" in found.of_measure.said[0]


def test_a_dump_that_is_as_wrong_as_what_was_measured() -> None:
    found = judged(dumping("scale 1 % off", scores=1.01))
    assert found.origins == ("scores",) and found.of_measure is not None and not found.of_measure.said
    assert "scores are multiplied by 1.01" in found["scores"].reason


def merged(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> np.ndarray:
    """A merge of four splits that forgets their sums."""
    scores = np.split(q @ np.swapaxes(k, -1, -2) * np.float32(scale), 4, axis=-1)
    tops = [s.max(-1, keepdims=True) for s in scores]
    probs = [np.exp(s - top) for s, top in zip(scores, tops, strict=True)]
    partial_O = [p @ x / p.sum(-1, keepdims=True) for p, x in zip(probs, np.split(v, 4, axis=2), strict=True)]
    weights = [np.exp(top - np.max(tops, axis=0)) for top in tops]
    return sum(w * o for w, o in zip(weights, partial_O, strict=True)) / sum(weights)


@pytest.mark.campaign
@pytest.mark.parametrize(("contract", "stage"), [("block_k=16,splits=4", "merge_weight"), (None, "correction")])
def test_steps_of_the_splits_that_a_contract_tells_are_of_the_merge(contract: str | None, stage: str) -> None:
    trace = run(merged, Case(seqlen_q=16, seqlen_k=64, head_dim=16), contract=contract)
    assert diff(trace, measure=True).origins == (stage,)


@pytest.mark.campaign
def test_what_no_reading_proves_is_told_by_its_residuals() -> None:
    found = judged(changed(weights=lambda p: p * np.float32(1.5) ** (p > 0.03)))
    assert found.origins == ("scores",) and "a different factor for each query and key" in found["scores"].reason
    assert "not proved on other inputs" in found["scores"].reason


def test_weights_are_a_stage() -> None:
    weights = wrong("merge steps")["weights"]
    assert isinstance(weights, StageDiff) and weights.axes == "bhqk" and weights.judged.summary.size == 8 * 32
    row = weights.select(q=5, k=slice(0, 3)).rows()[0]
    assert row["budget"] > 0 and abs(row["actual"] - row["expected"]) == pytest.approx(abs(row["error"]), rel=1e-6)
    assert np.all(weights.judged.state[weights.judged.outside] == State.OUTSIDE)
    worst = weights.worst(2)
    assert worst[0].over_budget >= worst[1].over_budget > 1 and set(worst[0].index) == set("bhqk")
    with pytest.raises(Refusal, match="cannot dump weights: measure them with --measure"):
        diff(run(kernel(""), SMALL))["weights"]


def test_a_run_that_was_measured_is_not_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    found = wrong("bias")

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("measured twice")

    monkeypatch.setattr("workbench.judge.explain.by_measure.measured", never)
    explained = found.explain(0.01)
    assert explained.causes and explained.judged.origins == ("out",)


def test_the_document_has_what_was_measured() -> None:
    told = wrong("bias").as_dict()
    assert told["origin"] == "scores" and [one["name"] for one in told["stages"]] == ["scores", "weights", "out"]
    assert told["measured"]["proved"] and told["measured"]["stage"] == "scores" and told["measured"]["calls"] > 4
    assert "measured" not in diff(run(changed(), SMALL)).as_dict()


def test_what_cannot_be_measured_is_refused() -> None:
    trace = run(kernel(""), SMALL)
    with pytest.raises(Refusal, match="is a dump: measure must call its target"):
        diff(replace(trace, rerun=None), measure=True)
    with pytest.raises(Refusal, match="only .* is judged, but measuring needs the whole run"):
        measurement(Observed(narrowed(trace, "q=0:4")))
    with pytest.raises(Refusal, match="cannot be measured: it returns no out"):
        diff(replace(trace, stages={"lse": np.zeros((1, 1, 8), np.float32)}), measure=True)
