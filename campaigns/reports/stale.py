"""Kernels with stale or missing tiles: races, ring buffers, skipped loads, state that is not reset."""

import numpy as np

from campaigns.reports.pieces import (
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
    rows,
    scores,
    softmax_pv,
    step,
    store,
    tiles,
    visible,
)


def flash_v_tile_of_before(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """From the second tile on, P meets the V tile of the iteration before; Fuser#2000, a ring over-filled."""
    require(k.shape[2] % 32 == 0, "seqlen_k a multiple of 32")
    qf, kf, vf = load(q, k, v)
    mask = visible(q.shape[2], k.shape[2], causal)
    state, stage = fresh(qf, vf), rows(vf, 0, 32)
    for a, b in tiles(k.shape[2], 32):
        state = step(state, hide(scores(qf, rows(kf, a, b), scale), mask[:, a:b]), stage, q.dtype)
        stage = rows(vf, a, b)
    return store(*state, q.dtype)


def flash_v_over_k(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """The store of V overwrites the second half of the K tile before it is read; rocm-libraries#4742."""
    require(k.shape[3] == v.shape[3], "head_dim_v == head_dim")
    qf, kf, vf = load(q, k, v)
    mask = visible(q.shape[2], k.shape[2], causal)
    state = fresh(qf, vf)
    for a, b in tiles(k.shape[2], 32):
        tile = rows(kf, a, b).copy()
        tile[:, :, 16:] = rows(vf, a, b)[:, :, 16:]
        state = step(state, hide(scores(qf, tile, scale), mask[:, a:b]), rows(vf, a, b), q.dtype)
    return store(*state, q.dtype)


def flash_partial_tile_not_loaded(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """The load of a partial last tile is predicated off, the tile of before is used; after flashinfer#1029."""
    require(k.shape[2] >= 32, "at least 32 keys")
    qf, kf, vf = load(q, k, v)
    mask = visible(q.shape[2], k.shape[2], causal)
    state = fresh(qf, vf)
    for a, b in tiles(k.shape[2], 32):
        if b - a == 32:
            k_tile, v_tile = rows(kf, a, b), rows(vf, a, b)
        n = b - a
        s = hide(scores(qf, k_tile[:, :, :n], scale), mask[:, a:b])
        state = step(state, s, v_tile[:, :, :n], q.dtype)
    return store(*state, q.dtype)


def flash_partial_tile_skipped(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """floor for ceil in the number of key tiles, the partial one is never visited; flash-attn#2745."""
    qf, kf, vf = load(q, k, v)
    mask = visible(q.shape[2], k.shape[2], causal)
    state = fresh(qf, vf)
    for t in range(k.shape[2] // 32):
        a, b = t * 32, t * 32 + 32
        state = step(state, hide(scores(qf, rows(kf, a, b), scale), mask[:, a:b]), rows(vf, a, b), q.dtype)
    return store(*state, q.dtype)


def flash_last_q_tile_shifted(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """The last query tile is moved back to fit when it is read, not when it is stored; after llama.cpp#7479."""
    require(q.shape[2] >= 32, "at least 32 queries")
    qf, kf, vf = load(q, k, v)
    sq = q.shape[2]
    mask = visible(sq, k.shape[2], causal)
    out, lse = outputs(q, v)
    for lo, hi in tiles(sq, 32):
        at = min(lo, sq - 32)
        s = hide(scores(rows(qf, at, at + 32), kf, scale), mask[at : at + 32])
        o_tile, l_tile = store(*softmax_pv(s, vf, q.dtype), q.dtype)
        out[:, :, lo:hi], lse[:, :, lo:hi] = rows(o_tile, 0, hi - lo), rows(l_tile, 0, hi - lo)
    return out, lse


def persistent_acc_not_reset(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """The accumulator is not cleared between query tiles of a persistent block; flashinfer#5029."""
    require(q.shape[2] % 16 == 0, "seqlen_q a multiple of 16")
    qf, kf, vf = load(q, k, v)
    mask = visible(q.shape[2], k.shape[2], causal)
    out, lse = outputs(q, v)
    acc = fresh(rows(qf, 0, 16), vf)[2]
    for lo, hi in tiles(q.shape[2], 16):
        s = hide(scores(rows(qf, lo, hi), kf, scale), mask[lo:hi])
        m, den, part = softmax_pv(s, vf, q.dtype)
        acc = acc + part
        out[:, :, lo:hi], lse[:, :, lo:hi] = store(m, den, acc, q.dtype)
    return out, lse


def flash_next_k_too_early(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """Half of the rows read the next K tile, whose load does not wait for them; llama.cpp#26434."""
    require(k.shape[2] % 16 == 0, "seqlen_k a multiple of 16")
    qf, kf, vf = load(q, k, v)
    late = np.arange(q.shape[2])[:, None] % 16 >= 8
    mask = visible(q.shape[2], k.shape[2], causal)
    blocks = tiles(k.shape[2], 16)
    state = fresh(qf, vf)
    for (a, b), after in zip(blocks, [*blocks[1:], blocks[-1]], strict=True):
        s = np.where(late, scores(qf, rows(kf, *after), scale), scores(qf, rows(kf, a, b), scale))
        state = step(state, hide(s, mask[:, a:b]), rows(vf, a, b), q.dtype)
    return store(*state, q.dtype)


def row_sum_slot_shared(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """Odd query tiles normalise by the sums of the tile before them; flash-attn#2229, a slot of row statistics."""
    require(q.shape[2] % 32 == 0, "seqlen_q a multiple of 32")
    qf, kf, vf = load(q, k, v)
    s = hide(scores(qf, kf, scale), visible(q.shape[2], k.shape[2], causal))
    m, den, acc = softmax_pv(s, vf, q.dtype)
    i = np.arange(q.shape[2])
    slot = den[:, :, i - 16 * (i // 16 % 2)]
    return divide(acc, slot).astype(q.dtype), lse_of(m, den)


def first_tile_before_fence(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """The first K/V tile is read before it has arrived, as zeros; FlashMLA 01a2772."""
    require(q.shape[3] == 64 and v.shape[3] == 64, "head_dim 64")
    qf, kf, vf = load(q, k, v)
    kf, vf = kf.copy(), vf.copy()
    kf[:, :, :16] = 0
    vf[:, :, :16] = 0
    mask = visible(q.shape[2], k.shape[2], causal)
    state = fresh(qf, vf)
    for a, b in tiles(k.shape[2], 16):
        state = step(state, hide(scores(qf, rows(kf, a, b), scale), mask[:, a:b]), rows(vf, a, b), q.dtype)
    return store(*state, q.dtype)


def v_slot_without_tile_size(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """The V stage starts at its index, not at index times tile: a prefetch covers the tile; flashinfer#3276."""
    qf, kf, vf = load(q, k, v)
    n, size = k.shape[2], 16
    count = cdiv(n, size)
    kp, vp = pad(kf, count * size), pad(vf, count * size)
    mask = np.pad(visible(q.shape[2], n, causal), ((0, 0), (0, count * size - n)))
    stages = np.zeros((*vp.shape[:2], 2 * size, vp.shape[3]), vp.dtype)
    state = fresh(qf, vf)
    stages[:, :, :size] = rows(vp, 0, size)
    for t in range(count):
        a, b = t * size, t * size + size
        if t + 1 < count:
            into = (t + 1) % 2
            stages[:, :, into : into + size] = rows(vp, b, b + size)
        tile = rows(stages, t % 2, t % 2 + size)
        state = step(state, hide(scores(qf, rows(kp, a, b), scale), mask[:, a:b]), tile, q.dtype)
    return store(*state, q.dtype)


def v_page_once_per_iteration(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Result:
    """V advances once per iteration of 32 keys, which covers two V tiles of 16; TRT-LLM#18244."""
    require(k.shape[2] % 32 == 0, "seqlen_k a multiple of 32")
    qf, kf, vf = load(q, k, v)
    mask = visible(q.shape[2], k.shape[2], causal)
    state = fresh(qf, vf)
    for a, b in tiles(k.shape[2], 32):
        s = hide(scores(qf, rows(kf, a, b), scale), mask[:, a:b])
        page = rows(vf, a, a + 16)
        state = step(state, s, np.concatenate([page, page], axis=2), q.dtype)
    return store(*state, q.dtype)
