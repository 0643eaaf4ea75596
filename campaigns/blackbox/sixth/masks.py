"""Faults of masks: causal, windows, padding, skipped blocks, biases and alignment."""

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
    merge,
    pack,
    pad,
    spread,
    start,
    step,
    tiles,
    unpack,
    visible,
    wrong,
)


def capped(s: Array, cap: float) -> Array:
    """Scores with a softcap, as they are without."""
    return cap * np.tanh(s / cap) if cap else s


def slopes_of(slopes: Array | None, heads: int) -> Array:
    """ALiBi slopes as a column for each head."""
    return (np.zeros(heads, np.float32) if slopes is None else slopes)[:, None, None]


@wrong(
    case(64, 144, "float16", heads=4, kv_heads=2, causal=True),
    truth="Query i sees keys j <= i instead of j <= i + 80: the causal mask is aligned to the top left.",
    source="flash-attn#282",
)
def top_left_6(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a Triton forward over tiles of queries that stops at the diagonal."""
    sq, sk = q.shape[2], k.shape[2]
    qf, kf, vf = spread(q, k, v)
    i = np.arange(sq)[:, None] + (0 if bug else sk - sq)
    j = np.arange(sk)[None]
    pairs = []
    for rows in tiles(sq, 32):
        end = min(sk, max(0, int(i[rows].max()) + 1)) if causal else sk
        state = start(qf[:, :, rows], vf)
        for t in tiles(end, 32):
            s = masked(dot(qf[:, :, rows], kf[:, :, t]) * scale, visible(i[rows], j[:, t], causal))
            state = step(state, s, vf[:, :, t], q.dtype)
        pairs.append(finish(*state, q.dtype))
    return join(pairs)


@wrong(
    case(50, 150, "bfloat16", heads=4, kv_heads=2, causal=True),
    truth="Token i of head 2 * hk + g is masked as if at position 2 * i + g + 100 instead of i + 100: it sees keys "
    "j <= min(149, 2 * i + g + 100).",
    source="class of packed GQA kernels that compare the packed row with the key",
)
def packed_row_6(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a kernel that packs the query heads of a group into the rows of a tile."""
    kv_heads, group = k.shape[1], q.shape[1] // k.shape[1]
    qf, kf, vf = spread(pack(q, kv_heads), k, v)
    row = np.arange(qf.shape[2])[:, None]
    i = (row if bug else row // group) + k.shape[2] - q.shape[2]
    _, j = grid(q, k)
    pairs = []
    for rows in tiles(qf.shape[2], 64):
        state = start(qf[:, :, rows], vf)
        for t in tiles(k.shape[2], 64):
            s = masked(dot(qf[:, :, rows], kf[:, :, t]) * scale, visible(i[rows], j[:, t], causal))
            state = step(state, s, vf[:, :, t], q.dtype)
        pairs.append(finish(*state, q.dtype))
    return unpack(join(pairs), q.shape[1])


@wrong(
    case(64, 67, "float16", heads=7, kv_heads=1, causal=True, batch=2),
    truth="Tiles of 64 packed rows (row 7 * i + h) stop at key tile cdiv(floor(end / 7) + 3, 16): only the tile of "
    "rows 256..319 loses by it: token 45 of heads 0..4 does not see key 48.",
    source="flashinfer#1148",
)
def floor_group_6(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a prefill kernel with packed query heads and a causal bound on tiles of keys."""
    h, sq, sk = q.shape[1], q.shape[2], k.shape[2]
    kv_heads, group = k.shape[1], h // k.shape[1]
    qf, kf, vf = spread(pack(q, kv_heads), k, v)
    i = np.arange(sq * group)[:, None] // group + sk - sq
    _, j = grid(q, k)
    pairs = []
    for rows in tiles(sq * group, 64):
        tokens = rows.stop // group if bug else cdiv(rows.stop, group)
        end = min(sk, cdiv(max(0, tokens + sk - sq), 16) * 16) if causal else sk
        state = start(qf[:, :, rows], vf)
        for t in tiles(end, 16):
            s = masked(dot(qf[:, :, rows], kf[:, :, t]) * scale, visible(i[rows], j[:, t], causal))
            state = step(state, s, vf[:, :, t], q.dtype)
        pairs.append(finish(*state, q.dtype))
    return unpack(join(pairs), h)


@wrong(
    case(128, 192, "bfloat16", heads=2, causal=True, window_size=(72, 0)),
    truth="The first tile of 32 keys is taken from the window of the last query of a tile of 64: queries 0..63 do not "
    "see keys below 32 (which those up to 39 should), queries 64..127 none below 96 (which those up to 103 should).",
    source="class of flash-attn and sglang reports of the left bound of a window",
)
def window_start_6(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float,
    causal: bool,
    bug: bool = True,
    window_size: tuple[int, int] = (-1, -1),
) -> Pair:
    """Like a forward with a window that skips tiles of keys on both sides."""
    sk = k.shape[2]
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    pairs = []
    for rows in tiles(q.shape[2], 64):
        at = int(i[rows][-1 if bug else 0, 0])
        first = max(0, at - window_size[0]) // 32 if window_size[0] >= 0 else 0
        state = start(qf[:, :, rows], vf)
        for n in range(first, cdiv(sk, 32)):
            t = slice(n * 32, min(sk, n * 32 + 32))
            seen = visible(i[rows], j[:, t], causal, window_size)
            state = step(state, masked(dot(qf[:, :, rows], kf[:, :, t]) * scale, seen), vf[:, :, t], q.dtype)
        pairs.append(finish(*state, q.dtype))
    return join(pairs)


@wrong(
    case(128, 128, "float32", heads=2, head_dim=128, causal=True),
    truth="Of the tiles of 32 keys before the diagonal of a tile of 64 queries only the last is masked: queries 0..31 "
    "see all keys 0..31, and queries 64..95 see all keys 0..95; all other rows are right.",
    source="class of kernels with one masked step where block_m > block_n",
)
def one_masked_tile_6(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a forward that splits the loop over keys into masked and unmasked steps."""
    sk, size_q, size_k = k.shape[2], 64, 32
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    pairs = []
    for rows in tiles(q.shape[2], size_q):
        end = min(sk, max(0, int(i[rows][-1, 0]) + 1)) if causal else sk
        n = cdiv(end, size_k)
        masks = 1 if bug else cdiv(size_q, size_k) + 1
        state = start(qf[:, :, rows], vf)
        for m in range(n):
            t = slice(m * size_k, min(sk, m * size_k + size_k))
            s = dot(qf[:, :, rows], kf[:, :, t]) * scale
            if m >= n - masks:
                s = masked(s, visible(i[rows], j[:, t], causal))
            state = step(state, s, vf[:, :, t], q.dtype)
        pairs.append(finish(*state, q.dtype))
    return join(pairs)


@wrong(
    case(70, 100, "float16", heads=4, softcap=3.0),
    truth="(1) Keys are filled up to 128 with zeros and not masked: 28 more keys with score 0 and V 0. (2) The softcap "
    "of 3 is not applied.",
    source="SageAttention 3917283 and vllm-metal#665",
    faults=2,
)
def zero_keys_6(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True, softcap: float = 0.0
) -> Pair:
    """Like a wrapper that fills K and V up to whole tiles, and a kernel that masks the tail."""
    sk = k.shape[2]
    qf, kf, vf = spread(q, k, v)
    kf, vf = pad(kf, 2, 64), pad(vf, 2, 64)
    i, _ = grid(q, k)
    state = start(qf, vf)
    for t in tiles(kf.shape[2], 64):
        j = np.arange(t.start, t.stop)[None]
        s = dot(qf, kf[:, :, t]) * scale
        if not bug:
            s = capped(s, softcap)
        if causal:
            s = masked(s, j <= i)
        elif not bug:
            s = masked(s, j < sk)
        state = step(state, s, vf[:, :, t], q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(60, 110, "float32", heads=4, alibi_slopes="geometric", window_size=(24, -1)),
    truth="(1) The distance of ALiBi is |i - j| instead of |i + 50 - j|. (2) The left edge of the window is exclusive: "
    "key j = i + 50 - 24 is not seen; the mask is else right.",
    source="class of flash-attn#436 for the bias, and transformers#39408",
    faults=2,
)
def alibi_origin_6(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float,
    causal: bool,
    bug: bool = True,
    alibi_slopes: Array | None = None,
    window_size: tuple[int, int] = (-1, -1),
) -> Pair:
    """Like a kernel that adds the bias of positions to each tile of scores."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    origin = i - (k.shape[2] - q.shape[2] if bug else 0)
    slopes = slopes_of(alibi_slopes, q.shape[1])
    state = start(qf, vf)
    for t in tiles(k.shape[2], 64):
        s = dot(qf, kf[:, :, t]) * scale - slopes * np.abs(origin - j[:, t]).astype(np.float32)
        seen = visible(i, j[:, t], causal, window_size)
        if bug and window_size[0] >= 0:
            seen &= j[:, t] > i - window_size[0]
        state = step(state, masked(s, seen), vf[:, :, t], q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(96, 96, "bfloat16", heads=2, causal=True, softcap=4.0),
    truth="The softcap is applied after the mask: masked keys (j > i) have score -4 instead of -inf and take part in "
    "out and lse.",
    source="flashinfer#350",
)
def cap_after_mask_6(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True, softcap: float = 0.0
) -> Pair:
    """Like a prefill kernel with a transform of logits and a mask, one after the other."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    pairs = []
    for rows in tiles(q.shape[2], 64):
        state = start(qf[:, :, rows], vf)
        for t in tiles(k.shape[2], 32):
            s, seen = dot(qf[:, :, rows], kf[:, :, t]) * scale, visible(i[rows], j[:, t], causal)
            s = capped(masked(s, seen), softcap) if bug else masked(capped(s, softcap), seen)
            state = step(state, s, vf[:, :, t], q.dtype)
        pairs.append(finish(*state, q.dtype))
    return join(pairs)


@wrong(
    case(96, 64, "float32", heads=4, kv_heads=2, head_dim=32, causal=True),
    truth="Masked scores are -1e30 instead of -inf: queries 0..31, which see no key, have the mean of V over all 64 "
    "keys as out and -1e30 as lse, instead of 0 and -inf.",
    source="onnxruntime#28904",
)
def mean_of_empty_6(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a forward with a finite number in place of minus infinity."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    low = np.float32(-1e30 if bug else -np.inf)
    state = start(qf, vf)
    for t in tiles(k.shape[2], 32):
        s = np.where(visible(i, j[:, t], causal), dot(qf, kf[:, :, t]) * scale, low)
        state = step(state, s, vf[:, :, t], q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(80, 112, "float16", heads=2, head_dim=96, window_size=(0, 24)),
    truth="A left window of 0 counts as none: query i sees all keys j <= i + 32 + 24 instead of i + 32 <= j <= i + 56.",
    source="class of tests of window_size > 0 in place of >= 0",
)
def window_zero_6(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float,
    causal: bool,
    bug: bool = True,
    window_size: tuple[int, int] = (-1, -1),
) -> Pair:
    """Like a local attention kernel, a flag for each side of the window."""
    left, right = window_size
    has_left = left > 0 if bug else left >= 0
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    pairs = []
    for rows in tiles(q.shape[2], 64):
        low = max(0, int(i[rows][0, 0]) - left) // 64 * 64 if has_left else 0
        state = start(qf[:, :, rows], vf)
        for t in tiles(k.shape[2] - low, 64):
            t = slice(t.start + low, t.stop + low)
            seen = visible(i[rows], j[:, t], causal, (left if has_left else -1, right))
            state = step(state, masked(dot(qf[:, :, rows], kf[:, :, t]) * scale, seen), vf[:, :, t], q.dtype)
        pairs.append(finish(*state, q.dtype))
    return join(pairs)


@wrong(
    case(40, 200, "bfloat16", heads=4, kv_heads=1),
    truth="Chunks of 80 keys are read in tiles of 32 and masked at the end of all keys, not of the chunk: keys 80..95 "
    "and 160..175 count twice in row sum and out.",
    source="flashinfer#1206",
)
def chunk_end_6(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a split-KV prefill whose chunks are no multiple of its tiles."""
    sk, size, tile = k.shape[2], 80, 32
    qf, kf, vf = spread(q, k, v)
    i, _ = grid(q, k)
    parts = []
    for first in range(0, sk, size):
        end = min(sk, first + size)
        state = start(qf, vf)
        for at in range(first, end, tile):
            t = slice(at, min(sk, at + tile))
            j = np.arange(t.start, t.stop)[None]
            seen = visible(i, j, causal) & (j < (sk if bug else end))
            state = step(state, masked(dot(qf, kf[:, :, t]) * scale, seen), vf[:, :, t], q.dtype)
        parts.append(state)
    return merge(parts, q.dtype)


@wrong(
    case(128, 160, "float16", heads=2, causal=True, window_size=(40, 0)),
    truth="Skipped tiles of 32 keys do not move the pointers of K and V. Queries 64..127 skip one tile: they read K "
    "and V of key j - 32 at each key j >= 32, masked as key j. Queries 0..63 skip none and are right.",
    source="llama.cpp#14916",
)
def skipped_pointer_6(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float,
    causal: bool,
    bug: bool = True,
    window_size: tuple[int, int] = (-1, -1),
) -> Pair:
    """Like a CUDA kernel with pointers that move on at the end of each step over keys."""
    sk, size = k.shape[2], 32
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    pairs = []
    for rows in tiles(q.shape[2], 64):
        state, pointer = start(qf[:, :, rows], vf), 0
        for t in tiles(sk, size):
            seen = visible(i[rows], j[:, t], causal, window_size)
            if not seen.any():
                pointer += 0 if bug else size
                continue
            at = slice(pointer, pointer + t.stop - t.start)
            state = step(state, masked(dot(qf[:, :, rows], kf[:, :, at]) * scale, seen), vf[:, :, at], q.dtype)
            pointer += size
        pairs.append(finish(*state, q.dtype))
    return join(pairs)


@wrong(
    case(128, 128, "bfloat16", heads=6, kv_heads=2, causal=True),
    truth="(1) A tile of 64 queries from i0 reads i0 // 32 + 1 tiles of 32 keys: queries 32..63 do not see keys >= 32, "
    "queries 96..127 do not see keys >= 96. (2) Query head h reads K and V of head h % 2 instead of h // 3.",
    source="jax 7d27c319b2 and class of group maps",
    faults=2,
)
def block_bound_6(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a Pallas forward with an upper bound of the loop over blocks of keys."""
    h, kv_heads, sk, size = q.shape[1], k.shape[1], k.shape[2], 32
    heads = np.arange(h) % kv_heads if bug else np.arange(h) // (h // kv_heads)
    qf, kf, vf = q.astype(np.float32), k.astype(np.float32)[:, heads], v.astype(np.float32)[:, heads]
    i, j = grid(q, k)
    pairs = []
    for rows in tiles(q.shape[2], 64):
        n = cdiv(sk, size)
        if causal:
            first, last = int(i[rows][0, 0]), int(i[rows][-1, 0])
            n = min(n, max(0, first // size + 1 if bug else cdiv(last + 1, size)))
        state = start(qf[:, :, rows], vf)
        for t in tiles(min(sk, n * size), size):
            s = masked(dot(qf[:, :, rows], kf[:, :, t]) * scale, visible(i[rows], j[:, t], causal))
            state = step(state, s, vf[:, :, t], q.dtype)
        pairs.append(finish(*state, q.dtype))
    return join(pairs)


@wrong(
    case(90, 100, "float32", heads=3, head_dim=80, causal=True),
    truth="The mask is kept as bits, 104 to a query, and read with 100 to a query: query i sees key j if bit n = 100 * "
    "i + j is set, which is key n % 104 of query n // 104 (keys 100..103 are not set). It is seen if n % 104 <= n // "
    "104 + 10.",
    source="class of flashinfer reports of packed custom masks",
)
def mask_bits_6(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a prefill kernel with a custom mask of packed bits."""
    sk = k.shape[2]
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    plain = pad(visible(i, j, causal).astype(np.uint8), 1, 8)
    bits = np.packbits(plain.reshape(-1), bitorder="little")
    pitch = sk if bug else plain.shape[1]
    row = np.arange(q.shape[2])[:, None]
    state = start(qf, vf)
    for t in tiles(sk, 32):
        n = row * pitch + j[:, t]
        seen = (bits[n >> 3] >> (n & 7).astype(np.uint8) & 1).astype(bool)
        state = step(state, masked(dot(qf, kf[:, :, t]) * scale, seen), vf[:, :, t], q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(60, 100, "float16", heads=4, kv_heads=2, causal=True, alibi_slopes="geometric"),
    truth="(1) The causal mask takes the length of keys rounded up to pages of 16: query i sees keys j <= min(99, i + "
    "52) instead of i + 40. (2) Query head h has the ALiBi slope of head h // 2. Distances |i + 40 - j| are right.",
    source="class of paged prefill with rounded lengths, and of slopes indexed by the head of K",
    faults=2,
)
def rounded_length_6(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True, alibi_slopes: Array | None = None
) -> Pair:
    """Like a chunked prefill over a paged cache with ALiBi."""
    h, sq, sk = q.shape[1], q.shape[2], k.shape[2]
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    end = np.arange(sq)[:, None] + (cdiv(sk, 16) * 16 if bug else sk) - sq
    slopes = slopes_of(alibi_slopes, h)
    if bug:
        slopes = slopes[np.arange(h) // (h // k.shape[1])]
    state = start(qf, vf)
    for t in tiles(sk, 16):
        s = dot(qf, kf[:, :, t]) * scale - slopes * np.abs(i - j[:, t]).astype(np.float32)
        state = step(state, masked(s, visible(end, j[:, t], causal)), vf[:, :, t], q.dtype)
    return finish(*state, q.dtype)
