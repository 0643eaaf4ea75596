"""Parts without the keys that none of their queries sees: values, budgets and summaries are those of all keys."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from workbench import Case, Trace, run
from workbench.case.box import Box
from workbench.expectation.cut import cuts
from workbench.expectation.elements import Comparison, Summary
from workbench.expectation.expectation import Expectation
from workbench.expectation.observed import Observed
from workbench.floats import round_to
from workbench.judge import blocks as parts
from workbench.trace.trace import blank

CASE = Case(seqlen=64, heads=2, head_dim=16, causal=True)
CASES = {
    "float32": CASE,
    "float16": CASE.but(dtype="float16"),
    "bfloat16": CASE.but(dtype="bfloat16"),
    "grouped": CASE.but(heads=4, kv_heads=2, batch=2, dtype="bfloat16"),
    "window": CASE.but(window=(12, 0), dtype="float16"),
    "both sides": CASE.but(causal=False, window=(5, 9)),
    "longer keys": CASE.but(seqlen_q=24, seqlen_k=80, dtype="bfloat16"),
    "rows without keys": CASE.but(seqlen_q=64, seqlen_k=40),
    "ragged": CASE.but(batch=2, seqlens_q=(64, 30), seqlens_k=(50, 64), dtype="bfloat16"),
    "sinks": CASE.but(sinks="normal", dtype="bfloat16"),
    "narrow v": CASE.but(head_dim_v=8, softcap=5.0),
    "put in": CASE.but(causal=False),
    "full": CASE.but(causal=False),
}
#: what a kernel may be that makes bounds ask for all keys
CONTRACTS: Mapping[str, Mapping[str, Any]] = {
    "usual": {},
    "any maximum": {"row_max": "any"},
    "clamped": {"exp_floor": -20.0},
    "by division": {"normalisation": "division", "row_sum_of_cast": False},
}


def traced(case: Case) -> Trace:
    """out and lse of a case in float64, rounded once."""

    def attention(q: Any, k: Any, v: Any, *, scale: float, mask: Any = None, **beside: Any) -> Any:
        group, dtype, cap = q.shape[1] // k.shape[1], q.dtype, case.softcap
        q, k, v = (x.astype(np.float64) for x in (q, k, v))
        scores = q @ np.repeat(k, group, 1).swapaxes(-1, -2) * scale
        scores = np.where(case.mask(), scores if cap is None else cap * np.tanh(scores / cap), -np.inf)
        column = np.zeros_like(scores[..., :1]) + (0.0 if case.sink_logits is None else case.sink_logits[:, None, None])
        logits = scores if case.sinks is None else np.concatenate([scores, column], -1)
        top = np.maximum(logits.max(-1), -1e30)
        total = np.exp(logits - top[..., None]).sum(-1)
        out = np.exp(scores - top[..., None]) @ np.repeat(v, group, 1) / np.where(total == 0, 1.0, total)[..., None]
        with np.errstate(divide="ignore"):
            lse = np.where(total == 0, -np.inf, top + np.log(total))
        return round_to(out, dtype).astype(dtype), lse.astype(np.float32)

    return run(attention, case)


def spoilt(trace: Trace, how: str) -> Trace:
    """The trace with another element of out."""
    out = trace.stages["out"].copy()
    at = (0, 1, 17, 3)
    if how == "wrong":
        out[at] = out[at] * 2 + 1
    elif how == "nan":
        out[at] = np.nan
    elif how == "unwritten":
        out[at] = blank((1,), out.dtype)[0]
    return replace(trace, stages={**trace.stages, "out": out})


def boxes(case: Case, rows: int) -> list[Box]:
    """Parts of so many queries of each head."""
    some = [slice(first, min(first + rows, case.seqlen_q)) for first in range(0, case.seqlen_q, rows)]
    return [
        Box(slice(b, b + 1), slice(h, h + 1), q) for b in range(case.batch) for h in range(case.heads) for q in some
    ]


def of(trace: Trace, **contract: Any) -> Trace:
    return replace(trace, contract=replace(trace.contract, **contract))


@pytest.mark.campaign(every=5)
@pytest.mark.parametrize("contract", CONTRACTS)
@pytest.mark.parametrize("name", CASES)
def test_values_and_budgets_have_the_bits_of_those_of_all_keys(name: str, contract: str) -> None:
    trace = traced(CASES[name])
    k, v = (trace.inputs[x].copy() for x in "kv")
    k[:, :, -1] *= 8  # what bounds ask of all keys is of one that most queries do not see
    v[:, :, -1] *= 8
    # blocks of a document each
    mask = {"mask": np.kron(np.eye(4, dtype=bool), np.ones((16, 16), bool))} if name == "put in" else {}
    trace = of(replace(trace, inputs={**trace.inputs, **mask, "k": k, "v": v}), **CONTRACTS[contract])
    cut = cuts(Observed(trace), "cpu")
    assert cut is not None
    shorter = 0
    for part in boxes(trace.case, 16):
        left = cut(part)
        shorter += left is not None
        whole, some = (Expectation(Observed(trace), {}, part, cut=x) for x in (None, left))
        names = ["out", "lse"]
        one, other = whole.budgets(names), some.budgets(names)
        for x in names:
            assert some.computed[x].tobytes() == whole.computed[x].tobytes()
            assert other[x].bound.tobytes() == one[x].bound.tobytes()
            assert other[x].statistical.tobytes() == one[x].statistical.tobytes()
            np.testing.assert_array_equal(other[x].size, one[x].size)
    assert (shorter > 0) == (name != "full")


def same(found: Comparison | None, expected: Comparison | None, exactly: bool) -> None:
    """torch's sums of fewer numbers may be in another order."""
    assert found is not None and expected is not None
    assert told(found.summary, exactly) == told(expected.summary, exactly)
    np.testing.assert_array_equal(found.state, expected.state)
    for array in ("expected", "budget", "statistical", "over_budget"):
        one, other = getattr(found, array), getattr(expected, array)
        np.testing.assert_allclose(one, other, rtol=0 if exactly else 1e-6, atol=0 if exactly else 1e-12)


def told(x: Summary, exactly: bool = True) -> str:
    """All of a summary, every number to its last bit."""
    assert x.worst is not None
    worst = vars(x.worst) if exactly else x.worst.place
    numbers = (x.sum_signed, x.max_abs, x.max_ulp) if exactly else ()
    return repr((x.states.tolist(), x.bins.tolist(), x.numbers, worst, *numbers))


@pytest.mark.campaign(every=7)
@pytest.mark.parametrize("device", ["cpu", "cpu:0"])
@pytest.mark.parametrize("how", ["right", "wrong", "nan", "unwritten"])
@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", "window", "ragged"])
def test_summaries_have_the_bits_of_those_of_all_keys(
    name: str, how: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device != "cpu":
        pytest.importorskip("torch", reason="torch is the library whose tensors are judged here")
    monkeypatch.setattr(parts, "AT_ONCE_ON_CPU", 64 * 16)
    monkeypatch.setattr(parts, "FEWEST_QUERIES", 16)
    trace = spoilt(traced(CASES[name]), how)
    found = parts.comparisons(Observed(trace), ["out", "lse"], device)
    failing = parts.failing_of(Observed(trace), ["out", "lse"], device)
    monkeypatch.setattr(parts, "cuts", lambda trace, device: lambda part: None)
    expected = parts.comparisons(Observed(trace), ["out", "lse"], device)
    for x in found:
        assert found[x][0] is None  # out and lse are judged from q, k and v
        same(found[x][1], expected[x][1], device == "cpu")
    whole = found["out"][1]
    assert whole is not None
    assert [*failing] == ([] if how == "right" else ["out"])
    if failing:
        # parts in which nothing is outside are not in it
        assert failing["out"].outside == whole.summary.outside == 1
        assert repr(failing["out"].worst) == repr(whole.summary.worst)


def test_what_needs_all_keys_is_not_cut() -> None:
    trace = traced(CASE)
    assert cuts(Observed(trace), "cpu") is not None
    assert cuts(Observed(of(trace, block_k=16)), "cpu") is None
    assert cuts(Observed(of(trace, splits=2)), "cpu") is None
    assert (
        cuts(Observed(replace(trace, stages={**trace.stages, "scores": np.zeros((1, 2, 64, 64), np.float32)})), "cpu")
        is None
    )
    for name in "kv":
        odd = trace.inputs[name].copy()
        odd[0, 1, 60, 2] = np.nan
        assert cuts(Observed(replace(trace, inputs={**trace.inputs, name: odd})), "cpu") is None
    errors = {"v": np.zeros(trace.inputs["v"].shape)}
    assert cuts(Observed(replace(trace, input_errors=errors)), "cpu") is None
    bias = np.zeros((64, 64), np.float32)
    assert cuts(Observed(replace(trace, inputs={**trace.inputs, "bias": bias})), "cpu") is None
    assert cuts(Observed(replace(trace, case=CASE.but(alibi_slopes="geometric"))), "cpu") is None


def test_a_whole_head_is_computed_as_it_always_was() -> None:
    """So that small traces have the bits that they had, whatever their mask."""
    case = CASE.but(seqlen_q=64, seqlen_k=80, causal=False, window=(0, 3))
    cut = cuts(Observed(traced(case)), "cpu")
    assert cut is not None
    assert cut(Box(slice(0, 1), slice(0, 2), slice(0, 64))) is None and cut(Box(slice(0, 1), slice(0, 2), slice(0, 32)))
