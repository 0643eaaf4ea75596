"""Faults of masks: causal limits, windows, ALiBi, mask buffers, and offsets into them."""

import numpy as np

from ..record import (
    LN2,
    LOG2E,
    Array,
    Pair,
    Partial,
    case,
    cdiv,
    chunk,
    dot,
    finish,
    grid,
    join,
    masked,
    merge,
    pad,
    rounded,
    safe,
    spread,
    start,
    step,
    tiles,
    top,
    visible,
    wrong,
)


def distance(i: Array, j: Array, slopes: Array, heads: int) -> Array:
    """ALiBi's bias of each head."""
    return -np.asarray(slopes, np.float32).reshape(-1, heads, 1, 1) * np.abs(i - j).astype(np.float32)


def step2(state: Partial, s: Array, v: Array, dtype: object) -> Partial:
    """One step of an online softmax in base 2."""
    m, den, acc = state
    new = np.maximum(m, top(s))
    p, alpha = np.exp2(s - safe(new)), np.exp2(m - safe(new))
    return new, den * alpha + p.sum(-1, keepdims=True), acc * alpha + rounded(p, dtype) @ v


def finish2(m: Array, den: Array, acc: Array, dtype: object) -> Pair:
    """out and natural lse of a state in base 2."""
    return finish(m * np.float32(LN2), den, acc, dtype)


@wrong(
    case(96, 64, "float16", heads=2, causal=True),
    truth="The mask is the initial value of the accumulator (-5e4 + q.k) in place of a select: no change for queries "
    "with a key, as exp(-5e4) is 0, but queries 0..31, which see none, get the softmax of keys 0..31 (scores rounded "
    "to 1/256 by the large summand) where their out should be 0, if their tile of 48 queries is visited (32 keys by "
    "its last row)",
    source="flashinfer 91a64ede6",
)
def mask_as_accumulator(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Tiles of 48 queries and 32 keys up to the causal limit of the tile's last row."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    sk = kf.shape[2]
    pairs = []
    for t in tiles(qf.shape[2], 48):
        limit = min(sk, max(0, int(i[t][-1, 0]) + 1)) if causal else sk
        state = start(qf[:, :, t], vf)
        for n in range(cdiv(limit, 32)):
            keys = slice(n * 32, min(n * 32 + 32, sk))
            seen = visible(i[t], j[:, keys], causal)
            s = dot(qf[:, :, t], kf[:, :, keys])
            s = (np.where(seen, np.float32(0), np.float32(-5e4)) + s) * scale if bug else masked(s * scale, seen)
            state = step(state, s, vf[:, :, keys], q.dtype)
        pairs.append(finish(*state, q.dtype))
    return join(pairs)


@wrong(
    case(90, 40, "float32", heads=3, kv_heads=3, causal=True),
    truth="The limit of keys of a block of 16 queries is scanned from the end in steps of 16 and not clamped at 0: "
    "blocks with no visible key (queries 0..47) get -16, and the last tile, which is peeled (keys limit - 16 to "
    "limit) with its mask taken for granted, reads 16 keys and values 32 rows before the head's first (the head "
    "before; the last head for head 0): their out should be 0. Queries 48, 49 of the block of 48..63 are masked right",
    source="llama.cpp#15321",
)
def negative_limit(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Blocks of 16 queries with a limit of keys found in the mask, the last tile of keys peeled."""
    qf, kf, vf = spread(q, k, v)
    b, h, sq, d = qf.shape
    sk = kf.shape[2]
    i, j = grid(q, k)
    kr, vr = kf.reshape(-1, d), vf.reshape(-1, vf.shape[3])
    heads = np.arange(b * h).reshape(b, h, 1) * sk
    pairs = []
    for t in tiles(sq, 16):
        seen = visible(i[t], j, causal)
        limit = cdiv(sk, 16) * 16
        while limit > (-16 if bug else 0) and not seen[:, max(0, limit - 16) : max(0, limit)].any():
            limit -= 16
        state = start(qf[:, :, t], vf)
        for n in range(0, limit - 16, 16):
            keys = slice(n, min(n + 16, sk))
            s = masked(dot(qf[:, :, t], kf[:, :, keys]) * scale, seen[:, keys])
            state = step(state, s, vf[:, :, keys], q.dtype)
        if limit:
            last = np.arange(limit - 16, limit)
            where = (heads + last) % len(kr)
            inside = seen[:, np.clip(last, 0, sk - 1)] & (last < sk) | (limit < 0)
            state = step(state, masked(dot(qf[:, :, t], kr[where]) * scale, inside), vr[where], q.dtype)
        pairs.append(finish(*state, q.dtype))
    return join(pairs)


@wrong(
    case(72, 130, "bfloat16", heads=2, window_size=(30, 12)),
    truth="(1) Without causal the mask inside tiles is skipped (the early return forgot the window): each tile of 24 "
    "queries sees all keys of the tiles of 16 that its window touches; (2) the first tile of keys is rounded up from "
    "the left edge of the tile's first query, so that up to 15 keys at the window's left edge are lost",
    source="jax 099f0a1708",
    faults=2,
)
def window_early_return(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, window_size: tuple[int, int], bug: bool = True
) -> Pair:
    """Blocks of 24 queries over the blocks of 16 keys that the window touches."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    sk = kf.shape[2]
    left, right = window_size
    pairs = []
    for t in tiles(qf.shape[2], 24):
        low, high = int(i[t][0, 0]), int(i[t][-1, 0])
        first = max(0, low - left) if left >= 0 else 0
        first = cdiv(first, 16) if bug else first // 16
        end = min(sk, max(0, high + 1 + (0 if causal else right))) if causal or right >= 0 else sk
        state = start(qf[:, :, t], vf)
        for n in range(first, cdiv(end, 16)):
            keys = slice(n * 16, min(n * 16 + 16, sk))
            seen = visible(i[t], j[:, keys], causal, window_size)
            if bug and not causal:
                seen = np.ones_like(seen)
            state = step(state, masked(dot(qf[:, :, t], kf[:, :, keys]) * scale, seen), vf[:, :, keys], q.dtype)
        pairs.append(finish(*state, q.dtype))
    return join(pairs)


@wrong(
    case(60, 100, "float16", heads=2, batch=2, causal=True),
    truth="(1) The first query of a packed sequence is taken from cu_seqlens_k: sequence 1 reads its queries from 40 "
    "tokens on, and round the end the first 40 queries of sequence 0 for its last 40; (2) causal is taken as false "
    "for tiles of 32 queries past the first: queries 32..59 of both sequences see all keys",
    source="TensorRT-LLM#10102, MSLK#263",
    faults=2,
)
def cross_q_start(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Packed sequences with other lengths of keys, tiles of 32 queries and 64 keys in base 2."""
    b, h, sq, d = q.shape
    _, kf, vf = spread(q, k, v)
    sk = kf.shape[2]
    packed = q.astype(np.float32).swapaxes(1, 2).reshape(b * sq, h, d)
    i, j = grid(q, k)
    outs, lses = [], []
    for n in range(b):
        begin = n * (sk if bug else sq)
        pairs = []
        for t in tiles(sq, 32):
            qt = packed[(begin + np.arange(sq)[t]) % (b * sq)].swapaxes(0, 1)[None]
            is_causal = causal and not (bug and t.start)
            state = start(qt, vf)
            for keys in tiles(sk, 64):
                s = dot(qt, kf[n : n + 1, :, keys]) * np.float32(scale * LOG2E)
                s = masked(s, visible(i[t], j[:, keys], is_causal))
                state = step2(state, s, vf[n : n + 1, :, keys], q.dtype)
            pairs.append(finish2(*state, q.dtype))
        out, lse = join(pairs)
        outs.append(out)
        lses.append(lse)
    return np.concatenate(outs), np.concatenate(lses)


@wrong(
    case(41, 88, "float32", heads=4, kv_heads=2, batch=2, head_dim=32, alibi_slopes="geometric"),
    truth="The materialised bias [1, H, Sq, Sk] is broadcast by h % (its number of heads) with the batch size, 2, in "
    "place of its 4 heads: heads 2 and 3 take the bias of heads 0 and 1; heads 0 and 1 are right",
    source="pytorch#184180, llama.cpp#14505",
)
def bias_broadcast(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, alibi_slopes: Array, bug: bool = True
) -> Pair:
    """A bias buffer added to tiles of 32 keys, its batch and head axes broadcast by remainders."""
    b, h, _, _ = q.shape
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    bias = masked(distance(i, j, alibi_slopes, h), visible(i, j, causal))
    nb, nh = bias.shape[:2]
    outs, lses = [], []
    for n in range(b):
        for a in range(h):
            rows = bias[n % nb, a % (b if bug else nh)]
            state = start(qf[n : n + 1, a : a + 1], vf)
            for t in tiles(kf.shape[2], 32):
                s = dot(qf[n, a], kf[n, a, t])[None, None] * scale + rows[:, t]
                state = step(state, s, vf[n, a, t], q.dtype)
            out, lse = finish(*state, q.dtype)
            outs.append(out[0, 0])
            lses.append(lse[0, 0])
    return np.stack(outs).reshape(b, h, *outs[0].shape), np.stack(lses).reshape(b, h, -1)


@wrong(
    case(64, 75, "float16", heads=2, causal=True, window_size=(40, 0)),
    truth="The half mask is read as float at the same element: element i * 75 + j takes the halves 2e and 2e + 1 "
    "(round the end), and is masked if the second is -inf (0xFC00.... is about -2e36); a pair (-inf, 0) is a "
    "denormal, not masked. Row i gets the mask of rows 2i and 2i + 1 at half the resolution",
    source="llama.cpp#16584",
)
def half_mask_as_float(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, window_size: tuple[int, int], bug: bool = True
) -> Pair:
    """A mask buffer of halves that is added to the scores of 16 queries and 32 keys."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    sq, sk = qf.shape[2], kf.shape[2]
    buffer = np.where(visible(i, j, causal, window_size), np.float16(0), np.float16(-np.inf)).reshape(-1)
    values = np.tile(buffer, 2).view(np.float32) if bug else buffer.astype(np.float32)
    pairs = []
    for t in tiles(sq, 16):
        state = start(qf[:, :, t], vf)
        for keys in tiles(sk, 32):
            element = np.arange(sq)[t, None] * sk + np.arange(sk)[keys]
            s = dot(qf[:, :, t], kf[:, :, keys]) * scale + values[element]
            state = step(state, s, vf[:, :, keys], q.dtype)
        pairs.append(finish(*state, q.dtype))
    return join(pairs)


@wrong(
    case(57, 129, "bfloat16", heads=3, kv_heads=1, batch=2, causal=True, alibi_slopes="geometric"),
    truth="(1) The slopes past the power of two (head 2 of 3) are stored at byte 2 * 4 of a buffer of 8-byte "
    "elements: head 1 gets head 2's slope and head 2 none (0); (2) the tile of the bias is not cleared between the "
    "first two tiles of 32 keys: keys 32..63 get the bias of keys 0..31 on top of their own",
    source="llama.cpp#20031, TransformerEngine#2300",
    faults=2,
)
def alibi_second_half(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, alibi_slopes: Array, bug: bool = True
) -> Pair:
    """Slopes filled in two parts, a bias tile accumulated into scores of 32 keys."""
    b, h, _, _ = q.shape
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    given = np.broadcast_to(np.asarray(alibi_slopes, np.float64).reshape(-1, h), (b, h))
    power = 1 << (h.bit_length() - 1)
    slopes = np.zeros((b, h))
    slopes[:, :power] = given[:, :power]
    first = power * 4 // slopes.itemsize if bug else power
    slopes[:, first : first + h - power] = given[:, power:]
    state = start(qf, vf)
    bias = np.zeros((b, h, qf.shape[2], 32), np.float32)
    for n, t in enumerate(tiles(kf.shape[2], 32)):
        tile = -slopes.astype(np.float32)[..., None, None] * np.abs(i - j[:, t])
        width = tile.shape[3]
        if bug and n == 1:
            bias[..., :width] += tile
        else:
            bias[..., :width] = tile
        s = dot(qf, kf[:, :, t]) * scale + bias[..., :width]
        state = step(state, masked(s, visible(i, j[:, t], causal)), vf[:, :, t], q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(48, 190, "float32", heads=3, kv_heads=3, batch=2, causal=True),
    truth="Offsets of K rows are kept in 16 signed bits: from element 32768 on (batch 0, head 2, key 132) to 65535 "
    "(batch 1, head 2, key 73) they are negative and the bound guard loads zeros, so that these keys have score 0 yet "
    "stay visible; from 65536 on (batch 1, head 2, keys 74..189) they wrap to the first rows of batch 0, head 0",
    source="aiter#4774",
)
def guarded_offsets(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Loads of K by an offset and a guard, tiles of 64 keys in base 2."""
    qf, _, vf = spread(q, k, v)
    b, h = q.shape[:2]
    hk, sk, d = k.shape[1:]
    group = h // hk
    flat = k.reshape(-1).astype(np.float32)
    i, j = grid(q, k)
    head = (np.arange(b)[:, None] * hk + np.arange(h) // group)[:, :, None]
    state = start(qf, vf)
    for t in tiles(sk, 64):
        offset = (head * sk + np.arange(sk)[t]) * d
        if bug:
            offset = offset.astype(np.int16).astype(np.int64)
        index = np.where(offset[..., None] < 0, 0, offset[..., None] + np.arange(d))
        kt = np.where(offset[..., None] < 0, np.float32(0), flat[index])
        s = masked(dot(qf * np.float32(scale * LOG2E), kt), visible(i, j[:, t], causal))
        state = step2(state, s, vf[:, :, t], q.dtype)
    return finish2(*state, q.dtype)


@wrong(
    case(120, 101, "float16", heads=2, alibi_slopes="geometric"),
    truth="The offset i * Sk into a head's bias is kept in 13 bits: from query 82 on (8192 // 101 + 1) a row of bias "
    "starts at i * 101 - 8192, that is 90 elements into row i - 82 and goes on in row i - 81; queries 0..81 are "
    "right. The offset of the head is not narrowed",
    source="pytorch#187225",
)
def bias_row_offset(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, alibi_slopes: Array, bug: bool = True
) -> Pair:
    """A materialised bias read at flat offsets, tiles of 40 queries and 32 keys."""
    qf, kf, vf = spread(q, k, v)
    b, h, sq, _ = q.shape
    sk = kf.shape[2]
    i, j = grid(q, k)
    bias = np.broadcast_to(masked(distance(i, j, alibi_slopes, h), visible(i, j, causal)), (b, h, sq, sk))
    flat = bias.reshape(b, h, -1)
    pairs = []
    for t in tiles(sq, 40):
        row = np.arange(sq)[t, None] * sk
        if bug:
            row = row & 0x1FFF
        state = start(qf[:, :, t], vf)
        for keys in tiles(sk, 32):
            s = dot(qf[:, :, t], kf[:, :, keys]) * scale + flat[..., row + np.arange(sk)[keys]]
            state = step(state, s, vf[:, :, keys], q.dtype)
        pairs.append(finish(*state, q.dtype))
    return join(pairs)


@wrong(
    case(33, 77, "bfloat16", heads=4, kv_heads=2, batch=2, causal=True, head_dim=128),
    truth="(1) The packed mask of a request starts at byte n * (Sq * Sk // 8), rounded down: request 1 reads each bit "
    "8 early, so that its causal limit lies 8 keys to the right, and the first 8 keys of a row see what the last 8 of "
    "the row before saw; (2) folded rows of a group take the mask of row r // group without the tile's start: from "
    "the second tile of 16 folded rows on the mask is that of queries 0..7, in both requests",
    source="flashinfer#1290, flash-attn b3f1b6a5 class",
    faults=2,
)
def packed_mask_bits(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A mask of bits for each request, rows of a group folded, tiles of 16 rows and 48 keys."""
    b, h, sq, d = q.shape
    hk, sk = k.shape[1:3]
    group = h // hk
    i, j = grid(q, k)
    kf, vf = k.astype(np.float32), v.astype(np.float32)
    rows = q.astype(np.float32).reshape(b, hk, group, sq, d).swapaxes(2, 3).reshape(b, hk, sq * group, d)
    size = cdiv(sq * sk, 8)
    one = np.packbits(visible(i, j, causal).reshape(-1), bitorder="little")
    bits = np.unpackbits(np.tile(one, b), bitorder="little").astype(bool)
    outs, lses = [], []
    for n in range(b):
        begin = n * (sq * sk // 8 if bug else size) * 8
        pairs = []
        for t in tiles(sq * group, 16):
            folded = np.arange(t.stop - t.start) + (0 if bug else t.start)
            state = start(rows[n : n + 1, :, t], vf)
            for keys in tiles(sk, 48):
                seen = bits[begin + folded[:, None] // group * sk + np.arange(sk)[keys]]
                s = masked(dot(rows[n : n + 1, :, t], kf[n : n + 1, :, keys]) * scale, seen)
                state = step(state, s, vf[n : n + 1, :, keys], q.dtype)
            pairs.append(finish(*state, q.dtype))
        out, lse = join(pairs)
        outs.append(out)
        lses.append(lse)
    out, lse = np.concatenate(outs), np.concatenate(lses)
    out = out.reshape(b, hk, sq, group, -1).swapaxes(2, 3).reshape(b, h, sq, -1)
    return out, lse.reshape(b, hk, sq, group).swapaxes(2, 3).reshape(b, h, sq)


@wrong(
    case(70, 160, "float16", heads=2, kv_heads=1, causal=True, softcap=20.0),
    truth="The specialised kernel is memoised by head_dim and dtype alone: the call for the suffix (the last 70 keys, "
    "causal, softcap 20) runs the kernel of the prefix call (the first 90 keys, not causal), so that queries see the "
    "whole suffix; the prefix is right",
    source="flashinfer#4014",
)
def memoised_kernel(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, softcap: float, bug: bool = True
) -> Pair:
    """A cascade of a shared prefix, not causal, and a causal suffix, through specialised kernels."""
    qf, kf, vf = spread(q, k, v)
    sq, sk = qf.shape[2], kf.shape[2]
    cache: dict[tuple, object] = {}

    def specialised(masking: bool) -> object:
        key = (qf.shape[3], q.dtype.name) if bug else (qf.shape[3], q.dtype.name, masking)
        if key not in cache:

            def kernel(keys: slice) -> Partial:
                cap = np.float32(softcap)
                s = cap * np.tanh(dot(qf, kf[:, :, keys]) * np.float32(scale / softcap))
                i, j = np.arange(sk - sq, sk)[:, None], np.arange(keys.start, keys.stop)[None]
                return chunk(masked(s, visible(i, j, masking)), vf[:, :, keys], q.dtype)

            cache[key] = kernel
        return cache[key]

    prefix = max(0, sk - sq) if causal else sk
    parts = [specialised(False)(slice(0, prefix))]
    if prefix < sk:
        parts.append(specialised(causal)(slice(prefix, sk)))
    return merge(parts, q.dtype)


@wrong(
    case(96, 150, "float32", heads=2, window_size=(-1, 58)),
    truth="Tiles of 32 by 32 are masked only where their class says so. (1) The limit i + 58 is compared with the "
    "middle of a tile of keys, not its last: queries 0..14 see keys 113 + q..127 too, and queries 32..36 keys past "
    "their limit up to 149; (2) the padded tile (keys 128..149 and 10 rows of zeros) is no edge of its own: for "
    "queries 32..95 the 10 rows enter with score 0, where they add to maximum and sum and not to the accumulator. "
    "Queries 15..31 are right",
    source="CK#1352",
    faults=2,
)
def edge_classes(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, window_size: tuple[int, int], bug: bool = True
) -> Pair:
    """Padded tiles of 32 queries and 32 keys, masked where their class says that they are at an edge."""
    qf, kf, vf = spread(q, k, v)
    sq, sk = qf.shape[2], kf.shape[2]
    kp, vp = pad(kf, 2, 32), pad(vf, 2, 32)
    i = np.arange(sk - sq, sk)[:, None]
    left, right = window_size
    right = 0 if causal else right
    pairs = []
    for t in tiles(sq, 32):
        state = start(qf[:, :, t], vf)
        for keys in tiles(kp.shape[2], 32):
            j = np.arange(keys.start, keys.stop)[None]
            s = dot(qf[:, :, t], kp[:, :, keys]) * scale
            reach = keys.start + 16 if bug else keys.stop - 1
            ragged = t.stop > sq if bug else keys.stop > sk
            if ragged or left >= 0 or right >= 0 and reach > i[t][0, 0] + right:
                s = masked(s, visible(i[t], j, causal, window_size) & (j < sk))
            state = step(state, s, vp[:, :, keys], q.dtype)
        pairs.append(finish(*state, q.dtype))
    return join(pairs)
