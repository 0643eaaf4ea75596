"""Faults of causal masks, windows, padding, skipped blocks, biases and the alignment of Sq and Sk."""

import numpy as np

from ..record import (
    Array,
    Pair,
    case,
    cdiv,
    dot,
    finish,
    join,
    masked,
    online,
    pack,
    spread,
    start,
    step,
    tiles,
    unpack,
    visible,
    wrong,
)


def rows(t: slice) -> Array:
    """Indices of a slice, as a column."""
    return np.arange(t.start, t.stop)[:, None]


def cols(t: slice) -> Array:
    """Indices of a slice, as a row."""
    return np.arange(t.start, t.stop)[None]


def capped(s: Array, cap: float) -> Array:
    """Scores with a softcap; 0 is none."""
    return np.float32(cap) * np.tanh(s / np.float32(cap)) if cap else s


def slopes_of(alibi_slopes: Array | None, heads: int) -> Array:
    """Slopes as [head, 1, 1]; 0 if there are none."""
    slopes = np.zeros(heads, np.float32) if alibi_slopes is None else alibi_slopes.astype(np.float32)
    return slopes[:, None, None]


@wrong(
    case(64, 150, "float16", heads=4, kv_heads=2, causal=True),
    truth="The causal mask is aligned to the top left: query i sees keys j <= i, where j <= i + Sk - Sq = i + 86 is "
    "right.",
    source="flash-attn#282",
)
def causal_top_left_8(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A Triton kernel with tiles of 32 queries and 32 keys that stops at the diagonal."""
    dtype = q.dtype
    q, k, v = spread(q, k, v)
    sq, sk = q.shape[2], k.shape[2]
    shift = 0 if bug else sk - sq
    pairs = []
    for m in tiles(sq, 32):
        state = start(q[:, :, m], v)
        for n in tiles(min(sk, m.stop + shift) if causal else sk, 32):
            s = dot(q[:, :, m], k[:, :, n]) * scale
            state = step(state, masked(s, visible(rows(m) + shift, cols(n), causal)), v[:, :, n], dtype)
        pairs.append(finish(*state, dtype))
    return join(pairs)


@wrong(
    case(100, 100, "float32", heads=3, head_dim=32, causal=True),
    truth="The causal comparison is strict: query i sees keys j < i + Sk - Sq and not its own key; row 0 sees none, "
    "its out is 0 and its lse -inf.",
    source="class of off-by-one causal masks",
)
def causal_strict_8(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A Metal kernel with tiles of 32 queries and 16 keys."""
    dtype = q.dtype
    q, k, v = spread(q, k, v)
    sq, sk = q.shape[2], k.shape[2]
    pairs = []
    for m in tiles(sq, 32):
        state = start(q[:, :, m], v)
        for n in tiles(sk, 16):
            i, j = rows(m) + sk - sq, cols(n)
            seen = visible(i, j, False)
            if causal:
                seen &= j < i if bug else j <= i
            state = step(state, masked(dot(q[:, :, m], k[:, :, n]) * scale, seen), v[:, :, n], dtype)
        pairs.append(finish(*state, dtype))
    return join(pairs)


@wrong(
    case(96, 160, "float16", heads=4, kv_heads=1, causal=True, window_size=(31, 0)),
    truth="The left bound of the window is exclusive: query i at p = i + 64 sees keys j > p - 31, so key p - 31, the "
    "first of its window, is left out (31 keys in place of 32).",
    source="transformers#39408",
)
def window_exclusive_8(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float,
    causal: bool,
    window_size: tuple[int, int] = (-1, -1),
    bug: bool = True,
) -> Pair:
    """A sliding-window Triton kernel with tiles of 32 queries and 32 keys."""
    dtype, (left, right) = q.dtype, window_size
    q, k, v = spread(q, k, v)
    sq, sk = q.shape[2], k.shape[2]
    pairs = []
    for m in tiles(sq, 32):
        state = start(q[:, :, m], v)
        for n in tiles(sk, 32):
            i, j = rows(m) + sk - sq, cols(n)
            seen = visible(i, j, causal, (-1, right))
            if left >= 0:
                seen &= j > i - left if bug else j >= i - left
            state = step(state, masked(dot(q[:, :, m], k[:, :, n]) * scale, seen), v[:, :, n], dtype)
        pairs.append(finish(*state, dtype))
    return join(pairs)


@wrong(
    case(80, 112, "bfloat16", heads=2, window_size=(40, 12), softcap=2.0),
    truth="Two faults. The right limit of the window is ignored: query i at p = i + 32 sees all keys j >= p - 40, "
    "where p - 40 <= j <= p + 12 is right. And the softcap of 2 is dropped: scores are q.k * scale.",
    source="class of jax 099f0a1708 and vllm-metal#665",
    faults=2,
)
def right_window_and_cap_8(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float,
    causal: bool,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    bug: bool = True,
) -> Pair:
    """A local-attention kernel with a softcap and tiles of 64 queries and 32 keys."""
    dtype = q.dtype
    q, k, v = spread(q, k, v)
    sq, sk = q.shape[2], k.shape[2]
    window, cap = ((window_size[0], -1), 0.0) if bug else (window_size, softcap)
    pairs = []
    for m in tiles(sq, 64):
        state = start(q[:, :, m], v)
        for n in tiles(sk, 32):
            s = capped(dot(q[:, :, m], k[:, :, n]) * scale, cap)
            state = step(state, masked(s, visible(rows(m) + sk - sq, cols(n), causal, window)), v[:, :, n], dtype)
        pairs.append(finish(*state, dtype))
    return join(pairs)


@wrong(
    case(96, 160, "float32", heads=2, window_size=(48, 16)),
    truth="Two faults. The first key tile of a query tile is rounded up: a tile of 32 queries whose first position is "
    "p0 = 64, 96, 128 begins at key 32 * ceil((p0 - 48) / 32) = 32, 64, 96, so keys 16-31, 48-63, 80-95 are "
    "missing from all its rows. And the right limit is exclusive: query at p sees j < p + 16, not j = p + 16.",
    source="class of flash-attn and flashinfer window tile bounds",
    faults=2,
)
def window_tile_bounds_8(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float,
    causal: bool,
    window_size: tuple[int, int] = (-1, -1),
    bug: bool = True,
) -> Pair:
    """A CUTLASS-style local kernel that loops from the first to the last key tile of a window."""
    dtype, tile, (left, right) = q.dtype, 32, window_size
    q, k, v = spread(q, k, v)
    sq, sk = q.shape[2], k.shape[2]
    if bug:
        right -= 1
    pairs = []
    for m in tiles(sq, tile):
        i = rows(m) + sk - sq
        begin = max(0, m.start + sk - sq - left) if left >= 0 else 0
        first = cdiv(begin, tile) if bug else begin // tile
        end = min(sk, m.stop + sk - sq + right) if right >= 0 else sk
        state = start(q[:, :, m], v)
        for at in range(first * tile, end, tile):
            n = slice(at, min(sk, at + tile))
            s = dot(q[:, :, m], k[:, :, n]) * scale
            state = step(state, masked(s, visible(i, cols(n), causal, (left, right))), v[:, :, n], dtype)
        pairs.append(finish(*state, dtype))
    return join(pairs)


@wrong(
    case(160, 160, "bfloat16", heads=2, head_dim=64, causal=True),
    truth="The causal loop of query tile u (64 queries) makes u * 64 // 32 + 1 = 2u + 1 steps of 32 keys, where "
    "ceil((u + 1) * 64 / 32) = 2u + 2 are right: keys j >= 64u + 32 are left out, so that queries 64u + 32 to "
    "64u + 63 see only keys 0 to 64u + 31.",
    source="jax 7d27c319b2",
)
def causal_block_ratio_8(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A Pallas kernel with blocks of 64 queries and 32 keys."""
    dtype = q.dtype
    q, k, v = spread(q, k, v)
    sq, sk = q.shape[2], k.shape[2]
    pairs = []
    for m in tiles(sq, 64):
        count = cdiv(sk, 32)
        if causal:
            count = min(count, (m.start + sk - sq) // 32 + 1 if bug else cdiv(m.stop + sk - sq, 32))
        state = start(q[:, :, m], v)
        for n in tiles(min(sk, count * 32), 32):
            s = dot(q[:, :, m], k[:, :, n]) * scale
            state = step(state, masked(s, visible(rows(m) + sk - sq, cols(n), causal)), v[:, :, n], dtype)
        pairs.append(finish(*state, dtype))
    return join(pairs)


@wrong(
    case(80, 87, "float32", heads=7, kv_heads=1, head_dim=64, causal=True),
    truth="Rows are packed as query * 7 + head in tiles of 64, and the causal bound of a tile that ends before row r "
    "is r // 7 + 7 keys, where ceil(r / 7) + 7 is right; keys go in tiles of 16. Where r // 7 + 7 is a multiple "
    "of 16 a tile is lost: head 0 of query 9 (row 63) misses key 16, head 0 of query 73 (row 511) misses key 80. "
    "All else is right.",
    source="flashinfer#1148",
)
def packed_bound_8(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A packed GQA prefill kernel with tiles of 64 rows and 16 keys."""
    dtype, (heads, sq), (kv_heads, sk) = q.dtype, q.shape[1:3], k.shape[1:3]
    group = heads // kv_heads
    q, k, v = (x.astype(np.float32) for x in (pack(q, kv_heads), k, v))
    pairs = []
    for m in tiles(sq * group, 64):
        i = rows(m) // group + sk - sq
        last = m.stop // group if bug else cdiv(m.stop, group)
        count = cdiv(min(sk, last + sk - sq) if causal else sk, 16)
        state = start(q[:, :, m], v)
        for n in tiles(min(sk, count * 16), 16):
            s = dot(q[:, :, m], k[:, :, n]) * scale
            state = step(state, masked(s, visible(i, cols(n), causal)), v[:, :, n], dtype)
        pairs.append(finish(*state, dtype))
    return unpack(join(pairs), heads)


@wrong(
    case(96, 64, "float16", heads=2, batch=2, head_dim=64),
    truth="Q is packed as [batch * Sq] rows, and sequence b begins at b * Sk, where b * Sq is right: query i of batch "
    "1 is computed from flat row 64 + i, that is query 64 + i of batch 0 for i < 32 and query i - 32 of batch 1 "
    "for i >= 32. K, V and where out is stored are right; batch 0 is right.",
    source="TRT-LLM#10102",
)
def varlen_q_begin_8(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A varlen kernel over packed rows and cumulative lengths, with tiles of 32 keys."""
    batch, heads, sq, d = q.shape
    sk = k.shape[2]
    qf, kf, vf = spread(q, k, v)
    flat = qf.swapaxes(1, 2).reshape(-1, heads, d)
    cu_q, cu_k = np.arange(batch + 1) * sq, np.arange(batch + 1) * sk
    outs, lses = [], []
    for b in range(batch):
        at = (cu_k if bug else cu_q)[b] + np.arange(sq)
        rows_q = np.where((at < len(flat))[:, None, None], flat[at % len(flat)], 0)
        s = dot(rows_q.swapaxes(0, 1)[None], kf[b : b + 1]) * scale
        s = masked(s, visible(rows(slice(sk - sq, sk)), cols(slice(0, sk)), causal))
        out, lse = online(s, vf[b : b + 1], q.dtype, 32)
        outs.append(out)
        lses.append(lse)
    return np.concatenate(outs), np.concatenate(lses)


@wrong(
    case(48, 120, "float16", heads=4, head_dim=64, alibi_slopes="geometric"),
    truth="The distance of ALiBi lacks the offset Sk - Sq = 72: the bias is -slope * |i - j|, where -slope * |i + 72 - "
    "j| is right.",
    source="class of flash-attn ALiBi with Sq != Sk",
)
def alibi_alignment_8(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float,
    causal: bool,
    alibi_slopes: Array | None = None,
    bug: bool = True,
) -> Pair:
    """A CUDA kernel with ALiBi and tiles of 64 queries and 32 keys."""
    dtype, slopes = q.dtype, slopes_of(alibi_slopes, q.shape[1])
    q, k, v = spread(q, k, v)
    sq, sk = q.shape[2], k.shape[2]
    pairs = []
    for m in tiles(sq, 64):
        state = start(q[:, :, m], v)
        for n in tiles(sk, 32):
            i, j = rows(m) + sk - sq, cols(n)
            distance = abs((rows(m) if bug else i) - j).astype(np.float32)
            s = dot(q[:, :, m], k[:, :, n]) * scale - slopes * distance
            state = step(state, masked(s, visible(i, j, causal)), v[:, :, n], dtype)
        pairs.append(finish(*state, dtype))
    return join(pairs)


@wrong(
    case(64, 64, "bfloat16", heads=8, kv_heads=2, head_dim=32, alibi_slopes="geometric"),
    truth="Two faults of ALiBi. Query head h takes the slope h // 4 of its KV head, so heads 0-3 have slope[0] and "
    "heads 4-7 slope[1]. And the distance has no absolute value: the bias is -slope * (i - j), which is positive "
    "for keys j > i.",
    source="class of vLLM and Triton ALiBi under GQA",
    faults=2,
)
def alibi_slope_and_sign_8(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float,
    causal: bool,
    alibi_slopes: Array | None = None,
    bug: bool = True,
) -> Pair:
    """A unified-attention kernel with ALiBi, a program per KV head, and tiles of 32 keys."""
    dtype, heads, kv_heads = q.dtype, q.shape[1], k.shape[1]
    slopes, h = slopes_of(alibi_slopes, heads), np.arange(heads)
    if bug:
        slopes = slopes[h // (heads // kv_heads)]
    q, k, v = spread(q, k, v)
    sq, sk = q.shape[2], k.shape[2]
    i = rows(slice(sk - sq, sk))
    state = start(q, v)
    for n in tiles(sk, 32):
        distance = (i - cols(n)).astype(np.float32)
        s = dot(q, k[:, :, n]) * scale - slopes * (distance if bug else abs(distance))
        state = step(state, masked(s, visible(i, cols(n), causal)), v[:, :, n], dtype)
    return finish(*state, dtype)


@wrong(
    case(72, 72, "float32", heads=4, kv_heads=4, head_dim=64, causal=True, alibi_slopes="geometric"),
    truth="The bias of ALiBi is added before the scale: scores are (q.k - slope * |i - j|) * scale, so that each slope "
    "is multiplied by scale = 1/8.",
    source="class of biases added before the scale",
)
def alibi_before_scale_8(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float,
    causal: bool,
    alibi_slopes: Array | None = None,
    bug: bool = True,
) -> Pair:
    """A kernel that puts the bias into the accumulators of q.k, with tiles of 32 queries and 32 keys."""
    dtype, slopes = q.dtype, slopes_of(alibi_slopes, q.shape[1])
    q, k, v = spread(q, k, v)
    sq, sk = q.shape[2], k.shape[2]
    pairs = []
    for m in tiles(sq, 32):
        state = start(q[:, :, m], v)
        for n in tiles(sk, 32):
            i, j = rows(m) + sk - sq, cols(n)
            bias = -slopes * abs(i - j).astype(np.float32)
            s = dot(q[:, :, m], k[:, :, n])
            s = (s + bias) * scale if bug else s * scale + bias
            state = step(state, masked(s, visible(i, j, causal)), v[:, :, n], dtype)
        pairs.append(finish(*state, dtype))
    return join(pairs)


@wrong(
    case(100, 64, "float16", heads=2, head_dim=64, causal=True),
    truth="Masked scores are -1e30 in place of -inf and nothing guards empty rows: queries 0 to 35, which see no key, "
    "get the mean of V over all 64 keys in place of 0, and lse -1e30. Other rows are right.",
    source="onnxruntime#28904",
)
def empty_row_mean_8(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A CPU flash kernel with a finite mask value and tiles of 32 queries and 32 keys."""
    dtype = q.dtype
    q, k, v = spread(q, k, v)
    sq, sk = q.shape[2], k.shape[2]
    hidden = np.float32(-1e30 if bug else -np.inf)
    pairs = []
    for m in tiles(sq, 32):
        state = start(q[:, :, m], v)
        for n in tiles(sk, 32):
            seen = visible(rows(m) + sk - sq, cols(n), causal)
            s = np.where(seen, dot(q[:, :, m], k[:, :, n]) * scale, hidden)
            state = step(state, s, v[:, :, n], dtype)
        pairs.append(finish(*state, dtype))
    return join(pairs)


@wrong(
    case(128, 128, "float16", heads=2, head_dim=64, causal=True),
    truth="Of the key tiles (32) of a query tile (64) only the last is masked, where the last two touch the diagonal: "
    "queries 64u to 64u + 31 see all keys 0 to 64u + 31, the future ones among them (query 64u + 31 is right); "
    "queries 64u + 32 to 64u + 63 are right.",
    source="class of flash-attn masking steps with unequal tiles",
)
def masking_steps_8(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A FlashAttention-2 kernel with masked steps first and plain ones after, tiles of 64 queries and 32 keys."""
    dtype = q.dtype
    q, k, v = spread(q, k, v)
    sq, sk = q.shape[2], k.shape[2]
    steps = 1 if bug else 64 // 32 + 1
    pairs = []
    for m in tiles(sq, 64):
        count = cdiv(min(sk, m.stop + sk - sq) if causal else sk, 32)
        state = start(q[:, :, m], v)
        for t in reversed(range(count)):
            n = slice(t * 32, min(sk, t * 32 + 32))
            s = dot(q[:, :, m], k[:, :, n]) * scale
            if causal and t >= count - steps:
                s = masked(s, visible(rows(m) + sk - sq, cols(n), True))
            state = step(state, s, v[:, :, n], dtype)
        pairs.append(finish(*state, dtype))
    return join(pairs)


@wrong(
    case(192, 192, "bfloat16", heads=2, head_dim=64, causal=True, window_size=(20, 0)),
    truth="Key tiles of 32 that a query tile of 32 does not see at all are skipped without moving the pointers to K "
    "and V: query tile u >= 2 skips the first u - 1 tiles, so it takes K and V of key j from row j - 32 * (u - "
    "1), while the mask (i - 20 <= j <= i) uses j. Queries 0 to 63 are right.",
    source="llama.cpp#14916",
)
def skipped_increment_8(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float,
    causal: bool,
    window_size: tuple[int, int] = (-1, -1),
    bug: bool = True,
) -> Pair:
    """A kernel that skips masked tiles and moves its pointers to K and V at the end of each step."""
    dtype = q.dtype
    q, k, v = spread(q, k, v)
    sq, sk = q.shape[2], k.shape[2]
    pairs = []
    for m in tiles(sq, 32):
        state, at = start(q[:, :, m], v), 0
        for n in tiles(sk, 32):
            seen, size = visible(rows(m) + sk - sq, cols(n), causal, window_size), n.stop - n.start
            if not seen.any():
                at += 0 if bug else size
                continue
            t = slice(at, at + size)
            state = step(state, masked(dot(q[:, :, m], k[:, :, t]) * scale, seen), v[:, :, t], dtype)
            at += size
        pairs.append(finish(*state, dtype))
    return join(pairs)


@wrong(
    case(128, 160, "float16", heads=4, kv_heads=2, head_dim=64, causal=True, alibi_slopes="geometric"),
    truth="Two faults. ALiBi uses the column in the tile of 64 keys: the bias is -slope * |i + 32 - (j % 64)|. And the "
    "causal comparison is strict: query i sees keys j < i + 32, not its own key j = i + 32.",
    source="class of Triton ALiBi columns and off-by-one causal masks",
    faults=2,
)
def alibi_tile_column_8(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float,
    causal: bool,
    alibi_slopes: Array | None = None,
    bug: bool = True,
) -> Pair:
    """A Triton kernel with ALiBi and tiles of 64 queries and 64 keys."""
    dtype, slopes = q.dtype, slopes_of(alibi_slopes, q.shape[1])
    q, k, v = spread(q, k, v)
    sq, sk = q.shape[2], k.shape[2]
    pairs = []
    for m in tiles(sq, 64):
        i = rows(m) + sk - sq
        state = start(q[:, :, m], v)
        for n in tiles(sk, 64):
            j = cols(n)
            column = j - n.start if bug else j
            s = dot(q[:, :, m], k[:, :, n]) * scale - slopes * abs(i - column).astype(np.float32)
            seen = visible(i - 1 if bug else i, j, causal)
            state = step(state, masked(s, seen), v[:, :, n], dtype)
        pairs.append(finish(*state, dtype))
    return join(pairs)
