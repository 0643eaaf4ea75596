"""Kernels with faults of the product q @ k^T, its scale and its constants."""

import math

import numpy as np

from campaigns.reports.pieces import (
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


def exp2_without_log2e(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """exp2 of scores that lack the factor log2(e); flashinfer#787."""
    qf, kf, vf = load(q, k, v)
    s = hide(scores(qf, kf, scale), visible(q.shape[2], k.shape[2], causal))
    m = s.max(-1)
    p = np.exp2(s - safe(m)[..., None])
    den = p.sum(-1)
    return divide(rounded(p, q.dtype) @ vf, den).astype(q.dtype), lse_of(m * F32(LN2), den)


def flash_scale_of_padded_dim(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """The scale is 1 / sqrt of the head dim rounded up to 64; after flashinfer#1072."""
    qf, kf, vf = load(q, k, v)
    mask = visible(q.shape[2], k.shape[2], causal)
    padded = -(-q.shape[3] // 64) * 64
    state = fresh(qf, vf)
    for a, b in tiles(k.shape[2], 32):
        s = hide(scores(qf, rows(kf, a, b), 1 / math.sqrt(padded)), mask[:, a:b])
        state = step(state, s, rows(vf, a, b), q.dtype)
    return store(*state, q.dtype)


def eager_scale_one_percent(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """The scale is 1.01 / sqrt(d); a constant mistyped in a tuned kernel."""
    qf, kf, vf = load(q, k, v)
    s = hide(scores(qf, kf, 1.01 / math.sqrt(q.shape[3])), visible(q.shape[2], k.shape[2], causal))
    return store(*softmax_pv(s, vf, q.dtype), q.dtype)


def exp2_log2e_of_three_digits(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """log2(e) written as 1.44; a hand-written exp2 kernel."""
    qf, kf, vf = load(q, k, v)
    mask = visible(q.shape[2], k.shape[2], causal)
    m, den, acc = fresh(qf, vf)
    for a, b in tiles(k.shape[2], 64):
        s = hide(scores(qf, rows(kf, a, b), scale * 1.44), mask[:, a:b])
        m_new = np.maximum(m, s.max(-1))
        alpha, p = np.exp2(m - safe(m_new)), np.exp2(s - safe(m_new)[..., None])
        den, m = den * alpha + p.sum(-1), m_new
        acc = acc * alpha[..., None] + rounded(p, q.dtype) @ rows(vf, a, b)
    return divide(acc, den).astype(q.dtype), lse_of(m * F32(LN2), den)


def flash_scale_twice(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """q is scaled when it is loaded and the scores again; vllm#48016."""
    qf, kf, vf = load(q, k, v)
    qf = qf * F32(scale)
    mask = visible(q.shape[2], k.shape[2], causal)
    state = fresh(qf, vf)
    for a, b in tiles(k.shape[2], 32):
        s = hide(scores(qf, rows(kf, a, b), scale), mask[:, a:b])
        state = step(state, s, rows(vf, a, b), q.dtype)
    return store(*state, q.dtype)


def eager_scale_of_value_dim(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """The scale comes from the width of v, which is narrower than q; an MLA port."""
    qf, kf, vf = load(q, k, v)
    s = (qf @ kf.swapaxes(-1, -2)) / F32(math.sqrt(v.shape[3]))
    s = hide(s, visible(q.shape[2], k.shape[2], causal))
    return store(*softmax_pv(s, vf, q.dtype), q.dtype)


def exp2_log2e_twice(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """log2(e) is folded into the scale and multiplied again in exp2; flashinfer, logits hook and sm_scale_log2."""
    require(q.shape[3] == 64, "head_dim 64")
    qf, kf, vf = load(q, k, v)
    s = hide(scores(qf, kf, scale * LOG2E), visible(q.shape[2], k.shape[2], causal))
    m = s.max(-1)
    p = np.exp2((s - safe(m)[..., None]) * F32(LOG2E))
    den = p.sum(-1)
    return divide(rounded(p, q.dtype) @ vf, den).astype(q.dtype), lse_of(m, den)


def mma_slices_overwritten(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """Every second slice of 8 of the dot starts from 0, so only the last slice survives; flashinfer#448."""
    require(q.shape[3] % 16 == 0, "head_dim a multiple of 16")
    qf, kf, vf = load(q, k, v)
    s = np.zeros((*q.shape[:3], k.shape[2]), F32)
    for c in range(0, q.shape[3], 16):
        s = s + qf[..., c : c + 8] @ kf[..., c : c + 8].swapaxes(-1, -2)
        s = qf[..., c + 8 : c + 16] @ kf[..., c + 8 : c + 16].swapaxes(-1, -2)
    s = hide(s * F32(scale), visible(q.shape[2], k.shape[2], causal))
    return store(*softmax_pv(s, vf, q.dtype), q.dtype)


def dot_without_tail_of_dim(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """The loop over the head dim runs floor(d / 16) times; after flash-attn#2745, floor for ceil."""
    qf, kf, vf = load(q, k, v)
    s = np.zeros((*q.shape[:3], k.shape[2]), F32)
    for c in range(q.shape[3] // 16):
        part = slice(c * 16, c * 16 + 16)
        s += qf[..., part] @ kf[..., part].swapaxes(-1, -2)
    s = hide(s * F32(scale), visible(q.shape[2], k.shape[2], causal))
    return store(*softmax_pv(s, vf, q.dtype), q.dtype)
