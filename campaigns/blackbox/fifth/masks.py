"""Wrong masks: causal, windows, padding, skipped tiles, ALiBi, alignment."""

import numpy as np

from ..record import (
    LN2,
    Array,
    Pair,
    case,
    cdiv,
    dot,
    eager,
    finish,
    grid,
    join,
    masked,
    online,
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


def capped(s: Array, c: float) -> Array:
    """s with a softcap, if there is one."""
    return np.tanh(s / c) * c if c else s


def slopes_of(slopes: Array | None, heads: int) -> Array:
    """Slopes by head, in a shape that goes with scores; 0 without ALiBi."""
    return (np.zeros(heads, np.float32) if slopes is None else slopes)[:, None, None]


@wrong(
    case(48, 120, "float16", heads=4, kv_heads=2, causal=True),
    truth="Two faults. The causal mask is aligned to the top left: query i sees j <= i instead of j <= i + Sk - Sq. "
    "lse is in base 2: the natural logarithm divided by ln 2.",
    source="flash-attn#436; pytorch#181645",
    faults=2,
)
def top_left_base_two_5(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """FlashAttention-2 in Triton: query tiles of 32, key tiles of 64."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    if bug:
        i = i - i[0]
    pairs = []
    for r in tiles(q.shape[2], 32):
        s = masked(dot(qf[:, :, r], kf) * scale, visible(i[r], j, causal))
        pairs.append(online(s, vf, q.dtype, 64))
    out, lse = join(pairs)
    return out, lse / np.float32(LN2) if bug else lse


@wrong(
    case(128, 128, "bfloat16", heads=2, causal=True, window_size=(24, 0)),
    truth="The left edge of the window is exclusive: query i sees the keys j > i + Sk - Sq - 24 instead of j >= i + "
    "Sk - Sq - 24, one key fewer.",
    source="transformers#39408",
)
def exclusive_window_5(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float,
    causal: bool,
    bug: bool = True,
    window_size: tuple[int, int] = (-1, -1),
) -> Pair:
    """Sliding window in Triton: query tiles of 32, key tiles of 32 outside the window left out."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    left = window_size[0] - 1 if bug and window_size[0] > 0 else window_size[0]
    pairs = []
    for r in tiles(q.shape[2], 32):
        state = start(qf[:, :, r], vf)
        for t in tiles(k.shape[2], 32):
            seen = visible(i[r], j[:, t], causal, (left, window_size[1]))
            if seen.any():
                state = step(state, masked(dot(qf[:, :, r], kf[:, :, t]) * scale, seen), vf[:, :, t], q.dtype)
        pairs.append(finish(*state, q.dtype))
    return join(pairs)


@wrong(
    case(80, 96, "float32", heads=2, causal=False, window_size=(20, 20)),
    truth="Without causal the window is ignored: every query sees all keys.",
    source="jax 099f0a1708",
)
def window_without_causal_5(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float,
    causal: bool,
    bug: bool = True,
    window_size: tuple[int, int] = (-1, -1),
) -> Pair:
    """Splash attention in Pallas: a mask function that returns early when there is nothing to mask."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    plain = not causal if bug else not causal and window_size == (-1, -1)
    state = start(qf, vf)
    for t in tiles(k.shape[2], 32):
        s = dot(qf, kf[:, :, t]) * scale
        if not plain:
            s = masked(s, visible(i, j[:, t], causal, window_size))
        state = step(state, s, vf[:, :, t], q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(60, 90, "float16", heads=7, kv_heads=1, causal=True),
    truth="Rows of the 7 query heads of a group are packed as r = 7 * i + g in tiles of 64 rows. A tile that ends "
    "before row e sees the keys j < e // 7 + Sk - Sq instead of the quotient rounded up: where 7 does not divide e, "
    "the rows of its last token i = e // 7 in this tile do not see their own key j = i + Sk - Sq; the other rows of "
    "that token, in the next tile, do.",
    source="flashinfer#1148",
)
def packed_causal_bound_5(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """FlashInfer prefill: tiles of 64 packed rows, a causal bound for each of them, key tiles of 32."""
    heads, sq = q.shape[1:3]
    hk, sk = k.shape[1:3]
    group = heads // hk
    rows = pack(q, hk).astype(np.float32)
    kf, vf = k.astype(np.float32), v.astype(np.float32)
    i = np.arange(rows.shape[2])[:, None] // group + sk - sq
    j = np.arange(sk)[None]
    pairs = []
    for r in tiles(rows.shape[2], 64):
        tokens = r.stop // group if bug else cdiv(r.stop, group)
        end = max(0, min(sk, tokens + sk - sq)) if causal else sk
        state = start(rows[:, :, r], vf)
        for t in tiles(end, 32):
            s = masked(dot(rows[:, :, r], kf[:, :, t]) * scale, visible(i[r], j[:, t], causal))
            state = step(state, s, vf[:, :, t], q.dtype)
        pairs.append(finish(*state, q.dtype))
    return unpack(join(pairs), heads)


@wrong(
    case(128, 128, "bfloat16", heads=4, head_dim=32, causal=True),
    truth="A query tile of 64 rows from r0 visits (r0 + Sk - Sq) // 32 + 1 key tiles of 32, which suffices only for "
    "blocks of equal size: with Sq = Sk = 128 the rows i with i % 64 >= 32 do not see the keys 64 * (i // 64) + 32 "
    "to i.",
    source="jax 7d27c319b2",
)
def unequal_blocks_5(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Pallas kernel: query blocks of 64, key blocks of 32, a causal upper bound of blocks."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    sk, off = k.shape[2], k.shape[2] - q.shape[2]
    pairs = []
    for r in tiles(q.shape[2], 64):
        count = (r.start + off) // 32 + 1 if bug else cdiv(r.stop + off, 32)
        end = max(0, min(sk, 32 * count)) if causal else sk
        state = start(qf[:, :, r], vf)
        for t in tiles(end, 32):
            s = masked(dot(qf[:, :, r], kf[:, :, t]) * scale, visible(i[r], j[:, t], causal))
            state = step(state, s, vf[:, :, t], q.dtype)
        pairs.append(finish(*state, q.dtype))
    return join(pairs)


@wrong(
    case(64, 100, "float16", heads=4, kv_heads=2, head_dim=128, causal=False),
    truth="Without causal the padding of the last key tile of 64 is not masked: 28 keys of zeros at positions 100 to "
    "127 count with score 0 in maximum and sum, with V = 0.",
    source="SageAttention 3917283",
)
def open_tail_5(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """SageAttention style: K and V filled up with zeros to tiles of 64, the last tile masked."""
    sk = k.shape[2]
    qf, kf, vf = spread(q, k, v)
    i, _ = grid(q, k)
    kf, vf = pad(kf, 2, 64), pad(vf, 2, 64)
    j = np.arange(kf.shape[2])[None]
    state = start(qf, vf)
    for t in tiles(kf.shape[2], 64):
        seen = visible(i, j[:, t], causal)
        if causal or not bug:
            seen = seen & (j[:, t] < sk)
        state = step(state, masked(dot(qf, kf[:, :, t]) * scale, seen), vf[:, :, t], q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(96, 96, "float32", heads=2, causal=True, softcap=4.0),
    truth="The softcap comes after the mask, which is -5e4: keys that the causal mask hides have the score 4 * "
    "tanh(-5e4 / 4) = -4 and count in maximum, sum and output. All keys of a row do, for no tile is skipped.",
    source="flashinfer#350",
)
def cap_after_mask_5(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True, softcap: float = 0.0
) -> Pair:
    """FlashInfer variant with a logits transform: mask and cap of each key tile of 32."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    state = start(qf, vf)
    for t in tiles(k.shape[2], 32):
        s = dot(qf, kf[:, :, t]) * scale
        seen = visible(i, j[:, t], causal)
        s = capped(np.where(seen, s, np.float32(-5e4)), softcap) if bug else masked(capped(s, softcap), seen)
        state = step(state, s, vf[:, :, t], q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(72, 110, "float16", heads=4, kv_heads=2, causal=True, alibi_slopes="geometric"),
    truth="Two faults. Query head h has the ALiBi slope of index h // 2 (its head of K) instead of h. The causal "
    "mask is aligned to the top left: query i sees j <= i instead of j <= i + Sk - Sq; the ALiBi distance is right.",
    source="class of ALiBi slopes under grouped queries; flash-attn#282",
    faults=2,
)
def alibi_group_5(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float,
    causal: bool,
    bug: bool = True,
    alibi_slopes: Array | None = None,
) -> Pair:
    """Composable-kernel pipeline: position encoding and mask as objects, key tiles of 64."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    heads = q.shape[1]
    slopes = slopes_of(alibi_slopes, heads)
    if bug:
        slopes = slopes[np.arange(heads) // (heads // k.shape[1])]
    row = i - i[0] if bug else i
    state = start(qf, vf)
    for t in tiles(k.shape[2], 64):
        s = dot(qf, kf[:, :, t]) * scale - slopes * np.abs(i - j[:, t]).astype(np.float32)
        state = step(state, masked(s, visible(row, j[:, t], causal)), vf[:, :, t], q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(50, 130, "float32", heads=4, causal=False, alibi_slopes="geometric"),
    truth="The ALiBi distance lacks the offset Sk - Sq = 80: the bias is -slope * |i - j| instead of -slope * |i + "
    "Sk - Sq - j|.",
    source="class of ALiBi alignment for Sq != Sk (flash-attn, xFormers)",
)
def alibi_offset_5(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float,
    causal: bool,
    bug: bool = True,
    alibi_slopes: Array | None = None,
) -> Pair:
    """FlashAttention-2 with ALiBi: query tiles of 64, key tiles of 64, the bias from row and column."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    slopes = slopes_of(alibi_slopes, q.shape[1])
    row = i - i[0] if bug else i
    pairs = []
    for r in tiles(q.shape[2], 64):
        state = start(qf[:, :, r], vf)
        for t in tiles(k.shape[2], 64):
            bias = slopes * np.abs(row[r] - j[:, t]).astype(np.float32)
            s = masked(dot(qf[:, :, r], kf[:, :, t]) * scale - bias, visible(i[r], j[:, t], causal))
            state = step(state, s, vf[:, :, t], q.dtype)
        pairs.append(finish(*state, q.dtype))
    return join(pairs)


@wrong(
    case(40, 90, "bfloat16", heads=4, kv_heads=2, batch=2, causal=False),
    truth="Batches lie one after the other in packed K and V; keys are bounded by the end of the last tile of 64 "
    "(128) and of the buffer, not by Sk = 90: batch 0 also sees the keys 0 to 37 of batch 1, as its keys 90 to 127. "
    "The last batch is right.",
    source="class of varlen tails that read the next sequence (xFormers, flash-attn varlen, Triton)",
)
def varlen_tail_5(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Varlen kernel in Triton: packed K and V with cumulative lengths, key tiles of 64."""
    b, hk, sk, _ = k.shape
    packed_k, packed_v = (x.swapaxes(0, 1).reshape(1, hk, b * sk, -1) for x in (k, v))
    starts = np.arange(b + 1) * sk
    i, _ = grid(q, k)
    outs, lses = [], []
    for n in range(b):
        bound = cdiv(sk, 64) * 64 if bug else sk
        state = start(q[n : n + 1], v)
        for t in tiles(bound, 64):
            rows = slice(starts[n] + t.start, min(starts[n] + t.stop, starts[-1]))
            qf, kt, vt = spread(q[n : n + 1], packed_k[:, :, rows], packed_v[:, :, rows])
            j = np.arange(t.start, t.start + kt.shape[2])[None]
            state = step(state, masked(dot(qf, kt) * scale, visible(i, j, causal)), vt, q.dtype)
        out, lse = finish(*state, q.dtype)
        outs.append(out)
        lses.append(lse)
    return np.concatenate(outs), np.concatenate(lses)


@wrong(
    case(160, 160, "float16", heads=2, causal=True, window_size=(40, 0)),
    truth="The first key tile (of 16) of a query tile (of 64 rows) comes from its last row instead of its first: "
    "keys below 16 * ((last + Sk - Sq - 40) // 16) are not visited, last = min(64 * (i // 64) + 63, Sq - 1): below "
    "16 for rows 0 to 63, 80 for rows 64 to 127, 112 for rows 128 to 159. Rows 0 to 15 have no key left in their "
    "window (out 0, lse -inf), and rows 64 to 79 neither.",
    source="class of skipped tiles under a sliding window (flash-attn, vLLM Triton, mlx)",
)
def window_first_tile_5(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float,
    causal: bool,
    bug: bool = True,
    window_size: tuple[int, int] = (-1, -1),
) -> Pair:
    """Unified attention in Triton: query tiles of 64, a first and a last key tile of 16 for each."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    pairs = []
    for r in tiles(q.shape[2], 64):
        row = int(i[r][-1 if bug else 0, 0])
        first = max(0, row - window_size[0]) // 16 * 16 if window_size[0] >= 0 else 0
        state = start(qf[:, :, r], vf)
        for t in tiles(k.shape[2], 16):
            seen = visible(i[r], j[:, t], causal, window_size)
            if t.start >= first and seen.any():
                state = step(state, masked(dot(qf[:, :, r], kf[:, :, t]) * scale, seen), vf[:, :, t], q.dtype)
        pairs.append(finish(*state, q.dtype))
    return join(pairs)


@wrong(
    case(96, 128, "float32", heads=4, kv_heads=2, causal=True, window_size=(30, 0)),
    truth="A key tile (of 32) that no row of a query tile (of 32) sees is skipped without moving the pointers to K "
    "and V: if n leading tiles are skipped, the keys at j read K and V of the keys j - 32 * n, under the mask of j. "
    "With Sq = 96, Sk = 128 and a window of 30: n = 0 for rows 0 to 31, 1 for rows 32 to 63, 2 for rows 64 to 95.",
    source="llama.cpp#14916",
)
def stuck_pointers_5(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float,
    causal: bool,
    bug: bool = True,
    window_size: tuple[int, int] = (-1, -1),
) -> Pair:
    """Vector kernel of llama.cpp: pointers to K, V and mask moved at the end of each tile of 32."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    pairs = []
    for r in tiles(q.shape[2], 32):
        state, pointer = start(qf[:, :, r], vf), 0
        for t in tiles(k.shape[2], 32):
            width = t.stop - t.start
            seen = visible(i[r], j[:, t], causal, window_size)
            if not seen.any():
                pointer += 0 if bug else width
                continue
            rows = slice(pointer, pointer + width)
            state = step(state, masked(dot(qf[:, :, r], kf[:, :, rows]) * scale, seen), vf[:, :, rows], q.dtype)
            pointer += width
        pairs.append(finish(*state, q.dtype))
    return join(pairs)


@wrong(
    case(128, 128, "bfloat16", heads=2, causal=True, softcap=2.0),
    truth="Two faults. Of the key tiles (of 32) that a query tile (of 64 rows) visits only the last is masked: rows "
    "i with i % 64 < 32 see all keys j < 64 * (i // 64) + 32, those up to 31 after them too; keys from there on are "
    "masked right. The softcap is applied in that last tile alone: keys below 64 * (i // 64) + 32 have uncapped "
    "scores.",
    source="class of the number of masking steps (flash-attn); class of a softcap in one of two loops",
    faults=2,
)
def masking_steps_5(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True, softcap: float = 0.0
) -> Pair:
    """FlashAttention-2: a loop of masking steps from the last key tile, then a loop without a mask."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    sk, off = k.shape[2], k.shape[2] - q.shape[2]
    pairs = []
    for r in tiles(q.shape[2], 64):
        end = max(0, min(sk, r.stop + off)) if causal else sk
        steps = 1 if bug else (cdiv(64, 32) + 1)
        state = start(qf[:, :, r], vf)
        for n, t in enumerate(reversed(list(tiles(end, 32)))):
            s = dot(qf[:, :, r], kf[:, :, t]) * scale
            if n < steps or not bug:
                s = capped(s, softcap)
            if n < steps:
                s = masked(s, visible(i[r], j[:, t], causal))
            state = step(state, s, vf[:, :, t], q.dtype)
        pairs.append(finish(*state, q.dtype))
    return join(pairs)


@wrong(
    case(96, 64, "float16", heads=4, batch=2, head_dim=32, causal=True),
    truth="The mask is the finite -1e30: rows without keys (i < Sq - Sk = 32) give all 64 keys the same weight, so "
    "that out is the mean of V over all keys instead of 0, and lse is -1e30 instead of -inf. The other rows are "
    "right.",
    source="onnxruntime#28904",
)
def finite_mask_5(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """CPU kernel of ONNX Runtime: an additive mask over the whole row, then softmax and P @ V."""
    qf, kf, vf = spread(q, k, v)
    seen = visible(*grid(q, k), causal)
    s = dot(qf, kf) * scale
    s = np.where(seen, s, np.float32(-1e30)) if bug else masked(s, seen)
    return eager(s, vf, q.dtype)


@wrong(
    case(100, 100, "float32", heads=2, head_dim=128, causal=False, window_size=(24, 8)),
    truth="Two faults. The right limit of the window is ignored: query i sees all keys j >= i + Sk - Sq - 24, not "
    "only those up to i + Sk - Sq + 8. The padding of the last key tile of 64 is not masked by Sk: 28 keys of zeros "
    "at positions 100 to 127 count with score 0 and V = 0 (for all rows, the right limit being ignored).",
    source="class of one-sided local windows; flash-attn a4f148b6",
    faults=2,
)
def right_window_5(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float,
    causal: bool,
    bug: bool = True,
    window_size: tuple[int, int] = (-1, -1),
) -> Pair:
    """Local attention in CuTe: K and V filled up with zeros to tiles of 64, query tiles of 64."""
    sk = k.shape[2]
    qf, kf, vf = spread(q, k, v)
    i, _ = grid(q, k)
    kf, vf = pad(kf, 2, 64), pad(vf, 2, 64)
    j = np.arange(kf.shape[2])[None]
    limits = (window_size[0], -1) if bug else window_size
    pairs = []
    for r in tiles(q.shape[2], 64):
        state = start(qf[:, :, r], vf)
        for t in tiles(kf.shape[2], 64):
            seen = visible(i[r], j[:, t], causal, limits)
            if not bug:
                seen = seen & (j[:, t] < sk)
            state = step(state, masked(dot(qf[:, :, r], kf[:, :, t]) * scale, seen), vf[:, :, t], q.dtype)
        pairs.append(finish(*state, q.dtype))
    return join(pairs)
