"""Correct kernels of group wild that work on whole rows, as frameworks' eager attention does."""

import numpy as np

from campaigns.styles import pieces
from campaigns.styles.pieces import F32, INF, LOG2E
from campaigns.styles.style import ALL, BY_EXP2, CAST, IEEE, SIXTEEN, Array, Stages, Style, input_dtype


def torch_eager(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Scores rounded to the dtype, scaled and rounded again; softmax in float32; probs normalised, cast, then times v.

    Rows without keys are NaN, their logsumexp is -inf.
    """
    q32, k32, v32 = pieces.widened(q, k, v)
    qk = pieces.product(q32, k32).astype(q.dtype)
    scores = pieces.masked(pieces.nearest(qk.astype(F32) * F32(scale), q.dtype), pieces.visible(q, k, causal))
    m = scores.max(-1)
    p = pieces.by_exp(scores, m[..., None])
    l = p.sum(-1)
    out = np.where((l == 0)[..., None], F32(np.nan), pieces.nearest(pieces.quotient(p, l), q.dtype) @ v32)
    return {"qk": qk, "scores": scores.astype(q.dtype), "out": out.astype(q.dtype), "lse": pieces.lse_of(m, l)}


def sdpa_math(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """q and k each times the root of the scale, in float32; rows without keys are 0, as a safe softmax makes them."""
    q32, k32, v32 = pieces.widened(q, k, v)
    root = np.sqrt(F32(scale))
    scores = pieces.masked(pieces.product(q32 * root, k32 * root), pieces.visible(q, k, causal))
    m = scores.max(-1)
    p = pieces.by_exp(scores, m[..., None])
    l = p.sum(-1)
    return {
        "scores": scores,
        "row_max": m[..., None],
        "out": (pieces.quotient(p, l) @ v32).astype(q.dtype),
        "lse": pieces.lse_of(m, l),
    }


def scaled_query(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """q times the scale in float32 first."""
    q32, k32, v32 = pieces.widened(q, k, v)
    scores = pieces.masked(pieces.product(q32 * F32(scale), k32), pieces.visible(q, k, causal))
    m = scores.max(-1)
    p = pieces.by_exp(scores, m[..., None])
    l = p.sum(-1)
    o = pieces.nearest(p, q.dtype) @ v32
    per_row = {"row_max": m[..., None], "row_sum": l[..., None], "acc": o[..., None, :]}
    return {
        "scores": scores,
        "probs": p,
        **per_row,
        "out": pieces.quotient(o, l).astype(q.dtype),
        "lse": pieces.lse_of(m, l),
    }


def grouped_einsum(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Heads as [kv head, group], so that no key is repeated."""
    b, h, rows, dim = q.shape
    kv = k.shape[1]
    grouped = q.astype(F32).reshape(b, kv, h // kv, rows, dim)
    qk = np.einsum("bcgqd,bckd->bcgqk", grouped, k.astype(F32), optimize=True).reshape(b, h, rows, -1)
    scores = pieces.masked(qk * F32(scale), pieces.visible(q, k, causal))
    m = scores.max(-1)
    p = pieces.by_exp(scores, m[..., None])
    l = p.sum(-1)
    weights = pieces.nearest(pieces.quotient(p, l), q.dtype).reshape(b, kv, h // kv, rows, -1)
    out = np.einsum("bcgqk,bckd->bcgqd", weights, v.astype(F32), optimize=True).reshape(b, h, rows, -1)
    return {"qk": qk, "scores": scores, "probs": p, "out": out.astype(q.dtype), "lse": pieces.lse_of(m, l)}


def transposed_scores(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """K @ Q^T and a softmax over columns; exp as exp2 of a multiple of log2(e)."""
    q32, k32, v32 = pieces.widened(q, k, v)
    columns = pieces.masked(pieces.product(k32, q32) * F32(scale), pieces.visible(q, k, causal).T)
    m = columns.max(-2)
    p = np.exp2((columns - pieces.finite(m)[:, :, None]) * LOG2E)
    l = p.sum(-2)
    o = np.swapaxes(np.swapaxes(v32, -1, -2) @ pieces.nearest(p, q.dtype), -1, -2)
    stages = {"scores": np.swapaxes(columns, -1, -2), "probs": np.swapaxes(p, -1, -2), "row_max": m[..., None]}
    return {**stages, "out": pieces.quotient(o, l).astype(q.dtype), "lse": pieces.lse_of(m, l)}


def row_by_row(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """A loop over queries, each with the keys that it sees and no mask."""
    q32, k32, v32 = pieces.widened(q, k, v)
    out, lse = np.zeros(q.shape[:3] + v.shape[3:], q.dtype), np.full(q.shape[:3], -INF)
    for i in range(q.shape[2]):
        n = min(k.shape[2], i + 1 + k.shape[2] - q.shape[2]) if causal else k.shape[2]
        if n > 0:
            s = (k32[:, :, :n] @ q32[:, :, i, :, None])[..., 0] * F32(scale)
            m = s.max(-1)
            p = np.exp(s - m[..., None])
            l = p.sum(-1)
            out[:, :, i] = ((p[:, :, None] @ v32[:, :, :n])[:, :, 0] / l[..., None]).astype(q.dtype)
            lse[:, :, i] = m + pieces.log(l)
    return {"out": out, "lse": lse}


def paged_attention(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Keys in shuffled pages of 16 that a block table finds; 1e-6 is added to the sum before its reciprocal."""
    q32, k32, v32 = pieces.widened(q, k, v)
    n = k.shape[2]
    pages = -(-n // 16)
    table = np.random.default_rng(0).permutation(pages)
    cache = np.zeros((2, pages, *k32.shape[:2], 16, k.shape[3]), F32)
    for page, place in enumerate(table):
        some = slice(16 * page, 16 * page + 16)
        for kind, x in enumerate((k32, v32)):
            cache[kind, place, :, :, : x[:, :, some].shape[2]] = x[:, :, some]
    logits = np.concatenate([pieces.product(q32, cache[0, place]) for place in table], axis=-1)[..., :n] * F32(scale)
    logits = pieces.masked(logits, pieces.visible(q, k, causal))
    m = logits.max(-1)
    p = pieces.by_exp(logits, m[..., None])
    l = p.sum(-1)
    weights = pieces.nearest(p * (F32(1) / (l + F32(1e-6)))[..., None], q.dtype)
    out = np.zeros(q.shape[:3] + v.shape[3:], F32)
    for page, place in enumerate(table):
        w = weights[..., 16 * page : 16 * page + 16]
        out += w @ cache[1, place][:, :, : w.shape[-1]]
    return {"scores": logits, "row_max": m[..., None], "out": out.astype(q.dtype), "lse": pieces.lse_of(m, l)}


def float64_inside(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Everything in float64, rounded at the end."""
    q64, k64, v64 = (x.astype(np.float64) for x in pieces.widened(q, k, v))
    scores = np.where(pieces.visible(q, k, causal), pieces.product(q64, k64) * scale, -np.inf)
    m = scores.max(-1)
    p = np.exp(scores - np.where(np.isinf(m), 0, m)[..., None])
    l = p.sum(-1)
    out = (p @ v64 / np.where(l == 0, 1, l)[..., None]).astype(q.dtype)
    with np.errstate(divide="ignore"):
        return {"scores": scores, "row_max": m[..., None], "probs": p, "out": out, "lse": (m + np.log(l)).astype(F32)}


STYLES = (
    Style(
        torch_eager,
        "wild",
        ALL,
        {"empty_out": float("nan")},
        {**CAST, "scores_dtype": input_dtype, "row_sum_of_cast": False},
        "Hugging Face's eager_attention_forward: matmul, scale, softmax(dtype=float32).to(dtype), matmul.",
    ),
    Style(
        sdpa_math,
        "wild",
        ALL,
        {"block_k": 512},
        {**IEEE, "scale_in": "both"},
        "PyTorch's math attention spreads the scale over q and k and works in float32 for 16-bit inputs.",
    ),
    Style(
        scaled_query,
        "wild",
        ALL,
        {"block_k": 512},
        {**CAST, "scale_in": "q"},
        "xformers' reference attention scales q first, in float32.",
    ),
    Style(
        grouped_einsum,
        "wild",
        ALL,
        {"block_k": 512},
        CAST,
        "jax.nn.dot_product_attention's einsum over groups of heads.",
    ),
    Style(
        transposed_scores,
        "wild",
        ALL,
        {"block_k": 512},
        {**CAST, **BY_EXP2},
        "FlashAttention-3 and 4's SwapAB and FlashMLA compute S^T and reduce over columns.",
    ),
    Style(row_by_row, "wild", ALL, {}, IEEE, "The triple loop of llama2.c: each token attends to those so far."),
    Style(
        paged_attention,
        "wild",
        SIXTEEN,
        {"block_k": 512},
        {**CAST, "fast_math": True},
        "vLLM's paged attention v1 adds 1e-6 to exp_sum, less than a hundredth of a half's ulp.",
    ),
    Style(float64_inside, "wild", ALL, {"block_k": 512}, IEEE, "CPU references that accumulate in double."),
)
