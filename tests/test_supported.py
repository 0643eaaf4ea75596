"""What docs/reference/cases.md says of kinds of attention: each is tried as it says, on a kernel in NumPy that knows nothing of tiles."""

import re
from pathlib import Path

import numpy as np
import pytest

from tests.operations.backwards import backward
from workbench import Case, Refusal, diff, run
from workbench.operations.call import diff_operation
from workbench.trace.inputs import case_of

PAGE = Path(__file__).parent.parent.joinpath("docs/reference/cases.md").read_text()
#: kinds of attention that it says are judged
TABLE = {*re.findall(r"^\| ([^|`]+?) \| yes \|", PAGE, re.MULTILINE)}
SHAPE = {"seqlen_q": 40, "seqlen_k": 40, "head_dim": 16, "heads": 4}


def softmax(scores):
    with np.errstate(invalid="ignore"):
        row_max = scores.max(-1, keepdims=True)
        probs = np.exp(scores - np.where(np.isneginf(row_max), 0, row_max))
    row_sum = probs.sum(-1, keepdims=True)
    return probs / np.where(row_sum == 0, 1, row_sum), (row_max + np.log(row_sum))[..., 0]


def attention(q, k, v, *, scale, causal, mask=None, bias=None, cap=None):
    dtype, group = q.dtype, q.shape[1] // k.shape[1]
    q, k, v = (x.astype(np.float32) for x in (q, np.repeat(k, group, 1), np.repeat(v, group, 1)))
    scores = q @ np.swapaxes(k, -1, -2) * np.float32(scale)
    if cap is not None:
        scores = np.float32(cap) * np.tanh(scores / np.float32(cap))
    if bias is not None:
        scores = scores + bias
    if causal:
        n, m = scores.shape[-2:]
        scores = np.where(np.tri(n, m, m - n, dtype=bool), scores, -np.inf)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    with np.errstate(divide="ignore"):
        probs, lse = softmax(scores)
    return (probs @ v).astype(dtype), lse


def masked(mask):
    q, k, v = Case(**SHAPE).inputs()
    return {"q": q, "k": k, "v": v, "mask": mask}


def judged(function=attention, inputs=None, **case):
    one = Case(**SHAPE | case) if inputs is None else case_of(inputs, **case)
    return diff(run(function, one, inputs=inputs))


def all_of(judgements):
    """The last of several, all of which are right."""
    found = [*judgements]
    assert all(one.verdict in ("exact", "rounding") for one in found)
    return found[-1]


ROW, KEY = np.arange(40)[:, None], np.arange(40)[None, :]


def window():
    mask = (KEY <= ROW) & (KEY > ROW - 9)
    return judged(lambda q, k, v, *, scale, causal, mask: windowed(q, k, v, scale), masked(mask))


def windowed(q, k, v, scale):
    """Its own window, whatever mask it is told."""
    return attention(q, k, v, scale=scale, causal=False, mask=(KEY <= ROW) & (KEY > ROW - 9))


def ragged():
    """Three sequences behind each other, each of which is computed alone; its lse comes packed, too."""

    def varlen(q, k, v, *, scale, causal, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k):
        parts = []
        for b in range(len(cu_seqlens_q) - 1):
            ends = (cu_seqlens_q[b : b + 2], cu_seqlens_k[b : b + 2], cu_seqlens_k[b : b + 2])
            own = (np.moveaxis(x[i:j], 0, 1)[None] for x, (i, j) in zip((q, k, v), ends, strict=True))
            parts.append(attention(*own, scale=scale, causal=causal))
        out = np.concatenate([np.moveaxis(out[0], 0, 1) for out, _ in parts])
        return out, np.concatenate([lse[0] for _, lse in parts], axis=1)

    return judged(varlen, seqlen_q=None, seqlen_k=None, seqlens_q=(10, 14, 16), seqlens_k=(12, 14, 30), causal=True)


def alibi():
    def with_slopes(q, k, v, *, scale, causal, alibi_slopes):
        bias = alibi_slopes[:, None, None] * -abs(KEY - ROW).astype(np.float32)
        return attention(q, k, v, scale=scale, causal=causal, bias=bias[None])

    return judged(with_slopes, alibi_slopes="geometric", causal=True)


def any_bias():
    slopes = np.float32(2.0) ** -np.arange(1, 5, dtype=np.float32)
    bias = (slopes[:, None, None] * (KEY - ROW).astype(np.float32))[None]
    return judged(inputs=masked(KEY <= ROW) | {"bias": bias})


def sinks():
    def with_sinks(q, k, v, *, scale, causal, sinks):
        scores = q @ np.swapaxes(k, -1, -2) * np.float32(scale)
        sinks = sinks[:, None, None]
        row_max = np.maximum(scores.max(-1, keepdims=True), sinks)
        probs = np.exp(scores - row_max)
        row_sum = probs.sum(-1, keepdims=True) + np.exp(sinks - row_max)
        return probs @ v / row_sum, (row_max + np.log(row_sum))[..., 0]

    return judged(with_sinks, sinks="normal")


def mla():
    """q and k of 24 dims, v of 16; and v in the memory of k, whose one head all query heads read."""
    absorbed = judged(head_dim=24, head_dim_v=16, shared_kv=True, kv_heads=1, scale=0.25)
    return all_of([judged(head_dim=24, head_dim_v=16), absorbed])


def paged():
    """Pages of 8 keys in any order; where no sequence has a key is NaN, an infinity, or what looks like any other."""

    def with_pages(q, k, v, *, scale, causal, block_table, seqlens_k):
        outs = []
        for one, table, n in zip(q, block_table, seqlens_k, strict=True):
            own = (np.concatenate([cache[page] for page in table[table >= 0]])[:n] for cache in (k, v))
            outs.append(attention(one[None], *(np.moveaxis(x, 0, 1)[None] for x in own), scale=scale, causal=causal))
        return tuple(np.concatenate(part) for part in zip(*outs, strict=True))

    lengths = {"seqlen_q": 1, "seqlen_k": None, "seqlens_k": (1, 24, 37)}
    return all_of(judged(with_pages, page_size=8, seed=seed, **lengths) for seed in range(3))


def mods():
    def document(b, h, q_idx, kv_idx):
        return q_idx // 10 == kv_idx // 10

    def squared(score, b, h, q_idx, kv_idx):
        return score * score

    def with_mods(q, k, v, *, scale, causal, score_mod, mask):
        scores = score_mod(q @ np.swapaxes(k, -1, -2) * np.float32(scale), 0, 0, ROW, KEY)
        probs, lse = softmax(np.where(mask, scores, -np.inf))
        return probs @ v, lse

    return judged(with_mods, score_mod=squared, mask_mod=document)


def dropout():
    def dropped(q, k, v, *, scale, causal, dropout_p, dropout_mask):
        probs, lse = softmax(q @ np.swapaxes(k, -1, -2) * np.float32(scale))
        return np.where(dropout_mask, probs / np.float32(1 - dropout_p), np.float32(0)) @ v, lse

    return judged(dropped, dropout_p=0.25)


def ranks():
    def merge(outs, lses):
        lse = np.logaddexp.reduce(lses)
        return sum(out * np.exp(one - lse)[..., None] for out, one in zip(outs, lses, strict=True)), lse

    return judged(merge, splits=3)


def blocks():
    mask = np.kron(np.random.default_rng(0).random((5, 5)) < 0.5, np.ones((8, 8), bool)) | (KEY == ROW)
    return judged(inputs=masked(mask))


def splits():
    """Two halves of the keys merged by their lse."""

    def merged(q, k, v, *, scale, causal):
        halves = [
            attention(q, k[:, :, s], v[:, :, s], scale=scale, causal=False) for s in (slice(0, 24), slice(24, 40))
        ]
        lse = np.logaddexp(halves[0][1], halves[1][1])
        return sum(out * np.exp(one - lse)[..., None] for out, one in halves), lse

    return judged(merged)


def capped(q, k, v, *, scale, causal, softcap):
    return attention(q, k, v, scale=scale, causal=causal, cap=softcap)


def with_window(q, k, v, *, scale, causal, window_size):
    left, right = window_size
    return attention(q, k, v, scale=scale, causal=False, mask=(KEY >= ROW - left) & (KEY <= ROW + right))


def both(q, k, v, *, scale, causal, window_size, softcap):
    left, right = window_size
    return attention(q, k, v, scale=scale, causal=False, mask=(KEY >= ROW - left) & (KEY <= ROW + right), cap=softcap)


WORKS = {
    "full or causal, cross attention with other lengths": lambda: all_of(
        judged(causal=x, seqlen_q=24) for x in (False, True)
    ),
    "GQA, MQA": lambda: judged(kv_heads=1),
    "decoding: a few queries over long keys": lambda: judged(seqlen_q=1, causal=True),
    "Split-K, FlashDecoding, merges of chunks": splits,
    "float16, bfloat16, float32": lambda: judged(dtype="bfloat16"),
    "sliding windows, to the left and right; softcap": lambda: judged(both, window=(8, 0), softcap=2.0),
    "any other mask or bias, FlexAttention's functions": lambda: all_of([window(), any_bias(), mods(), blocks()]),
    "packed sequences (varlen), ragged batches": ragged,
    "paged KV cache": paged,
    "merges across ranks: ring, context parallel": ranks,
    "ALiBi": alibi,
    "attention sinks (a learned logit)": sinks,
    "MLA: v narrower than q and k, absorbed too": mla,
    "dropout": dropout,
    "backward": lambda: all_of(diff_operation(backward(), "attention_backward", numbers={"causal": x}) for x in (0, 1)),
}


@pytest.mark.parametrize("kind", WORKS)
def test_what_works_works(kind):
    assert kind in TABLE
    assert WORKS[kind]().verdict in ("exact", "rounding")


def test_a_window_that_is_off_by_one_is_a_bug():
    """The mask is what is judged against: a kernel with a window of its own must agree with it."""
    assert (
        judged(
            lambda q, k, v, *, scale, causal, mask: windowed(q, k, v, scale), masked((KEY <= ROW) & (KEY > ROW - 8))
        ).verdict
        == "bug"
    )
    assert blocks().verdict in ("exact", "rounding")


def test_another_softcap_and_another_window_are_bugs():
    twice = judged(lambda q, k, v, *, softcap, **more: attention(q, k, v, cap=2 * softcap, **more), softcap=2.0)
    assert twice.verdict == "bug"
    wider = judged(lambda *qkv, window_size, **more: with_window(*qkv, window_size=(9, 0), **more), window=(8, 0))
    assert wider.verdict == "bug"


def test_every_kind_in_the_table_is_tried():
    assert TABLE - {*WORKS} == {"quantised codes of 8 and 4 bits, with one scale per head, token, block or tile"}


def test_a_shape_that_differs_between_q_and_k_is_refused():
    q, k, v = Case(**SHAPE).inputs()
    with pytest.raises(Refusal):
        judged(inputs={"q": q, "k": k[..., :8], "v": v})
