"""Some rows of some heads of a run, as a run of their own."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from workbench import Case, Refusal, diff, run
from workbench.trace.rows import of_rows
from workbench.trace.trace import Trace

CASE = Case(batch=2, heads=4, kv_heads=2, seqlen_q=40, seqlen_k=48, head_dim=16, causal=True)
ROWS = np.array([0, 7, 8, 39])


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float, causal: bool) -> Any:
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], 1).astype(np.float32) for x in (k, v))
    s = q.astype(np.float32) @ k.swapaxes(-1, -2) * np.float32(scale)
    if causal:
        s = np.where(np.tri(*s.shape[-2:], k=s.shape[-1] - s.shape[-2], dtype=bool), s, np.float32(-np.inf))
    m = s.max(-1, keepdims=True)
    p = np.exp(s - m)
    total = p.sum(-1, keepdims=True)
    return (p @ v / total).astype(q.dtype), (m + np.log(total))[..., 0].astype(np.float32)


def transposed(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float, causal: bool) -> Any:
    out, lse = attention(*(x.swapaxes(1, 2) for x in (q, k, v)), scale=scale, causal=causal)
    return out.swapaxes(1, 2), lse


def with_torch(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
    import torch

    k, v = (x.repeat_interleave(2, 1) for x in (k, v))
    seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2])
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale)


#: the same function by the arrays and the layout that it takes
WAYS = {
    "boxes": (attention, {}),
    "rows first": (transposed, {"layout": "bshd"}),
    "rows first in memory": (attention, {"layout": "strided"}),
    "torch": (with_torch, {"arrays": "torch"}),
}


def part(of: Trace, *, resident: bool) -> Trace:
    assert of.resident is not None
    return of_rows(of if resident else replace(of, resident=None), slice(1, 2), slice(2, 4), ROWS)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("resident", [True, False], ids=["resident", "again"])
def test_rows_are_those_of_the_whole_run(way: str, dtype: str, resident: bool) -> None:
    function, options = WAYS[way]
    whole = run(function, CASE.but(dtype=dtype), **options)
    some = part(whole, resident=resident)
    assert (some.case.batch, some.case.heads, some.case.kv_heads, some.case.seqlen_q) == (1, 2, 1, 4)
    assert np.array_equal(some.stages["out"], whole.stages["out"][1:, 2:, ROWS])
    assert diff(some).verdict != "bug" and some.rerun is not None
    # what they are again, on the same inputs and on others
    same = some.rerun(some.case.but(distribution="given"), some.inputs)
    assert np.array_equal(same.stages["out"], some.stages["out"])
    ones = np.broadcast_to(np.ones((), some.inputs["v"].dtype), some.inputs["v"].shape)
    given = {**some.inputs, "q": some.inputs["q"] * 2, "v": ones}
    made = some.rerun(some.case.but(distribution="given"), given)
    assert np.allclose(made.stages["out"].astype(float), 1, atol=0.01) and diff(made).verdict != "bug"
    fresh = some.rerun(some.case.but(seed=9))
    assert diff(fresh).verdict != "bug" and not np.array_equal(fresh.inputs["k"], some.inputs["k"])


def test_a_fault_of_other_heads_is_none_of_these() -> None:
    def wrong(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float, causal: bool) -> Any:
        out, lse = attention(q, k, v, scale=scale, causal=causal)
        out[0] *= 1.5
        return out, lse

    whole = run(wrong, CASE)
    assert diff(whole).verdict == "bug" != diff(part(whole, resident=True)).verdict
    assert diff(of_rows(whole, slice(0, 1), slice(0, 4), ROWS)).verdict == "bug"


@pytest.mark.parametrize(
    ("case", "has"),
    [
        (CASE.but(alibi_slopes="geometric"), "ALiBi"),
        (CASE.but(score_mod=lambda score, *where: score), "score_mod"),
        (CASE.but(seqlens_q=(3, 40), seqlens_k=(5, 48)), "sequences of several lengths"),
    ],
    ids=["ALiBi", "score_mod", "ragged"],
)
def test_rows_that_are_others_elsewhere_are_refused(case: Case, has: str) -> None:
    made = replace(run(attention, CASE), case=case)
    with pytest.raises(Refusal, match=f"rows cannot be judged alone in a run with {has}"):
        of_rows(made, slice(0, 1), slice(0, 2), ROWS)


def test_a_trace_at_rest_is_refused() -> None:
    with pytest.raises(Refusal, match="is a stored trace, which cannot be run again$"):
        of_rows(replace(run(attention, CASE), rerun=None), slice(0, 1), slice(0, 2), ROWS)
