"""Absorbed MLA, read off `out` alone: V is the first dims of K, one tensor."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from workbench import Case, Refusal, run
from workbench.readings.reader import Measured, measured

CASE = Case(heads=4, kv_heads=1, seqlen_q=32, seqlen_k=48, head_dim=80, head_dim_v=64, shared_kv=True, scale=0.15)


def attention(q: Any, k: Any, v: Any, *, scale: float, causal: bool, bug: str = "", width: int = 64) -> np.ndarray:
    """One latent for keys and values: `v` is a view of `k`."""
    latent, rope = k[..., :width], k[..., width:]
    q_latent, q_rope, factor = q[..., :width], q[..., width:], np.float32(scale)
    if bug == "v swizzled":
        v = np.take_along_axis(v, np.arange(width) ^ (np.arange(k.shape[2])[:, None] & 3) * 8 + 0 * v.astype(int), -1)
    if bug == "rope swapped":  # of two halves
        rope = np.roll(rope, rope.shape[-1] // 2, -1)
    if bug == "latent shifted":
        latent = np.roll(latent, 1, -1)
    if bug == "q latent reversed":
        q_latent = q_latent[..., ::-1]
    if bug == "latent rows":
        latent, v = (np.roll(x, 1, 2) for x in (latent, v))
    if bug == "scale of dims":
        factor = np.float32(k.shape[-1] ** -0.5)
    if bug == "no rope":
        rope = 0 * rope
    scores = (q_latent @ np.swapaxes(latent, -1, -2) + q_rope @ np.swapaxes(rope, -1, -2)) * factor
    if causal:
        rows, keys = scores.shape[-2:]
        off = keys - rows + (bug == "mask")
        scores = np.where(np.tri(rows, keys, off, dtype=bool), scores, np.float32(-np.inf))
    probs = np.exp(scores - scores.max(-1, keepdims=True))
    if bug == "last tile":
        probs[..., 32:] *= 0.5
    return np.asarray(probs @ v / probs.sum(-1, keepdims=True))


def read(bug: str = "", **options: Any) -> Measured:
    found = measured(run(partial(attention, bug=bug, width=options.get("head_dim_v", 64)), CASE.but(**options)))
    assert found.calls <= 200
    return found


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_of_a_right_kernel_nothing_is_found(dtype: str, causal: bool) -> None:
    found = read(causal=causal, dtype=dtype)
    assert not found.findings and found.calls <= 6 and found.stage is None
    assert "the last 16 of 80 dims" in found.part


#: fault -> the words of its finding
FAULTS = {
    "v swizzled": "V is read wrong: chunks of 8 elements are swizzled",
    "rope swapped": "K is read wrong: dim i is dim i + 8 (mod 16)",
    "latent shifted": "in its first 64 dims, which V shares: dim i is dim i ",
    "q latent reversed": "in its first 64 dims, which V shares: dim i is dim 63 - i",
    "latent rows": "V is read wrong: row i is row i - 1 (mod 48)",
    "scale of dims": "the scale is 0.111803, not 0.15: scores are multiplied by 0.745356",
    "no rope": "scores ignore dims 64-79 of q and k, which V does not share",
    "mask": "masked keys get weight: keys at offset +1 from the diagonal in rows 0-30",
    "last tile": "keys 32-47 that rows 16-31 see get 0.5 times their weight",
}


@pytest.mark.parametrize("bug", FAULTS)
def test_a_fault_is_read_and_predicts_whole_runs(bug: str) -> None:
    found = read(bug, causal=True)
    (finding,) = found.findings
    assert FAULTS[bug] in finding.text and found.proved and found.stage is not None
    assert len(found.proofs) == 2 and all(one.left <= 1e-5 * one.error for one in found.proofs)


def test_what_is_not_told_is_not_called_right() -> None:
    """Of a causal mask alone nothing shows here; of more keys than V has dims the shared dims are not read."""
    assert not read("mask").findings
    found = read("latent shifted", seqlen_k=96, causal=True)
    assert not found.findings and found.stage == "out" and "no measurement shows how" in str(found)
    assert "the dims that V shares" in found.verdict.blames[0].text


def test_a_v_that_is_all_of_k_is_refused() -> None:
    with pytest.raises(Refusal, match="its v is all of its k"):
        read(head_dim=64)


@pytest.mark.campaign
def test_at_the_sizes_of_the_wild() -> None:
    case = CASE.but(heads=16, seqlen_q=16, seqlen_k=256, head_dim=576, head_dim_v=512, causal=True, scale=192**-0.5)
    for bug, words in (("", None), ("v swizzled", FAULTS["v swizzled"]), ("rope swapped", "dim i is dim i + 32")):
        found = measured(run(partial(attention, bug=bug, width=512), case))
        assert [words in one.text for one in found.findings] == [True] * (words is not None)
        assert found.proved == bool(bug)


def test_pages_too() -> None:
    def paged(q: Any, k: Any, v: Any, *, scale: float, causal: bool, block_table: Any, seqlens_k: Any) -> Any:
        assert (seqlens_k == 48).all()
        rows = k[block_table].reshape(len(block_table), -1, *k.shape[2:]).swapaxes(1, 2)
        return attention(q, rows, np.roll(rows[..., :64], 1, -1), scale=scale, causal=causal)

    found = measured(run(paged, CASE.but(page_size=16)))
    assert [one.text for one in found.findings] == ["V is read wrong: dim i is dim i - 1 (mod 64)"] and found.proved
