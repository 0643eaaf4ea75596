"""Faults of masks, bounds, sinks and ALiBi."""

import numpy as np

from .record import (
    LOG2E,
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
    merge,
    online,
    pack,
    pad,
    rounded,
    safe,
    scores,
    spread,
    start,
    step,
    tiles,
    top,
    unpack,
    visible,
    wrong,
)

Window = tuple[int, int]


@wrong(
    case(96, 96, "float32", heads=4, kv_heads=2, causal=True),
    truth="mask: causal test j < i + Sk - Sq for <=: each query misses its own position, query 0 has no keys",
    source="class of off-by-one diagonals (torch.tril with diagonal=-1)",
)
def strict_causal(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Online softmax over tiles of 32 keys."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    seen = visible(i - 1 if bug else i, j, causal)
    return online(masked(dot(qf, kf) * scale, seen), vf, q.dtype, 32)


@wrong(
    case(40, 100, "float16", heads=2, causal=True),
    truth="mask: causal aligned to the top left, j <= i for j <= i + Sk - Sq: queries miss their last Sk - Sq keys",
    source="flash-attn#282, flash-attn#436, pytorch#110144",
)
def top_left_causal(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Eager softmax of whole rows."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    return eager(masked(dot(qf, kf) * scale, visible(i - i[0] if bug else i, j, causal)), vf, q.dtype)


@wrong(
    case(80, 80, "bfloat16", heads=4, kv_heads=1, causal=True, window_size=(12, 0)),
    truth="mask: the left edge of the window is exclusive, i - j < left for <=: queries i >= left miss key i - left",
    source="transformers#39408, zml#763",
)
def window_exclusive(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, window_size: Window, bug: bool = True
) -> Pair:
    """Online softmax over tiles of 16 keys."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    seen = visible(i, j, causal, window_size)
    if bug and window_size[0] >= 0:
        seen &= i - j < window_size[0]
    return online(masked(dot(qf, kf) * scale, seen), vf, q.dtype, 16)


@wrong(
    case(64, 64, "float32", heads=2, batch=2, window_size=(20, -1)),
    truth="mask: a right limit of -1 (none) beside a left limit is a number: keys j > i + Sk - Sq - 1 are masked",
    source="class of flash-attn window_size fixes (-1 as unlimited)",
)
def window_minus_one(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, window_size: Window, bug: bool = True
) -> Pair:
    """Eager softmax of whole rows."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    seen = visible(i, j, causal, window_size)
    if bug and max(window_size) >= 0:
        seen &= j <= i + window_size[1]
    return eager(masked(dot(qf, kf) * scale, seen), vf, q.dtype)


@wrong(
    case(70, 70, "float32", heads=2, head_dim=32, window_size=(24, 6)),
    faults=2,
    truth="mask: left and right limits of the window are swapped; and K padded with zeros to tiles of 32 has no bound: "
    "key slots Sk and above within the window count exp(0) in the row sum, with values 0",
    source="class of window argument order (NATTEN, xFormers); SageAttention 3917283",
)
def window_swapped_tail(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, window_size: Window, bug: bool = True
) -> Pair:
    """Online softmax over padded tiles of 32 keys."""
    qf, kf, vf = spread(q, k, v)
    kp, vp = pad(kf, 2, 32), pad(vf, 2, 32)
    i, j = grid(q, k)[0], np.arange(kp.shape[2])[None]
    seen = visible(i, j, causal, window_size[::-1] if bug else window_size)
    if not bug:
        seen &= j < k.shape[2]
    return online(masked(dot(qf, kp) * scale, seen), vp, q.dtype, 32)


@wrong(
    case(48, 112, "float32", heads=4, kv_heads=2, causal=True, window_size=(32, 0)),
    truth="mask: the window's left edge is taken from the row, j >= i - left, without Sk - Sq (the causal edge is "
    "right): queries see Sk - Sq keys more to the left",
    source="class of sliding window with a KV cache (transformers, vLLM chunked prefill)",
)
def window_no_offset(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, window_size: Window, bug: bool = True
) -> Pair:
    """Online softmax over tiles of 16 keys."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    seen = visible(i, j, causal, (-1, window_size[1]))
    if window_size[0] >= 0:
        seen &= j >= (i - i[0] if bug else i) - window_size[0]
    return online(masked(dot(qf, kf) * scale, seen), vf, q.dtype, 16)


@wrong(
    case(128, 128, "float16", heads=2, causal=True, window_size=(40, 0)),
    truth="mask: the first key tile of a tile of 32 queries is that of its last query's left edge, not of its first's: "
    "keys of tiles (of 16) wholly left of that are lost to the tile's other queries",
    source="class of sliding window tile skipping (flash-attn n_block_min, flashinfer)",
)
def window_first_tile(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, window_size: Window, bug: bool = True
) -> Pair:
    """Tiles of 32 queries and 16 keys, leading tiles skipped."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    seen, done = visible(i, j, causal, window_size), []
    for r in tiles(q.shape[2], 32):
        edge = i[r.stop - 1 if bug else r.start, 0] - window_size[0] if window_size[0] >= 0 else 0
        lo = int(np.clip(edge, 0, k.shape[2])) // 16 * 16
        s = masked(dot(qf[:, :, r], kf[:, :, lo:]) * scale, seen[r, lo:])
        done.append(online(s, vf[:, :, lo:], q.dtype, 16))
    return join(done)


@wrong(
    case(128, 128, "float32", heads=2, head_dim=32, causal=True),
    truth="mask: last key tile of a tile of 64 queries is that of its first query, floor(start / 16), not of its last: "
    "queries miss their keys past the first query's tile of 16",
    source="jax 7d27c319b2 (causal bound valid for equal blocks only)",
)
def causal_last_tile(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Tiles of 64 queries and 16 keys, tiles after the diagonal skipped."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    done = []
    for r in tiles(q.shape[2], 64):
        last = int(i[r.start if bug else r.stop - 1, 0])
        hi = min(k.shape[2], max(0, (last // 16 + 1) * 16)) if causal else k.shape[2]
        s = masked(dot(qf[:, :, r], kf[:, :, :hi]) * scale, visible(i[r], j[:, :hi], causal))
        done.append(online(s, vf[:, :, :hi], q.dtype, 16))
    return join(done)


@wrong(
    case(60, 100, "bfloat16", heads=3),
    truth="mask: K and V are padded with zeros to tiles of 64 and the key bound is tested in the causal branch only: "
    "without causal each padded slot adds exp(0) to the row sum, with values 0",
    source="SageAttention 3917283, f78d412 (non-causal path did not mask columns past kv_len)",
)
def tail_unmasked(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Online softmax over padded tiles of 64 keys."""
    qf, kf, vf = spread(q, k, v)
    kp, vp = pad(kf, 2, 64), pad(vf, 2, 64)
    i, j = grid(q, k)[0], np.arange(kp.shape[2])[None]
    seen = visible(i, j, causal)
    if not bug:
        seen &= j < k.shape[2]
    return online(masked(dot(qf, kp) * scale, seen), vp, q.dtype, 64)


@wrong(
    case(64, 84, "float32", heads=2),
    truth="mask: the bound of keys is tested for groups of 16, 16 * (j // 16) < Sk for j < Sk: slots Sk up to the next "
    "multiple of 16, zeros of the padding to 64, each add exp(0) to the row sum",
    source="pytorch#196678, cudnn-frontend#628 (mask decided at a coarser granularity than the tile)",
)
def tail_by_groups(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Eager softmax over keys padded to a multiple of 64."""
    qf, kf, vf = spread(q, k, v)
    kp, vp = pad(kf, 2, 64), pad(vf, 2, 64)
    i, j = grid(q, k)[0], np.arange(kp.shape[2])[None]
    seen = visible(i, j, causal) & ((j // 16 * 16 if bug else j) < k.shape[2])
    return eager(masked(dot(qf, kp) * scale, seen), vp, q.dtype)


@wrong(
    case(32, 150, "float16", heads=4, kv_heads=2),
    truth="mask: the end of a chunk of 40 keys is not masked, only Sk: each chunk reads whole tiles of 32, that is 64 "
    "keys, and keys 0 to 23 of the next chunk count in both",
    source="flashinfer#1206",
)
def chunk_end_unmasked(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Split-K by chunks of 40 keys, each over tiles of 32; merged by maxima and sums."""
    qf, kf, vf = spread(q, k, v)
    s, parts = scores(qf, kf, scale, causal), []
    for t in tiles(k.shape[2], 40):
        stop, state = min(t.start + 64, k.shape[2]) if bug else t.stop, start(q, v)
        for u in range(t.start, stop, 32):
            within = slice(u, min(u + 32, stop))
            state = step(state, s[..., within], vf[:, :, within], q.dtype)
        parts.append(state)
    return merge(parts, q.dtype)


@wrong(
    case(40, 110, "float32", heads=2, batch=2, causal=True),
    faults=2,
    truth="mask: Sk // 32 tiles of keys for ceil(Sk / 32), so that the keys of the last partial tile are never read; "
    "and causal is aligned to the top left, j <= i for j <= i + Sk - Sq",
    source="class of cdiv against // in Triton kernels; flash-attn#1778",
)
def floor_tiles_top_left(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Online softmax over tiles of 32 keys."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    n, state = k.shape[2] // 32 if bug else cdiv(k.shape[2], 32), start(q, v)
    for t in range(n):
        u = slice(t * 32, min(t * 32 + 32, k.shape[2]))
        s = masked(dot(qf, kf[:, :, u]) * scale, visible(i - i[0] if bug else i, j[:, u], causal))
        state = step(state, s, vf[:, :, u], q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(48, 48, "float32", heads=6, kv_heads=2, causal=True),
    truth="mask: packed row r (query r // G, head r % G) takes r % Sq as its query's position for the causal mask",
    source="xformers 4f7ffaa3 (#952), 1e13ad90 (mask row of folded heads)",
)
def packed_mask_row(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Packed GQA: the heads of a group are rows of one product."""
    (sq, sk), hk = (q.shape[2], k.shape[2]), k.shape[1]
    qp = pack(q.astype(np.float32), hk)
    r = np.arange(qp.shape[2])[:, None]
    i = (r % sq if bug else r // (q.shape[1] // hk)) + sk - sq
    s = masked(dot(qp, k.astype(np.float32)) * scale, visible(i, np.arange(sk)[None], causal))
    return unpack(online(s, v.astype(np.float32), q.dtype, 16), q.shape[1])


@wrong(
    case(50, 50, "bfloat16", heads=6, kv_heads=2, causal=True),
    truth="mask: last key of a tile of 16 packed rows is floor(rows / G) + Sk - Sq for ceil: a query whose heads go on "
    "in the next tile misses its own key in the heads of this tile",
    source="flashinfer#1148 (group size 7)",
)
def packed_bound_floor(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Packed GQA in tiles of 16 rows, keys past the diagonal not read."""
    (sq, sk), hk = (q.shape[2], k.shape[2]), k.shape[1]
    group, kf, vf = q.shape[1] // hk, k.astype(np.float32), v.astype(np.float32)
    qp, done = pack(q.astype(np.float32), hk), []
    for r in tiles(qp.shape[2], 16):
        hi = (r.stop // group if bug else cdiv(r.stop, group)) + sk - sq if causal else sk
        i = np.arange(r.start, r.stop)[:, None] // group + sk - sq
        u = slice(0, max(hi, 0))
        s = masked(dot(qp[:, :, r], kf[:, :, u]) * scale, visible(i, np.arange(sk)[None, u], causal))
        done.append(eager(s, vf[:, :, u], q.dtype))
    return unpack(join(done), q.shape[1])


@wrong(
    case(128, 128, "float16", heads=2, batch=2, causal=True),
    truth="mask: of the tiles of 16 keys that the diagonal of 64 queries crosses only the last is masked: keys of the "
    "three before it count for queries that come before them",
    source="class of flash-attn n_masking_steps (kBlockM != kBlockN)",
)
def one_masking_step(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Tiles of 64 queries and 16 keys from last to first; masks in the masking steps only."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    done, steps = [], 1 if bug else 6
    for r in tiles(q.shape[2], 64):
        n = cdiv(min(k.shape[2], max(0, int(i[r.stop - 1, 0]) + 1)) if causal else k.shape[2], 16)
        state = start(qf[:, :, r], vf)
        for t in reversed(range(n)):
            u = slice(t * 16, min(t * 16 + 16, k.shape[2]))
            s = dot(qf[:, :, r], kf[:, :, u]) * scale
            if n - 1 - t < steps:
                s = masked(s, visible(i[r], j[:, u], causal))
            state = step(state, s, vf[:, :, u], q.dtype)
        done.append(finish(*state, q.dtype))
    return join(done)


@wrong(
    case(1, 130, "float32", heads=4, kv_heads=2, batch=3, causal=True, window_size=(24, 0)),
    truth="mask: decoding reads keys from Sk - left instead of Sk - Sq - left: query i misses the window's first Sq - "
    "i",
    source="class of decoding windows (vLLM, llama.cpp SWA off by one)",
)
def decode_window(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, window_size: Window, bug: bool = True
) -> Pair:
    """Decoding: keys before the window are not read."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    lo = k.shape[2] - (0 if bug else q.shape[2]) - window_size[0] if window_size[0] >= 0 else 0
    u = slice(min(max(lo, 0), k.shape[2]), None)
    s = masked(dot(qf, kf[:, :, u]) * scale, visible(i, j[:, u], causal, window_size))
    return online(s, vf[:, :, u], q.dtype, 8)


@wrong(
    case(4, 96, "float16", heads=6, kv_heads=2, batch=2, causal=True),
    faults=2,
    truth="mask: up to 8 queries count as decoding and no query is masked, so that each sees the keys of the later "
    "ones; and V's head is h % kv_heads for h // (heads // kv_heads)",
    source="class of speculative decoding masks (vLLM MTP, sglang EAGLE); class of GQA head maps",
)
def draft_unmasked(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Decoding of a few queries over tiles of 32 keys."""
    qf, kf, vf = spread(q, k, v)
    if bug:
        vf = v.astype(np.float32)[:, np.arange(q.shape[1]) % v.shape[1]]
    causal = causal and not (bug and q.shape[2] <= 8)
    return online(scores(qf, kf, scale, causal), vf, q.dtype, 32)


@wrong(
    case(150, 150, "float32", heads=2, head_dim=32, causal=True),
    truth="mask: positions are 8-bit integers in the causal test, so that keys 128 and above have position j - 256 and "
    "are seen by all queries up to 127, and queries 128 and above see those of them up to their own, and no keys below "
    "128",
    source="mlx#3361 (positions in int16)",
)
def narrow_positions(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Online softmax over tiles of 64 keys."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    if bug:
        i, j = i.astype(np.int8), j.astype(np.int8)
    return online(masked(dot(qf, kf) * scale, visible(i, j, causal)), vf, q.dtype, 64)


@wrong(
    case(96, 64, "float32", heads=2, causal=True),
    truth="mask: Sk - Sq is an unsigned 32-bit number, which wraps for Sq > Sk: causal masks nothing, and the first Sq "
    "- Sk queries, which have no keys, see them all",
    source="pytorch#193632",
)
def unsigned_offset(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Eager softmax of whole rows."""
    qf, kf, vf = spread(q, k, v)
    offset = k.shape[2] - q.shape[2]
    i = np.arange(q.shape[2])[:, None] + (offset % 2**32 if bug else offset)
    return eager(masked(dot(qf, kf) * scale, visible(i, grid(q, k)[1], causal)), vf, q.dtype)


@wrong(
    case(96, 96, "bfloat16", heads=4, kv_heads=2, causal=True, window_size=(24, 0)),
    truth="mask: skipping a tile that the window masks wholly skips the step of the K and V pointers too: after n "
    "skipped tiles the tile's queries read K and V of the tile n before, under the mask of the right one",
    source="llama.cpp#14916",
)
def skipped_increment(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, window_size: Window, bug: bool = True
) -> Pair:
    """Tiles of 32 queries and 16 keys, with pointers that move on after each tile."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    done = []
    for r in tiles(q.shape[2], 32):
        state, at = start(qf[:, :, r], vf), 0
        for u in tiles(k.shape[2], 16):
            seen, n = visible(i[r], j[:, u], causal, window_size), u.stop - u.start
            if not seen.any():
                at += 0 if bug else n
                continue
            s = masked(dot(qf[:, :, r], kf[:, :, at : at + n]) * scale, seen)
            state, at = step(state, s, vf[:, :, at : at + n], q.dtype), at + n
        done.append(finish(*state, q.dtype))
    return join(done)


def _with_sink(q: Array, k: Array, v: Array, scale: float, causal: bool, sink: Array) -> Pair:
    """Online softmax over tiles of 32 keys whose state starts with a sink [heads or 1, 1, 1]."""
    qf, kf, vf = spread(q, k, v)
    m, den, acc = start(q, v)
    state, s = (np.maximum(m, sink), den + 1, acc), scores(qf, kf, scale, causal)
    for t in tiles(k.shape[2], 32):
        state = step(state, s[..., t], vf[:, :, t], q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(64, 64, "float32", heads=4, kv_heads=2, causal=True, sinks="normal"),
    truth="bias: the sink itself, not exp(sink - max), is added to the row sum, also below 0 (lse NaN)",
    source="flash-attn e81c237e",
)
def raw_sink(q: Array, k: Array, v: Array, *, scale: float, causal: bool, sinks: Array, bug: bool = True) -> Pair:
    """Online softmax over tiles of 16 keys; the sink joins the sum at the end."""
    qf, kf, vf = spread(q, k, v)
    state, s, sink = start(q, v), scores(qf, kf, scale, causal), sinks.astype(np.float32)[:, None, None]
    for t in tiles(k.shape[2], 16):
        state = step(state, s[..., t], vf[:, :, t], q.dtype)
    m, den, acc = state
    return finish(safe(m), den + (sink if bug else np.exp(sink - safe(m))), acc, q.dtype)


@wrong(
    case(2, 120, "float16", heads=4, batch=2, causal=True, sinks="normal"),
    truth="bias: each of four splits has the sink in its partial sum: the merged sum holds exp(sink) four times",
    source="rocm-libraries#12229",
)
def sink_in_each_split(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, sinks: Array, bug: bool = True
) -> Pair:
    """Split-K in four, merged by maxima and sums."""
    qf, kf, vf = spread(q, k, v)
    s, parts, sink = scores(qf, kf, scale, causal), [], sinks.astype(np.float32)[:, None, None]
    for n, t in enumerate(tiles(k.shape[2], cdiv(k.shape[2], 4))):
        m, den, acc = start(q, v)
        first = (np.maximum(m, sink), den + 1, acc) if bug or n == 0 else (m, den, acc)
        parts.append(step(first, s[..., t], vf[:, :, t], q.dtype))
    return merge(parts, q.dtype)


@wrong(
    case(72, 72, "float32", heads=3, batch=2, sinks="normal"),
    truth="bias: the sink is a column of the raw scores scaled with them: exp(scale * sink) in the sum",
    source="class of attention sink fixes (vLLM gpt-oss, sglang)",
)
def scaled_sink(q: Array, k: Array, v: Array, *, scale: float, causal: bool, sinks: Array, bug: bool = True) -> Pair:
    """Eager softmax with the sink as a further column, whose probability is dropped."""
    qf, kf, vf = spread(q, k, v)
    sink = np.broadcast_to(sinks.astype(np.float32)[:, None, None], (*q.shape[:3], 1))
    s = np.concatenate([dot(qf, kf), sink if bug else sink / scale], -1) * scale
    i, j = grid(q, k)
    s[..., :-1] = masked(s[..., :-1], visible(i, j, causal))
    m = top(s)
    p = np.exp(s - m)
    return finish(m, p.sum(-1, keepdims=True), rounded(p[..., :-1], q.dtype) @ vf, q.dtype)


@wrong(
    case(64, 96, "bfloat16", heads=6, kv_heads=2, causal=True, sinks="normal"),
    truth="bias: head h takes the sink of index h // (heads // kv_heads), its head of K, for h",
    source="class of attention sinks with GQA (flashinfer, TensorRT-LLM)",
)
def sink_of_kv_head(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, sinks: Array, bug: bool = True
) -> Pair:
    """Online softmax over tiles of 32 keys that starts with the sink."""
    h = np.arange(q.shape[1])
    index = h // (q.shape[1] // k.shape[1]) if bug else h
    return _with_sink(q, k, v, scale, causal, sinks.astype(np.float32)[index][:, None, None])


@wrong(
    case(64, 64, "float32", heads=4, head_dim=32, causal=True, sinks="normal"),
    faults=2,
    truth="bias: the sink is not multiplied by log2(e) though the scores are, so that the sum holds 2^sink for "
    "exp(sink); and the causal test lets each query see the next key, j <= i + Sk - Sq + 1",
    source="flash-attn 2f78d484 class; class of off-by-one diagonals",
)
def sink_base_two(q: Array, k: Array, v: Array, *, scale: float, causal: bool, sinks: Array, bug: bool = True) -> Pair:
    """Scores in units of log2, exp2."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    s = masked(dot(qf, kf) * (scale * LOG2E), visible(i + 1 if bug else i, j, causal))
    sink = sinks.astype(np.float32)[:, None, None] * (1 if bug else LOG2E)
    m = np.maximum(top(s), sink)
    p = np.exp2(s - m)
    den = p.sum(-1, keepdims=True) + np.exp2(sink - m)
    return finish(m / LOG2E, den, rounded(p, q.dtype) @ vf, q.dtype)


@wrong(
    case(40, 96, "float32", heads=4, alibi_slopes="geometric"),
    truth="bias: ALiBi's distance is |i - j| for |i + Sk - Sq - j|: the bias peaks Sk - Sq keys too far to the left",
    source="class of ALiBi with Sq != Sk (flash-attn alibi.h)",
)
def alibi_no_offset(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, alibi_slopes: Array, bug: bool = True
) -> Pair:
    """Online softmax over tiles of 32 keys."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    slope = alibi_slopes.astype(np.float32)[:, None, None]
    s = dot(qf, kf) * scale - slope * np.abs((i - i[0] if bug else i) - j).astype(np.float32)
    return online(masked(s, visible(i, j, causal)), vf, q.dtype, 32)


@wrong(
    case(64, 64, "float16", heads=4, kv_heads=2, causal=True, alibi_slopes="geometric"),
    truth="bias: ALiBi's bias is added before the multiplication by scale, so that slopes are scale times too small",
    source="class of ALiBi in Triton kernels (bias inside the scaled product)",
)
def alibi_scaled(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, alibi_slopes: Array, bug: bool = True
) -> Pair:
    """Eager softmax of whole rows."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    bias = -alibi_slopes.astype(np.float32)[:, None, None] * np.abs(i - j).astype(np.float32)
    s = (dot(qf, kf) + bias) * scale if bug else dot(qf, kf) * scale + bias
    return eager(masked(s, visible(i, j, causal)), vf, q.dtype)


@wrong(
    case(60, 100, "bfloat16", heads=2, causal=True, alibi_slopes="geometric"),
    truth="bias: ALiBi's column is the key's index within its tile of 32, without the tile's start; the mask is right",
    source="class of ALiBi column offsets (flash-attn col_idx_offset, Triton)",
)
def alibi_tile_column(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, alibi_slopes: Array, bug: bool = True
) -> Pair:
    """Online softmax over tiles of 32 keys."""
    qf, kf, vf = spread(q, k, v)
    (i, j), slope, state = grid(q, k), alibi_slopes.astype(np.float32)[:, None, None], start(q, v)
    for t in tiles(k.shape[2], 32):
        column = j[:, t] - (t.start if bug else 0)
        s = dot(qf, kf[:, :, t]) * scale - slope * np.abs(i - column).astype(np.float32)
        state = step(state, masked(s, visible(i, j[:, t], causal)), vf[:, :, t], q.dtype)
    return finish(*state, q.dtype)
