"""Wrong masks: causal, windows, padding, skipped blocks, bias, alignment."""

import numpy as np

from ..record import (
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


@wrong(
    case(60, 132, "float16", heads=4, kv_heads=2, head_dim=64, causal=True),
    truth="The causal mask is aligned to the top left: query i sees keys j <= i instead of j <= i + 72.",
    source="flash-attn#436; pytorch#110144",
)
def top_left_7(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A Triton forward kernel after the tutorial, with bounds of the loop over keys by tiles of queries."""
    q32, k32, v32 = spread(q, k, v)
    sq, sk = q.shape[2], k.shape[2]
    offset = 0 if bug else sk - sq
    pairs = []
    for t in tiles(sq, 64):
        i, j = np.arange(t.start, t.stop)[:, None] + offset, np.arange(sk)[None]
        end = min(sk, max(t.stop + offset, 0)) if causal else sk
        state = start(q32[:, :, t], v)
        for n in tiles(end, 32):
            s = masked(dot(q32[:, :, t], k32[:, :, n]) * scale, visible(i, j[:, n], causal))
            state = step(state, s, v32[:, :, n], q.dtype)
        pairs.append(finish(*state, q.dtype))
    return join(pairs)


@wrong(
    case(128, 128, "bfloat16", heads=2, head_dim=64, causal=True, window_size=(24, 0)),
    truth="The left end of the window is exclusive: query i sees keys j > i - 24 instead of j >= i - 24, so the key at "
    "distance 24 is missing.",
    source="transformers#39408",
)
def window_exclusive_7(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float,
    causal: bool,
    bug: bool = True,
    window_size: tuple[int, int] = (-1, -1),
) -> Pair:
    """A Triton sliding-window prefill kernel."""
    q32, k32, v32 = spread(q, k, v)
    i, j = grid(q, k)
    left = window_size[0] - (bug and window_size[0] > 0)
    pairs = []
    for t in tiles(q.shape[2], 32):
        seen = visible(i[t], j, causal, (left, window_size[1]))
        pairs.append(online(masked(dot(q32[:, :, t], k32) * scale, seen), v32, q.dtype, 32))
    return join(pairs)


@wrong(
    case(96, 128, "float32", heads=2, kv_heads=2, batch=2, head_dim=64, causal=True),
    truth="The diagonal is hidden: query i sees keys j < i + 32 instead of j <= i + 32.",
    source="class of < for <= in causal masks (Triton, attorch kernels)",
)
def strict_causal_7(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A Metal kernel of tiles of 32 x 16, that masks the diagonal tiles only."""
    q32, k32, v32 = spread(q, k, v)
    i, j = grid(q, k)
    pairs = []
    for t in tiles(q.shape[2], 32):
        state = start(q32[:, :, t], v)
        for n in tiles(k.shape[2], 16):
            s = dot(q32[:, :, t], k32[:, :, n]) * scale
            if causal and n.stop > i[t].min():
                s = masked(s, j[:, n] < i[t] if bug else j[:, n] <= i[t])
            state = step(state, s, v32[:, :, n], q.dtype)
        pairs.append(finish(*state, q.dtype))
    return join(pairs)


@wrong(
    case(160, 160, "float16", heads=2, head_dim=128, causal=True),
    truth="For the tile of queries 64 t .. 64 t + 63 the loop over tiles of 32 keys ends after 2 t + 1 of them: keys j "
    ">= 64 t + 32 are not read. So queries i with i % 64 >= 32 see the keys j < 64 (i // 64) + 32 only.",
    source="jax 7d27c319b2",
)
def tile_bound_7(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A Pallas kernel with 64 queries and 32 keys a block, and an upper bound of the causal loop."""
    q32, k32, v32 = spread(q, k, v)
    sk, m, n = k.shape[2], 64, 32
    offset = sk - q.shape[2]
    i, j = grid(q, k)
    pairs = []
    for t in tiles(q.shape[2], m):
        count = cdiv(sk, n)
        if causal:
            last = t.start + offset if bug else t.start + m - 1 + offset
            count = min(count, max(last // n + 1, 0))
        state = start(q32[:, :, t], v)
        for c in range(count):
            at = slice(c * n, min(c * n + n, sk))
            s = masked(dot(q32[:, :, t], k32[:, :, at]) * scale, visible(i[t], j[:, at], causal))
            state = step(state, s, v32[:, :, at], q.dtype)
        pairs.append(finish(*state, q.dtype))
    return join(pairs)


@wrong(
    case(64, 192, "bfloat16", heads=4, kv_heads=1, head_dim=64, causal=True),
    truth="The mask takes the packed row 4 i + h for the query's position: query i of head h sees keys j <= 4 i + h + "
    "128 instead of j <= i + 128.",
    source="xformers 4f7ffaa3",
)
def packed_position_7(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A kernel that folds the query heads of a group into rows."""
    group, offset = q.shape[1] // k.shape[1], k.shape[2] - q.shape[2]
    rows = pack(q.astype(np.float32), k.shape[1])
    k32, v32 = k.astype(np.float32), v.astype(np.float32)
    j, pairs = np.arange(k.shape[2])[None], []
    for t in tiles(rows.shape[2], 64):
        r = np.arange(t.start, t.stop)[:, None]
        i = (r if bug else r // group) + offset
        pairs.append(online(masked(dot(rows[:, :, t], k32) * scale, visible(i, j, causal)), v32, q.dtype, 64))
    return unpack(join(pairs), q.shape[1])


@wrong(
    case(128, 200, "float32", heads=2, head_dim=64, causal=True, window_size=(50, 0)),
    truth="The first tile of 32 keys is rounded up, not down: the queries of tile t (32 t .. 32 t + 31) do not see "
    "keys j < 32 ceil((32 t + 22) / 32) = 32 t + 32 (22 = 72 - 50).",
    source="flash-attn, vLLM: class of window start tiles",
)
def window_start_7(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float,
    causal: bool,
    bug: bool = True,
    window_size: tuple[int, int] = (-1, -1),
) -> Pair:
    """A FlashAttention-2 loop from the window's first tile to the diagonal's."""
    q32, k32, v32 = spread(q, k, v)
    sk, n = k.shape[2], 32
    i, j = grid(q, k)
    pairs = []
    for t in tiles(q.shape[2], 32):
        low = max(int(i[t].min()) - window_size[0], 0) if window_size[0] >= 0 else 0
        first = cdiv(low, n) if bug else low // n
        state = start(q32[:, :, t], v)
        for c in range(first, cdiv(sk, n)):
            at = slice(c * n, min(c * n + n, sk))
            seen = visible(i[t], j[:, at], causal, window_size)
            if seen.any():
                state = step(state, masked(dot(q32[:, :, t], k32[:, :, at]) * scale, seen), v32[:, :, at], q.dtype)
        pairs.append(finish(*state, q.dtype))
    return join(pairs)


@wrong(
    case(77, 105, "float16", heads=2, batch=2, head_dim=64),
    truth="The last tile is masked by the length of the packed buffer, not of the sequence: all rows of batch 0 also "
    "see keys 0..22 of batch 1 (as keys 105..127 of theirs). Batch 1 is right.",
    source="flashinfer#942; flash-attn: class of varlen bounds",
)
def varlen_leak_7(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A varlen kernel over packed tokens and cu_seqlens, with tiles of 64 keys."""
    b, _, sk, _ = k.shape
    q32, k32, v32 = spread(q, k, v)
    k_flat, v_flat = (np.concatenate(list(x), axis=1) for x in (k32, v32))
    total = b * sk
    i, outs = grid(q, k)[0], []
    for n in range(b):
        state = start(q[n : n + 1], v)
        for t in tiles(cdiv(sk, 64) * 64, 64):
            at = slice(n * sk + t.start, min(n * sk + t.stop, total))
            j = np.arange(t.start, t.start + at.stop - at.start)[None]
            seen = visible(i, j, causal)
            if not bug:
                seen &= j < sk
            s = masked(dot(q32[n : n + 1], k_flat[None, :, at]) * scale, seen)
            state = step(state, s, v_flat[None, :, at], q.dtype)
        outs.append(finish(*state, q.dtype))
    out, lse = zip(*outs, strict=True)
    return np.concatenate(out), np.concatenate(lse)


@wrong(
    case(64, 64, "bfloat16", heads=4, kv_heads=2, batch=2, head_dim=64, causal=True, softcap=4.0),
    truth="The cap comes after the causal mask's -50000: a hidden key (j > i) has the score 4 tanh(-50000 / 4) = -4 "
    "and so counts with exp(-4), with its V.",
    source="flashinfer#350",
)
def cap_after_mask_7(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True, softcap: float = 0.0
) -> Pair:
    """A FlashInfer prefill kernel with a logits soft cap."""
    q32, k32, v32 = spread(q, k, v)
    i, j = grid(q, k)
    seen = visible(i, j, causal)
    cap = np.float32(softcap)
    state = start(q, v)
    for t in tiles(k.shape[2], 32):
        s = dot(q32, k32[:, :, t]) * scale
        if bug:
            s = cap * np.tanh(np.where(seen[:, t], s, np.float32(-5e4)) / cap)
        else:
            s = masked(cap * np.tanh(s / cap), seen[:, t])
        state = step(state, s, v32[:, :, t], q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(100, 60, "float32", heads=2, kv_heads=1, batch=1, head_dim=64, causal=True),
    truth="Hidden keys have the score -1e30 and not -inf: queries 0..39, which see no key, return the mean of V over "
    "all 60 keys instead of 0 (their lse is -1e30). Other rows are right.",
    source="onnxruntime#28904",
)
def mean_of_v_7(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A flash kernel with a finite number for minus infinity."""
    q32, k32, v32 = spread(q, k, v)
    seen = visible(*grid(q, k), causal)
    low = np.float32(-1e30 if bug else -np.inf)
    state = start(q, v)
    for t in tiles(k.shape[2], 32):
        state = step(state, np.where(seen[:, t], dot(q32, k32[:, :, t]) * scale, low), v32[:, :, t], q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(64, 96, "float16", heads=8, kv_heads=2, head_dim=64, causal=True, alibi_slopes="geometric"),
    truth="ALiBi takes the slope of the KV head: query head h has slope alibi_slopes[h // 4], not alibi_slopes[h].",
    source="class of ALiBi slopes with GQA (vLLM, flash-attn)",
)
def slope_of_group_7(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True, alibi_slopes: Array | None = None
) -> Pair:
    """A packed-GQA kernel with ALiBi, one KV head at a time."""
    group = q.shape[1] // k.shape[1]
    i, j = grid(q, k)
    seen, distance = visible(i, j, causal), np.abs(i - j).astype(np.float32)
    slopes = np.zeros(q.shape[1], np.float32) if alibi_slopes is None else alibi_slopes
    outs, lses = [], []
    for n in range(k.shape[1]):
        heads = slice(n * group, (n + 1) * group)
        q32, kn, vn = spread(q[:, heads], k[:, n : n + 1], v[:, n : n + 1])
        slope = slopes[n : n + 1] if bug else slopes[heads]
        s = masked(dot(q32, kn) * scale - slope[:, None, None] * distance, seen)
        out, lse = online(s, vn, q.dtype, 48)
        outs.append(out)
        lses.append(lse)
    return np.concatenate(outs, 1), np.concatenate(lses, 1)


@wrong(
    case(80, 140, "bfloat16", heads=4, head_dim=64, alibi_slopes="geometric"),
    truth="(1) ALiBi's distance lacks the offset 60: the bias is -slope |i - j| instead of -slope |i + 60 - j|. (2) "
    "The last tile of 64 keys (padded with zeros) is not masked: keys 140..191 with score 0 - slope |i - j| and V 0 "
    "are in the row's sum.",
    source="flash-attn: class of ALiBi with Sq != Sk; class of tails without a mask",
    faults=2,
)
def alibi_top_left_7(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True, alibi_slopes: Array | None = None
) -> Pair:
    """A Composable Kernel forward pass with ALiBi, keys padded to tiles of 64."""
    sq, sk = q.shape[2], k.shape[2]
    q32, k32, v32 = spread(q, pad(k, 2, 64), pad(v, 2, 64))
    i, j = grid(q, k)[0], np.arange(k32.shape[2])[None]
    from_ = i - (sk - sq) if bug else i
    slope = np.zeros((q.shape[1], 1, 1), np.float32) if alibi_slopes is None else alibi_slopes[:, None, None]
    state = start(q, v)
    for t in tiles(k32.shape[2], 64):
        s = dot(q32, k32[:, :, t]) * scale - slope * np.abs(from_ - j[:, t]).astype(np.float32)
        seen = visible(i, j[:, t], causal)
        if not bug:
            seen &= j[:, t] < sk
        state = step(state, masked(s, seen), v32[:, :, t], q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(128, 128, "float32", heads=2, batch=2, head_dim=32, causal=True, window_size=(20, 0)),
    truth="A fully masked tile of 16 keys is skipped by a continue before the pointers of K and V are moved on. In the "
    "query tile t (16 t .. 16 t + 15) the first n = max(t - 2, 0) key tiles are skipped, so the key at position j "
    "(masked by j) has K and V of key j - 16 n. Queries 0..47 are right.",
    source="llama.cpp#14916",
)
def skip_without_step_7(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float,
    causal: bool,
    bug: bool = True,
    window_size: tuple[int, int] = (-1, -1),
) -> Pair:
    """A llama.cpp tile kernel with pointers that move on at the end of the loop."""
    q32, k32, v32 = spread(q, k, v)
    i, j = grid(q, k)
    pairs = []
    for t in tiles(q.shape[2], 16):
        state, at = start(q32[:, :, t], v), 0
        for n in tiles(k.shape[2], 16):
            seen, width = visible(i[t], j[:, n], causal, window_size), n.stop - n.start
            if not seen.any():
                at += 0 if bug else width
                continue
            s = masked(dot(q32[:, :, t], k32[:, :, at : at + width]) * scale, seen)
            state = step(state, s, v32[:, :, at : at + width], q.dtype)
            at += width
        pairs.append(finish(*state, q.dtype))
    return join(pairs)


@wrong(
    case(90, 120, "float16", heads=2, kv_heads=2, batch=2, head_dim=128, window_size=(16, 8)),
    truth="The window's right end is lost if the mask is not causal: query i sees all keys j >= i + 30 - 16 instead of "
    "i + 30 - 16 <= j <= i + 30 + 8.",
    source="class of local attention without a right limit (flash-attn, ROCm CK)",
)
def right_unlimited_7(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float,
    causal: bool,
    bug: bool = True,
    window_size: tuple[int, int] = (-1, -1),
) -> Pair:
    """A CK-tile kernel with a generic mask of two sides."""
    q32, k32, v32 = spread(q, k, v)
    i, j = grid(q, k)
    right = -1 if bug and not causal else window_size[1]
    seen = visible(i, j, causal, (window_size[0], right))
    state = start(q, v)
    for t in tiles(k.shape[2], 64):
        state = step(state, masked(dot(q32, k32[:, :, t]) * scale, seen[:, t]), v32[:, :, t], q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(72, 136, "bfloat16", heads=4, kv_heads=2, head_dim=64, causal=True, window_size=(40, 0)),
    truth="(1) The left end of the window lacks the offset 64: query i sees keys i - 40 <= j <= i + 64 instead of i + "
    "24 <= j <= i + 64. (2) The causal limit is one key too far: it sees key j = i + 65 also, if there is one.",
    source="vLLM, SGLang: class of window offsets in chunked prefill; class of causal masks off by one",
    faults=2,
)
def window_no_offset_7(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float,
    causal: bool,
    bug: bool = True,
    window_size: tuple[int, int] = (-1, -1),
) -> Pair:
    """A chunked-prefill kernel whose queries follow a cached context."""
    q32, k32, v32 = spread(q, k, v)
    context = k.shape[2] - q.shape[2]
    j, pairs = np.arange(k.shape[2])[None], []
    for t in tiles(q.shape[2], 32):
        i = np.arange(t.start, t.stop)[:, None]
        at = i + context
        left = i if bug else at
        seen = np.ones((t.stop - t.start, k.shape[2]), bool)
        if causal:
            seen &= j <= at + bug
        if window_size[1] >= 0:
            seen &= j <= at + window_size[1] + bug
        if window_size[0] >= 0:
            seen &= j >= left - window_size[0]
        pairs.append(eager(masked(dot(q32[:, :, t], k32) * scale, seen), v32, q.dtype))
    return join(pairs)


@wrong(
    case(150, 150, "float32", heads=2, kv_heads=1, head_dim=64, causal=True),
    truth="(1) Only the last tile of 32 keys of a tile of 64 queries is masked, the one with the last row's diagonal: "
    "for queries 64 t .. 64 t + 31 the keys 64 t .. 64 t + 31 are all visible (t = 0, 1); queries 128..149 have one "
    "diagonal tile, and are masked right. (2) Key 0 is hidden from all queries but query 0.",
    source="flash-attn: class of the number of masking steps; class of key loops that start at 1",
    faults=2,
)
def masking_steps_7(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A FlashAttention-2 kernel: masking steps for the last tiles of keys, then steps without a mask."""
    q32, k32, v32 = spread(q, k, v)
    sk, n = k.shape[2], 32
    i, j = grid(q, k)
    pairs = []
    for t in tiles(q.shape[2], 64):
        last = int(i[t].max())
        count = min(cdiv(sk, n), max(last // n + 1, 0)) if causal else cdiv(sk, n)
        steps = 1 if bug else 3
        state = start(q32[:, :, t], v)
        for c in reversed(range(count)):
            at = slice(c * n, min(c * n + n, sk))
            s = dot(q32[:, :, t], k32[:, :, at]) * scale
            if c >= count - steps:
                s = masked(s, visible(i[t], j[:, at], causal))
            if bug:
                s = masked(s, (j[:, at] > 0) | (i[t] <= 0))
            state = step(state, s, v32[:, :, at], q.dtype)
        pairs.append(finish(*state, q.dtype))
    return join(pairs)
