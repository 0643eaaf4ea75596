"""Kernels with faults of precision: narrow accumulators, early casts, truncation, coarse exponentials."""

import numpy as np

from campaigns.reports.pieces import (
    BF16,
    E4M3,
    F16,
    F32,
    LN2,
    LOG2E,
    Array,
    Result,
    divide,
    fresh,
    hide,
    load,
    lse_of,
    merge,
    partials,
    require,
    rounded,
    rows,
    safe,
    scores,
    softmax_pv,
    step,
    store,
    tiles,
    visible,
)


def truncated(x: Array, bits: int) -> Array:
    """float32 numbers cut to `bits` bits of mantissa."""
    mask = np.uint32(0xFFFFFFFF << (23 - bits) & 0xFFFFFFFF)
    return (np.ascontiguousarray(x, F32).view(np.uint32) & mask).view(F32)


def flash_acc_bf16(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """The output accumulator is bfloat16 and rounded in every tile; mlir-air#1600."""
    qf, kf, vf = load(q, k, v)
    mask = visible(q.shape[2], k.shape[2], causal)
    state = fresh(qf, vf)
    for a, b in tiles(k.shape[2], 8):
        m, den, acc = step(state, hide(scores(qf, rows(kf, a, b), scale), mask[:, a:b]), rows(vf, a, b), q.dtype)
        state = m, den, rounded(acc, BF16)
    return store(*state, q.dtype)


def eager_sum_bf16(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """The row sum is added key by key in bfloat16; mlir-air#1606."""
    qf, kf, vf = load(q, k, v)
    s = hide(scores(qf, kf, scale), visible(q.shape[2], k.shape[2], causal))
    m = s.max(-1)
    p = np.exp(s - safe(m)[..., None])
    den = np.zeros(m.shape, F32)
    for j in range(p.shape[-1]):
        den = rounded(den + p[..., j], BF16)
    return store(m, den, rounded(p, q.dtype) @ vf, q.dtype)


def eager_dot_fp16(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """q @ k^T accumulates in fp16; llama.cpp#20589."""
    require(q.dtype == F16, "float16 only")
    _, _, vf = load(q, k, v)
    kh = np.repeat(k, q.shape[1] // k.shape[1], axis=1)
    s = np.zeros((*q.shape[:3], k.shape[2]), F16)
    for c in range(q.shape[3]):
        s += q[..., c, None] * kh[:, :, None, :, c]
    s = hide(s.astype(F32) * F32(scale), visible(q.shape[2], k.shape[2], causal))
    return store(*softmax_pv(s, vf, q.dtype), q.dtype)


def eager_scores_bf16(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """Scores are rounded to bfloat16 before the softmax; cudnn-frontend#744 had it in the backward."""
    qf, kf, vf = load(q, k, v)
    s = hide(rounded(scores(qf, kf, scale), BF16), visible(q.shape[2], k.shape[2], causal))
    return store(*softmax_pv(s, vf, q.dtype), q.dtype)


def exp2_q_scaled_in_half(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """scale * log2(e) is folded into q in the input's 16 bits, factor and product rounded; mlx#3119."""
    qf, kf, vf = load(q, k, v)
    factor = rounded(np.asarray(scale * LOG2E, F32), q.dtype)
    s = scores(rounded(qf * factor, q.dtype), kf, 1.0)
    s = hide(s, visible(q.shape[2], k.shape[2], causal))
    m = s.max(-1)
    p = np.exp2(s - safe(m)[..., None])
    den = p.sum(-1)
    return divide(rounded(p, q.dtype) @ vf, den).astype(q.dtype), lse_of(m * F32(LN2), den)


def flash_p_fp8(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """P is cast to e4m3 although v is not quantised, the sum is of the exact P; flash-attn#2717."""
    qf, kf, vf = load(q, k, v)
    mask = visible(q.shape[2], k.shape[2], causal)
    state = fresh(qf, vf)
    for a, b in tiles(k.shape[2], 64):
        s = hide(scores(qf, rows(kf, a, b), scale), mask[:, a:b])
        state = step(state, s, rows(vf, a, b), E4M3)
    return store(*state, q.dtype)


def eager_out_through_fp8(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """out goes through e4m3 without a scale; vllm#55696."""
    qf, kf, vf = load(q, k, v)
    s = hide(scores(qf, kf, scale), visible(q.shape[2], k.shape[2], causal))
    m, den, acc = softmax_pv(s, vf, q.dtype)
    return rounded(divide(acc, den), E4M3).astype(q.dtype), lse_of(m, den)


def flash_dots_tf32_truncated(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """Operands of both products are cut to 10 bits of mantissa, TF32 by truncation; triton_docs#6."""
    require(q.dtype == F32, "float32 only")
    qf, kf, vf = (truncated(x, 10) for x in load(q, k, v))
    mask = visible(q.shape[2], k.shape[2], causal)
    m, den, acc = fresh(qf, vf)
    for a, b in tiles(k.shape[2], 64):
        s = hide(scores(qf, rows(kf, a, b), scale), mask[:, a:b])
        m_new = np.maximum(m, s.max(-1))
        alpha, p = np.exp(m - safe(m_new)), np.exp(s - safe(m_new)[..., None])
        den, m = den * alpha + p.sum(-1), m_new
        acc = acc * alpha[..., None] + truncated(p, 10) @ rows(vf, a, b)
    return store(m, den, acc, q.dtype)


def flash_alpha_fp8(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """The correction of the accumulator is rounded to e4m3; vllm-gaudi#1419."""
    qf, kf, vf = load(q, k, v)
    mask = visible(q.shape[2], k.shape[2], causal)
    m, den, acc = fresh(qf, vf)
    for a, b in tiles(k.shape[2], 32):
        s = hide(scores(qf, rows(kf, a, b), scale), mask[:, a:b])
        m_new = np.maximum(m, s.max(-1))
        alpha, p = np.exp(m - safe(m_new)), np.exp(s - safe(m_new)[..., None])
        den, m = den * alpha + p.sum(-1), m_new
        acc = acc * rounded(alpha, E4M3)[..., None] + rounded(p, q.dtype) @ rows(vf, a, b)
    return store(m, den, acc, q.dtype)


def split_partial_out_bf16(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """Partial outputs are kept in bfloat16 until the reduce; flashinfer#5107."""
    sk = k.shape[2]
    pm, pl, po = partials(q, k, v, scale, visible(q.shape[2], sk, causal), tiles(sk, 32))
    return store(*merge(pm, pl, rounded(po, BF16)), q.dtype)


def flash_acc_truncated_13_bits(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """The accumulator of P @ V keeps 13 bits of mantissa, cut after each 8 keys; flash-attn#2250."""
    qf, kf, vf = load(q, k, v)
    mask = visible(q.shape[2], k.shape[2], causal)
    state = fresh(qf, vf)
    for a, b in tiles(k.shape[2], 8):
        m, den, acc = step(state, hide(scores(qf, rows(kf, a, b), scale), mask[:, a:b]), rows(vf, a, b), q.dtype)
        state = m, den, truncated(acc, 13)
    return store(*state, q.dtype)


def eager_store_truncates(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """out is cut to bfloat16 by its upper half in place of rounding; triton#11753, a cast."""
    require(q.dtype == BF16, "bfloat16 only")
    qf, kf, vf = load(q, k, v)
    s = hide(scores(qf, kf, scale), visible(q.shape[2], k.shape[2], causal))
    m, den, acc = softmax_pv(s, vf, q.dtype)
    return truncated(divide(acc, den), 7).astype(q.dtype), lse_of(m, den)


def exp2_polynomial_degree_two(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """exp2 of a fraction is a polynomial of degree 2, off by 0.2 percent; after flash-attn#2595."""
    qf, kf, vf = load(q, k, v)
    s = hide(scores(qf, kf, scale * LOG2E), visible(q.shape[2], k.shape[2], causal))
    m = s.max(-1)
    x = np.maximum(s - safe(m)[..., None], F32(-126))
    whole = np.floor(x)
    f = x - whole
    p = np.exp2(whole) * (F32(1.0024760) + f * (F32(0.6510468) + f * F32(0.3430011)))
    p = np.where(np.isneginf(s), F32(0), p)
    den = p.sum(-1)
    return divide(rounded(p, q.dtype) @ vf, den).astype(q.dtype), lse_of(m * F32(LN2), den)
