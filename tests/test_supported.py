"""What README.md says of kinds of attention: each is tried as it says, on a kernel in NumPy that knows nothing of tiles."""

import re
from pathlib import Path

import numpy as np
import pytest

from workbench import Case, Refusal, case_of, diff, run

README = Path(__file__).parent.parent.joinpath("README.md").read_text()
#: kind of attention -> what README.md says of it
TABLE = dict(
    re.findall(
        r"^\| ([^|]+?) \| \**(yes|via mask|via bias|via padding|via your wrapper|not yet)\b", README, re.MULTILINE
    )
)
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


ROW, KEY = np.arange(40)[:, None], np.arange(40)[None, :]


def window():
    mask = (KEY <= ROW) & (KEY > ROW - 9)
    return judged(lambda q, k, v, *, scale, causal, mask: windowed(q, k, v, scale), masked(mask))


def windowed(q, k, v, scale):
    """Its own window, whatever mask it is told."""
    return attention(q, k, v, scale=scale, causal=False, mask=(KEY <= ROW) & (KEY > ROW - 9))


def packed():
    """Three sequences of 10, 14 and 16 tokens: each is computed alone, as a kernel with cu_seqlens does."""
    ends = (0, 10, 24, 40)
    belongs = np.searchsorted(ends, np.arange(40), side="right")

    def varlen(q, k, v, *, scale, causal, mask):
        parts = [
            attention(*(x[:, :, i:j] for x in (q, k, v)), scale=scale, causal=True)
            for i, j in zip(ends, ends[1:], strict=False)
        ]
        return tuple(np.concatenate(part, axis=2) for part in zip(*parts, strict=True))

    return judged(varlen, masked((belongs[:, None] == belongs[None, :]) & (KEY <= ROW)))


def alibi():
    slopes = np.float32(2.0) ** -np.arange(1, 5, dtype=np.float32)
    bias = (slopes[:, None, None] * (KEY - ROW).astype(np.float32))[None]
    return judged(inputs=masked(KEY <= ROW) | {"bias": bias})


def sinks():
    """A key of zeros that only its bias knows: its weight goes nowhere, as that of a learned sink."""
    logit = np.float32(0.7)
    q, k, v = Case(**SHAPE).inputs()
    k, v = (np.concatenate([np.zeros_like(x[:, :, :1]), x], axis=2) for x in (k, v))
    bias = np.zeros((40, 41), np.float32)
    bias[:, 0] = logit

    def with_sink(q, k, v, *, scale, causal, bias):
        k, v = k[:, :, 1:], v[:, :, 1:]
        scores = q @ np.swapaxes(k, -1, -2) * np.float32(scale)
        row_max = np.maximum(scores.max(-1, keepdims=True), logit)
        probs = np.exp(scores - row_max)
        row_sum = probs.sum(-1, keepdims=True) + np.exp(logit - row_max)
        return probs @ v / row_sum, (row_max + np.log(row_sum))[..., 0]

    return judged(with_sink, {"q": q, "k": k, "v": v, "bias": bias})


def mla():
    """q and k of 24 dims, v of 16: padded with zeros to 24."""
    q, k, v = Case(**SHAPE | {"head_dim": 24}).inputs()
    v[..., 16:] = 0

    def narrow(q, k, v, *, scale, causal):
        out, lse = attention(q, k, v[..., :16], scale=scale, causal=causal)
        return np.pad(out, [(0, 0)] * 3 + [(0, 8)]), lse

    return judged(narrow, {"q": q, "k": k, "v": v})


def paged():
    def with_pages(q, k, v, *, scale, causal):
        table = np.random.default_rng(0).permutation(5)
        pool = {name: np.empty((5, *x.shape[:2], 8, x.shape[3]), x.dtype) for name, x in (("k", k), ("v", v))}
        for logical, physical in enumerate(table):
            for name, x in (("k", k), ("v", v)):
                pool[name][physical] = x[:, :, 8 * logical : 8 * logical + 8]
        k, v = (np.concatenate([pool[name][physical] for physical in table], axis=2) for name in "kv")
        return attention(q, k, v, scale=scale, causal=causal)

    return judged(with_pages)


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


WORKS = {
    "full, and cross attention with other lengths": lambda: judged(seqlen_q=24),
    "causal, bottom-right or top-left": lambda: judged(causal=True, seqlen_q=24),
    "GQA, MQA": lambda: judged(kv_heads=1),
    "decoding: one query": lambda: judged(seqlen_q=1, causal=True),
    "Split-K, FlashDecoding, merges of chunks": splits,
    "float16, bfloat16, float32": lambda: judged(dtype="bfloat16"),
    "sliding windows, to the left and right": lambda: judged(with_window, window=(8, 0)),
    "softcap of scores": lambda: judged(capped, softcap=2.0),
    "prefix-LM, block-sparse, any other mask": lambda: (window(), blocks())[1],
    "packed sequences (varlen, cu_seqlens)": packed,
    "ALiBi, relative positions, any additive bias": alibi,
    "attention sinks (a learned logit)": sinks,
    "MLA: v narrower than q and k": mla,
    "paged KV cache": paged,
}


@pytest.mark.parametrize("kind", WORKS)
def test_what_works_works(kind):
    assert TABLE[kind] != "not yet"
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


def test_what_is_not_there_yet_has_no_option():
    from workbench.cli.main import commands

    options = " ".join(option for param in commands.commands["diff"].params for option in param.opts)
    assert {"dropout", "backward"} <= {*TABLE}
    assert options and not re.search("dropout|backward", options)


def test_every_kind_in_the_table_is_tried_or_not_there_yet():
    assert {kind for kind, said in TABLE.items() if said != "not yet"} - {*WORKS} == {
        "8-bit codes: e4m3, e5m2, uint8, a scale a head"
    }


def test_a_shape_that_differs_between_q_and_k_is_refused():
    q, k, v = Case(**SHAPE).inputs()
    with pytest.raises(Refusal):
        judged(inputs={"q": q, "k": k, "v": v[..., :8]})
