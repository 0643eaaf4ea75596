"""Correct kernels of group wild that go over the keys in parts: other sums, other recurrences, lanes."""

from typing import Any

import numpy as np

from campaigns.styles import pieces
from campaigns.styles.pieces import F32, INF, LOG2E
from campaigns.styles.style import ALL, BY_EXP2, CAST, IEEE, Array, Stages, Style


def _stacked(steps: dict[str, list[Array]]) -> Stages:
    return {name: np.stack(x, axis=3) for name, x in steps.items()}


def flash_attention_1(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Each tile has a maximum of its own, and out is normalised after each of them; tiles of 64."""
    scores, v32 = pieces.masked_scores(q, k, v, causal, F32(scale))
    m, l, out = np.full(q.shape[:3], -INF), np.zeros(q.shape[:3], F32), np.zeros(q.shape[:3] + v.shape[3:], F32)
    steps: dict[str, list[Array]] = {"row_max": [], "row_sum": [], "correction": []}
    for _, lo, hi in pieces.tiles(k.shape[2], 64):
        own = scores[..., lo:hi].max(-1)
        p = pieces.by_exp(scores[..., lo:hi], own[..., None])
        above = np.maximum(m, own)
        old, new = pieces.by_exp(m, above), pieces.by_exp(own, above)
        total = old * l + new * p.sum(-1)
        o = (old * l)[..., None] * out + new[..., None] * (pieces.nearest(p, q.dtype) @ v32[:, :, lo:hi])
        m, l, out = above, total, pieces.quotient(o, total)
        for name, x in (("row_max", m), ("row_sum", l), ("correction", old)):
            steps[name].append(x)
    return {"scores": scores, **_stacked(steps), "out": out.astype(q.dtype), "lse": pieces.lse_of(m, l)}


def one_key_at_a_time(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Tiles of a single key; dumps maxima and sums."""
    scores, v32 = pieces.masked_scores(q, k, v, causal, F32(scale))
    m, l, o = np.full(q.shape[:3], -INF), np.zeros(q.shape[:3], F32), np.zeros(q.shape[:3] + v.shape[3:], F32)
    steps: dict[str, list[Array]] = {"row_max": [], "row_sum": [], "correction": []}
    for j in range(k.shape[2]):
        above = np.maximum(m, scores[..., j])
        scaled, p = pieces.by_exp(m, above), pieces.by_exp(scores[..., j], above)
        m, l = above, l * scaled + p
        o *= scaled[..., None]
        o += p[..., None] * v32[:, :, None, j]
        for name, x in (("row_max", m), ("row_sum", l), ("correction", scaled)):
            steps[name].append(x)
    return {
        "scores": scores,
        **_stacked(steps),
        "out": pieces.quotient(o, l).astype(q.dtype),
        "lse": pieces.lse_of(m, l),
    }


def kahan_sums(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Sums over tiles of 16 compensated after Kahan, after a pass for the maximum alone."""
    scores, v32 = pieces.masked_scores(q, k, v, causal, F32(scale))
    m = scores.max(-1)
    p = pieces.by_exp(scores, m[..., None])
    total, lost = (np.zeros((*q.shape[:3], v.shape[3] + 1), F32) for _ in range(2))
    for _, lo, hi in pieces.tiles(k.shape[2], 16):
        term = np.concatenate([p[..., lo:hi] @ v32[:, :, lo:hi], p[..., lo:hi].sum(-1, keepdims=True)], -1) - lost
        after = total + term
        lost = (after - total) - term
        total = after
    o, l = total[..., :-1], total[..., -1]
    per_row = {"row_max": m[..., None], "row_sum": l[..., None], "acc": o[..., None, :]}
    return {
        "scores": scores,
        "probs": p,
        **per_row,
        "out": pieces.quotient(o, l).astype(q.dtype),
        "lse": pieces.lse_of(m, l),
    }


def head_dim_in_chunks(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """qk summed over 16 dimensions at a time, from the last; tiles of 32 in base 2."""
    q32, k32, v32 = pieces.widened(q, k, v)
    qk = np.zeros((*q.shape[:3], k.shape[2]), F32)
    for at in range(0, q.shape[3], 16)[::-1]:
        qk += pieces.product(q32[..., at : at + 16], k32[..., at : at + 16])
    scores = pieces.masked(qk * (F32(scale) * LOG2E), pieces.visible(q, k, causal))
    visits = pieces.tiles(k.shape[2], 32)
    dumps = pieces.slots(scores, v.shape[3], len(visits))
    m, l, o = pieces.online(scores, v32, visits, dumps, weigh=pieces.by_exp2, cast=q.dtype)
    return {
        "qk": qk,
        "scores": scores,
        **dumps,
        "out": pieces.quotient(o, l).astype(q.dtype),
        "lse": pieces.lse_of_base2(m, l),
    }


def reciprocal(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """out is acc times the reciprocal of the sum; tiles of 128, natural scores through exp2."""
    scores, v32 = pieces.masked_scores(q, k, v, causal, F32(scale))
    visits = pieces.tiles(k.shape[2], 128)
    dumps = pieces.slots(scores, v.shape[3], len(visits))
    how: dict[str, Any] = {"weigh": lambda x, m: np.exp2((x - pieces.finite(m)) * LOG2E), "cast": q.dtype}
    m, l, o = pieces.online(scores, v32, visits, dumps, **how)
    inverse = np.where(l == 0, F32(1), F32(1) / np.where(l == 0, F32(1), l))
    return {"scores": scores, **dumps, "out": (o * inverse[..., None]).astype(q.dtype), "lse": pieces.lse_of(m, l)}


def lanes_of_a_warp(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """32 lanes, each with every 32nd key and a maximum, sum and output of its own, reduced by a butterfly."""
    scores, v32 = pieces.masked_scores(q, k, v, causal, F32(scale))
    empty = (np.full(q.shape[:3], -INF), np.zeros(q.shape[:3], F32), np.zeros(q.shape[:3] + v.shape[3:], F32))
    states: list[tuple[Array, Array, Array]] = [empty] * 32
    for lane in range(min(32, k.shape[2])):
        x = scores[..., lane::32]
        m = x.max(-1)
        p = pieces.by_exp(x, m[..., None])
        states[lane] = m, p.sum(-1), p @ v32[:, :, lane::32]
    for step in (16, 8, 4, 2, 1):
        halves = zip(states[:step], states[step:], strict=True)
        states = []
        for (m0, l0, o0), (m1, l1, o1) in halves:
            m = np.maximum(m0, m1)
            c0, c1 = pieces.by_exp(m0, m), pieces.by_exp(m1, m)
            states.append((m, c0 * l0 + c1 * l1, c0[..., None] * o0 + c1[..., None] * o1))
    m, l, o = states[0]
    return {"scores": scores, "out": pieces.quotient(o, l).astype(q.dtype), "lse": pieces.lse_of(m, l)}


def pairwise_sums(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Probs and weighted values of 16 parts of the keys added in pairs, after one maximum for the row."""
    scores, v32 = pieces.masked_scores(q, k, v, causal, F32(scale))
    m = scores.max(-1)
    p = pieces.by_exp(scores, m[..., None])
    cast = pieces.nearest(p, q.dtype)
    each = -(-k.shape[2] // 16)
    parts = [
        (p[..., a : a + each].sum(-1), cast[..., a : a + each] @ v32[:, :, a : a + each])
        for a in range(0, k.shape[2], each)
    ]
    while len(parts) > 1:
        odd = parts[len(parts) // 2 * 2 :]
        parts = [(a + c, b + d) for (a, b), (c, d) in zip(parts[::2], parts[1::2], strict=False)] + odd
    l, o = parts[0]
    stages = {"probs": p, "probs_cast": cast, "row_max": m[..., None], "row_sum": l[..., None]}
    return {"scores": scores, **stages, "out": pieces.quotient(o, l).astype(q.dtype), "lse": pieces.lse_of(m, l)}


def packed_groups(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """The query heads of a group as more rows of one head; tiles of 32, dumps unpacked at the end."""
    b, h, rows, dim = q.shape
    kv = k.shape[1]
    packed = q.astype(F32).reshape(b, kv, h // kv * rows, dim)
    seen = np.tile(pieces.visible(q, k, causal), (h // kv, 1))
    scores = pieces.masked(pieces.product(packed, k.astype(F32)) * F32(scale), seen)
    visits = pieces.tiles(k.shape[2], 32)
    dumps = pieces.slots(scores, dim, len(visits))
    m, l, o = pieces.online(scores, v.astype(F32), visits, dumps, cast=q.dtype)
    stages = {"scores": scores, **dumps, "out": pieces.quotient(o, l).astype(q.dtype), "lse": pieces.lse_of(m, l)}
    return {name: x.reshape(b, h, rows, *x.shape[3:]) for name, x in stages.items()}


def fused_sum(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Rescaling and adding in one fused multiply-add each; blocks of queries of 48, tiles of 80."""
    scores, v32 = pieces.masked_scores(q, k, v, causal, F32(scale))
    visits = pieces.tiles(k.shape[2], 80)
    m, l, o = np.full(q.shape[:3], -INF), np.zeros(q.shape[:3], F32), np.zeros(q.shape[:3] + v.shape[3:], F32)
    steps: dict[str, list[Array]] = {"row_max": [], "correction": [], "row_sum": [], "acc": []}
    for _, lo, hi in visits:
        above = np.maximum(m, scores[..., lo:hi].max(-1))
        scaled = pieces.by_exp(m, above)
        p = pieces.by_exp(scores[..., lo:hi], above[..., None])
        m, l = above, pieces.fma(l, scaled, p.sum(-1))
        o = pieces.fma(o, scaled[..., None], pieces.nearest(p, q.dtype) @ v32[:, :, lo:hi])
        for name, x in (("row_max", m), ("correction", scaled), ("row_sum", l), ("acc", o)):
            steps[name].append(x)
    return {
        "scores": scores,
        **_stacked(steps),
        "out": pieces.quotient(o, l).astype(q.dtype),
        "lse": pieces.lse_of(m, l),
    }


STYLES = tuple(
    Style(function, "wild", ALL, units, arithmetic, why)
    for function, units, arithmetic, why in (
        (
            flash_attention_1,
            {"block_k": 64},
            CAST,
            "FlashAttention's first algorithm, whose O is normalised at each step.",
        ),
        (
            one_key_at_a_time,
            {"block_k": 1},
            IEEE,
            "Milakov and Gimelshein's online softmax; llama.cpp's CPU attention.",
        ),
        (
            kahan_sums,
            {"block_k": 512},
            IEEE,
            "Kahan's compensated sums, as reference kernels of Triton and JAX users have them.",
        ),
        (
            head_dim_in_chunks,
            {"block_k": 32, "base2": True},
            CAST,
            "Kernels for head_dim above 128 that load K in slices.",
        ),
        (
            reciprocal,
            {"block_k": 128},
            {**CAST, **BY_EXP2, "fast_math": True},
            "FlashAttention-2's normalisation by inv_sum = 1 / sum.",
        ),
        (lanes_of_a_warp, {}, IEEE, "xformers' and faster-transformer's decoders: a lane for every 32nd key."),
        (pairwise_sums, {"block_k": 512}, CAST, "NumPy's and BLAS's pairwise sums."),
        (packed_groups, {"block_k": 32}, CAST, "FlashAttention-3's PackGQA."),
        (
            fused_sum,
            {"block_k": 80},
            CAST,
            "Any CUDA kernel whose l * alpha + sum the compiler contracts; tiles of 80 keys.",
        ),
    )
)
