"""Split-K kernels with unnormalised partials, and faults of their split bounds, scratch and reduce."""

import numpy as np

from campaigns.reports.pieces import (
    F32,
    LN2,
    LOG2E,
    Array,
    Result,
    cdiv,
    divide,
    hide,
    junk,
    load,
    log_or_neg_inf,
    lse_of,
    merge,
    pad,
    partials,
    require,
    rounded,
    rows,
    safe,
    scores,
    softmax_pv,
    store,
    tiles,
    visible,
    weights,
)


def split_sum_of_last_only(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """The merged sum is assigned in the loop over splits, not added; flashinfer 6cbaf6e26."""
    sk = k.shape[2]
    pm, pl, po = partials(q, k, v, scale, visible(q.shape[2], sk, causal), tiles(sk, cdiv(sk, 4)))
    m, w = weights(pm)
    den, acc = np.zeros(m.shape, F32), np.zeros(po.shape[1:], F32)
    for t in range(len(pm)):
        den = w[t] * pl[t]
        acc += w[t][..., None] * po[t]
    return store(m, den, acc, q.dtype)


def split_no_final_division(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """The merged output is not divided by the merged sum; flashinfer 6cbaf6e26."""
    sk = k.shape[2]
    m, den, acc = merge(*partials(q, k, v, scale, visible(q.shape[2], sk, causal), tiles(sk, 32)))
    return acc.astype(q.dtype), lse_of(m, den)


def split_reduce_blocks_floor(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """The second pass visits floor(splits / 4) groups of 4 splits; mlx#3875."""
    sk = k.shape[2]
    require(q.shape[2] <= 4 and sk >= 64, "at most 4 queries, at least 64 keys")
    pm, pl, po = partials(q, k, v, scale, visible(q.shape[2], sk, causal), tiles(sk, 16))
    used = len(pm) // 4 * 4
    return store(*merge(pm[:used], pl[:used], po[:used]), q.dtype)


def split_chunk_end_unmasked(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """Chunks of 40 keys in tiles of 16: the last tile runs into the next chunk, masked by seqlen; flashinfer#1206."""
    qf, kf, vf = load(q, k, v)
    sk = k.shape[2]
    mask = visible(q.shape[2], sk, causal)
    parts = []
    for a, b in tiles(sk, 40):
        end = min(sk, a + cdiv(b - a, 16) * 16)
        parts.append(softmax_pv(hide(scores(qf, rows(kf, a, end), scale), mask[:, a:end]), rows(vf, a, end), q.dtype))
    pm, pl, po = (np.stack(x) for x in zip(*parts, strict=True))
    return store(*merge(pm, pl, po), q.dtype)


def split_scratch_batch_stride_zero(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """The scratch of partials has batch stride 0, so all sequences read one; flash-attn#2550."""
    sk = k.shape[2]
    pm, pl, po = partials(q, k, v, scale, visible(q.shape[2], sk, causal), tiles(sk, 48))
    last = q.shape[0] - 1
    pm, pl, po = (np.repeat(x[:, last:], q.shape[0], axis=1) for x in (pm, pl, po))
    return store(*merge(pm, pl, po), q.dtype)


def split_exp_of_log2_max(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """Partial maxima are in units of log2, the reduce weights them with exp; FlashDecoding, an exp2 port."""
    qf, kf, vf = load(q, k, v)
    sk = k.shape[2]
    mask = visible(q.shape[2], sk, causal)
    pm, pl, po = [], [], []
    for a, b in tiles(sk, 32):
        s = hide(scores(qf, rows(kf, a, b), scale * LOG2E), mask[:, a:b])
        top = s.max(-1)
        p = np.exp2(s - safe(top)[..., None])
        pm.append(top)
        pl.append(p.sum(-1))
        po.append(rounded(p, q.dtype) @ rows(vf, a, b))
    m, w = weights(np.stack(pm))
    den = (w * np.stack(pl)).sum(0)
    acc = (w[..., None] * np.stack(po)).sum(0)
    return divide(acc, den).astype(q.dtype), safe(m) * F32(LN2) + log_or_neg_inf(den)


def split_combine_row_pitch(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """The combine steps by head_dim per row of scratch, whose rows are padded to 32; FlagGems#5235."""
    sk, dv = k.shape[2], v.shape[3]
    pm, pl, po = partials(q, k, v, scale, visible(q.shape[2], sk, causal), tiles(sk, 64))
    scratch = junk((*po.shape[:-1], cdiv(dv, 32) * 32))
    scratch[..., :dv] = po
    flat = scratch.reshape(*po.shape[:3], -1)
    po = flat[..., np.arange(q.shape[2])[:, None] * dv + np.arange(dv)]
    return store(*merge(pm, pl, po), q.dtype)


def decode_request_offset_missing(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """The first query of a sequence is at index batch for batch * seqlen_q; flashinfer#4382."""
    require(2 <= q.shape[2] <= 8, "2 to 8 queries")
    batch, heads, sq, d = q.shape
    packed = q.swapaxes(1, 2).reshape(batch * sq, heads, d)
    at = np.arange(batch)[:, None] + np.arange(sq)
    q = np.ascontiguousarray(packed[at].swapaxes(1, 2))
    sk = k.shape[2]
    return store(*merge(*partials(q, k, v, scale, visible(sq, sk, causal), tiles(sk, 64))), q.dtype)


def split_scratch_axes_swapped(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """Partial maxima are written [split, head], read [head, split]; flash-attn#2388, strides of lse_accum."""
    sk = k.shape[2]
    pm, pl, po = partials(q, k, v, scale, visible(q.shape[2], sk, causal), tiles(sk, 32))
    n, batch, heads, sq = pm.shape
    flat = np.ascontiguousarray(pm.transpose(1, 0, 2, 3)).reshape(batch, heads, n, sq)
    return store(*merge(np.ascontiguousarray(flat.transpose(2, 0, 1, 3)), pl, po), q.dtype)


def split_last_without_bound(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """The last split has no bound check and reads zeros behind the end as keys; xformers 3e4a1b4b."""
    require(not causal, "no mask")
    qf, kf, vf = load(q, k, v)
    sk = k.shape[2]
    size = cdiv(cdiv(sk, 3), 16) * 16
    kf, vf = pad(kf, 3 * size), pad(vf, 3 * size)
    parts = [softmax_pv(scores(qf, rows(kf, a, b), scale), rows(vf, a, b), q.dtype) for a, b in tiles(3 * size, size)]
    pm, pl, po = (np.stack(x) for x in zip(*parts, strict=True))
    return store(*merge(pm, pl, po), q.dtype)


def split_workspace_too_small(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """The workspace holds 3 splits of 4, the last lands on the first; TRT-LLM#18755."""
    sk = k.shape[2]
    require(sk >= 16, "at least 16 keys")
    pm, pl, po = partials(q, k, v, scale, visible(q.shape[2], sk, causal), tiles(sk, cdiv(sk, 4)))
    slot = np.arange(4) % 3
    for x in (pm, pl, po):
        x[slot] = x.copy()
    return store(*merge(pm[slot], pl[slot], po[slot]), q.dtype)
