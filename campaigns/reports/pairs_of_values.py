"""Kernels with two faults in the values: products, softmax, sinks, layout, merges."""

import numpy as np

from campaigns.reports.pieces import (
    E4M3,
    F32,
    LN2,
    Array,
    Result,
    cdiv,
    divide,
    fresh,
    hide,
    junk,
    load,
    lse_of,
    partials,
    partials_lse,
    repeat_kv,
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
    weights,
)


def gqa_modulo_and_sum_misses_last(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """Heads are mapped by modulo, and the row sum stops a key early; a repeat port, a CUDA softmax."""
    kv = np.arange(q.shape[1]) % k.shape[1]
    qf, kf, vf = q.astype(F32), k.astype(F32)[:, kv], v.astype(F32)[:, kv]
    s = hide(scores(qf, kf, scale), visible(q.shape[2], k.shape[2], causal))
    m = s.max(-1)
    p = np.exp(s - safe(m)[..., None])
    return store(m, p[..., :-1].sum(-1), rounded(p, q.dtype) @ vf, q.dtype)


def ln2_for_log2e_and_old_v_tile(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """ln(2) stands for log2(e), and V is a tile late; llama.cpp#17746, Fuser#2000."""
    require(k.shape[2] % 32 == 0, "seqlen_k a multiple of 32")
    qf, kf, vf = load(q, k, v)
    mask = visible(q.shape[2], k.shape[2], causal)
    m, den, acc = fresh(qf, vf)
    stage = rows(vf, 0, 32)
    for a, b in tiles(k.shape[2], 32):
        s = hide(scores(qf, rows(kf, a, b), scale * LN2), mask[:, a:b])
        m_new = np.maximum(m, s.max(-1))
        alpha, p = np.exp2(m - safe(m_new)), np.exp2(s - safe(m_new)[..., None])
        den, m = den * alpha + p.sum(-1), m_new
        acc = acc * alpha[..., None] + rounded(p, q.dtype) @ stage
        stage = rows(vf, a, b)
    return divide(acc, den).astype(q.dtype), lse_of(m * F32(LN2), den)


def gqa_v_modulo_and_sink_raw(q: Array, k: Array, v: Array, *, scale: float, causal: bool, sinks: Array) -> Result:
    """Only V's heads are mapped by modulo, and the sink is added without exp; flash-attn e81c237e."""
    heads = q.shape[1]
    qf, kf = q.astype(F32), repeat_kv(k.astype(F32), heads)
    vf = np.tile(v.astype(F32), (1, heads // v.shape[1], 1, 1))
    s = hide(np.einsum("bhid,bhjd->bhij", qf, kf) * F32(scale), visible(q.shape[2], k.shape[2], causal))
    m, den, acc = softmax_pv(s, vf, q.dtype)
    den = den + sinks.astype(F32)[None, :, None]
    with np.errstate(invalid="ignore"):
        return (acc / den[..., None]).astype(q.dtype), m + np.log(den)


def kv_offset_and_lse_is_max(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """K/V offsets count query heads, and lse is the row max; jax be78ee0f15, flashinfer 5dadb243c."""
    (batch, heads, sq, _), (_, kv_heads, sk, _) = q.shape, k.shape
    require(heads > kv_heads, "GQA only")
    first = (np.arange(batch) * heads) % (batch * kv_heads)
    at = (first[:, None] + np.arange(kv_heads)) % (batch * kv_heads)
    kf, vf = (x.reshape(batch * kv_heads, sk, -1)[at] for x in (k.astype(F32), v.astype(F32)))
    s = hide(scores(q.astype(F32), repeat_kv(kf, heads), scale), visible(sq, sk, causal))
    m, den, acc = softmax_pv(s, repeat_kv(vf, heads), q.dtype)
    return store(m, den, acc, q.dtype)[0], m


def scale_twice_and_no_weights(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """The scale is applied twice, and partials are added without weights; vllm#48016, a fix-up kernel."""
    sk = k.shape[2]
    scaled = (q.astype(F32) * F32(scale)).astype(F32)
    pm, pl, po = partials(scaled, k, v, scale, visible(q.shape[2], sk, causal), tiles(sk, cdiv(sk, 3)))
    return store(pm.max(0), pl.sum(0), po.sum(0), q.dtype)


def v_batch_and_sum_unweighted(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """V has no batch term, and partial sums merge without weights; mlx#4431, a stream-k fix-up."""
    sk = k.shape[2]
    v = np.broadcast_to(v[:1], v.shape)
    pm, pl, po = partials(q, k, v, scale, visible(q.shape[2], sk, causal), tiles(sk, 32))
    m, w = weights(pm)
    return store(m, pl.sum(0), (w[..., None] * po).sum(0), q.dtype)


def alpha_inverted_and_dim_tile(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """The accumulator is divided by the correction, and columns land on the first tile; fla#1028."""
    require(k.shape[2] % 32 == 0 and v.shape[3] % 16 == 0 and not causal, "no mask, multiples of the tiles")
    qf, kf, vf = load(q, k, v)
    m, den, acc = fresh(qf, vf)
    for a, b in tiles(k.shape[2], 32):
        s = scores(qf, rows(kf, a, b), scale)
        m_new = np.maximum(m, s.max(-1))
        alpha = np.exp(m - m_new) if a else np.ones_like(m)
        p = np.exp(s - m_new[..., None])
        den, m = den * alpha + p.sum(-1), m_new
        acc = acc / alpha[..., None] + rounded(p, q.dtype) @ rows(vf, a, b)
    tile, lse = store(m, den, acc, q.dtype)
    out = np.zeros_like(tile)
    out[..., :16] = tile[..., -16:]
    return out, lse


def folded_rows_and_scale_of_padded_dim(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """Folded MQA rows unfold query-major, and the scale is that of a dim of 64; flashinfer#1072, the ngroups swap."""
    require(q.shape[2] <= 8 and k.shape[1] == 1 and not causal, "MQA, at most 8 queries, no mask")
    batch, heads, sq, d = q.shape
    folded = q.astype(F32).reshape(batch, 1, heads * sq, d)
    s = scores(folded, k.astype(F32), 1 / np.sqrt(cdiv(d, 64) * 64))
    m, den, acc = softmax_pv(s, v.astype(F32), q.dtype)
    out = (acc / den[..., None]).astype(q.dtype).reshape(batch, sq, heads, -1).swapaxes(1, 2)
    return out, (m + np.log(den)).reshape(batch, sq, heads).swapaxes(1, 2)


def k_pitch_and_p_fp8(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """Rows of K are addressed at a pitch rounded up to 32, and P is cast to e4m3; flash-attn#2896, flash-attn#2717."""
    qf, kf, vf = load(q, k, v)
    n, d = k.shape[2:]
    at = (np.arange(n)[:, None] * cdiv(d, 32) * 32 + np.arange(d)) % (n * d)
    kf = kf.reshape(*kf.shape[:2], -1)[..., at]
    mask = visible(q.shape[2], n, causal)
    state = fresh(qf, vf)
    for a, b in tiles(n, 64):
        state = step(state, hide(scores(qf, rows(kf, a, b), scale), mask[:, a:b]), rows(vf, a, b), E4M3)
    return store(*state, q.dtype)


def sink_not_shifted_and_columns_lost(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, sinks: Array
) -> Result:
    """exp(sink) without the max, and columns of out behind 32 unwritten; a gpt-oss port, flash-attn#2552."""
    qf, kf, vf = load(q, k, v)
    s = hide(scores(qf, kf, scale), visible(q.shape[2], k.shape[2], causal))
    m, den, acc = softmax_pv(s, vf, q.dtype)
    full, lse = store(m, den + np.exp(sinks.astype(F32))[None, :, None], acc, q.dtype)
    out = junk(full.shape, q.dtype)
    width = v.shape[3] // 32 * 32
    out[..., :width] = full[..., :width]
    return out, lse


def sink_per_split_and_last_lse(q: Array, k: Array, v: Array, *, scale: float, causal: bool, sinks: Array) -> Result:
    """The sink is in each split, and lse is that of the last split; rocm-libraries#12229, flashinfer#58."""
    sk = k.shape[2]
    po, plse = partials_lse(q, k, v, scale, visible(q.shape[2], sk, causal), tiles(sk, 32))
    with_sink = np.logaddexp(plse, sinks.astype(F32)[None, None, :, None]).astype(F32)
    po = po * np.exp(plse - with_sink)[..., None]
    m, w = weights(with_sink)
    out = (w[..., None] * po).sum(0) / w.sum(0)[..., None]
    return out.astype(q.dtype), with_sink[-1]


def scale_one_percent_and_softcap_lost(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, softcap: float
) -> Result:
    """The scale is 1.05 / sqrt(d), and the softcap is not applied; vllm-metal#665 and a constant."""
    del softcap
    require(q.shape[2] == k.shape[2], "self-attention only")
    qf, kf, vf = load(q, k, v)
    mask = visible(q.shape[2], k.shape[2], causal)
    state = fresh(qf, vf)
    for a, b in tiles(k.shape[2], 48):
        s = hide(scores(qf, rows(kf, a, b), 1.05 / np.sqrt(q.shape[3])), mask[:, a:b])
        state = step(state, s, rows(vf, a, b), q.dtype)
    return store(*state, q.dtype)
