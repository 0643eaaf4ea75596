"""Findings beside others: what is not needed is none, and what is not read after a code that is wrong."""

from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from workbench import Case, run
from workbench.case.formats import FORMATS
from workbench.readings.reader import Measured, measured

CASE = Case(codes="e4m3", heads=4, kv_heads=2, seqlen=64, head_dim=32)


def coded(
    q: Any,
    k: Any,
    v: Any,
    *,
    scale_q: Any,
    scale_k: Any,
    scale_v: Any,
    scale: float,
    causal: bool,
    codes: str,
    bug: str,
) -> np.ndarray:
    """Attention on codes with scales of heads; what is wrong with it is in `bug`."""
    right = FORMATS[codes].values.astype(np.float32)
    table, scales = right.copy(), {"q": scale_q, "k": scale_k, "v": scale_v}
    what, of, *more = bug.split()
    if what == "upper":  # codes 0x80 to 0xff of V, the zero among them where the format has it there
        table[0x80:] = {"next": np.roll(right[0x80:], -1), "half": right[0x80:] / 2, "sign": -right[0x80:]}[of]
    if what == "zero":
        table[right == 0] = float(of)
    if what == "without":
        scales |= {name: np.ones_like(scales[name]) for name in of}
    if what == "head":  # one head of an input has another's scale, or a multiple of its own
        head, other = int(more[0]), more[1]
        mine = scales[of] = scales[of].copy()
        mine[head] = mine[int(other)] if len(other) == 1 else mine[head] * float(other)
    x = {
        name: (table if name == "v" else right)[codes_] * scales[name].reshape(-1, 1, 1)
        for name, codes_ in (("q", q), ("k", k), ("v", v))
    }
    x = {name: np.repeat(of_name, q.shape[1] // of_name.shape[1], 1) for name, of_name in x.items()}
    scores = x["q"] @ np.swapaxes(x["k"], -1, -2) * np.float32(scale)
    scores = np.where(np.tri(*scores.shape[-2:], dtype=bool) | (not causal), scores, np.float32(-np.inf))
    probs = np.exp(scores - scores.max(-1, keepdims=True))
    found: np.ndarray = probs @ x["v"] / probs.sum(-1, keepdims=True)
    return found


def read(codes: str, bug: str) -> Measured:
    return measured(run(partial(coded, codes=codes, bug=bug), CASE.but(codes=codes)))


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize(
    ("codes", "bug"),
    [("simulated", "upper next"), ("int8", "upper next"), ("simulated", "upper sign"), ("simulated", "zero 1")],
)
def test_after_a_table_of_v_nothing_is_read_that_is_not_so(codes: str, bug: str) -> None:
    found = read(codes, bug)
    assert [one.reading for one in found.findings] == ["table of v"] and found.proved and found.stage == "lut_v"


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize(("codes", "of"), [("e4m3", "qkv"), ("int8", "qkv"), ("simulated", "qkv"), ("simulated", "v")])
def test_beside_scales_that_are_left_out_nothing_is_rounded(codes: str, of: str) -> None:
    found = read(codes, f"without {of}")
    words = {f"{name.upper()} is not multiplied by its scale" for name in of}
    assert {one.text for one in found.findings} == words and len(found.findings) == len(words) and found.proved


@pytest.mark.parametrize(
    ("bug", "text"),
    [
        ("head v 1 1.50", "head 1 of V is multiplied by 1.5 times its scale"),
        ("head k 1 1.50", "head 1 of K is multiplied by 1.5 times its scale"),
        ("head k 0 0.75", "head 0 of K is multiplied by 0.75 times its scale"),
        ("head q 1 0", "head 1 of Q is multiplied by the scale of head 0"),
        ("head v 0 1", "all heads of V are multiplied by the scale of head 1"),
    ],
)
def test_a_scale_of_one_head_is_the_first_wrong_stage(bug: str, text: str) -> None:
    found = read("e4m3", bug)
    assert [one.text for one in found.findings] == [text] and found.proved
    assert found.stage == f"dequant_{bug.split()[1]}"


def loop(
    q: Any, k: Any, v: Any, *, scale: float, causal: bool, acc: str = "", scores: str = "", probs: str = ""
) -> np.ndarray:
    """Attention in tiles of 32 keys that rounds the accumulator, scores or probs to a dtype."""

    def to(name: str, x: np.ndarray) -> np.ndarray:
        dtypes = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "": np.float32}
        return x.astype(dtypes[name]).astype(np.float32)

    dtype = q.dtype
    q, k, v = (x.astype(np.float32) for x in (q, k, v))
    s = to(scores, q @ np.swapaxes(k, -1, -2)) * np.float32(scale)
    if causal:
        s = np.where(np.tri(*s.shape[-2:], dtype=bool), s, np.float32(-np.inf))
    m = np.full((*s.shape[:-1], 1), -np.inf, np.float32)
    total, out = np.zeros_like(m), np.zeros((*s.shape[:-1], v.shape[-1]), np.float32)
    for first in range(0, s.shape[-1], 32):
        new = np.maximum(m, s[..., first : first + 32].max(-1, keepdims=True))
        p, shrink = np.exp(s[..., first : first + 32] - new), np.exp(m - new)
        total = total * shrink + p.sum(-1, keepdims=True)
        out = to(acc, out * shrink + to(probs, p) @ v[:, :, first : first + 32])
        m = new
    found: np.ndarray = (out / total).astype(dtype)
    return found


@pytest.mark.campaign(but=2)
@pytest.mark.parametrize(
    ("dtype", "rounded"),
    [("bfloat16", {"acc": "bfloat16"}), ("bfloat16", {"scores": "bfloat16"}), ("float16", {"probs": "bfloat16"})],
)
def test_a_kernel_that_some_contract_allows_is_not_wrong(dtype: str, rounded: dict[str, str]) -> None:
    """Of each some elements of out are beyond the budgets of a usual kernel, and none of another's."""
    found = measured(run(partial(loop, **rounded), Case(dtype=dtype)))
    assert found.target.natural.wrong.any() and not found.findings and not found.wrong
    said = str(found)
    beyond = int(found.target.natural.wrong.sum())
    elements = "1 element of out is" if beyond == 1 else f"{beyond:,} elements of out are"
    assert "nothing found: weights and out are within budget\n" in said
    assert f"\n{elements} over the budget of default arithmetic; declare yours" in said


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
def test_out_that_is_rounded_is_no_partial_result_of_splits(dtype: Any, causal: bool) -> None:
    def function(*tensors: Any, **options: Any) -> np.ndarray:
        return loop(*tensors, **options).astype(dtype).astype(np.float32)

    found = measured(run(function, Case(seqlen=64, head_dim=32, causal=causal)))
    (one,) = (*found.findings, *found.arithmetic)
    said = "TF32 or float16" if dtype is np.float16 else "bfloat16"  # which have the same digits
    assert one.text.startswith(f"out is rounded to {said}")
