"""Faults of masks: causal alignment, windows, ALiBi, padded tails, rows without keys."""

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
    pad,
    rounded,
    safe,
    scores,
    spread,
    start,
    step,
    tiles,
    top,
    visible,
    wrong,
)


@wrong(
    case(77, 77, "bfloat16", window_size=(16, 16)),
    truth="the check j < seqlen_k is compiled out of the 16-bit path: the zero keys that fill the last tile of 32 get "
    "a score of 0, where the window of a query (i >= 61) reaches past the end, and their exp(0 - m) is in the sum",
    source="NATTEN#341",
)
def unchecked_tail(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, window_size: tuple[int, int], bug: bool = True
) -> Pair:
    """A neighbourhood of keys in tiles of 32, with a path for each width of dtype."""
    qf, kf, vf = spread(q, k, v)
    kf, vf = pad(kf, 2, 32), pad(vf, 2, 32)
    i, _ = grid(q, k)
    j = np.arange(kf.shape[2])[None]
    seen = visible(i, j, causal, window_size)
    if not bug or q.dtype.itemsize == 4:
        seen &= j < k.shape[2]
    return online(masked(dot(qf, kf) * scale, seen), vf, q.dtype, 32)


@wrong(
    case(96, 150, "float16", causal=True),
    truth="the first pass (max and sum) aligns the diagonal to the bottom right, the second to the top left: P @ V "
    "takes keys j <= i alone, divided by the sum over all j <= i + Sk - Sq; lse is right",
    source="ffpa-attn#300",
)
def two_alignments(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Two passes: the lse of each row, then P = exp(s - lse) against V."""
    qf, kf, vf = spread(q, k, v)
    _, lse = online(scores(qf, kf, scale, causal), vf, q.dtype, 32)
    i, j = grid(q, k)
    seen = visible(i - (k.shape[2] - q.shape[2]) if bug else i, j, causal)
    p = np.exp(masked(dot(qf, kf) * scale, seen) - safe(lse)[..., None])
    return (rounded(p, q.dtype) @ vf).astype(q.dtype), lse


@wrong(
    case(128, 128, "float32", heads=2, kv_heads=1),
    truth="(1) the flag causal is ignored: the stage of diagonal tiles runs also for full attention; (2) its mask is "
    "strict: query i sees keys j < i + Sk - Sq, so that row 0 is empty",
    source="triton#4541; class of strict comparisons in Triton stages (offs_m > offs_n)",
    faults=2,
)
def always_staged(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Triton's stages: tiles left of the diagonal without a mask, then those on it."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    pairs = []
    for rows in tiles(q.shape[2], 64):
        state, at = start(qf[:, :, rows], vf), i[rows]
        for t in tiles(k.shape[2], 32):
            s = dot(qf[:, :, rows], kf[:, :, t]) * scale
            if (bug or causal) and t.stop > at[0, 0]:
                s = masked(s, j[:, t] < at if bug else j[:, t] <= at)
            state = step(state, s, vf[:, :, t], q.dtype)
        pairs.append(finish(*state, q.dtype))
    return join(pairs)


@wrong(
    case(64, 150, "bfloat16", heads=4, causal=True, alibi_slopes="geometric"),
    truth="(1) the exponent of the slopes is off by one: head h has 2^(-8h/H) and not 2^(-8(h+1)/H); (2) the distance "
    "is |i - j| without Sk - Sq, so that the bias is 0 at key i and not at the last key seen",
    source="mlx#3071, aprender#2143; class of ALiBi distances without the offset of the cache",
    faults=2,
)
def slope_exponent(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, alibi_slopes: Array, bug: bool = True
) -> Pair:
    """ALiBi in an online softmax over tiles of 64 keys."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    slopes = np.asarray(alibi_slopes, np.float32) * np.float32(2 ** (8 / q.shape[1]) if bug else 1)
    origin = i - (k.shape[2] - q.shape[2]) if bug else i
    bias = -slopes[:, None, None] * np.abs(origin - j).astype(np.float32)
    return online(scores(qf, kf, scale, causal) + bias, vf, q.dtype, 64)


@wrong(
    case(96, 112, "float16", alibi_slopes="geometric"),
    truth="one buffer in shared memory holds the bias tile, without a barrier before it is written again: the slow "
    "warps (rows 32..63 of each tile of 64 queries) add the bias of the next tile, |i - (j + 32)|, to the scores of "
    "each tile of 32 keys; columns that the next tile has not keep their own",
    source="CK#2876, CK#3135",
)
def bias_overwritten(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, alibi_slopes: Array, bug: bool = True
) -> Pair:
    """Four warps of 16 rows read the bias of a tile of 32 keys from shared memory."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    late = bug & (np.arange(q.shape[2])[:, None] % 64 >= 32) & (j + 32 < k.shape[2])
    distance = np.abs(i - np.where(late, j + 32, j)).astype(np.float32)
    bias = -np.asarray(alibi_slopes, np.float32)[:, None, None] * distance
    return online(scores(qf, kf, scale, causal) + bias, vf, q.dtype, 32)


@wrong(
    case(96, 160, "float32", heads=2, causal=True),
    truth="the key of the cache of compiled tiles lacks the mask flag: the first tile (32 x 32, left of the diagonal) "
    "is compiled without a mask, and the diagonal tiles of that shape run the same code: query i sees all keys of "
    "its diagonal tile",
    source="mlx#2053",
)
def cached_without_mask(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Tiles compiled on demand, with or without a mask, up to the diagonal."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    cache: dict[tuple[int, ...], bool] = {}
    pairs = []
    for rows in tiles(q.shape[2], 32):
        state, at = start(qf[:, :, rows], vf), i[rows]
        for t in tiles(k.shape[2], 32):
            if causal and t.start > at[-1, 0]:
                break
            needs = causal and t.stop - 1 > at[0, 0]
            shape = rows.stop - rows.start, t.stop - t.start
            s = dot(qf[:, :, rows], kf[:, :, t]) * scale
            if cache.setdefault(shape if bug else (*shape, needs), needs):
                s = masked(s, visible(at, j[:, t], causal))
            state = step(state, s, vf[:, :, t], q.dtype)
        pairs.append(finish(*state, q.dtype))
    return join(pairs)


@wrong(
    case(120, 72, "bfloat16", causal=True),
    truth="tiles of 16 queries with no key left (i + Sk - Sq < 0 for all: queries 0..47) are skipped before the "
    "store: their out is what the buffer held (here bytes of a freed K) and not 0, their lse 0 and not -inf",
    source="flashinfer#1533",
)
def rows_never_written(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Tiles of 16 queries, with a length of keys for each, into a buffer that is not cleared."""
    qf, kf, vf = spread(q, k, v)
    s, i = scores(qf, kf, scale, causal), grid(q, k)[0]
    out = np.resize(k, (*q.shape[:3], v.shape[3]))
    lse = np.zeros(q.shape[:3], np.float32)
    for rows in tiles(q.shape[2], 16):
        length = min(int(i[rows][-1, 0]) + 1, k.shape[2]) if causal else k.shape[2]
        if bug and length <= 0:
            continue
        length = max(length, 1)
        out[:, :, rows], lse[:, :, rows] = online(s[:, :, rows, :length], vf[:, :, :length], q.dtype, 32)
    return out, lse


@wrong(
    case(128, 144, "float16", heads=2, kv_heads=1, window_size=(24, 16)),
    truth="(1) the loop over tiles of 16 keys ends at the diagonal of the last row of the tile of 64 queries, without "
    "the window to the right: queries 48..63 lose the keys from 80 on (the second tile ends with the keys "
    "anyway); (2) the left bound is exclusive: key i + Sk - Sq - 24 is not seen",
    source="class of local attention tile bounds (flash-attn n_block_max with window_size_right); zml#763 class",
    faults=2,
)
def window_tile_bounds(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, window_size: tuple[int, int], bug: bool = True
) -> Pair:
    """Tiles of 64 queries over the tiles of 16 keys from the first to the last that the window reaches."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    left, right = window_size
    right = 0 if causal else right
    pairs = []
    for rows in tiles(q.shape[2], 64):
        state, at = start(qf[:, :, rows], vf), i[rows]
        reach = k.shape[2] if right < 0 else int(at[-1, 0]) + 1 + (0 if bug else right)
        for t in tiles(min(cdiv(max(reach, 0), 16) * 16, k.shape[2]), 16):
            if left >= 0 and t.stop <= at[0, 0] - left:
                continue
            seen = visible(at, j[:, t], causal, (left - bug if left > 0 else left, right))
            state = step(state, masked(dot(qf[:, :, rows], kf[:, :, t]) * scale, seen), vf[:, :, t], q.dtype)
        pairs.append(finish(*state, q.dtype))
    return join(pairs)


@wrong(
    case(160, 192, "float32", heads=1, causal=True),
    truth="the offset i * pitch of a row of the mask wraps at 2^14 (for 2^31): rows i >= 86 read the mask 16384 "
    "elements earlier, which is the mask of row i - 86 from column 128 on, then of row i - 85",
    source="llama.cpp#23610, llama.cpp#24945",
)
def mask_offset(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A mask in float16 of 0 and -inf, with rows padded to 32, that is added to the scores."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    mask = pad(masked(np.zeros((len(i), j.size), np.float32), visible(i, j, causal)), 1, 32, -np.inf)
    row = np.arange(len(i))[:, None] * mask.shape[1]
    bias = mask.astype(np.float16).reshape(-1)[(row & 0x3FFF if bug else row) + j]
    return online(dot(qf, kf) * scale + bias.astype(np.float32), vf, q.dtype, 64)


@wrong(
    case(150, 45, "float16", heads=4, alibi_slopes="geometric"),
    truth="the 19 keys that fill the last tile of 64 get the finite sentinel -20 (for -10000) in place of -inf: in "
    "rows whose ALiBi scores lie below or near it (head 0, queries far from the keys) the filled keys, with V = 0, "
    "take most of the sum and out shrinks towards 0",
    source="ohdearquant/lattice#361",
)
def finite_sentinel(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, alibi_slopes: Array, bug: bool = True
) -> Pair:
    """Whole tiles of 64 keys, filled up with zeros, and a sentinel for the keys past the end."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    bias = -np.asarray(alibi_slopes, np.float32)[:, None, None] * np.abs(i - j).astype(np.float32)
    s = pad(scores(qf, kf, scale, causal) + bias, 3, 64, -20.0 if bug else -np.inf)
    values = pad(vf, 2, 64)
    m = top(s)
    p = np.exp(s - safe(m))
    return finish(m, p.sum(-1, keepdims=True), rounded(p, q.dtype) @ values, q.dtype)
