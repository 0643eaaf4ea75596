"""Kernels with faults of head mapping, offsets, strides and the layout of what is stored."""

import numpy as np

from campaigns.reports.pieces import (
    F32,
    Array,
    Result,
    divide,
    fresh,
    hide,
    junk,
    load,
    lse_of,
    outputs,
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


def gqa_heads_modulo(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """Query head h reads K/V head h % kv_heads; a repeat where repeat_interleave is meant, xformers users' port."""
    batch, heads, sq, _ = q.shape
    out, lse = outputs(q, v)
    mask = visible(sq, k.shape[2], causal)
    for b in range(batch):
        for h in range(heads):
            kv = h % k.shape[1]
            s = hide(scores(q[b, h].astype(F32), k[b, kv].astype(F32), scale), mask)
            out[b, h], lse[b, h] = store(*softmax_pv(s, v[b, kv].astype(F32), q.dtype), q.dtype)
    return out, lse


def gqa_remap_heads_minus_one(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """The group size comes from heads - 1; aiter#612."""
    heads, kv_heads = q.shape[1], k.shape[1]
    require(heads > kv_heads, "GQA only")
    group = max(1, (heads - 1) // kv_heads)
    kv = np.minimum(np.arange(heads) // group, kv_heads - 1)
    qf, kf, vf = q.astype(F32), k.astype(F32)[:, kv], v.astype(F32)[:, kv]
    mask = visible(q.shape[2], k.shape[2], causal)
    state = fresh(qf, vf)
    for a, b in tiles(k.shape[2], 64):
        state = step(state, hide(scores(qf, rows(kf, a, b), scale), mask[:, a:b]), rows(vf, a, b), q.dtype)
    return store(*state, q.dtype)


def all_heads_read_head_zero(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """The head's offset into K and V is an integer division that gives 0; attorch#14."""
    require(q.shape[1] == k.shape[1], "no GQA")
    heads = q.shape[1]
    out, lse = outputs(q, v)
    mask = visible(q.shape[2], k.shape[2], causal)
    for b, h in np.ndindex(*q.shape[:2]):
        at = h // heads
        s = hide(scores(q[b, h].astype(F32), k[b, at].astype(F32), scale), mask)
        out[b, h], lse[b, h] = store(*softmax_pv(s, v[b, at].astype(F32), q.dtype), q.dtype)
    return out, lse


def gqa_batch_term_missing(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """The offset of K and V has no batch term; mlx#4431."""
    qf, kf, vf = load(q, k, v)
    kf, vf = kf[:1], vf[:1]
    s = hide(scores(qf, kf, scale), visible(q.shape[2], k.shape[2], causal))
    m, den, acc = softmax_pv(s, vf, q.dtype)
    return store(m, den, acc, q.dtype)


def grid_batch_and_head_swapped(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """Blocks are decoded with the batch as divisor for loads, with the heads for stores; cutlass#2291."""
    batch, heads = q.shape[:2]
    require(heads == k.shape[1], "no GQA")
    out, lse = outputs(q, v)
    mask = visible(q.shape[2], k.shape[2], causal)
    for z in range(batch * heads):
        h, b = divmod(z, batch)
        s = hide(scores(q[b, h].astype(F32), k[b, h].astype(F32), scale), mask)
        tile, tile_lse = store(*softmax_pv(s, v[b, h].astype(F32), q.dtype), q.dtype)
        out[z // heads, z % heads], lse[z // heads, z % heads] = tile, tile_lse
    return out, lse


def v_addressed_with_k_pitch(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """Rows of V are addressed with the row pitch of K, which is wider; mlx#1558."""
    require(v.shape[3] < k.shape[3], "head_dim_v < head_dim")
    qf, kf, vf = load(q, k, v)
    n, d, dv = k.shape[2], k.shape[3], v.shape[3]
    at = (np.arange(n)[:, None] * d + np.arange(dv)) % (n * dv)
    vf = vf.reshape(*vf.shape[:2], -1)[..., at]
    s = hide(scores(qf, kf, scale), visible(q.shape[2], n, causal))
    return store(*softmax_pv(s, vf, q.dtype), q.dtype)


def out_stored_query_major(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """out is stored at query * heads + head in a buffer read as head-major; mlx#2152."""
    qf, kf, vf = load(q, k, v)
    s = hide(scores(qf, kf, scale), visible(q.shape[2], k.shape[2], causal))
    out, lse = store(*softmax_pv(s, vf, q.dtype), q.dtype)
    return np.ascontiguousarray(out.swapaxes(1, 2)).reshape(out.shape), lse


def out_batch_stride_of_v(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """out is stored with the batch stride of V, which is shorter; aiter#970."""
    require(k.shape[2] < q.shape[2] and not causal, "full attention over fewer keys than queries")
    require(q.shape[1] == k.shape[1], "no GQA")
    qf, kf, vf = load(q, k, v)
    out, lse = store(*softmax_pv(scores(qf, kf, scale), vf, q.dtype), q.dtype)
    stored = np.zeros(out.size, out.dtype)
    stride = v[0].size
    for b in range(q.shape[0]):
        stored[b * stride : b * stride + out[b].size] = out[b].reshape(-1)
    return stored.reshape(out.shape), lse


def out_dim_tile_offset_dropped(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """All tiles of 16 columns of out are stored to the first one; fla#1028."""
    qf, kf, vf = load(q, k, v)
    mask = visible(q.shape[2], k.shape[2], causal)
    s = hide(scores(qf, kf, scale), mask)
    m = s.max(-1)
    p = np.exp(s - safe(m)[..., None])
    den = p.sum(-1)
    out, lse = outputs(q, v)
    for c in range(0, v.shape[3], 16):
        part = divide(rounded(p, q.dtype) @ vf[..., c : c + 16], den)
        out[..., : part.shape[-1]] = part.astype(q.dtype)
    lse[...] = lse_of(m, den)
    return out, lse


def launch_k_for_q(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """The launch passes K as Q on a path; llama.cpp#9374."""
    require(q.shape == k.shape, "self-attention without GQA")
    qf, kf, vf = load(k, k, v)
    mask = visible(q.shape[2], k.shape[2], causal)
    state = fresh(qf, vf)
    for a, b in tiles(k.shape[2], 64):
        state = step(state, hide(scores(qf, rows(kf, a, b), scale), mask[:, a:b]), rows(vf, a, b), q.dtype)
    return store(*state, q.dtype)


def scores_row_column_swapped(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """The fragment of S is read with rows and columns swapped; an MMA layout of another kind."""
    require(q.shape[2] == k.shape[2], "seqlen_q == seqlen_k")
    qf, kf, vf = load(q, k, v)
    s = hide(scores(qf, kf, scale).swapaxes(-1, -2), visible(q.shape[2], k.shape[2], causal))
    return store(*softmax_pv(s, vf, q.dtype), q.dtype)


def out_swizzle_differs(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """out is staged with a swizzle that its reader does not undo on odd rows; flash-attn eeca63a7, head dim 16."""
    require(v.shape[3] == 16, "head_dim_v 16")
    qf, kf, vf = load(q, k, v)
    s = hide(scores(qf, kf, scale), visible(q.shape[2], k.shape[2], causal))
    out, lse = store(*softmax_pv(s, vf, q.dtype), q.dtype)
    column = np.arange(16)[None, :] ^ (8 * (np.arange(q.shape[2])[:, None] & 1))
    return np.take_along_axis(out, np.broadcast_to(column, out.shape), axis=-1), lse


def v_blocks_transposed(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """Each 8 x 8 block of V comes transposed out of the matrix load; flashinfer#2689."""
    require(k.shape[2] % 8 == 0 and v.shape[3] % 8 == 0, "seqlen_k and head_dim_v multiples of 8")
    qf, kf, vf = load(q, k, v)
    b, h, n, dv = vf.shape
    vf = vf.reshape(b, h, n // 8, 8, dv // 8, 8).swapaxes(3, 5).reshape(b, h, n, dv)
    mask = visible(q.shape[2], n, causal)
    state = fresh(qf, vf)
    for lo, hi in tiles(n, 32):
        s = hide(scores(qf, rows(kf, lo, hi), scale), mask[:, lo:hi])
        state = step(state, s, rows(vf, lo, hi), q.dtype)
    return store(*state, q.dtype)


def q_memory_assumed_contiguous(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """q lies as [batch, seqlen, heads, dim] in memory and is read as [batch, heads, seqlen, dim]; pytorch#181151."""
    qf, kf, vf = load(q, k, v)
    qf = np.ascontiguousarray(qf.swapaxes(1, 2)).reshape(qf.shape)
    mask = visible(q.shape[2], k.shape[2], causal)
    state = fresh(qf, vf)
    for a, b in tiles(k.shape[2], 32):
        state = step(state, hide(scores(qf, rows(kf, a, b), scale), mask[:, a:b]), rows(vf, a, b), q.dtype)
    return store(*state, q.dtype)


def gqa_group_padded_in_reader(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """Partials lie at groups padded to a power of two, the fix-up reads them unpadded; llama.cpp#19115."""
    heads, kv_heads = q.shape[1], k.shape[1]
    group = heads // kv_heads
    padded = 1 << (group - 1).bit_length()
    qf, kf, vf = load(q, k, v)
    s = hide(scores(qf, kf, scale), visible(q.shape[2], k.shape[2], causal))
    m, den, acc = softmax_pv(s, vf, q.dtype)
    scratch = junk((q.shape[0], kv_heads * padded, *acc.shape[2:]))
    scratch[:, (np.arange(heads) // group) * padded + np.arange(heads) % group] = divide(acc, den)
    return scratch[:, :heads].astype(q.dtype), lse_of(m, den)
