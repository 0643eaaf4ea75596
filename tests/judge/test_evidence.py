"""Errors that are too large together are found though each is within its budget, and those of other orders are none."""

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from campaigns.styles import CORRECT
from tests.stored import stored
from workbench import Case, Trace, diff, run
from workbench.case.contract import Contract
from workbench.expectation.observed import Observed
from workbench.judge.evidence import BEYOND, DOUBTFUL, WARP, excesses

CASE = Case(seqlen_q=48, seqlen_k=96, head_dim=64, heads=2, kv_heads=1)


def kernel(exp: Any = np.exp, lane: float = 0.0) -> Any:
    """Attention in float32 with another `exp`, or with every 32nd column of acc off by a relative `lane`."""

    def attention(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
        q, k, v = q.astype(np.float32), *(np.repeat(x.astype(np.float32), 2, 1) for x in (k, v))
        scores = q @ k.swapaxes(-1, -2) * np.float32(scale)
        top = scores.max(axis=-1, keepdims=True)
        probs = exp(scores - top)
        acc = probs @ v
        acc[..., 7::WARP] *= np.float32(1 + lane)
        total = probs.sum(axis=-1)
        stages = {"row_max": top, "probs": probs, "row_sum": total[..., None], "acc": acc[..., None, :]}
        out = acc / total[..., None]
        contract = {"block_k": 96, "normalisation": "division", "exp_argument": "difference"}
        return {"scores": scores, **stages, "out": out, "contract": contract}

    return attention


def by_short_constant(x: Any) -> Any:
    return np.exp2(x * np.float32(1.4427))


def only(trace: Trace, *names: str) -> Trace:
    again = trace.rerun
    kept = {name: stage for name, stage in trace.stages.items() if name in names}
    return replace(trace, stages=kept, rerun=again and (lambda case: only(again(case), *names)))


def test_exp_with_a_short_constant_is_a_bug_though_within_its_budget() -> None:
    """3.4e-6 of each unit of the argument: 15 times a good kernel's error, and less than the budget of out."""
    assert diff(only(run(kernel(), CASE), "out")).verdict == "rounding"
    judged = diff(only(run(kernel(by_short_constant), CASE), "out"))
    out = judged["out"]
    assert out.decisive is not None and out.decisive.summary.outside == 0
    assert (judged.verdict, judged.origin) == ("bug", "out")
    assert (
        out.reason.startswith("errors ") and "times those of plain float32 arithmetic on the same inputs" in out.reason
    )


def test_a_lane_that_is_off_by_a_little_is_found_and_named() -> None:
    """One column in 32 by 3e-6: the mean over all columns hides it, and each element is within the worst case."""
    right, wrong = (run(kernel(lane=lane), CASE) for lane in (0.0, 3e-6))
    assert excesses(Observed(right), ["acc"]) == {}
    (found,) = excesses(Observed(wrong), ["acc"]).values()
    assert found.lane == 7 and found.words.startswith("errors at d % 32 == 7 are ")
    judged = diff(wrong)["acc"]
    assert judged.verdict == "bug" and judged.decisive is not None and judged.decisive.summary.outside == 0


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize("seed", range(4))
def test_rows_that_are_one_coincidence_are_counted_once(seed: int) -> None:
    """A merge of bfloat16 outs: with a scale of 0 every query has the same out, and the roundings of its two halves may
    meet 7 times worse in a column than those of all keys at once. A merge that forgets a weight is wrong there, too.
    """
    for scale in (0.0, 1e-12):
        case = Case(seqlen_q=40, seqlen_k=64, head_dim=32, dtype="bfloat16", seed=seed, scale=scale)
        for splits in (2, 4):
            assert diff(run(merge(splits), case)).verdict in ("rounding", "suspicious")
            assert diff(run(merge(splits, weight=0.5), case)).verdict == "bug"


def merge(splits: int, weight: float = 1.0) -> Any:
    """Attention of some keys each, stored in bfloat16, merged one after the other; the first counts with a `weight`."""

    def attention(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
        q, k, v = (x.astype(np.float32) for x in (q, k, v))
        out, lse = np.float32(0), np.float32(-np.inf)
        for some in np.array_split(np.arange(k.shape[2]), splits):
            scores = q @ k[:, :, some].swapaxes(-1, -2) * np.float32(scale)
            top = scores.max(axis=-1, keepdims=True)
            probs = np.exp(scores - top)
            total = probs.sum(axis=-1, keepdims=True)
            part = _stored(_stored(probs) @ v[:, :, some] / total) * np.float32(weight if some[0] == 0 else 1)
            before, lse = lse, np.logaddexp(lse, top + np.log(total))
            out = _stored(np.exp(before - lse) * out + np.exp(top + np.log(total) - lse) * part)
        return out.astype(ml_dtypes.bfloat16), lse[..., 0]

    return attention


def _stored(x: Any) -> Any:
    return x.astype(ml_dtypes.bfloat16).astype(np.float32)


def test_a_trace_at_rest_is_suspicious_at_most() -> None:
    judged = diff(replace(only(run(kernel(by_short_constant), CASE), "out"), rerun=None))
    assert judged.verdict == "suspicious"
    assert "not called a bug: a trace cannot be rerun on other inputs" in judged["out"].reason


@pytest.mark.parametrize("distribution", ["normal", "peaked", "one-hot", "constant-v", "tiny"])
def test_float64_inside_and_other_orders_are_no_evidence(distribution: str) -> None:
    case = CASE.but(distribution=distribution)
    for trace in (run(kernel(), case), stored("flash", case.but(head_dim=32, block_q=16, block_k=16))):
        for beyond in (BEYOND, DOUBTFUL):
            assert (
                excesses(Observed(trace), [name for name in trace.stages if name not in ("row_max", "scores")], beyond)
                == {}
            )


def test_probs_that_are_all_alike_may_be_normalised_before_their_cast() -> None:
    """Each is 1 and a little less before, so that none of them loses anything, and 1/174 after: all lose alike."""
    case = Case(seqlen_q=154, seqlen_k=174, head_dim=32, dtype="bfloat16", distribution="tiny", seed=2809742706)

    style = next(one for one in CORRECT if one.name == "grouped_einsum")
    trace = run(lambda q, k, v, *, scale, causal: style.function(q, k, v, scale=scale, causal=causal)["out"], case)
    said = style.contract(*(trace.inputs[name] for name in "qk"), "full") | {"block_k": 512}
    judged = diff(run(lambda q, k, v, *, scale, causal: trace.stages["out"], case, contract=said))
    assert judged.verdict == "suspicious" and "probs_normalised" in judged["out"].reason
    normalised_last = said | {"probs_normalised": False}
    assert (
        diff(run(lambda q, k, v, *, scale, causal: trace.stages["out"], case, contract=normalised_last)).verdict
        == "bug"
    )


def test_few_rows_doubt_only_where_all_do() -> None:
    """Of 4 rows the variance says nothing; of 3 nothing is said at all."""
    for rows, some in ((2, True), (1, False)):
        trace = only(run(kernel(by_short_constant), CASE.but(seqlen_q=rows)), "out")
        assert bool(excesses(Observed(trace), ["out"], DOUBTFUL)) is some
        assert excesses(Observed(trace), ["out"]) == {}


def test_arithmetic_that_the_control_lacks_is_left_out() -> None:
    trace = only(run(kernel(by_short_constant), CASE), "out")
    changes: list[dict[str, Any]] = [
        {"input_precision": "tf32"},
        {"accumulator_dtype": "float16"},
    ]
    for change in changes:
        narrow: Contract = replace(trace.contract, **change)
        assert excesses(Observed(trace), ["out"]) and excesses(Observed(replace(trace, contract=narrow)), ["out"]) == {}


@pytest.mark.parametrize("seed", range(4))
def test_a_tanh_that_is_off_to_either_side_is_no_excess(seed: int) -> None:
    """As tanh.approx is; what all scores of a row have too much softmax forgives, so that a control must differ too."""

    def capped(q, k, v, *, scale, causal, softcap):
        tanh = np.tanh(q @ k.swapaxes(-1, -2) * np.float32(scale) / np.float32(softcap))
        side = np.where(np.random.default_rng(seed).random(tanh.shape) < 0.5, 1, -1)
        scores = np.float32(softcap) * (tanh * (1 + np.float32(2.0**-11 * 0.99) * side)).astype(np.float32)
        top = scores.max(axis=-1, keepdims=True)
        probs = np.exp(scores - top)
        total = probs.sum(axis=-1, keepdims=True)
        return probs @ v / total, (top + np.log(total))[..., 0]

    case = Case(batch=2, heads=2, seqlen_q=80, seqlen_k=40, head_dim=32, softcap=1.0, distribution="large", seed=seed)
    judged = diff(run(capped, case))
    assert len(judged.stages) == 2 and judged.verdict == "rounding", [stage.reason for stage in judged]
