"""Faults of addresses: strides, extents, head maps, offsets, grids and the layout of out."""

import numpy as np

from ..record import (
    Array,
    Pair,
    case,
    cdiv,
    dot,
    eager,
    grid,
    masked,
    online,
    pad,
    read,
    scores,
    spread,
    tiles,
    visible,
    wrong,
)


def pooled(x: Array, page: int) -> tuple[Array, Array]:
    """Pages [page, token, head, dim] in a pool, the last of a sequence filled with old tokens; the block table."""
    full = np.pad(x, ((0, 0), (0, 0), (0, -x.shape[2] % page), (0, 0)), mode="wrap")
    b, h, s, d = full.shape
    pool = full.reshape(b, h, s // page, page, d).transpose(0, 2, 3, 1, 4).reshape(-1, page, h, d)
    return np.ascontiguousarray(pool[::-1]), np.arange(len(pool))[::-1].reshape(b, -1)


def gathered(pool: Array, base: Array) -> Array:
    """Tokens [batch, head, token, dim] of the pages whose first elements lie at the offsets base."""
    _, page, h, d = pool.shape
    inner = np.arange(page * h * d).reshape(page, h, d)
    pages = read(pool, base[:, :, None, None, None] + inner)
    return pages.transpose(0, 3, 1, 2, 4).reshape(len(base), h, -1, d)


@wrong(
    case(96, 128, "float16", causal=True, head_dim_v=96),
    truth="the load of V is bounded by the head dimension of Q and K: columns d >= head_dim of V count as 0, so that "
    "out[..., head_dim:] is 0",
    source="native-sparse-attention-triton#27",
)
def wide_value_extent(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Triton, tiles of 32 keys; V is loaded with a mask of its columns."""
    qf, kf, vf = spread(q, k, v)
    extent = q.shape[3] if bug else v.shape[3]
    vf = np.where(np.arange(v.shape[3]) < extent, vf, np.float32(0))
    return online(scores(qf, kf, scale, causal), vf, q.dtype, 32)


@wrong(
    case(72, 100, "float32", heads=2, head_dim=96),
    truth="the store of the last 64-wide tile of columns has no bound: columns 96..127 of row r, which are 0, land on "
    "columns 0..31 of row r + 1 of the flat out, after these were stored; row 0 alone is right",
    source="flash-attn#2552",
)
def column_tail_store(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Two launches store 64 columns of out each, through flat offsets with the pitch of V."""
    qf, kf, vf = spread(q, k, v)
    out, lse = online(scores(qf, kf, scale, causal), vf, q.dtype, 64)
    rows, width = lse.size, v.shape[3]
    buffer = np.zeros(rows * width + 64, q.dtype)
    fragment = pad(out.reshape(rows, width), 1, 64)
    for start in range(0, width, 64):
        columns = np.arange(start, start + 64 if bug else min(start + 64, width))
        buffer[np.arange(rows)[:, None] * width + columns] = fragment[:, columns]
    return buffer[: rows * width].reshape(out.shape), lse


@wrong(
    case(80, 112, "bfloat16", heads=4, kv_heads=2, causal=True),
    truth="the grid is (heads, tiles of queries), the kernel takes x for the tile and y for the head: blocks with a "
    "tile past the end return, and head 3 (no y reaches it) is never written: its out and lse stay 0",
    source="FlashMLA#182, xformers 503a5d77",
)
def swapped_grid(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A block for each head and each tile of 32 queries."""
    qf, kf, vf = spread(q, k, v)
    b, h, sq, _ = q.shape
    out, lse = np.zeros((b, h, sq, v.shape[3]), q.dtype), np.zeros((b, h, sq), np.float32)
    s, blocks = scores(qf, kf, scale, causal), cdiv(sq, 32)
    for x in range(h):
        for y in range(blocks):
            head, tile = (y, x) if bug else (x, y)
            if head < h and tile < blocks:
                at = slice(None), slice(head, head + 1), slice(32 * tile, 32 * tile + 32)
                out[at], lse[at] = online(s[at], vf[:, at[1]], q.dtype, 32)
    return out, lse


@wrong(
    case(64, 96, "float16", heads=3, kv_heads=1, batch=2, causal=True),
    truth="`o, *rest = outputs` unpacks the array along its batch axis where there are no residuals: o is the out of "
    "batch 0, which is broadcast to every batch; lse is right",
    source="jax 4931774548",
)
def unpacked_outputs(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Pallas, blocks of 32 keys; the wrapper unpacks what the call returns."""
    qf, kf, vf = spread(q, k, v)
    outputs, lse = online(scores(qf, kf, scale, causal), vf, q.dtype, 32)
    out, *_ = outputs if bug else [outputs]
    return np.broadcast_to(out, outputs.shape).copy(), lse


@wrong(
    case(40, 185, "float16", heads=4, batch=2),
    truth="(1) page * page_stride of V is kept in 16 bits (for 32): pages from 16 on read V of the page 16 lower; "
    "(2) the tail is bounded by page and not by token: the old tokens of the last page after seqlen_k take part",
    source="flashinfer#3136, flashinfer#942",
    faults=2,
)
def paged_offsets(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Paged decoding, pages of 16 tokens in the layout NHD."""
    pool, table = pooled(k, 16)
    values, _ = pooled(v, 16)
    base = table * values[0].size
    kf = gathered(pool, table * pool[0].size)
    qf, kf, vf = spread(q, kf, gathered(values, base & 0xFFFF if bug else base))
    i, _ = grid(q, k)
    j = np.arange(kf.shape[2])[None]
    seen = visible(i, j, causal) & (j // 16 < table.shape[1] if bug else j < k.shape[2])
    return online(masked(dot(qf, kf) * scale, seen), vf, q.dtype, 16)


@wrong(
    case(64, 144, "float16", heads=4, kv_heads=2, batch=2, causal=True),
    truth="(1) the scale of a block of 16 keys lies at [batch, head, block] and is read at block * kv_heads + head, "
    "the order of the cache; (2) the scale of V lacks the batch term: every batch takes that of batch 0",
    source="flashinfer#3608, sgl-kernel-xpu#252",
    faults=2,
)
def block_scale_strides(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """K with a scale for each block of 16 keys, V with one for each head; the codes are not rounded."""
    b, h, sk, _ = k.shape
    blocks = cdiv(sk, 16)
    kf, vf = k.astype(np.float32), v.astype(np.float32)
    k_scale = np.abs(pad(kf, 2, 16)).reshape(b, h, blocks, -1).max(-1) / np.float32(448)
    v_scale = np.abs(vf).max((2, 3), keepdims=True) / np.float32(448)
    codes, v_codes = kf / np.repeat(k_scale, 16, 2)[:, :, :sk, None], vf / v_scale
    batch, head, block = np.ogrid[:b, :h, :blocks]
    index = batch * h * blocks + (block * h + head if bug else head * blocks + block)
    kf = codes * np.repeat(read(k_scale, index), 16, 2)[:, :, :sk, None]
    qf, kf, vf = spread(q, kf, v_codes * (v_scale[:1] if bug else v_scale))
    return online(scores(qf, kf, scale, causal), vf, q.dtype, 32)


@wrong(
    case(70, 70, "float32", heads=3, kv_heads=1, causal=True),
    truth="out is allocated like a query tensor that is a transposed view [b, s, h, d], and stored with the strides "
    "of a contiguous [b, h, s, d]: row h * Sq + i of the right out appears at query (h * Sq + i) // H, head "
    "(h * Sq + i) % H; lse is right",
    source="pytorch#146377, flash-attn 2423cca3",
)
def out_like_query(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Out is stored through strides into a buffer [b, s, h, d] and returned as a view of it."""
    qf, kf, vf = spread(q, k, v)
    out, lse = online(scores(qf, kf, scale, causal), vf, q.dtype, 64)
    b, h, sq, d = out.shape
    strides = (h * sq * d, sq * d, d) if bug else (sq * h * d, d, h * d)
    batch, head, row, column = np.ogrid[:b, :h, :sq, :d]
    buffer = np.empty(out.size, q.dtype)
    buffer[batch * strides[0] + head * strides[1] + row * strides[2] + column] = out
    return np.ascontiguousarray(buffer.reshape(b, sq, h, d).swapaxes(1, 2)), lse


@wrong(
    case(128, 128, "bfloat16", heads=2, batch=2, causal=True),
    truth="the counter of the persistent scheduler is zeroed before the first launch only (a launch for each batch): "
    "from batch 1 on the 4 blocks do their first work item (tiles 0 and 1 of both heads) and stop; out and lse of "
    "the queries 64..127 of batch 1 stay 0",
    source="flash-attn e540fc1b, flash-attn 1a58058a",
)
def scheduler_counter(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Persistent blocks that take tiles of 32 queries from a counter, after a first one by their index."""
    qf, kf, vf = spread(q, k, v)
    b, h, sq, _ = q.shape
    out, lse = np.zeros((b, h, sq, v.shape[3]), q.dtype), np.zeros((b, h, sq), np.float32)
    s, work, blocks, counter = scores(qf, kf, scale, causal), h * cdiv(sq, 32), 4, 0
    for batch in range(b):
        counter = counter if bug else 0
        items = list(range(min(blocks, work)))
        while blocks + counter < work:
            items.append(blocks + counter)
            counter += 1
        for item in items:
            tile, head = divmod(item, h)
            at = slice(batch, batch + 1), slice(head, head + 1), slice(32 * tile, 32 * tile + 32)
            out[at], lse[at] = online(s[at], vf[at[:2]], q.dtype, 64)
    return out, lse


@wrong(
    case(64, 129, "float16", heads=4, kv_heads=1, batch=2),
    truth="with seqlen_k % 32 == 1 the aligned load of the last single row starts one row too late, in K and in V: "
    "key seqlen_k - 1 is row 0 of the next head of K and V in memory (of batch 1, and of batch 0 after the end)",
    source="pytorch#191937",
)
def expanded_row_tail(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """K and V expanded over the query heads by a stride of 0, loaded by rows in tiles of 32."""
    b, h, sk, _ = k.shape
    rows = np.arange(b * h)[:, None] * sk + np.arange(sk)
    if bug and sk % 32 == 1:
        rows[:, -1] += 1
    loaded = [x.reshape(b * h * sk, -1)[rows % (b * h * sk)].reshape(x.shape) for x in (k, v)]
    qf, kf, vf = spread(q, *loaded)
    return online(scores(qf, kf, scale, causal), vf, q.dtype, 32)


@wrong(
    case(90, 110, "float32", heads=4, kv_heads=1, batch=2, causal=True),
    truth="(1) query head h reads K of the flat head b * kv_heads + h // kv_heads (the share count is taken for the "
    "group size), past the end round to the start; (2) V is read at the flat head b * heads + h // group: its batch "
    "term has the number of query heads, so that batch 1 reads V of batch 0",
    source="native-sparse-attention-triton#27 (heads), levanter#449",
    faults=2,
)
def share_count(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A kernel over flat heads of Q, which finds its heads of K and V by division."""
    b, h, sq, _ = q.shape
    kv_heads, group = k.shape[1], h // k.shape[1]
    batch, head = np.divmod(np.arange(b * h), h)
    k_head = batch * kv_heads + head // (kv_heads if bug else group)
    v_head = batch * (h if bug else kv_heads) + head // group
    kf, vf = (
        x.reshape(b * kv_heads, *x.shape[2:])[index % (b * kv_heads)].reshape(b, h, *x.shape[2:]).astype(np.float32)
        for x, index in ((k, k_head), (v, v_head))
    )
    s = scores(q.astype(np.float32), kf, scale, causal)
    pairs = [eager(s[:, :, t], vf, q.dtype) for t in tiles(sq, 64)]
    return np.concatenate([o for o, _ in pairs], 2), np.concatenate([e for _, e in pairs], 2)
