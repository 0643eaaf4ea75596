"""Kernels that make NaN, or return memory that nobody wrote."""

import numpy as np

from campaigns.reports.pieces import (
    F32,
    NO_WINDOW,
    Array,
    Result,
    cdiv,
    divide,
    fresh,
    hide,
    junk,
    load,
    lse_of,
    outputs,
    pad,
    partials,
    partials_lse,
    require,
    rounded,
    rows,
    scores,
    softmax_pv,
    step,
    store,
    tiles,
    visible,
)

silent = np.errstate(all="ignore")


@silent
def flash_first_tile_masked_nan(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, window_size: tuple[int, int] = NO_WINDOW
) -> Result:
    """A first tile without a visible key gives -inf - -inf; xformers 540fcbfd (#722)."""
    qf, kf, vf = load(q, k, v)
    mask = visible(q.shape[2], k.shape[2], causal, window_size)
    m, den, acc = fresh(qf, vf)
    for a, b in tiles(k.shape[2], 16):
        s = hide(scores(qf, rows(kf, a, b), scale), mask[:, a:b])
        m_new = np.maximum(m, s.max(-1))
        alpha, p = np.exp(m - m_new), np.exp(s - m_new[..., None])
        den, m = den * alpha + p.sum(-1), m_new
        acc = acc * alpha[..., None] + rounded(p, q.dtype) @ rows(vf, a, b)
    return (acc / den[..., None]).astype(q.dtype), m + np.log(den)


@silent
def flash_empty_row_divides_by_zero(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """The epilogue divides by a sum of 0; mlx#2608."""
    qf, kf, vf = load(q, k, v)
    s = hide(scores(qf, kf, scale), visible(q.shape[2], k.shape[2], causal))
    m, den, acc = softmax_pv(s, vf, q.dtype)
    return (acc / den[..., None]).astype(q.dtype), lse_of(m, den)


@silent
def flash_v_tail_unfilled(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """Rows of V behind the end hold NaN and meet P = 0; flashinfer#1029."""
    qf, kf, vf = load(q, k, v)
    sk = k.shape[2]
    end = cdiv(sk, 64) * 64
    kf, vf = pad(kf, end), pad(vf, end, np.nan)
    mask = np.pad(visible(q.shape[2], sk, causal), ((0, 0), (0, end - sk)))
    state = fresh(qf, vf)
    for a, b in tiles(end, 64):
        state = step(state, hide(scores(qf, rows(kf, a, b), scale), mask[:, a:b]), rows(vf, a, b), q.dtype)
    return store(*state, q.dtype)


@silent
def split_masked_partial_nan(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """A split without a visible key leaves 0 / 0, which a weight of 0 does not remove; aiter#4711."""
    sk = k.shape[2]
    pm, pl, po = partials(q, k, v, scale, visible(q.shape[2], sk, causal), tiles(sk, 32))
    plse = lse_of(pm, pl)
    po = po / pl[..., None]
    m = plse.max(0)
    w = np.exp(plse - m)
    den = w.sum(0)
    return divide((w[..., None] * po).sum(0), den).astype(q.dtype), lse_of(m, den)


@silent
def merge_two_empty_states(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """Two states of lse -inf merge to NaN; vllm#28181."""
    sk = k.shape[2]
    require(sk >= 2, "at least 2 keys")
    (oa, ob), (la, lb) = partials_lse(q, k, v, scale, visible(q.shape[2], sk, causal), tiles(sk, cdiv(sk, 2)))
    m = np.maximum(la, lb)
    wa, wb = np.exp(la - m), np.exp(lb - m)
    out = (oa * wa[..., None] + ob * wb[..., None]) / (wa + wb)[..., None]
    return out.astype(q.dtype), m + np.log(wa + wb)


@silent
def ring_empty_lse_plus_inf(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """A chunk without a visible key has lse +inf, which takes all the weight; flash-attn#978."""
    sk = k.shape[2]
    po, plse = partials_lse(q, k, v, scale, visible(q.shape[2], sk, causal), tiles(sk, 32))
    plse = np.where(np.isneginf(plse), F32(np.inf), plse)
    w = 1 / np.exp(plse[None] - plse[:, None]).sum(1)
    lse = np.logaddexp.reduce(plse, axis=0)
    return (w[..., None] * po).sum(0).astype(q.dtype), lse.astype(F32)


def flash_empty_rows_unwritten(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """Query tiles that see no key leave before the store, out is torch.empty; flashinfer#1533."""
    qf, kf, vf = load(q, k, v)
    mask = visible(q.shape[2], k.shape[2], causal)
    out, lse = outputs(q, v)
    out[...], lse[...] = junk(out.shape, out.dtype), -np.inf
    for lo, hi in tiles(q.shape[2], 16):
        if not mask[lo:hi].any():
            continue
        s = hide(scores(rows(qf, lo, hi), kf, scale), mask[lo:hi])
        out[:, :, lo:hi], lse[:, :, lo:hi] = store(*softmax_pv(s, vf, q.dtype), q.dtype)
    return out, lse


def q_prefetch_never_taken(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """The upper half of the head dim of q is never loaded into registers; flashinfer#2689."""
    require(q.shape[3] == 64, "head_dim 64")
    qf, kf, vf = load(q, k, v)
    half = q.shape[3] // 2
    registers = junk(qf.shape)
    registers[..., :half] = qf[..., :half]
    s = hide(scores(registers, kf, scale), visible(q.shape[2], k.shape[2], causal))
    return store(*softmax_pv(s, vf, q.dtype), q.dtype)
