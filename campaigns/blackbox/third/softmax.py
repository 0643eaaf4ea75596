"""Faults of the steps between scores and out: scales, maxima, sums, sinks, casts."""

import ml_dtypes
import numpy as np

from ..record import (
    LN2,
    LOG2E,
    Array,
    Pair,
    case,
    cdiv,
    dot,
    finish,
    grid,
    masked,
    online,
    rounded,
    safe,
    scores,
    spread,
    start,
    tiles,
    top,
    visible,
    wrong,
)


def distance_bias(q: Array, k: Array, slopes: Array) -> Array:
    """The bias of ALiBi, a plane for each head."""
    i, j = grid(q, k)
    return -np.asarray(slopes, np.float32)[:, None, None] * np.abs(i - j).astype(np.float32)


@wrong(
    case(64, 128, "float32", heads=2, causal=True),
    truth="the scale amax / 6 of each 16 elements of K is rounded to the nearest e4m3 and not up: where it comes out "
    "smaller, elements above 6 * scale are clipped, by up to 1 / 17 of their size",
    source="tracel-ai/burn#5261",
)
def scale_rounded_down(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """K with a scale in e4m3 for each 16 elements of a row; the codes, clipped to 6, are not rounded."""
    qf, kf, vf = spread(q, k, v)
    blocks = kf.reshape(*kf.shape[:3], -1, 16)
    amax = np.abs(blocks).max(-1, keepdims=True)
    narrow = (amax / np.float32(6)).astype(ml_dtypes.float8_e4m3fn)
    if not bug:
        bits = narrow.view(np.uint8)
        narrow = (bits + (narrow.astype(np.float32) * 6 < amax)).astype(np.uint8).view(ml_dtypes.float8_e4m3fn)
    step_size = narrow.astype(np.float32)
    kf = (np.clip(blocks / step_size, -6, 6) * step_size).reshape(kf.shape)
    return online(scores(qf, kf, scale, causal), vf, q.dtype, 32)


@wrong(
    case(48, 150, "float16", heads=4, kv_heads=2, causal=True),
    truth="(1) the scale of the codes of K is applied also to the newest seqlen_k % 32 keys, which are not quantised: "
    "their scores are about 0; (2) the scale of V is read as a scalar: every head takes that of head 0",
    source="sglang#18396; sgl-kernel-xpu#252 class",
    faults=2,
)
def scaled_residual(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Whole pages of 32 keys as codes with a scale a head, the rest in 16 bits; the codes are not rounded."""
    kf, vf = k.astype(np.float32), v.astype(np.float32)
    coded = np.arange(k.shape[2])[:, None] < k.shape[2] // 32 * 32
    k_scale, v_scale = (np.abs(x).max((2, 3), keepdims=True) / np.float32(448) for x in (kf, vf))
    kf, vf = np.where(coded, kf / k_scale, kf), np.where(coded, vf / v_scale, vf)
    kf = kf * np.where(bug | coded, k_scale, np.float32(1))
    vf = vf * np.where(coded, v_scale[:, :1] if bug else v_scale, np.float32(1))
    qf, kf, vf = spread(q, kf, vf)
    return online(scores(qf, kf, scale, causal), vf, q.dtype, 32)


@wrong(
    case(150, 50, "float16", heads=4, alibi_slopes="geometric"),
    truth="the reduction of the row max starts from an operand that is not initialised (0) and not from -inf: in rows "
    "whose scores are all negative the max is 0, and P = exp(s) underflows in float16 (head 0, queries far from the "
    "keys), while the float32 sum does not: out is too small or 0 there; lse is right",
    source="tt-metal#35817",
)
def max_from_zero(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, alibi_slopes: Array, bug: bool = True
) -> Pair:
    """An online softmax over tiles of 32 keys with an explicit start of the reduction."""
    qf, kf, vf = spread(q, k, v)
    s = scores(qf, kf, scale, causal) + distance_bias(q, k, alibi_slopes)
    m, den, acc = start(qf, vf)
    for t in tiles(k.shape[2], 32):
        new = np.maximum(m, s[..., t].max(-1, keepdims=True, initial=0.0 if bug else -np.inf))
        p, alpha = np.exp(s[..., t] - safe(new)), np.exp(m - safe(new))
        m, den, acc = new, den * alpha + p.sum(-1, keepdims=True), acc * alpha + rounded(p, q.dtype) @ vf[:, :, t]
    return finish(m, den, acc, q.dtype)


@wrong(
    case(150, 60, "float16", heads=4, alibi_slopes="geometric"),
    truth="the second pass rounds the score to float16 before it subtracts lse: P is off by up to half an ulp of the "
    "score, relatively, which is largest in rows whose ALiBi scores are deeply negative (2^-7 below -16); lse is right",
    source="cudnn-frontend#744",
)
def score_in_half(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, alibi_slopes: Array, bug: bool = True
) -> Pair:
    """Two passes: lse, then P = exp(s - lse) from scores that are computed again."""
    qf, kf, vf = spread(q, k, v)
    s = scores(qf, kf, scale, causal) + distance_bias(q, k, alibi_slopes)
    _, lse = online(s, vf, q.dtype, 64)
    p = np.exp((rounded(s, np.float16) if bug else s) - safe(lse)[..., None])
    return (rounded(p, q.dtype) @ vf).astype(q.dtype), lse


@wrong(
    case(80, 128, "float16", heads=2, head_dim=128, causal=True),
    truth="the second pass folds scale * log2(e) into K and rounds the product to bfloat16, while lse comes from exact "
    "scores: each score of P is off by about 2^-9 of its products; lse is right",
    source="FastVideo#1730",
)
def folded_keys(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Two passes: a natural lse, then P = exp2(q . (K scale log2 e) - lse log2 e)."""
    qf, kf, vf = spread(q, k, v)
    _, lse = online(scores(qf, kf, scale, causal), vf, q.dtype, 64)
    folded = kf * np.float32(scale * LOG2E)
    folded = rounded(folded, ml_dtypes.bfloat16) if bug else folded
    p = np.exp2(scores(qf, folded, 1.0, causal) - (safe(lse) * np.float32(LOG2E))[..., None])
    return (rounded(p, q.dtype) @ vf).astype(q.dtype), lse


@wrong(
    case(32, 96, "float32", heads=2, head_dim=32),
    truth="each product p * v is rounded to float16 before it is added in float32: every term of P @ V is off by up "
    "to 2^-11 of itself (2^-25 where it is subnormal)",
    source="FlashMLA c759027",
)
def half_products(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """P @ V on vector units: products, then a sum in float32, over tiles of 32 keys."""
    qf, kf, vf = spread(q, k, v)
    s = scores(qf, kf, scale, causal)
    m = top(s)
    weights = np.exp(s - safe(m))
    p = rounded(weights, q.dtype)
    _, den, acc = start(qf, vf)
    for t in tiles(k.shape[2], 32):
        terms = p[..., t, None] * vf[:, :, None, t]
        acc = acc + (rounded(terms, np.float16) if bug else terms).sum(-2)
        den = den + weights[..., t].sum(-1, keepdims=True)
    return finish(m, den, acc, q.dtype)


@wrong(
    case(70, 96, "bfloat16", heads=4, kv_heads=2),
    truth="k_scale and v_scale are swallowed by *args and stay 1: (1) scores are those of the codes of K, q . k / "
    "k_scale (about 110 times too large); (2) out is not multiplied by v_scale (about 110 times too large)",
    source="flashinfer#1023, flashinfer#1254",
    faults=2,
)
def swallowed_scales(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Codes of K and V with a scale a head, which the scores and the epilogue multiply; the codes are not rounded."""
    kf, vf = k.astype(np.float32), v.astype(np.float32)
    k_scale, v_scale = (np.abs(x).max((2, 3), keepdims=True) / np.float32(448) for x in (kf, vf))
    qf, kc, vc = spread(q, kf / k_scale, vf / v_scale)
    ones = np.ones((len(q), q.shape[1], 1, 1), np.float32)
    group = q.shape[1] // k.shape[1]
    used_k, used_v = (ones if bug else np.repeat(x, group, 1) for x in (k_scale, v_scale))
    i, j = grid(q, k)
    s = masked(dot(qf, kc) * (used_k * np.float32(scale)), visible(i, j, causal))
    m = top(s)
    p = np.exp(s - safe(m))
    return finish(m, p.sum(-1, keepdims=True), rounded(p, q.dtype) @ vc * used_v, q.dtype)


@wrong(
    case(96, 128, "float16", heads=2, causal=True),
    truth="the autotuner runs the kernel with tiles of 32 and then of 64 keys, without zeroing the accumulator that "
    "both add to atomically: acc holds the sum of both runs, and out is twice what it should be; lse is right",
    source="triton#4217",
)
def autotuned_twice(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A kernel for max and sum, then one that adds P @ V of each tile into a global accumulator."""
    qf, kf, vf = spread(q, k, v)
    s = scores(qf, kf, scale, causal)
    m = top(s)
    p = np.exp(s - safe(m))
    _, den, acc = start(qf, vf)
    for size in (32, 64):
        acc = acc if bug else np.zeros_like(acc)
        for t in tiles(k.shape[2], size):
            acc += rounded(p[..., t], q.dtype) @ vf[:, :, t]
    return finish(m, den + p.sum(-1, keepdims=True), acc, q.dtype)


@wrong(
    case(72, 104, "float16", heads=4, kv_heads=2, causal=True, softcap=4.0, sinks="normal"),
    truth="(1) the sink enters exp2 without log2(e): the row sum gets 2^sink and not exp(sink); (2) the loop over "
    "tiles that need the mask leaves the softcap out: scores of the diagonal tiles are q . k * scale",
    source="class of sinks in exp2 kernels (gpt-oss in Triton); class of split masked and unmasked loops",
    faults=2,
)
def sink_base(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, softcap: float, sinks: Array, bug: bool = True
) -> Pair:
    """Triton in base 2: a loop over tiles of 32 keys without a mask, then one with it, then the sink."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    m, den, acc = start(qf, vf)
    for t in tiles(k.shape[2], 32):
        needs = causal and t.stop - 1 > i[0, 0]
        s = dot(qf, kf[:, :, t]) * scale
        if not (bug and needs):
            s = np.float32(softcap) * np.tanh(s / np.float32(softcap))
        s = masked(s * np.float32(LOG2E), visible(i, j[:, t], causal))
        new = np.maximum(m, top(s))
        p, alpha = np.exp2(s - safe(new)), np.exp2(m - safe(new))
        m, den, acc = new, den * alpha + p.sum(-1, keepdims=True), acc * alpha + rounded(p, q.dtype) @ vf[:, :, t]
    sink = np.asarray(sinks, np.float32)[:, None, None] * np.float32(1 if bug else LOG2E)
    new = np.maximum(m, sink)
    alpha = np.exp2(m - new)
    out, lse = finish(new, den * alpha + np.exp2(sink - new), acc * alpha, q.dtype)
    return out, lse + (new * np.float32(LN2) - new)[..., 0]


@wrong(
    case(100, 100, "float32", heads=2, kv_heads=1, batch=2, causal=True),
    truth="the floor of the row sum became a summand: out = acc / (sum + 2^-10) and lse = m + log(sum + 2^-10), most "
    "in the rows with few keys (row 0: out is 0.1% too small)",
    source="class of epsilons in denominators (max(l, eps) written as l + eps); vllm#53339 class",
)
def floor_added(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Whole rows in two halves of the keys; a floor keeps the division from 0."""
    qf, kf, vf = spread(q, k, v)
    s, eps = scores(qf, kf, scale, causal), np.float32(2**-10)
    m = top(s)
    _, den, acc = start(qf, vf)
    for t in tiles(k.shape[2], cdiv(k.shape[2], 2)):
        p = np.exp(s[..., t] - safe(m))
        den, acc = den + p.sum(-1, keepdims=True), acc + rounded(p, q.dtype) @ vf[:, :, t]
    total = np.where(den == 0, den, den + eps if bug else np.maximum(den, eps))
    return finish(m, total, acc, q.dtype)
