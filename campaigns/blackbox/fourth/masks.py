"""Attention kernels whose faults lie in causal masks, windows, packed sequences, skipped tiles, ALiBi and alignment."""

import numpy as np

from ..record import (
    LOG2E,
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
    rounded,
    safe,
    spread,
    start,
    step,
    tiles,
    top,
    unpack,
    visible,
    wrong,
)


@wrong(
    case(64, 160, "bfloat16", heads=4, kv_heads=2, causal=True),
    truth="query i sees keys j <= i, where it should see j <= i + 96: the causal mask is aligned to the top left",
    source="flash-attn#436, flash-attn#1778, pytorch#110144",
)
def causal_top_left(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like the forward kernel of the Triton tutorial, with tiles of 32 x 32."""
    (qf, kf, vf), sk = spread(q, k, v), k.shape[2]
    offset = 0 if bug else sk - q.shape[2]
    pairs = []
    for m in tiles(q.shape[2], 32):
        i = np.arange(m.start, m.stop)[:, None] + offset
        state = start(qf[:, :, m], vf)
        for n in tiles(min(sk, max(m.stop + offset, 0)) if causal else sk, 32):
            seen = visible(i, np.arange(n.start, n.stop)[None], causal)
            state = step(state, masked(dot(qf[:, :, m], kf[:, :, n]) * scale, seen), vf[:, :, n], q.dtype)
        pairs.append(finish(*state, q.dtype))
    return join(pairs)


@wrong(
    case(100, 100, "float16", heads=2, head_dim=64, window_size=(24, -1)),
    truth="query i sees keys j >= i - 25 for j >= i - 24, one key more at the left; and 28 keys past the last one, "
    "with score 0 and V 0, are counted in the sum of every row and in lse",
    source="transformers#39408; SageAttention 3917283",
    faults=2,
)
def window_inclusive(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float,
    causal: bool,
    window_size: tuple[int, int] = (-1, -1),
    bug: bool = True,
) -> Pair:
    """Like a Triton kernel with a left window and key tiles of 32, the last one filled with zeros."""
    qf, kf, vf = spread(q, k, v)
    kf, vf, sk = pad(kf, 2, 32), pad(vf, 2, 32), k.shape[2]
    i, state = grid(q, k)[0], start(qf, vf)
    left, right = window_size
    for n in tiles(kf.shape[2], 32):
        j = np.arange(n.start, n.stop)[None]
        seen = visible(i, j, causal, (left + (bug and left >= 0), right))
        seen &= bug or j < sk
        state = step(state, masked(dot(qf, kf[:, :, n]) * scale, seen), vf[:, :, n], q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(160, 160, "float32", heads=2, head_dim=64, causal=True),
    truth="query i sees only keys j < 64 * (i // 64) + 32 of those that it should see: the second key tile of 32 on "
    "the diagonal of a query tile of 64 is never visited",
    source="jax 7d27c319b2",
)
def causal_bound_unequal(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a Pallas forward kernel with query tiles of 64 and key tiles of 32."""
    (qf, kf, vf), (i, j), sk = spread(q, k, v), grid(q, k), k.shape[2]
    offset, pairs = sk - q.shape[2], []
    for m in tiles(q.shape[2], 64):
        last = (m.start + offset) // 32 + 1 if bug else cdiv(m.stop + offset, 32)
        bound = max(0, min(last, cdiv(sk, 32))) if causal else cdiv(sk, 32)
        state = start(qf[:, :, m], vf)
        for t in range(bound):
            n = slice(32 * t, min(32 * t + 32, sk))
            s = masked(dot(qf[:, :, m], kf[:, :, n]) * scale, visible(i[m], j[:, n], causal))
            state = step(state, s, vf[:, :, n], q.dtype)
        pairs.append(finish(*state, q.dtype))
    return join(pairs)


@wrong(
    case(64, 96, "float16", heads=8, kv_heads=2, head_dim=64, causal=True),
    truth="query i of head h sees keys j <= 4 * i + h % 4 + 32, where it should see j <= i + 32: the row of the "
    "packed tile is taken for the query",
    source="xformers 4f7ffaa3 (#952)",
)
def packed_row_mask(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a decode kernel that packs the heads of a group as rows of a tile."""
    group, (_, kv_heads, sk, _) = q.shape[1] // k.shape[1], k.shape
    rows, kf, vf = pack(q, kv_heads).astype(np.float32), k.astype(np.float32), v.astype(np.float32)
    row, pairs = np.arange(rows.shape[2])[:, None], []
    i = (row if bug else row // group) + sk - q.shape[2]
    for m in tiles(rows.shape[2], 128):
        s = masked(dot(rows[:, :, m], kf) * scale, visible(i[m], np.arange(sk)[None], causal))
        pairs.append(online(s, vf, q.dtype, 32))
    return unpack(join(pairs), q.shape[1])


@wrong(
    case(40, 100, "float32", heads=2, batch=2, head_dim=64, causal=True),
    truth="queries of batch 1 also see the last 4 keys of batch 0 (96 to 99) with their K and V; and query i sees "
    "keys j <= i of its own sequence for j <= i + 60",
    source="class of varlen tiles aligned down without a lower bound (vllm, flashinfer); flash-attn#282",
    faults=2,
)
def varlen_lower_bound(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a varlen kernel over tokens of all sequences, with cu_seqlens and key tiles aligned to 32 tokens."""
    (qf, kf, vf), (batch, heads, sq, _), sk = spread(q, k, v), q.shape, k.shape[2]
    kf, vf = (x.swapaxes(0, 1).reshape(1, heads, batch * sk, -1) for x in (kf, vf))
    cu_k, outs, lses = np.arange(batch + 1) * sk, [], []
    i = np.arange(sq)[:, None] + (0 if bug else sk - sq)
    for b in range(batch):
        state = start(qf[b : b + 1], vf)
        for t in range(cu_k[b] // 32 * 32, cu_k[b + 1], 32):
            n = slice(t, min(t + 32, cu_k[b + 1]))
            j = np.arange(n.start, n.stop)[None] - cu_k[b]
            seen = visible(i, j, causal) & (bug | (j >= 0))
            state = step(state, masked(dot(qf[b : b + 1], kf[:, :, n]) * scale, seen), vf[:, :, n], q.dtype)
        out, lse = finish(*state, q.dtype)
        outs.append(out)
        lses.append(lse)
    return np.concatenate(outs), np.concatenate(lses)


@wrong(
    case(96, 64, "bfloat16", heads=4, kv_heads=4, head_dim=64, causal=True),
    truth="queries 0 to 31, which see no key, have the mean of all 64 rows of V for 0, and -1e30 for -inf as lse",
    source="onnxruntime#28904",
)
def finite_hidden_score(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a CPU flash kernel with key tiles of 32, whose mask is a bias that is added or selected."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    hidden, state = np.float32(-1e30 if bug else -np.inf), start(qf, vf)
    for n in tiles(k.shape[2], 32):
        s = np.where(visible(i, j[:, n], causal), dot(qf, kf[:, :, n]) * scale, hidden)
        state = step(state, s, vf[:, :, n], q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(80, 80, "float16", heads=2, batch=2, head_dim=64, causal=True, softcap=5.0),
    truth="keys j > i are not hidden and have the score -5 (-softcap), in out and lse: the cap is applied to -50000",
    source="flashinfer#350",
)
def cap_after_mask(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, softcap: float = 0.0, bug: bool = True
) -> Pair:
    """Like a prefill kernel whose variant transforms the logits of a tile in registers."""
    (qf, kf, vf), seen = spread(q, k, v), visible(*grid(q, k), causal)
    state = start(qf, vf)
    for n in tiles(k.shape[2], 16):
        s = dot(qf, kf[:, :, n]) * scale
        if bug:
            s = np.where(seen[:, n], s, np.float32(-5e4))
        if softcap:
            s = softcap * np.tanh(s / softcap)
        if not bug:
            s = masked(s, seen[:, n])
        state = step(state, s, vf[:, :, n], q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(48, 96, "bfloat16", heads=4, kv_heads=2, head_dim=64, alibi_slopes="geometric"),
    truth="head h has the slope of head h // 2, and its bias is -slope * |i - j| for -slope * |i + 48 - j|",
    source="class of flash-attn ALiBi with Sq != Sk; class of ALiBi slopes by KV head under packed GQA",
    faults=2,
)
def alibi_packed(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, alibi_slopes: Array | None = None, bug: bool = True
) -> Pair:
    """Like a forward kernel of FlashAttention 2 with ALiBi and key tiles of 32."""
    (qf, kf, vf), heads = spread(q, k, v), np.arange(q.shape[1])
    i, j = grid(q, k)
    slopes = np.zeros(heads.size, np.float32) if alibi_slopes is None else alibi_slopes
    slope = slopes[heads // (heads.size // k.shape[1]) if bug else heads][:, None, None]
    row, state = np.arange(q.shape[2])[:, None] if bug else i, start(qf, vf)
    for n in tiles(k.shape[2], 32):
        s = dot(qf, kf[:, :, n]) * scale - slope * np.abs(row - j[:, n]).astype(np.float32)
        state = step(state, masked(s, visible(i, j[:, n], causal)), vf[:, :, n], q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(128, 128, "float32", heads=4, head_dim=64, causal=True, alibi_slopes="geometric"),
    truth="the bias is -ln(2) * slope * |i - j|, 0.693147 of what it should be: it is added to base 2 scores as it is",
    source="class of ALiBi in base 2 softmax without log2e (vllm and aiter Triton kernels)",
)
def alibi_base_two(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, alibi_slopes: Array | None = None, bug: bool = True
) -> Pair:
    """Like a Triton kernel whose softmax is in base 2, with scale * log2(e) folded into one factor."""
    (qf, kf, vf), (i, j) = spread(q, k, v), grid(q, k)
    slopes = (np.zeros(q.shape[1], np.float32) if alibi_slopes is None else alibi_slopes)[:, None, None]
    m, den, acc = start(qf, vf)
    for n in tiles(k.shape[2], 64):
        bias = slopes * np.abs(i - j[:, n]).astype(np.float32)
        s = dot(qf, kf[:, :, n]) * (scale * LOG2E) - bias * (1.0 if bug else LOG2E)
        s = masked(s, visible(i, j[:, n], causal))
        new = np.maximum(m, top(s))
        p, alpha = np.exp2(s - safe(new)), np.exp2(m - safe(new))
        m, den = new, den * alpha + p.sum(-1, keepdims=True)
        acc = acc * alpha + rounded(p, q.dtype) @ vf[:, :, n]
    return finish(m / np.float32(LOG2E), den, acc, q.dtype)


@wrong(
    case(64, 128, "float16", heads=3, head_dim=64, window_size=(16, 16)),
    truth="there is no window: every query sees all 128 keys, in out and lse",
    source="jax 099f0a1708",
)
def window_without_causal(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float,
    causal: bool,
    window_size: tuple[int, int] = (-1, -1),
    bug: bool = True,
) -> Pair:
    """Like a GPU Pallas kernel with key tiles of 64 and an early return of the mask function."""
    (qf, kf, vf), (i, j) = spread(q, k, v), grid(q, k)

    def mask(s: Array, n: slice) -> Array:
        if not causal and (bug or window_size == (-1, -1)):
            return s
        return masked(s, visible(i, j[:, n], causal, window_size))

    state = start(qf, vf)
    for n in tiles(k.shape[2], 64):
        state = step(state, mask(dot(qf, kf[:, :, n]) * scale, n), vf[:, :, n], q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(128, 128, "bfloat16", heads=4, kv_heads=1, head_dim=64, window_size=(40, 24)),
    truth="with a = 32 * (i // 32), query i does not see keys j < 32 * ceil((a - 40) / 32), 56 to 63 for i in 96 to "
    "127 and 24 to 31 for 64 to 95; and it sees j < i + 24 for j <= i + 24",
    source="class of n_block_min by ceil for floor (flash-attn local attention); transformers#39408",
    faults=2,
)
def window_first_tile_again(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float,
    causal: bool,
    window_size: tuple[int, int] = (-1, -1),
    bug: bool = True,
) -> Pair:
    """Like the local attention of FlashAttention 3, with tiles of 32 x 32 and a first and a last key tile."""
    (qf, kf, vf), (i, j), sk = spread(q, k, v), grid(q, k), k.shape[2]
    left, right = window_size
    edge, pairs = (left, right - (bug and right > 0)), []
    for m in tiles(q.shape[2], 32):
        low = m.start + sk - q.shape[2] - left
        first = max(0, cdiv(low, 32) if bug else low // 32) if left >= 0 else 0
        state = start(qf[:, :, m], vf)
        for t in range(first, cdiv(sk, 32)):
            n = slice(32 * t, min(32 * t + 32, sk))
            s = masked(dot(qf[:, :, m], kf[:, :, n]) * scale, visible(i[m], j[:, n], causal, edge))
            state = step(state, s, vf[:, :, n], q.dtype)
        pairs.append(finish(*state, q.dtype))
    return join(pairs)


@wrong(
    case(160, 160, "float16", heads=2, head_dim=64, causal=True, window_size=(48, -1)),
    truth="V of key j is read from key j - 32 * c, c = max(0, (32 * (i // 32) - 48) // 32): 1 for queries 96 to 127, "
    "2 for 128 to 159; lse is right",
    source="llama.cpp#14916",
)
def skipped_pointer(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float,
    causal: bool,
    window_size: tuple[int, int] = (-1, -1),
    bug: bool = True,
) -> Pair:
    """Like a tile kernel of llama.cpp that goes on to the next key tile if a tile is hidden as a whole."""
    (qf, kf, vf), (i, j), sk = spread(q, k, v), grid(q, k), k.shape[2]
    pairs = []
    for m in tiles(q.shape[2], 32):
        pointer, state = 0, start(qf[:, :, m], vf)
        for n in tiles(sk, 32):
            size, seen = n.stop - n.start, visible(i[m], j[:, n], causal, window_size)
            if not seen.any():
                pointer += 0 if bug else size
                continue
            s = masked(dot(qf[:, :, m], kf[:, :, n]) * scale, seen)
            state = step(state, s, vf[:, :, pointer : pointer + size], q.dtype)
            pointer += size
        pairs.append(finish(*state, q.dtype))
    return join(pairs)


@wrong(
    case(64, 99, "float32", heads=2, head_dim=32, alibi_slopes="geometric"),
    truth="the bias of query i and key j is that of query n // 104 and key n % 104, n = 99 * i + j, and 0 where n % "
    "104 > 98: rows of the bias are 104 apart and are read as if they were 99 apart",
    source="class of bias strides with padded rows (pytorch mem-efficient attention, xformers)",
)
def bias_pitch(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, alibi_slopes: Array | None = None, bug: bool = True
) -> Pair:
    """Like memory-efficient attention with a bias whose rows are padded to 8 elements."""
    (qf, kf, vf), (i, j), sk = spread(q, k, v), grid(q, k), k.shape[2]
    slopes = (np.zeros(q.shape[1], np.float32) if alibi_slopes is None else alibi_slopes)[:, None, None]
    bias = pad(-slopes * np.abs(i - j).astype(np.float32), 2, 8)
    pitch, flat = sk if bug else bias.shape[2], bias.reshape(q.shape[1], -1)
    pairs = []
    for m in tiles(q.shape[2], 32):
        rows = np.arange(m.start, m.stop)[:, None]
        s = dot(qf[:, :, m], kf) * scale + flat[:, rows * pitch + j]
        pairs.append(online(masked(s, visible(i[m], j, causal)), vf, q.dtype, 32))
    return join(pairs)


@wrong(
    case(128, 192, "bfloat16", heads=2, batch=2, head_dim=64, causal=True),
    truth="with a = 64 * (i // 64) + 64, query i sees all keys j <= a + 31 (also those past i + 64, for i + 64 < a + "
    "31), and keys a + 32 to a + 63 as it should: of the two key tiles on a diagonal only the last one is "
    "masked",
    source="class of flash-attn n_masking_steps (one masking step for ceil(64 / 32) = 2)",
)
def masking_steps(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like FlashAttention 2, from the last key tile to the first, with the mask in the first steps only."""
    (qf, kf, vf), (i, j), sk = spread(q, k, v), grid(q, k), k.shape[2]
    offset, pairs = sk - q.shape[2], []
    for m in tiles(q.shape[2], 64):
        bound = max(0, min(cdiv(m.stop + offset, 32), cdiv(sk, 32))) if causal else cdiv(sk, 32)
        state = start(qf[:, :, m], vf)
        for done, t in enumerate(reversed(range(bound))):
            n = slice(32 * t, min(32 * t + 32, sk))
            s = dot(qf[:, :, m], kf[:, :, n]) * scale
            if done < (1 if bug else 3):
                s = masked(s, visible(i[m], j[:, n], causal))
            state = step(state, s, vf[:, :, n], q.dtype)
        pairs.append(finish(*state, q.dtype))
    return join(pairs)


@wrong(
    case(128, 128, "float16", heads=4, kv_heads=2, head_dim=64, causal=True),
    truth="query i sees keys j of earlier chunks of 32 (j // 32 < i // 32) only if j % 32 <= i % 32; its own chunk "
    "is right",
    source="class of ring attention with causal=True for chunks of earlier ranks (TransformerEngine, "
    "ring-flash-attention)",
)
def ring_causal_chunks(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like ring attention over 4 ranks, which merges the outputs of the chunks of K and V that pass by."""
    (qf, kf, vf), (i, j), sk = spread(q, k, v), grid(q, k), k.shape[2]
    size, parts = cdiv(sk, 4), []
    for n in tiles(sk, size):
        seen = visible(i, j[:, n], causal)
        if bug and causal:
            seen &= (j[:, n] - n.start <= i % size) | (i // size == n.start // size)
        parts.append(chunk(masked(dot(qf, kf[:, :, n]) * scale, seen), vf[:, :, n], q.dtype))
    return merge(parts, q.dtype)
