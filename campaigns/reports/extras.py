"""Kernels with faults of sinks, ALiBi, softcap and of the lengths of the sequences of a batch."""

import numpy as np

from campaigns.reports.pieces import (
    F32,
    LN2,
    LOG2E,
    Array,
    Result,
    cdiv,
    divide,
    fresh,
    hide,
    load,
    log_or_neg_inf,
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


def distance(sq: int, sk: int) -> Array:
    """|i + sk - sq - j| in float32."""
    return np.abs(np.arange(sq)[:, None] + sk - sq - np.arange(sk)).astype(F32)


def sink_added_raw(q: Array, k: Array, v: Array, *, scale: float, causal: bool, sinks: Array) -> Result:
    """The sink is added to the sum as it is, without exp(sink - max); flash-attn e81c237e."""
    qf, kf, vf = load(q, k, v)
    s = hide(scores(qf, kf, scale), visible(q.shape[2], k.shape[2], causal))
    m, den, acc = softmax_pv(s, vf, q.dtype)
    den = den + sinks.astype(F32)[None, :, None]
    with np.errstate(invalid="ignore"):
        return (acc / den[..., None]).astype(q.dtype), m + np.log(den)


def sink_in_each_split(q: Array, k: Array, v: Array, *, scale: float, causal: bool, sinks: Array) -> Result:
    """Each split adds the sink to its partial sum; rocm-libraries#12229."""
    sk = k.shape[2]
    pm, pl, po = partials(q, k, v, scale, visible(q.shape[2], sk, causal), tiles(sk, 32))
    sink = sinks.astype(F32)[None, None, :, None]
    m = np.maximum(pm, sink)
    shrink = np.exp(pm - m)
    return store(*merge(m, pl * shrink + np.exp(sink - m), po * shrink[..., None]), q.dtype)


def sink_of_kv_head(q: Array, k: Array, v: Array, *, scale: float, causal: bool, sinks: Array) -> Result:
    """The sink is indexed by the K/V head, not by the query head; GQA path of a gpt-oss port."""
    require(q.shape[1] > k.shape[1], "GQA only")
    qf, kf, vf = load(q, k, v)
    s = hide(scores(qf, kf, scale), visible(q.shape[2], k.shape[2], causal))
    group = q.shape[1] // k.shape[1]
    sink = sinks.astype(F32)[np.arange(q.shape[1]) // group][None, :, None]
    m = np.maximum(s.max(-1), sink)
    p = np.exp(s - m[..., None])
    den = p.sum(-1) + np.exp(sink - m)
    return store(m, den, rounded(p, q.dtype) @ vf, q.dtype)


def exp2_sink_without_log2e(q: Array, k: Array, v: Array, *, scale: float, causal: bool, sinks: Array) -> Result:
    """Scores carry log2(e), the sink does not, in exp2; flash-attn's learnable sink, an exp2 port."""
    qf, kf, vf = load(q, k, v)
    s = hide(scores(qf, kf, scale * LOG2E), visible(q.shape[2], k.shape[2], causal))
    sink = sinks.astype(F32)[None, :, None]
    m = np.maximum(s.max(-1), sink)
    p = np.exp2(s - m[..., None])
    den = p.sum(-1) + np.exp2(sink - m)
    return divide(rounded(p, q.dtype) @ vf, den).astype(q.dtype), lse_of(m * F32(LN2), den)


def alibi_second_half_wrong(q: Array, k: Array, v: Array, *, scale: float, causal: bool, alibi_slopes: Array) -> Result:
    """Heads of the second half read the slopes of the first; llama.cpp#20031."""
    require(q.shape[1] % 2 == 0, "an even number of heads")
    qf, kf, vf = load(q, k, v)
    half = q.shape[1] // 2
    slope = alibi_slopes.astype(F32)[np.arange(q.shape[1]) % half][:, None, None]
    s = scores(qf, kf, scale) - slope * distance(q.shape[2], k.shape[2])
    return store(*softmax_pv(hide(s, visible(q.shape[2], k.shape[2], causal)), vf, q.dtype), q.dtype)


def alibi_slope_of_head_before(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, alibi_slopes: Array
) -> Result:
    """Slopes are recomputed as 2 ** (-8 h / heads), the exponent is off by one head; mlx#3071."""
    qf, kf, vf = load(q, k, v)
    heads = q.shape[1]
    slope = np.exp2(-8.0 * np.arange(heads) / heads).astype(F32)[:, None, None]
    s = scores(qf, kf, scale) - slope * distance(q.shape[2], k.shape[2])
    return store(*softmax_pv(hide(s, visible(q.shape[2], k.shape[2], causal)), vf, q.dtype), q.dtype)


def alibi_bias_twice(q: Array, k: Array, v: Array, *, scale: float, causal: bool, alibi_slopes: Array) -> Result:
    """The bias is added before and again after the mask; TransformerEngine#2300."""
    qf, kf, vf = load(q, k, v)
    bias = -alibi_slopes.astype(F32)[:, None, None] * distance(q.shape[2], k.shape[2])
    s = scores(qf, kf, scale) + bias
    s = hide(s, visible(q.shape[2], k.shape[2], causal)) + bias
    return store(*softmax_pv(s, vf, q.dtype), q.dtype)


def alibi_top_left(q: Array, k: Array, v: Array, *, scale: float, causal: bool, alibi_slopes: Array) -> Result:
    """The bias takes |i - j| without the shift of a longer K; flash-attn#436's kind, in ALiBi."""
    require(not causal, "full attention only")
    qf, kf, vf = load(q, k, v)
    apart = np.abs(np.arange(q.shape[2])[:, None] - np.arange(k.shape[2])).astype(F32)
    slope = alibi_slopes.astype(F32)[:, None, None]
    state = fresh(qf, vf)
    for a, b in tiles(k.shape[2], 32):
        s = scores(qf, rows(kf, a, b), scale) - slope * apart[:, a:b]
        state = step(state, s, rows(vf, a, b), q.dtype)
    return store(*state, q.dtype)


def softcap_inner_for_outer(q: Array, k: Array, v: Array, *, scale: float, causal: bool, softcap: float) -> Result:
    """(s / cap) * tanh(s / cap) for cap * tanh(s / cap); flash-attn#2402."""
    qf, kf, vf = load(q, k, v)
    s = scores(qf, kf, scale) / F32(softcap)
    s = hide(s * np.tanh(s), visible(q.shape[2], k.shape[2], causal))
    return store(*softmax_pv(s, vf, q.dtype), q.dtype)


def softcap_after_mask(q: Array, k: Array, v: Array, *, scale: float, causal: bool, softcap: float) -> Result:
    """Masked scores of -5e4 go through the cap and come out as -cap; flashinfer#350."""
    qf, kf, vf = load(q, k, v)
    s = np.where(visible(q.shape[2], k.shape[2], causal), scores(qf, kf, scale), F32(-5e4))
    s = F32(softcap) * np.tanh(s / F32(softcap))
    m = s.max(-1)
    p = np.exp(s - m[..., None])
    den = p.sum(-1)
    return store(m, den, rounded(p, q.dtype) @ vf, q.dtype)


def softcap_before_scale(q: Array, k: Array, v: Array, *, scale: float, causal: bool, softcap: float) -> Result:
    """The raw product is capped and scaled afterwards; a Gemma-2 port, vllm-metal#665's neighbour."""
    require(q.shape[3] in (32, 64), "head_dim 32 or 64")
    qf, kf, vf = load(q, k, v)
    s = F32(scale) * (F32(softcap) * np.tanh((qf @ kf.swapaxes(-1, -2)) / F32(softcap)))
    s = hide(s, visible(q.shape[2], k.shape[2], causal))
    return store(*softmax_pv(s, vf, q.dtype), q.dtype)


def lengths_of_first_sequence(q: Array, k: Array, v: Array, *, scale: float, causal: bool, seqlens_k: Array) -> Result:
    """All sequences are masked by the length of the first; llama.cpp#14505, a mask broadcast over the batch."""
    require(not causal, "full attention only")
    qf, kf, vf = load(q, k, v)
    mask = np.arange(k.shape[2]) < int(np.asarray(seqlens_k)[0])
    return store(*softmax_pv(hide(scores(qf, kf, scale), mask), np.where(mask[:, None], vf, F32(0)), q.dtype), q.dtype)


def lengths_by_page(q: Array, k: Array, v: Array, *, scale: float, causal: bool, seqlens_k: Array) -> Result:
    """The length is tested by whole pages of 16 tokens; flashinfer#942."""
    require(not causal, "full attention only")
    qf, kf, vf = load(q, k, v)
    pages = np.array([cdiv(int(n), 16) for n in np.asarray(seqlens_k)])
    mask = (np.arange(k.shape[2]) // 16 < pages[:, None])[:, None, None, :]
    vf = np.where(mask.swapaxes(-1, -2), vf, F32(0))
    state = fresh(qf, vf)
    for a, b in tiles(k.shape[2], 16):
        s = hide(scores(qf, rows(kf, a, b), scale), mask[..., a:b])
        state = step(state, s, rows(vf, a, b), q.dtype)
    return store(*state, q.dtype)


def decode_length_inclusive(q: Array, k: Array, v: Array, *, scale: float, causal: bool, seqlens_k: Array) -> Result:
    """The key at the length of the sequence is seen, <= for <; after vllm#641."""
    require(q.shape[2] <= 4 and not causal, "at most 4 queries, no mask")
    qf, kf, vf = load(q, k, v)
    mask = (np.arange(k.shape[2]) <= np.asarray(seqlens_k)[:, None])[:, None, None, :]
    vf = np.where(mask.swapaxes(-1, -2), vf, F32(0))
    return store(*softmax_pv(hide(scores(qf, kf, scale), mask), vf, q.dtype), q.dtype)


def sink_missing_in_lse(q: Array, k: Array, v: Array, *, scale: float, causal: bool, sinks: Array) -> Result:
    """out is normalised with the sink, lse is taken before it is added; flash-attn 2f78d484's neighbour."""
    qf, kf, vf = load(q, k, v)
    m, den, acc = softmax_pv(hide(scores(qf, kf, scale), visible(q.shape[2], k.shape[2], causal)), vf, q.dtype)
    lse = safe(m) + log_or_neg_inf(den)
    sink = np.exp(sinks.astype(F32)[None, :, None] - safe(m))
    return divide(acc, den + sink).astype(q.dtype), lse
