"""Kernels with faults of the mask: alignment, edges of windows, tails, bounds of tile loops."""

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
    load,
    lse_of,
    outputs,
    pad,
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


def eager_causal_top_left(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """Causal mask aligned top-left although the lengths differ; flash-attn#436, pytorch#110144."""
    qf, kf, vf = load(q, k, v)
    s = scores(qf, kf, scale)
    if causal:
        s = hide(s, np.tri(*s.shape[-2:], dtype=bool))
    return store(*softmax_pv(s, vf, q.dtype), q.dtype)


def flash_diagonal_lost(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """A query does not see the key of its own position, < for <=; zml#763."""
    qf, kf, vf = load(q, k, v)
    sq, sk = q.shape[2], k.shape[2]
    out, lse = outputs(q, v)
    for lo, hi in tiles(sq, 32):
        state = fresh(rows(qf, lo, hi), vf)
        for a, b in tiles(sk, 16):
            s = scores(rows(qf, lo, hi), rows(kf, a, b), scale)
            if causal:
                s = hide(s, np.arange(a, b) < np.arange(lo, hi)[:, None] + sk - sq)
            state = step(state, s, rows(vf, a, b), q.dtype)
        out[:, :, lo:hi], lse[:, :, lo:hi] = store(*state, q.dtype)
    return out, lse


def eager_window_left_exclusive(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, window_size: tuple[int, int] = NO_WINDOW
) -> Result:
    """The key at distance `left` is hidden, > for >=; transformers#39408."""
    qf, kf, vf = load(q, k, v)
    sq, sk = q.shape[2], k.shape[2]
    mask = visible(sq, sk, causal, (-1, window_size[1]))
    if window_size[0] >= 0:
        mask &= np.arange(sk) > np.arange(sq)[:, None] + sk - sq - window_size[0]
    return store(*softmax_pv(hide(scores(qf, kf, scale), mask), vf, q.dtype), q.dtype)


def flash_window_one_more(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, window_size: tuple[int, int] = NO_WINDOW
) -> Result:
    """The window to the left holds one key more than it should; zml#763."""
    qf, kf, vf = load(q, k, v)
    left = window_size[0] + 1 if window_size[0] >= 0 else -1
    mask = visible(q.shape[2], k.shape[2], causal, (left, window_size[1]))
    state = fresh(qf, vf)
    for a, b in tiles(k.shape[2], 32):
        state = step(state, hide(scores(qf, rows(kf, a, b), scale), mask[:, a:b]), rows(vf, a, b), q.dtype)
    return store(*state, q.dtype)


def eager_window_needs_causal(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, window_size: tuple[int, int] = NO_WINDOW
) -> Result:
    """An early return without causal forgets the window; jax 099f0a1708."""
    qf, kf, vf = load(q, k, v)
    s = scores(qf, kf, scale)
    if causal:
        s = hide(s, visible(*s.shape[-2:], causal, window_size))
    m = s.max(-1)
    p = np.exp(s - safe(m)[..., None])
    den = p.sum(-1)
    return (rounded(divide(p, den), q.dtype) @ vf).astype(q.dtype), lse_of(m, den)


def flash_window_first_tile_ceil(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, window_size: tuple[int, int] = NO_WINDOW
) -> Result:
    """The first key tile of a window is rounded up, so a partly visible tile is skipped; after flashinfer#563."""
    qf, kf, vf = load(q, k, v)
    sq, sk = q.shape[2], k.shape[2]
    mask = visible(sq, sk, causal, window_size)
    out, lse = outputs(q, v)
    for lo, hi in tiles(sq, 16):
        first = max(0, cdiv(lo + sk - sq - window_size[0], 16) * 16) if window_size[0] >= 0 else 0
        state = fresh(rows(qf, lo, hi), vf)
        for a, b in tiles(sk, 16, first):
            s = hide(scores(rows(qf, lo, hi), rows(kf, a, b), scale), mask[lo:hi, a:b])
            state = step(state, s, rows(vf, a, b), q.dtype)
        out[:, :, lo:hi], lse[:, :, lo:hi] = store(*state, q.dtype)
    return out, lse


def flash_tail_seen_when_full(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """Without causal the zero-filled keys behind the end are not masked; SageAttention 3917283."""
    qf, kf, vf = load(q, k, v)
    sq, sk = q.shape[2], k.shape[2]
    end = cdiv(sk, 64) * 64
    kf, vf = pad(kf, end), pad(vf, end)
    i, state = np.arange(sq)[:, None] + sk - sq, fresh(qf, vf)
    for a, b in tiles(end, 64):
        s = scores(qf, rows(kf, a, b), scale)
        if causal:
            j = np.arange(a, b)
            s = hide(s, (j <= i) & (j < sk))
        state = step(state, s, rows(vf, a, b), q.dtype)
    return store(*state, q.dtype)


def flash_tail_by_64(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """The tail is masked at a granularity of 64 keys though tiles have 128; pytorch#196678."""
    require(not causal, "full attention only")
    qf, kf, vf = load(q, k, v)
    sk = k.shape[2]
    end = cdiv(sk, 128) * 128
    kf, vf = pad(kf, end), pad(vf, end)
    state = fresh(qf, vf)
    for a, b in tiles(end, 128):
        s = hide(scores(qf, rows(kf, a, b), scale), np.arange(a, b) // 64 * 64 < sk)
        state = step(state, s, rows(vf, a, b), q.dtype)
    return store(*state, q.dtype)


def packed_rows_bound_floor(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """Last visible key of a tile of packed q * group rows by floor division; flashinfer#1148, group 7."""
    (batch, heads, sq, d), kv_heads, sk = q.shape, k.shape[1], k.shape[2]
    group, dv = heads // kv_heads, v.shape[3]
    packed = q.astype(F32).reshape(batch, kv_heads, group, sq, d).swapaxes(2, 3).reshape(batch, kv_heads, -1, d)
    kf, vf = k.astype(F32), v.astype(F32)
    out, lse = outputs(packed.astype(q.dtype), v)
    for lo, hi in tiles(sq * group, 16):
        end = min(sk, max(0, hi // group + sk - sq)) if causal else sk
        state = fresh(rows(packed, lo, hi), vf)
        for a, b in tiles(end, 4):
            mask = visible(sq, sk, causal)[np.arange(lo, hi) // group, a:b]
            s = hide(scores(rows(packed, lo, hi), rows(kf, a, b), scale), mask)
            state = step(state, s, rows(vf, a, b), q.dtype)
        out[:, :, lo:hi], lse[:, :, lo:hi] = store(*state, q.dtype)
    out = out.reshape(batch, kv_heads, sq, group, dv).swapaxes(2, 3).reshape(batch, heads, sq, dv)
    return out, lse.reshape(batch, kv_heads, sq, group).swapaxes(2, 3).reshape(batch, heads, sq)


def flash_bound_of_equal_blocks(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """Causal bound of the key loop right for equal blocks only, here 64 and 16; jax 7d27c319b2."""
    require(q.shape[2] == k.shape[2], "self-attention only")
    qf, kf, vf = load(q, k, v)
    n = q.shape[2]
    out, lse = outputs(q, v)
    for t, (lo, hi) in enumerate(tiles(n, 64)):
        end = min(n, (t * 64 // 16 + 1) * 16) if causal else n
        state = fresh(rows(qf, lo, hi), vf)
        for a, b in tiles(end, 16):
            s = hide(scores(rows(qf, lo, hi), rows(kf, a, b), scale), visible(n, n, causal)[lo:hi, a:b])
            state = step(state, s, rows(vf, a, b), q.dtype)
        out[:, :, lo:hi], lse[:, :, lo:hi] = store(*state, q.dtype)
    return out, lse


def flash_one_masking_step(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """Only the last key tile of a query tile is masked though its diagonal crosses two; FlashAttention-2 port."""
    require(q.shape[2] == k.shape[2] and q.shape[2] % 32 == 0, "seqlen_q == seqlen_k, a multiple of 32")
    qf, kf, vf = load(q, k, v)
    n = q.shape[2]
    out, lse = outputs(q, v)
    for lo, hi in tiles(n, 32):
        blocks = tiles(hi if causal else n, 16)
        state = fresh(rows(qf, lo, hi), vf)
        for a, b in reversed(blocks):
            s = scores(rows(qf, lo, hi), rows(kf, a, b), scale)
            if causal and (a, b) == blocks[-1]:
                s = hide(s, visible(n, n, True)[lo:hi, a:b])
            state = step(state, s, rows(vf, a, b), q.dtype)
        out[:, :, lo:hi], lse[:, :, lo:hi] = store(*state, q.dtype)
    return out, lse


def flash_key_loop_by_queries(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """The number of key tiles is taken from the length of the queries; jax bd9a10e4eb."""
    require(q.shape[2] <= k.shape[2], "seqlen_q <= seqlen_k")
    qf, kf, vf = load(q, k, v)
    sq, sk = q.shape[2], k.shape[2]
    mask = visible(sq, sk, causal)
    state = fresh(qf, vf)
    for t in range(cdiv(sq, 32)):
        a, b = t * 32, min(sk, t * 32 + 32)
        state = step(state, hide(scores(qf, rows(kf, a, b), scale), mask[:, a:b]), rows(vf, a, b), q.dtype)
    return store(*state, q.dtype)


def flash_pointer_left_behind(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, window_size: tuple[int, int] = NO_WINDOW
) -> Result:
    """`continue` over a masked tile skips the advance of the K and V pointers; llama.cpp#14916."""
    require(k.shape[2] % 16 == 0, "seqlen_k a multiple of 16")
    qf, kf, vf = load(q, k, v)
    mask = visible(q.shape[2], k.shape[2], causal, window_size)
    out, lse = outputs(q, v)
    for lo, hi in tiles(q.shape[2], 16):
        at, state = 0, fresh(rows(qf, lo, hi), vf)
        for a, b in tiles(k.shape[2], 16):
            if not mask[lo:hi, a:b].any():
                continue
            s = hide(scores(rows(qf, lo, hi), rows(kf, at, at + 16), scale), mask[lo:hi, a:b])
            state = step(state, s, rows(vf, at, at + 16), q.dtype)
            at += 16
        out[:, :, lo:hi], lse[:, :, lo:hi] = store(*state, q.dtype)
    return out, lse


def eager_empty_row_mean(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """A finite mask of -1e30 and no guard: a row without keys becomes the mean of V; onnxruntime#28904."""
    qf, kf, vf = load(q, k, v)
    s = scores(qf, kf, scale)
    s = np.where(visible(*s.shape[-2:], causal), s, F32(-1e30))
    m = s.max(-1)
    p = np.exp(s - m[..., None])
    den = p.sum(-1)
    return (rounded(p, q.dtype) @ vf / den[..., None]).astype(q.dtype), m + np.log(den)


def eager_offset_unsigned(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """seqlen_k - seqlen_q is unsigned and wraps when there are more queries than keys; pytorch#193632."""
    qf, kf, vf = load(q, k, v)
    sq, sk = q.shape[2], k.shape[2]
    s = scores(qf, kf, scale)
    if causal:
        last = np.arange(sq, dtype=np.int64)[:, None] + (sk - sq) % 2**32
        s = hide(s, np.arange(sk) <= last)
    return store(*softmax_pv(s, vf, q.dtype), q.dtype)


def flash_causal_folded_off(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """The causal flag is computed False before the kernel is built; MSLK#263."""
    qf, kf, vf = load(q, k, v)
    is_causal = causal and q.shape[2] < 0
    mask = visible(q.shape[2], k.shape[2], is_causal)
    state = fresh(qf, vf)
    for a, b in tiles(k.shape[2], 64):
        state = step(state, hide(scores(qf, rows(kf, a, b), scale), mask[:, a:b]), rows(vf, a, b), q.dtype)
    return store(*state, q.dtype)


def eager_positions_int8(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """Positions compared in an integer type that wraps, at 128 here; mlx#3361 had 16 bits."""
    require(q.shape[2] == k.shape[2], "self-attention only")
    qf, kf, vf = load(q, k, v)
    s = scores(qf, kf, scale)
    if causal:
        i = np.arange(q.shape[2]).astype(np.int8)
        s = hide(s, i[None, :] <= i[:, None])
    m, den, acc = softmax_pv(s, vf, q.dtype)
    return store(m, den, acc, q.dtype)


def flash_window_top_left(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, window_size: tuple[int, int] = NO_WINDOW
) -> Result:
    """The causal mask is aligned bottom-right, the left edge of the window top-left; flash-attn#1778."""
    qf, kf, vf = load(q, k, v)
    sq, sk = q.shape[2], k.shape[2]
    mask = visible(sq, sk, causal, (-1, window_size[1]))
    if window_size[0] >= 0:
        mask &= np.arange(sk) >= np.arange(sq)[:, None] - window_size[0]
    m, den, acc = softmax_pv(hide(scores(qf, kf, scale), mask), vf, q.dtype)
    return store(m, den, acc, q.dtype)


def mqa_mask_of_folded_row(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """Heads folded into rows, and the mask made from the folded row; xformers 4f7ffaa3 (#952)."""
    require(k.shape[1] == 1, "MQA only")
    batch, heads, sq, d = q.shape
    sk = k.shape[2]
    folded = q.astype(F32).reshape(batch, 1, heads * sq, d)
    s = scores(folded, k.astype(F32), scale)
    if causal:
        s = hide(s, np.arange(sk) <= np.arange(heads * sq)[:, None] + sk - sq)
    m, den, acc = softmax_pv(s, v.astype(F32), q.dtype)
    out = divide(acc, den).astype(q.dtype)
    return out.reshape(batch, heads, sq, -1), lse_of(m, den).reshape(batch, heads, sq)
