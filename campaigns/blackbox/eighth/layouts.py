"""Faults of addresses, strides, tiles, head maps, pages, fragments and tails."""

import numpy as np

from ..record import (
    Array,
    Pair,
    case,
    cdiv,
    chunk,
    dot,
    finish,
    grid,
    join,
    masked,
    merge,
    online,
    pack,
    pad,
    read,
    scores,
    spread,
    start,
    step,
    tiles,
    unpack,
    visible,
    wrong,
)

FRAGMENT = np.array([0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15])


def beside(pairs: list[Pair]) -> Pair:
    """out and lse of heads, one beside the other."""
    outs, lses = zip(*pairs, strict=True)
    return np.concatenate(outs, 1), np.concatenate(lses, 1)


@wrong(
    case(96, 96, "float16", heads=8, kv_heads=2, causal=True),
    truth="Query head h reads head h % kv_heads of K and V in place of h // (heads // kv_heads): the 8 query heads "
    "read heads 0 1 0 1 0 1 0 1, where 0 0 0 0 1 1 1 1 is right.",
    source="class of aiter#612",
)
def gqa_modulo_8(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A Triton forward kernel with a program per query head and tiles of 32 keys."""
    heads, kv_heads = q.shape[1], k.shape[1]
    pairs = []
    for h in range(heads):
        hk = h % kv_heads if bug else h // (heads // kv_heads)
        qh, kh, vh = (x[:, n : n + 1].astype(np.float32) for x, n in ((q, h), (k, hk), (v, hk)))
        pairs.append(online(scores(qh, kh, scale, causal), vh, q.dtype, 32))
    return beside(pairs)


@wrong(
    case(40, 72, "float32", heads=4, batch=2, head_dim=64, head_dim_v=32),
    truth="V is read with K's row stride of 64 elements, where its own is 32: element d of key j of batch b and head h "
    "comes from the flat element (b * 4 + h) * 72 * 32 + j * 64 + d of the contiguous V, modulo its size; that "
    "is row ((b * 4 + h) * 72 + 2j) mod 576 of V seen as 576 rows [batch, head, key] of 32.",
    source="mlx#1558",
)
def v_row_stride_8(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A Metal vector kernel that reads V at element offsets, with tiles of 32 keys."""
    batch, kv_heads, sk, dv = v.shape
    stride = k.shape[3] if bug else dv
    base = np.arange(batch * kv_heads).reshape(batch, kv_heads, 1, 1) * sk * dv
    rows = read(v, base + np.arange(sk)[:, None] * stride + np.arange(dv))
    qf, kf, vf = spread(q, k, rows)
    return online(scores(qf, kf, scale, causal), vf, q.dtype, 32)


@wrong(
    case(33, 128, "bfloat16", heads=4, kv_heads=2, batch=2),
    truth="The batch offset of K and V is left out: queries of batch 1 attend to K and V of batch 0 (the same heads); "
    "batch 0 is right.",
    source="mlx#4431",
)
def kv_batch_offset_8(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A two-pass vector kernel for GQA with blocks of 32 keys."""
    at = np.arange(q.shape[0]) * (0 if bug else 1)
    qf, kf, vf = spread(q, k[at], v[at])
    i, j = grid(qf, kf)
    parts = []
    for n in tiles(kf.shape[2], 32):
        s = masked(dot(qf, kf[:, :, n]) * scale, visible(i, j[:, n], causal))
        parts.append(chunk(s, vf[:, :, n], q.dtype))
    return merge(parts, q.dtype)


@wrong(
    case(64, 128, "float16", heads=4, kv_heads=2, head_dim=32),
    truth="The cache holds pages of 16 keys, half-block 2p the K and half-block 2p + 1 the V of page p = b * P + n (P "
    "pages a sequence, n = key // 16); the page stride is taken as one half-block, where it is two. K of page p "
    "is read from half-block p, V of page p from half-block p + 1: K of pages 0 1 2 3 4 ... is K0 V0 K1 V1 K2 "
    "..., V of pages 0 1 2 3 ... is V0 K1 V1 K2 ... The head and the place in the page are right.",
    source="aiter#3498",
)
def interleaved_pages_8(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A paged prefill kernel over a cache [page, 2, 16, head, dim], with a page a step."""
    page, (batch, kv_heads, sk, d) = 16, k.shape
    group, count = q.shape[1] // kv_heads, cdiv(sk, page)
    halves = [pad(x, 2, page).reshape(batch, kv_heads, count, page, d).transpose(0, 2, 3, 1, 4) for x in (k, v)]
    pool = np.stack(halves, 2).reshape(-1, page, kv_heads, d)
    qf = q.astype(np.float32)
    i, j = grid(q, k)
    state = start(qf, v)
    for n in range(count):
        at = np.arange(batch) * count + n
        block = at if bug else 2 * at
        kn, vn = (pool[(block + x) % len(pool)].swapaxes(1, 2).astype(np.float32) for x in (0, 1))
        t = slice(n * page, min(sk, (n + 1) * page))
        kn, vn = (np.repeat(x[:, :, : t.stop - t.start], group, axis=1) for x in (kn, vn))
        state = step(state, masked(dot(qf, kn) * scale, visible(i, j[:, t], causal)), vn, q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(100, 150, "bfloat16", heads=3, head_dim=64),
    truth="Two faults of floor divisions. The loop over keys makes Sk // 64 steps of 64: keys 128 to 149 are left out. "
    "The grid has Sq // 64 programs of 64 queries: rows 64 to 99 are never written, out and lse stay 0 there.",
    source="class of flash-attn#2745 and PyTorch MPS kernels",
    faults=2,
)
def floor_tiles_8(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A Triton tutorial kernel with tiles of 64 queries and 64 keys, into zeroed outputs."""
    qf, kf, vf = spread(q, k, v)
    sq, sk = q.shape[2], k.shape[2]
    i, j = grid(q, k)
    out, lse = np.zeros((*q.shape[:3], v.shape[3]), q.dtype), np.zeros(q.shape[:3], np.float32)
    for m in tiles(sq // 64 * 64 if bug else sq, 64):
        state = start(qf[:, :, m], vf)
        for n in tiles(sk // 64 * 64 if bug else sk, 64):
            s = masked(dot(qf[:, :, m], kf[:, :, n]) * scale, visible(i[m], j[:, n], causal))
            state = step(state, s, vf[:, :, n], q.dtype)
        out[:, :, m], lse[:, :, m] = finish(*state, q.dtype)
    return out, lse


@wrong(
    case(80, 100, "float16", heads=6, kv_heads=3, head_dim=64),
    truth="Two faults. Without a causal mask columns past Sk of the last tile of 64 are not masked: keys 100 to 127 "
    "are zeros of K and V, so 28 keys of score 0 and value 0 count in each row. And V is read at head h % "
    "kv_heads (0 1 2 0 1 2) while K is read at h // 2 (0 0 1 1 2 2).",
    source="SageAttention 3917283 and class of vLLM GQA head maps",
    faults=2,
)
def zero_tail_v_head_8(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A Triton kernel with masked loads of 64 keys that uses 0 past the end."""
    heads, kv_heads, sk = q.shape[1], k.shape[1], k.shape[2]
    h = np.arange(heads)
    hk = h // (heads // kv_heads)
    hv = h % kv_heads if bug else hk
    qf, kf, vf = q.astype(np.float32), pad(k, 2, 64)[:, hk].astype(np.float32), pad(v, 2, 64)[:, hv].astype(np.float32)
    i, j = np.arange(sk - q.shape[2], sk)[:, None], np.arange(kf.shape[2])[None]
    state = start(qf, vf)
    for n in tiles(kf.shape[2], 64):
        seen = visible(i, j[:, n], causal)
        if causal or not bug:
            seen &= j[:, n] < sk
        state = step(state, masked(dot(qf, kf[:, :, n]) * scale, seen), vf[:, :, n], q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(64, 136, "float32", heads=2, head_dim=64),
    truth="Rows past Sk of the last tile of 32 keys are neither zeroed nor masked: they hold what the two-stage ring "
    "had there, the same rows of the tile two before. With Sk = 136 the last tile has keys 128 to 135 and then "
    "keys 72 to 95 again: keys 72 to 95 count twice in sum and accumulator.",
    source="class of pytorch#169222 and flashinfer#1029",
)
def stale_ring_8(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A cp.async kernel with a ring of two stages of 32 keys in shared memory."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    ring_k = np.zeros((2, *kf.shape[:2], 32, kf.shape[3]), np.float32)
    ring_v = np.zeros((2, *vf.shape[:2], 32, vf.shape[3]), np.float32)
    state = start(qf, vf)
    for t, n in enumerate(tiles(kf.shape[2], 32)):
        size = n.stop - n.start
        ring_k[t % 2, :, :, :size], ring_v[t % 2, :, :, :size] = kf[:, :, n], vf[:, :, n]
        seen = np.zeros((q.shape[2], 32), bool)
        seen[:, :size] = visible(i, j[:, n], causal)
        if bug:
            seen[:, size:] = True
        state = step(state, masked(dot(qf, ring_k[t % 2]) * scale, seen), ring_v[t % 2], q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(72, 120, "float32", heads=3, head_dim=80),
    truth="Two faults. q.k sums only D // 32 slices of 32 dims: dims 64 to 79 are missing from the scores (the scale "
    "is still 80 ** -0.5). And the loop over keys makes Sk // 32 steps of 32: keys 96 to 119 are left out.",
    source="class of flash-attn head dims that are no multiple of 32",
    faults=2,
)
def dim_and_key_tail_8(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A CUDA kernel that sums q.k over slices of 32 dims, with tiles of 32 keys."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    sk, d = kf.shape[2:]
    state = start(qf, vf)
    for n in tiles(sk // 32 * 32 if bug else sk, 32):
        s = np.float32(0)
        for c in tiles(d // 32 * 32 if bug else d, 32):
            s = s + dot(qf[..., c], kf[:, :, n, c])
        state = step(state, masked(s * scale, visible(i, j[:, n], causal)), vf[:, :, n], q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(64, 96, "float16", heads=2, head_dim=64),
    truth="P is in the order of its registers, V is not: in each block of 16 keys the value at place s is multiplied "
    "by P of place [0 1 8 9 2 3 10 11 4 5 12 13 6 7 14 15][s], so key 8 weighs the value of key 2, key 2 that of "
    "key 4 and so on. Maximum, sum and lse are right.",
    source="class of FlashAttention-3 FP8 and SageAttention, the order of rows of V",
)
def register_order_8(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A warp-level kernel that uses the score accumulators as the A operand of P @ V, in blocks of 16 keys."""
    qf, kf, vf = spread(q, pad(k, 2, 16), pad(v, 2, 16))
    sk = k.shape[2]
    i, j = np.arange(sk - q.shape[2], sk)[:, None], np.arange(kf.shape[2])[None]
    s = masked(dot(qf, kf) * scale, visible(i, j, causal) & (j < sk))
    state = start(qf, vf)
    for n in tiles(kf.shape[2], 16):
        values = vf[:, :, n] if bug else vf[:, :, n][:, :, FRAGMENT]
        state = step(state, s[..., n][..., FRAGMENT], values, q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(65, 65, "bfloat16", heads=4, kv_heads=2, causal=True),
    truth="Query heads of a group are packed as rows r = i * G + g, but the epilogue stores row r as query r % Sq of "
    "the group's head r // Sq: out and lse of query i, head g of the group (G = 2) are those of query (g * 65 + "
    "i) // 2, head (g * 65 + i) % 2 of the same group.",
    source="xformers 41646dbb and class of packed GQA",
)
def packed_store_8(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A packed GQA kernel with tiles of 64 rows and 32 keys."""
    heads, sq = q.shape[1:3]
    kv_heads, sk = k.shape[1:3]
    group = heads // kv_heads
    qf, kf, vf = pack(q, kv_heads).astype(np.float32), k.astype(np.float32), v.astype(np.float32)
    i, j = np.arange(sq * group)[:, None] // group + sk - sq, np.arange(sk)[None]
    pairs = []
    for m in tiles(sq * group, 64):
        s = masked(dot(qf[:, :, m], kf) * scale, visible(i[m], j, causal))
        pairs.append(online(s, vf, q.dtype, 32))
    out, lse = join(pairs)
    if bug:
        return out.reshape(q.shape[0], heads, sq, -1), lse.reshape(q.shape[0], heads, sq)
    return unpack((out, lse), heads)


@wrong(
    case(48, 112, "float16", heads=2, head_dim=128),
    truth="The store of the second tile of 64 output dims lacks its offset: out dims 0 to 63 hold what belongs to dims "
    "64 to 127, and out dims 64 to 127 are never written and stay 0. lse is right.",
    source="fla#1028",
)
def dim_tile_store_8(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A Triton kernel with a program per tile of 64 output dims, into zeroed outputs."""
    qf, kf, vf = spread(q, k, v)
    out, lse = np.zeros((*q.shape[:3], v.shape[3]), q.dtype), np.zeros(q.shape[:3], np.float32)
    s = scores(qf, kf, scale, causal)
    for c in tiles(v.shape[3], 64):
        at = slice(0, c.stop - c.start) if bug else c
        out[..., at], lse = online(s, vf[..., c], q.dtype, 32)
    return out, lse


@wrong(
    case(40, 150, "float32", heads=4, kv_heads=1, head_dim=64),
    truth="The loop over keys is sized by the queries: ceil(Sq / 32) = 2 tiles of 32 keys are read, keys 64 to 149 are "
    "left out of out and lse.",
    source="jax bd9a10e4eb",
)
def key_loop_of_queries_8(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A Pallas MHA kernel with blocks of 32 keys."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    sk = kf.shape[2]
    state = start(qf, vf)
    for t in range(cdiv(q.shape[2] if bug else sk, 32)):
        n = slice(t * 32, min(sk, t * 32 + 32))
        s = masked(dot(qf, kf[:, :, n]) * scale, visible(i, j[:, n], causal))
        state = step(state, s, vf[:, :, n], q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(64, 64, "float32", heads=4, batch=2, head_dim=32, causal=True),
    truth="Program z = b * H + h takes K and V of batch z % B and head z // B, where batch z // H and head z % H are "
    "right (Q and out are right): with B = 2 and H = 4 heads 0 1 2 3 of batch 0 read (batch, head) (0,0) (1,0) "
    "(0,1) (1,1), those of batch 1 read (0,2) (1,2) (0,3) (1,3).",
    source="cutlass#2291",
)
def grid_divmod_8(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A CUTLASS kernel whose grid folds batch and head, with tiles of 32 keys."""
    batch, heads, sq, d = q.shape
    qf, kf, vf = spread(q, k, v)
    z = np.arange(batch * heads)
    b, h = (z % batch, z // batch) if bug else (z // heads, z % heads)
    qz, kz, vz = qf.reshape(-1, 1, sq, d), kf[b, h][:, None], vf[b, h][:, None]
    out, lse = online(scores(qz, kz, scale, causal), vz, q.dtype, 32)
    return out.reshape(batch, heads, sq, -1), lse.reshape(batch, heads, sq)


@wrong(
    case(64, 160, "bfloat16", heads=8, head_dim=128),
    truth="The offset of a key in the token-major K [batch, key, head, dim], j * 8 * 128 elements, is kept in 16 bits "
    "and wraps at 65536: key j >= 64 takes its K from row j mod 64 of the same batch and head. V is right.",
    source="class of pytorch#187225 and flashinfer#3136 (at 16 bits)",
)
def offset_wraps_8(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A kernel over token-major K that computes the offsets of tiles of 32 keys itself."""
    batch, kv_heads, sk, d = k.shape
    tokens = np.ascontiguousarray(k.swapaxes(1, 2))
    base = np.arange(batch).reshape(-1, 1, 1, 1) * sk * kv_heads * d + np.arange(kv_heads).reshape(-1, 1, 1) * d
    offset = np.arange(sk)[:, None] * kv_heads * d
    if bug:
        offset = offset & 0xFFFF
    keys = read(tokens, base + offset + np.arange(d))
    qf, kf, vf = spread(q, keys, v)
    return online(scores(qf, kf, scale, causal), vf, q.dtype, 32)


@wrong(
    case(48, 128, "float16", heads=4, kv_heads=2, head_dim=64),
    truth="Pages of 16 keys lie in reverse (page n of the sequence is page 7 - n of the pool), and the page of V is "
    "looked up once per tile of 32 keys: the second half of tile t reads the pool page after the first half's, "
    "so V of keys 32t + 16 to 32t + 31 is V of keys 32t - 16 to 32t - 1; for t = 0 it wraps to the first page of "
    "the pool, keys 112 to 127. K is right.",
    source="TRT-LLM#18244",
)
def page_once_per_tile_8(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A paged kernel with pages of 16 and tiles of 32 keys, and a reversed block table."""
    page, tile, (batch, kv_heads, sk) = 16, 32, k.shape[:3]
    count = cdiv(sk, page)
    table = np.arange(batch)[:, None] * count + np.arange(count)[::-1]
    pools = []
    for x in (k, v):
        pages = pad(x, 2, page).reshape(batch, kv_heads, count, page, -1).swapaxes(1, 2)[:, ::-1]
        pools.append(pages.swapaxes(2, 3).reshape(batch * count * page, kv_heads, -1))
    i, j = grid(q, k)
    state = start(q.astype(np.float32), v)
    for n in tiles(sk, tile):
        keys = np.arange(n.start, n.stop)
        rows_k = table[:, keys // page] * page + keys % page
        once = (table[:, n.start // page, None] * page + keys - n.start) % len(pools[1])
        rows_v = once if bug else rows_k
        qf, kf, vf = spread(q, pools[0][rows_k].swapaxes(1, 2), pools[1][rows_v].swapaxes(1, 2))
        state = step(state, masked(dot(qf, kf) * scale, visible(i, j[:, n], causal)), vf, q.dtype)
    return finish(*state, q.dtype)
