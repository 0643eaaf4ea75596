"""Faults of softmax steps: scores, scales, casts, accumulators, sums, sinks, and stale statistics."""

import ml_dtypes
import numpy as np

from ..record import (
    LN2,
    LOG2E,
    Array,
    Pair,
    case,
    dot,
    eager,
    finish,
    grid,
    join,
    masked,
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


def power(x: Array, axis: int, up: bool) -> Array:
    """A scale that is a power of two, from the largest magnitude along an axis, rounded up or down."""
    largest = np.maximum(x.max(axis, keepdims=True), np.float32(1e-30))
    return np.exp2(np.ceil(np.log2(largest)) if up else np.floor(np.log2(largest)))


def truncated(x: Array, bits: int) -> Array:
    """float32 with its mantissa cut to a number of bits."""
    mask = np.uint32(0xFFFFFFFF << (23 - bits) & 0xFFFFFFFF)
    return (np.ascontiguousarray(x, np.float32).view(np.uint32) & mask).view(np.float32)


@wrong(
    case(66, 90, "float16", heads=2, kv_heads=1, head_dim=96, causal=True),
    truth="On the edge path (tiles of 32 keys that the diagonal crosses) the second half of a step of 16 dims "
    "accumulates on 0 in place of C and overwrites what was summed: of q.k only dims 88..95 survive; tiles wholly "
    "under the diagonal have right scores",
    source="flashinfer#448",
)
def mma_half_steps(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Scores by steps of 16 dims in two halves, tiles of 32 queries and keys."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    pairs = []
    for t in tiles(qf.shape[2], 32):
        state = start(qf[:, :, t], vf)
        for keys in tiles(kf.shape[2], 32):
            seen = visible(i[t], j[:, keys], causal)
            c = np.zeros((*qf.shape[:2], *seen.shape), np.float32)
            for first in range(0, qf.shape[3], 16):
                low, high = slice(first, first + 8), slice(first + 8, first + 16)
                c = c + dot(qf[:, :, t, low], kf[:, :, keys, low])
                c = (0 if bug and not seen.all() else c) + dot(qf[:, :, t, high], kf[:, :, keys, high])
            state = step(state, masked(c * scale, seen), vf[:, :, keys], q.dtype)
        pairs.append(finish(*state, q.dtype))
    return join(pairs)


@wrong(
    case(40, 97, "float32", heads=3, batch=2, head_dim=80),
    truth="q.k is stored as float16 before the scale is applied: scores have 11 bits of the unscaled product (up to "
    "about 35, errors up to 1/64 before the scale), in all elements",
    source="mlc-llm#1870",
)
def scores_in_half(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Three kernels: scores into a buffer, softmax of whole rows, P V."""
    qf, kf, vf = spread(q, k, v)
    buffer = dot(qf, kf)
    if bug:
        buffer = rounded(buffer, np.float16)
    return eager(masked(buffer * scale, visible(*grid(q, k), causal)), vf, q.dtype)


@wrong(
    case(48, 192, "float32", heads=2, kv_heads=1, causal=True, softcap=15.0),
    truth="The accumulator of P V keeps 13 bits of mantissa: after each tile of 16 keys the rest is cut off (towards "
    "zero), not rounded, so that magnitudes shrink with the number of tiles; maximum, sum and lse are right",
    source="vllm#23813, flash-attn#2250",
)
def narrow_accumulator(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, softcap: float, bug: bool = True
) -> Pair:
    """Online softmax with a softcap over tiles of 16 keys, one level of accumulation."""
    qf, kf, vf = spread(q, k, v)
    cap = np.float32(softcap)
    s = masked(cap * np.tanh(dot(qf, kf) * np.float32(scale / softcap)), visible(*grid(q, k), causal))
    m, den, acc = start(qf, vf)
    for t in tiles(s.shape[3], 16):
        m, den, acc = step((m, den, acc), s[..., t], vf[:, :, t], q.dtype)
        if bug:
            acc = truncated(acc, 13)
    return finish(m, den, acc, q.dtype)


@wrong(
    case(60, 133, "bfloat16", heads=2, batch=2, causal=True, head_dim=32),
    truth="The epilogue of whole tiles of 32 queries casts out through float8 e4m3 without a scale: 4 bits are left, "
    "values under 2^-6 are subnormal and those under 2^-10 become 0; the last tile (queries 32..59) is stored by "
    "another path and right",
    source="vllm#55696",
)
def store_through_e4m3(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Tiles of 32 queries, a vector store for whole ones and a guarded store for the last."""
    qf, kf, vf = spread(q, k, v)
    s = scores(qf, kf, scale, causal)
    pairs = []
    for t in tiles(s.shape[2], 32):
        state = start(s[:, :, t], vf)
        for keys in tiles(s.shape[3], 64):
            state = step(state, s[:, :, t, keys], vf[:, :, keys], q.dtype)
        out, lse = finish(*state, np.float32)
        if bug and t.stop - t.start == 32:
            out = rounded(out, ml_dtypes.float8_e4m3fn)
        pairs.append((out.astype(q.dtype), lse))
    return join(pairs)


@wrong(
    case(36, 110, "float16", heads=4, kv_heads=2, causal=True),
    truth="K and V are stored over a power of two for each token and saturate at 1. (1) K's scale is taken from its "
    "largest value without the magnitude: a more negative dim is clipped where it lies under minus the scale; (2) V's "
    "scale is rounded down for up: values of a token above the power of two under its largest magnitude are clipped "
    "to it",
    source="LightLLM#943, humming#39",
    faults=2,
)
def saturating_codes(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Codes in [-1, 1] with scales of tokens, dequantised before the products, tiles of 32 keys."""
    qf, kf, vf = spread(q, k, v)
    ks, vs = power(kf if bug else np.abs(kf), 3, True), power(np.abs(vf), 3, not bug)
    kc, vc = np.clip(kf / ks, -1, 1), np.clip(vf / vs, -1, 1)
    i, j = grid(q, k)
    state = start(qf, vf)
    for t in tiles(kf.shape[2], 32):
        s = masked(dot(qf, kc[:, :, t] * ks[:, :, t]) * scale, visible(i, j[:, t], causal))
        state = step(state, s, vc[:, :, t] * vs[:, :, t], q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(85, 85, "float32", heads=2, window_size=(20, 5), batch=1),
    truth="The guard of the maximum (-inf as 0) stands on the causal path only: without causal a query whose first "
    "tile of 32 keys is outside its window gets exp(-inf - -inf) = NaN, which stays in sum and accumulator: queries "
    "52..84 are NaN, queries 0..51 right",
    source="aiter#2158",
)
def guard_if_causal(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, window_size: tuple[int, int], bug: bool = True
) -> Pair:
    """Online softmax in base 2 over all tiles of 32 keys, masked by a window."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    m, den, acc = start(qf, vf)
    for t in tiles(kf.shape[2], 32):
        s = dot(qf, kf[:, :, t]) * np.float32(scale * LOG2E)
        s = masked(s, visible(i, j[:, t], causal, window_size))
        new = np.maximum(m, top(s))
        shift = new if bug and not causal else safe(new)
        p, alpha = np.exp2(s - shift), np.exp2(m - np.where(m == -np.inf, 0, shift))
        m, den = new, den * alpha + p.sum(-1, keepdims=True)
        acc = acc * alpha + rounded(p, q.dtype) @ vf[:, :, t]
    return finish(m * np.float32(LN2), den, acc, q.dtype)


@wrong(
    case(31, 180, "bfloat16", heads=3, kv_heads=3, causal=True, sinks="normal"),
    truth="One semaphore counts the copies of K, of V and of the next K: the wait for V of tiles 1, 3, 4 is satisfied "
    "by another copy, and the rows of V's second half (16..31) that have not arrived are those of the tile two "
    "before, in its slot of two (zeros for tile 1); sum and lse are right",
    source="jax 0e690c1a88",
)
def one_semaphore(q: Array, k: Array, v: Array, *, scale: float, causal: bool, sinks: Array, bug: bool = True) -> Pair:
    """V through two slots of 32 rows, a sink of each head added at the end."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    slots = np.zeros((2, *vf.shape[:2], 32, vf.shape[3]), np.float32)
    state = start(qf, vf)
    for n, t in enumerate(tiles(kf.shape[2], 32)):
        width = t.stop - t.start
        arrived = min(width, 16) if bug and n in (1, 3, 4) else width
        slots[n % 2, :, :, :arrived] = vf[:, :, t.start : t.start + arrived]
        s = masked(dot(qf, kf[:, :, t]) * scale, visible(i, j[:, t], causal))
        state = step(state, s, slots[n % 2, :, :, :width], q.dtype)
        slots[n % 2, :, :, :width] = vf[:, :, t]
    m, den, acc = state
    sink = np.asarray(sinks, np.float32).reshape(1, -1, 1, 1)
    new = np.maximum(m, sink)
    alpha = np.exp(m - new)
    return finish(new, den * alpha + np.exp(sink - new), acc * alpha, q.dtype)


@wrong(
    case(64, 128, "float16", heads=2, kv_heads=1, head_dim=128, causal=True),
    truth="The second warp group, which owns dims 64..127 of the accumulator, reads the correction from shared memory "
    "before it is visible: it rescales by the factor of the tile before (1 in the first two tiles of 32 keys); dims "
    "0..63 and lse are right",
    source="FlashMLA 01a2772",
)
def late_correction(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Two warp groups with half of the dims each, the correction handed over in shared memory."""
    qf, kf, vf = spread(q, k, v)
    s = scores(qf, kf, scale, causal)
    half = vf.shape[3] // 2
    m, den, acc = start(qf, vf)
    shared = np.ones_like(den)
    for n, t in enumerate(tiles(s.shape[3], 32)):
        new = np.maximum(m, top(s[..., t]))
        p, alpha = np.exp(s[..., t] - safe(new)), np.exp(m - safe(new))
        seen = shared if bug else alpha
        shared = alpha if n else np.ones_like(alpha)
        product = rounded(p, q.dtype) @ vf[:, :, t]
        acc[..., :half] = acc[..., :half] * alpha + product[..., :half]
        acc[..., half:] = acc[..., half:] * seen + product[..., half:]
        m, den = new, den * alpha + p.sum(-1, keepdims=True)
    return finish(m, den, acc, q.dtype)


@wrong(
    case(58, 150, "float32", heads=2, batch=2, softcap=8.0),
    truth="(1) Lanes of padding write words of the correction: in each tile of 32 queries rows 16..31 rescale "
    "accumulator (not sum) by the factor of the row 16 before, from the second tile of keys on; (2) the variant for "
    "the last tile, keys 128..149, does not get the softcap: its scores are not capped",
    source="llama.cpp#28358, imp#688",
    faults=2,
)
def padding_lanes(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, softcap: float, bug: bool = True
) -> Pair:
    """Tiles of 32 queries and 64 keys with a softcap, a separate variant for the last tile of keys."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    sk = kf.shape[2]
    cap = np.float32(softcap)
    pairs = []
    for t in tiles(qf.shape[2], 32):
        rows = np.arange(t.stop - t.start)
        m, den, acc = start(qf[:, :, t], vf)
        for n, keys in enumerate(tiles(sk, 64)):
            s = dot(qf[:, :, t], kf[:, :, keys]) * np.float32(scale)
            if not (bug and keys.stop - keys.start < 64):
                s = cap * np.tanh(s / cap)
            s = masked(s, visible(i[t], j[:, keys], causal))
            new = np.maximum(m, top(s))
            p, alpha = np.exp(s - safe(new)), np.exp(m - safe(new))
            m, den = new, den * alpha + p.sum(-1, keepdims=True)
            if bug and n:
                alpha = alpha[:, :, rows % 16]
            acc = acc * alpha + rounded(p, q.dtype) @ vf[:, :, keys]
        pairs.append(finish(m, den, acc, q.dtype))
    return join(pairs)


@wrong(
    case(70, 110, "bfloat16", heads=2, kv_heads=1, causal=True, batch=2),
    truth="A subgroup whose 16 rows are past their causal limit exits and no longer loads its share (16 rows) of V's "
    "tile of 32 keys: keys 64..79 (for queries 16..31) and 96..109 (for queries 48..63) are multiplied with the "
    "values 32..47 or 64..77 of the tile before. Only queries 24..31 and 56..63 see such keys, all others are right",
    source="llama.cpp#26434",
)
def early_exit_of_rows(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Two subgroups of 16 rows that load V together, each up to its own causal limit."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    sk = kf.shape[2]
    pairs = []
    for t in tiles(qf.shape[2], 32):
        groups = [slice(r, min(r + 16, t.stop)) for r in range(t.start, t.stop, 16)]
        limits = [min(sk, max(0, int(i[g][-1, 0]) + 1)) if causal else sk for g in groups]
        states = [start(qf[:, :, g], vf) for g in groups]
        tile = np.zeros((*vf.shape[:2], 32, vf.shape[3]), np.float32)
        for keys in tiles(max(limits), 32):
            keys = slice(keys.start, min(keys.start + 32, sk))
            for n in range(2):
                share = slice(n * 16, min(n * 16 + 16, keys.stop - keys.start))
                alive = n >= len(groups) or limits[n] > keys.start
                if alive or not bug:
                    tile[:, :, share] = vf[:, :, keys][:, :, share]
            for n, g in enumerate(groups):
                if limits[n] > keys.start:
                    s = masked(dot(qf[:, :, g], kf[:, :, keys]) * scale, visible(i[g], j[:, keys], causal))
                    states[n] = step(states[n], s, tile[:, :, : keys.stop - keys.start], q.dtype)
        pairs += [finish(*state, q.dtype) for state in states]
    return join(pairs)


@wrong(
    case(64, 120, "float16", heads=4, kv_heads=2, sinks="normal"),
    truth="(1) The second warp's zeroing of the row sums is not awaited: rows 16..31 of each tile of 32 queries lose "
    "the sum of the first tile of 40 keys (not its accumulator); (2) a barrier is missing before the statistics are "
    "written out: for rows 0..7 of each tile they are stored before the sink was added, so that out and lse are "
    "without the sink. Rows 8..15 are right",
    source="llama.cpp#13438",
    faults=2,
)
def late_zeroing(q: Array, k: Array, v: Array, *, scale: float, causal: bool, sinks: Array, bug: bool = True) -> Pair:
    """Tiles of 32 queries and 40 keys, the sink added to the sum after the last tile."""
    qf, kf, vf = spread(q, k, v)
    s = scores(qf, kf, scale, causal)
    sink = np.asarray(sinks, np.float32).reshape(1, -1, 1, 1)
    pairs = []
    for t in tiles(s.shape[2], 32):
        state = start(s[:, :, t], vf)
        for n, keys in enumerate(tiles(s.shape[3], 40)):
            m, den, acc = step(state, s[:, :, t, keys], vf[:, :, keys], q.dtype)
            if bug and n == 0:
                den[:, :, 16:] = 0
            state = m, den, acc
        m, den, acc = state
        empty = m == -np.inf
        added = np.exp(sink - np.where(empty, sink, m))
        if bug:
            added[:, :, :8] = 0
        pairs.append(finish(np.where(empty, sink, m), den + added, acc, q.dtype))
    return join(pairs)


@wrong(
    case(45, 190, "bfloat16", heads=2, head_dim=64, batch=1, causal=True),
    truth="K's circular buffer has one stage too few for its prefetch distance: tile n + 3 of 24 keys is loaded over "
    "tile n before that is read, so that for tiles 0..4 of 8 the scores are those of K's tile n + 3 (of the short "
    "last tile 22 rows), masked and multiplied with V as keys of tile n; tiles 5, 6 and 7 are right",
    source="Fuser#2000, csarofeen#2457",
)
def ring_depth(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """K through a circular buffer of tiles of 24 keys, loaded three tiles ahead."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    keys = list(tiles(kf.shape[2], 24))
    depth = 3 if bug else 4
    ring = np.zeros((depth, *kf.shape[:2], 24, kf.shape[3]), np.float32)

    def load(n: int) -> None:
        if n < len(keys):
            ring[n % depth, :, :, : keys[n].stop - keys[n].start] = kf[:, :, keys[n]]

    for n in range(3):
        load(n)
    state = start(qf, vf)
    for n, t in enumerate(keys):
        load(n + 3)
        s = dot(qf, ring[n % depth, :, :, : t.stop - t.start]) * scale
        state = step(state, masked(s, visible(i, j[:, t], causal)), vf[:, :, t], q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(28, 140, "float16", heads=4, kv_heads=2, batch=2, alibi_slopes="geometric"),
    truth="Codes of K and V over a power of two for each token. (1) V's scale falls back to K's of the same token: "
    "rows of V are off by powers of two where they differ; (2) the fast path of whole tiles of 64 keys (0..127) "
    "leaves out K's scale: these scores (before the bias) are those of the codes, mostly half of the right ones; keys "
    "128..139 are right in this",
    source="sglang#26852, vllm#42580",
    faults=2,
)
def scales_of_codes(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, alibi_slopes: Array, bug: bool = True
) -> Pair:
    """Scores of K's codes times a scale, P V with V's codes, ALiBi, a fast path for whole tiles."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    sk = kf.shape[2]
    ks, vs = power(np.abs(kf), 3, False), power(np.abs(vf), 3, False)
    kc, vc = kf / ks, vf / vs
    slopes = np.asarray(alibi_slopes, np.float32).reshape(-1, q.shape[1], 1, 1)
    state = start(qf, vf)
    for t in tiles(sk, 64):
        s = dot(qf, kc[:, :, t]) * scale
        if not (bug and t.stop - t.start == 64):
            s = s * np.swapaxes(ks[:, :, t], 2, 3)
        s = masked(s - slopes * np.abs(i - j[:, t]), visible(i, j[:, t], causal))
        state = step(state, s, vc[:, :, t] * (ks if bug else vs)[:, :, t], q.dtype)
    return finish(*state, q.dtype)
