"""Faults of addresses: strides, tiles, head maps, pages, fragments and tails."""

import numpy as np

from ..record import (
    Array,
    Pair,
    case,
    cdiv,
    dot,
    finish,
    grid,
    join,
    masked,
    online,
    pack,
    pad,
    read,
    scores,
    spread,
    start,
    step,
    tiles,
    visible,
    wrong,
)


@wrong(
    case(96, 112, "float16", heads=4),
    truth="V lies in memory as [token, head, dim] but is addressed with the strides of K, [head, token, dim]: head h, "
    "token j reads row n = h * 112 + j of V in token-major order, which is token n // 4 of head n % 4. K is right.",
    source="mlx#1558",
)
def kv_strides_6(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a Metal kernel that takes the strides of K and V as separate arguments."""
    b, kv_heads, sk, dv = v.shape
    h, group = q.shape[1], q.shape[1] // kv_heads
    cache = np.ascontiguousarray(v.swapaxes(1, 2))
    by_head, by_token = (sk * dv, dv) if bug else (dv, kv_heads * dv)
    qf, kf, _ = spread(q, k, v)
    s, state = scores(qf, kf, scale, causal), start(qf, v)
    for t in tiles(sk, 32):
        bb, hh, jj, dd = np.ogrid[:b, :h, t.start : t.stop, :dv]
        vt = read(cache, bb * (kv_heads * sk * dv) + hh // group * by_head + jj * by_token + dd)
        state = step(state, s[..., t], vt, q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(70, 130, "bfloat16", heads=8, kv_heads=2, causal=True),
    truth="Query head h reads K and V of head h % 2 instead of h // 4: heads 1, 3 read head 1 instead of 0, heads 4, 6 "
    "read head 0 instead of 1.",
    source="class of vllm, attorch and llama.cpp reports of grouped heads laid out as interleaved",
)
def group_modulo_6(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a Triton forward whose grid runs over batch times query heads."""
    h, kv_heads = q.shape[1], k.shape[1]
    i, j = grid(q, k)
    outs, lses = [], []
    for head in range(h):
        hk = head % kv_heads if bug else head // (h // kv_heads)
        qh, kh, vh = spread(q[:, head : head + 1], k[:, hk : hk + 1], v[:, hk : hk + 1])
        state = start(qh, vh)
        for t in tiles(k.shape[2], 64):
            s = masked(dot(qh, kh[:, :, t]) * scale, visible(i, j[:, t], causal))
            state = step(state, s, vh[:, :, t], q.dtype)
        out, lse = finish(*state, q.dtype)
        outs.append(out)
        lses.append(lse)
    return np.concatenate(outs, 1), np.concatenate(lses, 1)


@wrong(
    case(48, 96, "float32", heads=6, kv_heads=2, head_dim=32),
    truth="Results of a group of 3 query heads are written with a pitch of 3 rows a token and read with a pitch of 4: "
    "out and lse of token i, head 3 * hk + g are those of packed row n = 4 * i + g, which is token n // 3, head "
    "3 * hk + n % 3; where n >= 144 out is 0 and lse -inf.",
    source="llama.cpp#19115",
)
def group_pitch_6(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a stream-k kernel with query heads of a group as columns, filled up to a power of two."""
    b, h, sq, _ = q.shape
    kv_heads, dv = k.shape[1], v.shape[3]
    group = h // kv_heads
    pitch = 1 << (group - 1).bit_length()
    packed, (i, j) = pack(q, kv_heads), grid(q, k)
    seen = visible(np.repeat(i, group, axis=0), j, causal)
    qf, kf, vf = spread(packed, k, v)
    out, lse = online(masked(dot(qf, kf) * scale, seen), vf, q.dtype, 32)
    partial = np.zeros((b, kv_heads, sq * pitch, dv), q.dtype)
    stats = np.full((b, kv_heads, sq * pitch), -np.inf, np.float32)
    rows = np.arange(sq * group)
    to = rows if bug else rows // group * pitch + rows % group
    partial[:, :, to], stats[:, :, to] = out, lse
    token, g = np.arange(sq), np.arange(group)[:, None]
    back = token * pitch + g
    return partial[:, :, back].reshape(b, h, sq, dv), stats[:, :, back].reshape(b, h, sq)


@wrong(
    case(80, 160, "bfloat16", heads=2, head_dim=128),
    truth="V of keys j with j % 64 >= 32 is V of key j - 32: the page of V (32 keys) is looked up once for each tile "
    "of 64 keys. K is right.",
    source="flashinfer#3022",
)
def v_page_hoisted_6(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a paged decode kernel whose tile of scores covers two pages of V."""
    sk, page = k.shape[2], 32
    qf, kf, vf = spread(q, k, v)
    n = cdiv(sk, page)
    table = np.arange(n)[::-1]
    pool_k, pool_v = (
        pad(x, 2, page).reshape(*x.shape[:2], n, page, x.shape[3])[:, :, np.argsort(table)] for x in (kf, vf)
    )
    i, _ = grid(q, k)
    state = start(qf, vf)
    for first in range(0, n, 2):
        pages = range(first, min(first + 2, n))
        j = np.arange(first * page, (pages[-1] + 1) * page)[None]
        kt = np.concatenate([pool_k[:, :, table[p]] for p in pages], 2)
        vt = np.concatenate([pool_v[:, :, table[first if bug else p]] for p in pages], 2)
        s = masked(dot(qf, kt) * scale, visible(i, j, causal) & (j < sk))
        state = step(state, s, vt, q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(64, 150, "float16", heads=4, kv_heads=2, batch=2),
    truth="Rows of the block table (10 pages of 16 keys) have a pitch of 12 entries, the reader uses 10, and filling "
    "is 0: in batch 1, keys j < 32 are keys j % 16 of batch 0, and keys j >= 32 are keys j - 32 of batch 1, of K and "
    "V. Batch 0 is right.",
    source="class of vllm reports of a block table with more columns than pages",
)
def table_pitch_6(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a paged attention kernel with one pool of pages and a padded block table."""
    b, kv_heads, sk, _ = k.shape
    page, group = 16, q.shape[1] // kv_heads
    n = cdiv(sk, page)
    pitch = cdiv(n, 4) * 4
    table = np.zeros((b, pitch), np.int64)
    table[:, :n] = np.arange(n) * b + np.arange(b)[:, None]
    pool_k, pool_v = (
        pad(x.astype(np.float32), 2, page)
        .reshape(b, kv_heads, n, page, x.shape[3])
        .transpose(2, 0, 1, 3, 4)
        .reshape(n * b, kv_heads, page, x.shape[3])
        for x in (k, v)
    )
    qf, (i, _) = q.astype(np.float32), grid(q, k)
    state = start(qf, v)
    for p in range(n):
        entry = table.reshape(-1)[np.arange(b) * (n if bug else pitch) + p]
        kt, vt = (np.repeat(x[entry], group, axis=1) for x in (pool_k, pool_v))
        j = np.arange(p * page, (p + 1) * page)[None]
        s = masked(dot(qf, kt) * scale, visible(i, j, causal) & (j < sk))
        state = step(state, s, vt, q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(50, 128, "float32", heads=2, causal=True),
    truth="The cache is [page, 2, 16, head, dim] with K before V, and the stride of a page is taken half as large. Key "
    "j in page p = j // 16, slot r = j % 16: K is K of key 16 * (p // 2) + r for even p, V of that key for odd p; V is "
    "V of key 16 * (p // 2) + r for even p, K of key 16 * ((p + 1) // 2) + r for odd p.",
    source="aiter#3498",
)
def interleaved_pages_6(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a paged kernel on a cache that holds K and V of a page side by side."""
    b, kv_heads, sk, d = k.shape
    page, group = 16, q.shape[1] // kv_heads
    n = cdiv(sk, page)
    cache = np.stack([pad(x, 2, page).reshape(b, kv_heads, n, page, d) for x in (k, v)])
    cache = np.ascontiguousarray(cache.transpose(1, 3, 0, 4, 2, 5))
    slab = page * kv_heads * d
    page_stride = slab if bug else 2 * slab
    qf, (i, _) = q.astype(np.float32), grid(q, k)
    state = start(qf, v)
    bb, hh, rr, dd = np.ogrid[:b, : q.shape[1], :page, :d]
    for p in range(n):
        at = (bb * n + p) * page_stride + rr * (kv_heads * d) + hh // group * d + dd
        j = np.arange(p * page, (p + 1) * page)[None]
        s = masked(dot(qf, read(cache, at)) * scale, visible(i, j, causal) & (j < sk))
        state = step(state, s, read(cache, at + slab), q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(64, 100, "bfloat16", heads=2, head_dim=128, causal=True),
    truth="The store of out lacks the offset of the tile of 64 dims: out dims 0..63 hold what dims 64..127 should, and "
    "dims 64..127 are 0.",
    source="fla#1028",
)
def v_tile_offset_6(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a Triton kernel with a grid axis over tiles of the dims of V."""
    qf, kf, vf = spread(q, k, v)
    s = scores(qf, kf, scale, causal)
    out = np.zeros((*q.shape[:3], v.shape[3]), q.dtype)
    lse = np.zeros(q.shape[:3], np.float32)
    for dims in tiles(v.shape[3], 64):
        o, lse = online(s, vf[..., dims], q.dtype, 64)
        at = 0 if bug else dims.start
        out[..., at : at + o.shape[3]] = o
    return out, lse


@wrong(
    case(40, 120, "float16", heads=8, kv_heads=4, batch=2),
    truth="(1) K of batch 1 is K of batch 0. (2) Query head h reads V of head h // 4 instead of h // 2: heads 0..3 "
    "read V head 0 and heads 4..7 V head 1.",
    source="mlx#4431 and class of group and head counts exchanged",
    faults=2,
)
def batch_term_6(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like the first pass of a two-pass decode kernel, grouped heads addressed by hand."""
    b, kv_heads, sk, d = k.shape
    dv, h = v.shape[3], q.shape[1]
    group = h // kv_heads
    qf, (i, j) = q.astype(np.float32), grid(q, k)
    per_group = kv_heads if bug else group
    batch_stride = 0 if bug else kv_heads * sk * d
    state = start(qf, v)
    for t in tiles(sk, 32):
        bb, hh, jj, dd = np.ogrid[:b, :h, t.start : t.stop, :d]
        kt = read(k, bb * batch_stride + hh // group * (sk * d) + jj * d + dd)
        bb, hh, jj, dd = np.ogrid[:b, :h, t.start : t.stop, :dv]
        vt = read(v, bb * (kv_heads * sk * dv) + hh // per_group * (sk * dv) + jj * dv + dd)
        state = step(state, masked(dot(qf, kt) * scale, visible(i, j[:, t], causal)), vt, q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(100, 160, "float32", heads=4, head_dim=32, causal=True),
    truth="(1) The last tile of 64 queries is loaded from row 36 so as to be full, and stored from row 64: rows i >= "
    "64 have the q of row i - 28, with the mask of row i. (2) K of head h starts at row h * 100 instead of h * 160 of "
    "its batch: head h, key j reads row n = h * 100 + j, key n % 160 of head n // 160. V is right.",
    source="class of overlapping tail loads, and of mlx#2152",
    faults=2,
)
def shifted_tail_6(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a CuTe kernel that moves the last tile of Q back to avoid a predicate."""
    b, kv_heads, sk, d = k.shape
    h, sq = q.shape[1:3]
    group, size = h // kv_heads, min(64, q.shape[2])
    _, _, vf = spread(q, k, v)
    bb, hh, jj, dd = np.ogrid[:b, :h, :sk, :d]
    kf = read(k, bb * (kv_heads * sk * d) + hh // group * ((sq if bug else sk) * d) + jj * d + dd)
    i, j = grid(q, k)
    pairs = []
    for rows in tiles(sq, size):
        first = min(rows.start, sq - size)
        tile = q[:, :, first : first + size].astype(np.float32)
        skip = 0 if bug else rows.start - first
        tile = tile[:, :, skip : skip + rows.stop - rows.start]
        state = start(tile, vf)
        for t in tiles(sk, 64):
            s = masked(dot(tile, kf[:, :, t]) * scale, visible(i[rows], j[:, t], causal))
            state = step(state, s, vf[:, :, t], q.dtype)
        pairs.append(finish(*state, q.dtype))
    return join(pairs)


FRAGMENT = np.array([0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15])


@wrong(
    case(65, 144, "bfloat16", heads=4, kv_heads=2, head_dim=64),
    truth="In each group of 16 keys, the probability of key [0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15][c] "
    "multiplies the V of key c. Row sums and lse are right.",
    source="class of accumulator fragments used as operand of the second product without permuting V",
)
def fragment_order_6(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a warpgroup kernel that feeds the registers of S as operand of P V."""
    qf, kf, vf = spread(q, k, v)
    kf, vf = pad(kf, 2, 16), pad(vf, 2, 16)
    i, j = grid(qf, kf)
    i = i + k.shape[2] - kf.shape[2]
    state = start(qf, vf)
    for t in tiles(kf.shape[2], 48):
        order = (np.arange(t.start, t.stop, 16)[:, None] + FRAGMENT).reshape(-1)
        s = masked(dot(qf, kf[:, :, order]) * scale, visible(i, j[:, order], causal) & (j[:, order] < k.shape[2]))
        state = step(state, s, vf[:, :, t] if bug else vf[:, :, order], q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(96, 96, "float16", heads=4, kv_heads=2, batch=2, causal=True),
    truth="out of batch b is stored at b times the batch stride of V (2 heads, not 4): batch 0 heads 0 and 1 are "
    "right, batch 0 heads 2 and 3 hold batch 1 heads 0 and 1, batch 1 heads 0 and 1 hold batch 1 heads 2 and 3, batch "
    "1 heads 2 and 3 are 0. lse is right.",
    source="aiter#970",
)
def out_batch_stride_6(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a kernel behind a C interface that takes a batch stride for each tensor."""
    b, h, sq, _ = q.shape
    dv = v.shape[3]
    stride = v.shape[1] * v.shape[2] * dv if bug else h * sq * dv
    out = np.zeros(b * h * sq * dv, q.dtype)
    lse = np.zeros((b, h, sq), np.float32)
    for n in range(b):
        qf, kf, vf = spread(q[n : n + 1], k[n : n + 1], v[n : n + 1])
        o, e = online(scores(qf, kf, scale, causal), vf, q.dtype, 64)
        room = out[n * stride : n * stride + o.size]
        room[:] = o.reshape(-1)[: room.size]
        lse[n] = e[0]
    return out.reshape(b, h, sq, dv), lse


@wrong(
    case(56, 192, "float32", heads=4, head_dim=128),
    truth="Offsets into K wrap at 65536 elements: row n = h * 192 + j of K with n >= 512 reads row n - 512. So head 2 "
    "keys 128..191 read head 0 keys 0..63, head 3 keys 0..127 read head 0 keys 64..191, head 3 keys 128..191 read head "
    "1 keys 0..63. V is right.",
    source="class of pytorch#187225 and SageAttention#386 with a narrower integer",
)
def narrow_offset_6(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a kernel that forms the offset of a row of K in a narrow integer."""
    b, kv_heads, sk, d = k.shape
    h = q.shape[1]
    qf, _, vf = spread(q, k, v)
    i, j = grid(q, k)
    state = start(qf, vf)
    for t in tiles(sk, 64):
        bb, hh, jj, dd = np.ogrid[:b, :h, t.start : t.stop, :d]
        at = (bb * kv_heads + hh // (h // kv_heads)) * (sk * d) + jj * d + dd
        kt = read(k, at & 0xFFFF if bug else at)
        state = step(state, masked(dot(qf, kt) * scale, visible(i, j[:, t], causal)), vf[:, :, t], q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(72, 136, "float16", heads=4, kv_heads=2, head_dim=64, causal=True),
    truth="(1) Rows of K with j % 8 >= 4 have their dims exchanged in blocks of 32: dim d is read from d + 32 for d < "
    "32, from d - 32 otherwise. (2) Query head h reads V of head h % 2 instead of h // 2.",
    source="flash-attn eeca63a7 and class of group maps",
    faults=2,
)
def swizzle_6(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a kernel that keeps tiles of K in XOR-swizzled shared memory, chunks of 8 elements."""
    h, kv_heads, d = q.shape[1], k.shape[1], k.shape[3]
    qf, kf, _ = spread(q, k, v)
    heads = np.arange(h)
    vf = v.astype(np.float32)[:, heads % kv_heads if bug else heads // (h // kv_heads)]
    i, j = grid(q, k)
    chunks = np.arange(d // 8)
    state = start(qf, vf)
    for t in tiles(k.shape[2], 64):
        row = np.arange(t.stop - t.start)[:, None]
        tile = kf[:, :, t].reshape(*kf.shape[:2], -1, d // 8, 8)
        shared = np.empty_like(tile)
        shared[:, :, row, chunks ^ (row % 8)] = tile
        kt = shared[:, :, row, chunks ^ (row % (4 if bug else 8))].reshape(kf[:, :, t].shape)
        state = step(state, masked(dot(qf, kt) * scale, visible(i, j[:, t], causal)), vf[:, :, t], q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(60, 150, "bfloat16", heads=3, head_dim=96),
    truth="(1) Scores hold dims 0..63 of q and k only, dims 64..95 are dropped. (2) The last tile of 64 keys reads "
    "past the end with the index clamped and no mask: key 149 counts 43 times, in the row sum and in out.",
    source="class of head dims that are no multiple of the step, and of pytorch#169222",
    faults=2,
)
def head_dim_floor_6(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a kernel with steps of 64 dims, and clamped loads of the last tile of keys."""
    sk, d = k.shape[2:]
    qf, kf, vf = spread(q, k, v)
    i, _ = grid(q, k)
    state = start(qf, vf)
    for first in range(0, sk, 64):
        j = np.arange(first, first + 64)
        at = np.minimum(j, sk - 1)
        s = np.zeros((*q.shape[:3], 64), np.float32)
        for e in range(0, d // 64 * 64 if bug else d, 64):
            s += dot(qf[..., e : e + 64], kf[:, :, at, e : e + 64])
        seen = visible(i, j[None], causal)
        if not bug:
            seen &= j < sk
        state = step(state, masked(s * scale, seen), vf[:, :, at], q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(90, 160, "float16", heads=2, head_dim=64),
    truth="V of keys 0..95 is V of key j + 64: the tile of 32 keys two steps ahead is loaded into the slot before it "
    "is used. Keys 96..159 are right, and so is K.",
    source="class of pipelines with a stage too few, as csarofeen#2457",
)
def ring_slot_6(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a software-pipelined kernel with two slots for tiles of V."""
    sk, size = k.shape[2], 32
    qf, kf, vf = spread(q, k, v)
    s, vp = scores(qf, kf, scale, causal), pad(vf, 2, size)
    n = cdiv(sk, size)
    slots = [vp[:, :, t * size : (t + 1) * size] for t in range(min(2, n))]
    state = start(qf, vf)
    for t in range(n):
        ahead = vp[:, :, (t + 2) * size : (t + 3) * size]
        if bug and t + 2 < n:
            slots[t % 2] = ahead
        st = s[..., t * size : (t + 1) * size]
        state = step(state, st, slots[t % 2][:, :, : st.shape[3]], q.dtype)
        if t + 2 < n:
            slots[t % 2] = ahead
    return finish(*state, q.dtype)
