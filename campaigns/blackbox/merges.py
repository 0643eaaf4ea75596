"""Faults of splits and their merges, rows without keys, values left in buffers, and lse together with out."""

import ml_dtypes
import numpy as np

from .record import (
    LOG2E,
    Array,
    Pair,
    Partial,
    case,
    cdiv,
    chunk,
    dot,
    eager,
    finish,
    grid,
    join,
    masked,
    merge,
    online,
    pad,
    rounded,
    safe,
    scores,
    spread,
    start,
    states,
    step,
    tiles,
    top,
    visible,
    wrong,
)


def partials(q: Array, k: Array, v: Array, scale: float, causal: bool, size: int) -> list[Partial]:
    """Maxima, sums and accumulators of chunks of keys."""
    qf, kf, vf = spread(q, k, v)
    s = scores(qf, kf, scale, causal)
    return [chunk(s[..., t], vf[:, :, t], q.dtype) for t in tiles(k.shape[2], size)]


@wrong(
    case(2, 128, "float32", heads=4, kv_heads=2, batch=2, causal=True),
    truth="merge: the sum of exp(lse_i - scale * max) takes scale * max for max, and lse is its logarithm + max; "
    "weights exp(lse_i - lse) of all splits are too small by exp((scale - 1) * max)",
    source="cutlass#2366, flashinfer#1109",
)
def merge_scaled_max(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Split-K over 32 keys, normalised partial outputs with lse."""
    o, e = states(partials(q, k, v, scale, causal, 32))
    m = safe(e.max(0))
    lse = np.log(np.exp(e - m * (scale if bug else 1)).sum(0)) + m
    return (np.exp(e - safe(lse)) * o).sum(0).astype(q.dtype), lse[..., 0]


@wrong(
    case(64, 96, "float16", heads=2, batch=2),
    truth="merge: normalised states are weighted with exp(lse_i - max) not divided by their sum; lse has it",
    source="flashinfer 6cbaf6e26",
)
def merge_not_divided(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Split-K over 24 keys, merge of states."""
    o, e = states(partials(q, k, v, scale, causal, 24))
    m = e.max(0)
    w = np.exp(e - safe(m))
    out, lse = finish(m, w.sum(0), (w * o).sum(0), q.dtype)
    return (w * o).sum(0).astype(q.dtype) if bug else out, lse


@wrong(
    case(1, 160, "float32", heads=4, batch=2, causal=True),
    truth="merge: the second pass reads n // 4 groups of four of n partial results for ceil(n / 4): the last n % 4 are "
    "lost (keys 128 and above of 160)",
    source="mlx#3875",
)
def merge_floor_groups(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Two passes: blocks of 16 keys, then a merge by groups of four blocks."""
    parts = partials(q, k, v, scale, causal, 16)
    groups = len(parts) // 4 if bug and len(parts) >= 4 else cdiv(len(parts), 4)
    return merge(parts[: 4 * groups], q.dtype)


@wrong(
    case(48, 120, "bfloat16", heads=4, kv_heads=1, causal=True),
    truth="merge: lse of the splits is in units of log2, and the merge takes it as natural: weights exp(log2(e) * "
    "(lse_i - max)); the merged lse is their natural logarithm + log2(e) * max",
    source="class of base 2 lse (flashinfer, TensorRT-LLM) in a natural merge (vLLM merge_attn_states)",
)
def merge_mixed_bases(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Split-K over 40 keys, merge of states."""
    o, e = states(partials(q, k, v, scale, causal, 40))
    e = e * np.float32(LOG2E) if bug else e
    m = e.max(0)
    w = np.exp(e - safe(m))
    return finish(m, w.sum(0), (w * o).sum(0), q.dtype)


@wrong(
    case(3, 96, "float16", heads=4, kv_heads=2, batch=2, causal=True),
    truth="merge: of five splits of ceil(tiles / 5) tiles of 32 keys those without keys (two of five) write out 0 and "
    "lse 0, and are merged with weight exp(0)",
    source="aiter#3641",
)
def empty_split_lse(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Five splits of whole tiles, merge of states."""
    size = cdiv(cdiv(k.shape[2], 32), 5) * 32
    o, e = states(partials(q, k, v, scale, causal, size))
    if bug:
        empty = [(0, 5 - len(e))] + [(0, 0)] * 4
        o, e = np.pad(o, empty), np.pad(e, empty)
    m = e.max(0)
    w = np.exp(e - safe(m))
    return finish(m, w.sum(0), (w * o).sum(0), q.dtype)


@wrong(
    case(64, 155, "float16", heads=4, kv_heads=2, batch=2),
    faults=2,
    truth="merge: splits have Sk // 8 keys for ceil(Sk / 8), the last Sk % 8 keys are never read; and K's head (not "
    "V's) is h % kv_heads for h // (heads // kv_heads)",
    source="xformers 3e4a1b4b class (last split), FlashDecoding; class of GQA head maps",
)
def split_floor_k_modulo(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Eight splits, merged by maxima and sums."""
    qf, kf, vf = spread(q, k, v)
    if bug:
        kf = k.astype(np.float32)[:, np.arange(q.shape[1]) % k.shape[1]]
    s, sk = scores(qf, kf, scale, causal), k.shape[2]
    size = max(1, sk // 8) if bug else cdiv(sk, 8)
    cuts = [slice(n * size, min((n + 1) * size, sk)) for n in range(8)]
    return merge([chunk(s[..., t], vf[:, :, t], q.dtype) for t in cuts], q.dtype)


@wrong(
    case(40, 110, "float32", heads=2, head_dim=32),
    truth="merge: split n of 4 is keys floor(n * Sk / 4) to ceil((n + 1) * Sk / 4): where that is no whole number the "
    "key at the boundary counts in both splits",
    source="class of uneven splits (floor of the start, ceil of the end)",
)
def split_overlap(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Four splits, merged by maxima and sums."""
    qf, kf, vf = spread(q, k, v)
    s, sk = scores(qf, kf, scale, causal), k.shape[2]
    cuts = [slice(n * sk // 4, cdiv((n + 1) * sk, 4) if bug else (n + 1) * sk // 4) for n in range(4)]
    return merge([chunk(s[..., t], vf[:, :, t], q.dtype) for t in cuts], q.dtype)


@wrong(
    case(32, 96, "bfloat16", heads=3, batch=2, causal=True),
    truth="merge: lse of the splits is written as [heads, Sq] and read as [Sq, heads] of the same memory: weights and "
    "lse of query i of head h are made of element i * heads + h",
    source="vllm-project/flash-attention#87, vllm#21996",
)
def merge_lse_layout(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Split-K over 32 keys, merge of states."""
    o, e = states(partials(q, k, v, scale, causal, 32))
    if bug:
        n, b, h, sq, _ = e.shape
        e = e.reshape(n, b, sq, h, 1).swapaxes(2, 3)
    m = e.max(0)
    w = np.exp(e - safe(m))
    return finish(m, w.sum(0), (w * o).sum(0), q.dtype)


@wrong(
    case(64, 96, "float32", heads=2, batch=2, causal=True),
    truth="merge: a ring step moves lse before out: out - sigmoid(lse_block - lse) * (out - out_block) takes the lse "
    "that holds the block already, so that the block's weight b is b / (total + b), total with b",
    source="class of ring-flash-attention update_out_and_lse (order of the two lines)",
)
def ring_lse_first(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A ring of steps of 24 keys, out and lse corrected in each."""
    o, e = states(partials(q, k, v, scale, causal, 24))
    out, lse = o[0], e[0]
    for ob, eb in zip(o[1:], e[1:], strict=True):
        both = np.logaddexp(lse, eb)
        base = both if bug else lse
        w = np.exp(eb - safe(np.logaddexp(base, eb)))
        out, lse = out - w * (out - ob), both
    return out.astype(q.dtype), lse[..., 0]


@wrong(
    case(64, 96, "bfloat16", heads=4, kv_heads=2),
    truth="merge: the last of four ring steps uses its buffer before K and V are received: rank r counts block (r + 2) "
    "% 4 twice and never block (r + 1) % 4; ranks are quarters of queries",
    source="class of ring attention (wait missing before the last step)",
)
def ring_block_twice(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Four ranks of a ring, each with a quarter of queries and keys; online softmax over steps."""
    qf, kf, vf = spread(q, k, v)
    s, blocks, done = scores(qf, kf, scale, causal), list(tiles(k.shape[2], cdiv(k.shape[2], 4))), []
    for rank, r in enumerate(tiles(q.shape[2], cdiv(q.shape[2], 4))):
        state, n = start(qf[:, :, r], vf), len(blocks)
        for at in [*range(n - 1), n - 2 if bug and n > 1 else n - 1]:
            t = blocks[(rank - at) % n]
            state = step(state, s[:, :, r, t], vf[:, :, t], q.dtype)
        done.append(finish(*state, q.dtype))
    return join(done)


@wrong(
    case(2, 150, "float16", heads=4, kv_heads=4, batch=2, causal=True),
    faults=2,
    truth="merge: two states merge to the larger lse for log(exp a + exp b), so that later splits of the chain weigh "
    "too much; and Sk // 32 splits of 32 keys are made, the remaining keys are never read",
    source="class of merge_state chains (flashinfer cascade, TransformerEngine context parallel); cdiv against //",
)
def chain_of_larger_lse(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Split-K over 32 keys, states merged one after the other."""
    o, e = states(partials(q, k, v, scale, causal, 32))
    n = max(1, k.shape[2] // 32) if bug else len(o)
    out, lse = o[0], e[0]
    for ob, eb in zip(o[1:n], e[1:n], strict=True):
        both = np.logaddexp(lse, eb)
        out = np.exp(lse - safe(both)) * out + np.exp(eb - safe(both)) * ob
        lse = np.maximum(lse, eb) if bug else both
    return out.astype(q.dtype), lse[..., 0]


@wrong(
    case(48, 128, "bfloat16", heads=2, batch=2, causal=True),
    truth="merge: two warp groups, of even and odd tiles of 16 keys, add accumulators and sums without exp(max_g - "
    "max) at the end; lse takes the larger maximum",
    source="class of intra-block split-K (warp groups over keys)",
)
def warp_groups_added(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Two online softmaxes over every second tile of 16 keys, joined at the end."""
    qf, kf, vf = spread(q, k, v)
    s, groups = scores(qf, kf, scale, causal), [start(q, v), start(q, v)]
    for n, t in enumerate(tiles(k.shape[2], 16)):
        groups[n % 2] = step(groups[n % 2], s[..., t], vf[:, :, t], q.dtype)
    if not bug:
        return merge(groups, q.dtype)
    (m0, d0, a0), (m1, d1, a1) = groups
    return finish(np.maximum(m0, m1), d0 + d1, a0 + a1, q.dtype)


@wrong(
    case(50, 100, "float32", heads=2, causal=True),
    truth="merge: the causal mask takes the key's index within its split of 25 keys, without the split's first key: "
    "keys of later splits are seen by queries before them",
    source="class of split-K masks (key offset of the split missing)",
)
def split_local_causal(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Split-K over 25 keys, merged by maxima and sums."""
    qf, kf, vf = spread(q, k, v)
    (i, j), parts = grid(q, k), []
    for t in tiles(k.shape[2], 25):
        s = masked(dot(qf, kf[:, :, t]) * scale, visible(i, j[:, t] - (t.start if bug else 0), causal))
        parts.append(chunk(s, vf[:, :, t], q.dtype))
    return merge(parts, q.dtype)


@wrong(
    case(4, 120, "float16", heads=6, kv_heads=2, batch=2),
    truth="merge: partial maxima are written as [splits, rows] and read as [rows, splits] of the same memory: split n "
    "of row r takes element r * splits + n; sums and accumulators are right",
    source="flash-attn#2388, FlagGems#5235",
)
def partial_max_stride(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Split-K over 30 keys, merged by maxima and sums."""
    parts = partials(q, k, v, scale, causal, 30)
    if bug:
        ms = np.stack([m for m, _, _ in parts])
        read = ms.reshape(-1, len(parts)).T.reshape(ms.shape)
        parts = [(m, den, acc) for m, (_, den, acc) in zip(read, parts, strict=True)]
    return merge(parts, q.dtype)


@wrong(
    case(1, 140, "bfloat16", heads=6, kv_heads=2, batch=3, causal=True),
    truth="merge: all heads of a group take the weights exp(lse_i - max) of the first; lse is their own",
    source="class of split-K with packed GQA (reduction indexed by the head of K)",
)
def weights_of_first_head(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Split-K over 35 keys, merge of states."""
    o, e = states(partials(q, k, v, scale, causal, 35))
    group = q.shape[1] // k.shape[1]
    head = np.arange(q.shape[1]) // (group if bug else 1) * (group if bug else 1)
    m = e.max(0)
    w = np.exp(e - safe(m))
    lse = finish(m, w.sum(0), m, q.dtype)[1]
    w = w[:, :, head]
    return finish(m, w.sum(0), (w * o).sum(0), q.dtype)[0], lse


@wrong(
    case(80, 48, "float32", heads=2, causal=True),
    truth="empty: rows without keys, the first Sq - Sk, are divided by their sum 0 and out is NaN there; lse is -inf",
    source="mlx#2608, mlx#2406",
)
def empty_row_division(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Online softmax over tiles of 16 keys."""
    qf, kf, vf = spread(q, k, v)
    s, (m, den, acc) = scores(qf, kf, scale, causal), start(q, v)
    for t in tiles(k.shape[2], 16):
        m, den, acc = step((m, den, acc), s[..., t], vf[:, :, t], q.dtype)
    out, lse = finish(m, den, acc, q.dtype)
    return (acc / den).astype(q.dtype) if bug else out, lse


@wrong(
    case(90, 60, "bfloat16", heads=4, kv_heads=2, causal=True),
    truth="empty: the mask is -1e30, finite: a row without keys (the first Sq - Sk) has exp(0) for each key, so that "
    "out is the mean of V and lse about -1e30",
    source="onnxruntime#28904, onnxruntime#28958",
)
def empty_row_mean(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Eager softmax of whole rows."""
    qf, kf, vf = spread(q, k, v)
    s = scores(qf, kf, scale, causal)
    return eager(np.maximum(s, np.float32(-1e30)) if bug else s, vf, q.dtype)


@wrong(
    case(64, 64, "float32", heads=2, batch=2, causal=True, window_size=(20, 0)),
    truth="empty: no guard for a maximum of -inf: rows for which the first tile of 16 keys is wholly masked (queries "
    "36 and above, of 64) have exp(-inf - -inf) = NaN in P and correction, and NaN in out and lse",
    source="xformers 540fcbfd (#722), 63d7f30b",
)
def empty_first_tile(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, window_size: tuple[int, int], bug: bool = True
) -> Pair:
    """Online softmax over tiles of 16 keys."""
    qf, kf, vf = spread(q, k, v)
    s, (m, den, acc) = masked(dot(qf, kf) * scale, visible(*grid(q, k), causal, window_size)), start(q, v)
    for t in tiles(k.shape[2], 16):
        new = np.maximum(m, top(s[..., t]))
        base = new if bug else safe(new)
        p, alpha = np.exp(s[..., t] - base), np.exp(m - base)
        den, acc, m = den * alpha + p.sum(-1, keepdims=True), acc * alpha + rounded(p, q.dtype) @ vf[:, :, t], new
    return finish(m, den, acc, q.dtype)


@wrong(
    case(72, 72, "float16", heads=4, kv_heads=2, causal=True),
    truth="empty: a split of 24 keys that a row does not see writes 0 / 0 = NaN as its partial out, whose weight in "
    "the merge is 0: 0 * NaN makes out NaN in all rows with such a split (all but the last 24); lse is right",
    source="aiter#4711",
)
def zero_weight_nan(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Split-K over 24 keys, merge of states."""
    parts = partials(q, k, v, scale, causal, 24)
    o, e = states(parts)
    if bug:
        o = np.stack([acc / den for _, den, acc in parts])
    m = e.max(0)
    w = np.exp(e - safe(m))
    return finish(m, w.sum(0), (w * o).sum(0), q.dtype)


@wrong(
    case(32, 100, "bfloat16", heads=2, batch=2),
    truth="empty: rows past Sk of V's last tile of 32 are NaN in memory and loaded without a bound; their P is 0, and "
    "0 * NaN makes all of out NaN where Sk % 32 is not 0; lse is right",
    source="vllm#53856, aiter#5401, flashinfer#1029",
)
def v_tail_nan(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Online softmax over tiles of 32 keys in memory padded with NaN."""
    qf, kf, vf = (pad(x, 2, 32, np.nan) if n else x for n, x in enumerate(spread(q, k, v)))
    i, j = grid(q, k)[0], np.arange(kf.shape[2])[None]
    s = masked(dot(qf, kf) * scale, visible(i, j, causal) & (j < k.shape[2]))
    return online(s, vf if bug else np.nan_to_num(vf), q.dtype, 32)


@wrong(
    case(48, 64, "float32", heads=4, kv_heads=2, causal=True),
    truth="stale: the accumulator is set to 0 once and not for each head: head h of batch entry b starts with the "
    "undivided accumulator of the head before (in the order of b * heads + h), corrected by its own later steps",
    source="flashinfer#5029 (sum not reset in the grid-stride loop)",
)
def acc_of_last_head(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A loop over heads, each with an online softmax over tiles of 16 keys whose first step has no correction."""
    qf, kf, vf = spread(q, k, v)
    s, done, left = scores(qf, kf, scale, causal), [], np.float32(0)
    for b, h in np.ndindex(q.shape[:2]):
        at = slice(b, b + 1), slice(h, h + 1)
        m, den, acc = chunk(s[at][..., :16], vf[at][:, :, :16], q.dtype)
        state = m, den, acc + left if bug else acc
        for t in list(tiles(k.shape[2], 16))[1:]:
            state = step(state, s[at][..., t], vf[at][:, :, t], q.dtype)
        left = state[2]
        done.append(finish(*state, q.dtype))
    outs, lses = (np.concatenate(x, 1) for x in zip(*done, strict=True))
    return outs.reshape(*q.shape[:3], -1), lses.reshape(q.shape[:3])


@wrong(
    case(64, 84, "float16", heads=2, batch=2),
    truth="stale: the last partial tile of 32 keys leaves the rest of the buffers of K and V as the tile before filled "
    "them, without a mask: those keys (52 to 63 of 84) count twice, with their values",
    source="flashinfer#1029 class (no zero fill), cp.async predicated off",
)
def tail_of_last_tile(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Online softmax over buffers of 32 keys."""
    qf, kf, vf = spread(q, k, v)
    i, state = grid(q, k)[0], start(q, v)
    kb, vb = (np.zeros((*qf.shape[:2], 32, x.shape[3]), np.float32) for x in (k, v))
    for t in tiles(k.shape[2], 32):
        n = t.stop - t.start
        kb[:, :, :n], vb[:, :, :n] = kf[:, :, t], vf[:, :, t]
        use = 32 if bug and t.start else n
        seen = visible(i, np.minimum(t.start + np.arange(use), t.stop - 1)[None], causal)
        state = step(state, masked(dot(qf, kb[:, :, :use]) * scale, seen), vb[:, :, :use], q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(96, 96, "float32", heads=2, head_dim=32, causal=True),
    truth="stale: for a tile of 16 keys that the mask hides from a whole tile of 32 queries P is not written, and P @ "
    "V is done with the P of the tile before and the V of this one; sums and lse are right",
    source="llama.cpp#13742 class (continue on a masked tile)",
)
def p_of_last_tile(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Tiles of 32 queries and 16 keys, with a buffer for P."""
    qf, kf, vf = spread(q, k, v)
    s, done = scores(qf, kf, scale, causal), []
    for r in tiles(q.shape[2], 32):
        (m, den, acc), p = start(qf[:, :, r], vf), np.zeros((*q.shape[:2], r.stop - r.start, 16), np.float32)
        for t in tiles(k.shape[2], 16):
            tile, n = s[:, :, r, t], t.stop - t.start
            if (tile > -np.inf).any():
                new = np.maximum(m, top(tile))
                p, alpha = np.exp(tile - safe(new)), np.exp(m - safe(new))
                den, acc, m = den * alpha + p.sum(-1, keepdims=True), acc * alpha, new
            elif not bug:
                continue
            acc = acc + rounded(p[..., :n], q.dtype) @ vf[:, :, t]
        done.append(finish(m, den, acc, q.dtype))
    return join(done)


@wrong(
    case(40, 72, "bfloat16", heads=4, kv_heads=2, batch=2),
    truth="stale: the row sum is not reset between the heads of a group, which one program does one after the other: "
    "it starts with the whole sum of the head before, with what that started with (0 for the group's first), as it is, "
    "without a correction for another maximum; lse holds it",
    source="class of persistent kernels (state not reset between work items)",
)
def sum_of_last_head(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Eager, heads of a group one after the other."""
    qf, kf, vf = spread(q, k, v)
    m, den, acc = chunk(scores(qf, kf, scale, causal), vf, q.dtype)
    if bug:
        group = q.shape[1] // k.shape[1]
        den = den.reshape(q.shape[0], -1, group, q.shape[2], 1).cumsum(2).reshape(den.shape)
    return finish(m, den, acc, q.dtype)


@wrong(
    case(96, 96, "float16", heads=2, batch=2, causal=True, window_size=(24, 0)),
    truth="stale: splits of 24 keys outside the window of a tile of 32 queries are skipped without a store, and all "
    "four are merged: a skipped split's partial results are those that an earlier tile of queries left, row by row, in "
    "the scratch (0 keys at first)",
    source="vllm#47188",
)
def scratch_of_last_tile(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, window_size: tuple[int, int], bug: bool = True
) -> Pair:
    """Tiles of 32 queries, splits of 24 keys, one scratch for all tiles."""
    qf, kf, vf = spread(q, k, v)
    s = masked(dot(qf, kf) * scale, visible(*grid(q, k), causal, window_size))
    cuts, done = list(tiles(k.shape[2], 24)), []
    scratch = [start(qf[:, :, :32], vf) for _ in cuts]
    for r in tiles(q.shape[2], 32):
        rows = r.stop - r.start
        scratch = [tuple(x[:, :, :rows] for x in part) for part in scratch]
        for n, t in enumerate(cuts):
            tile = s[:, :, r, t]
            if (tile > -np.inf).any() or not bug:
                scratch[n] = chunk(tile, vf[:, :, t], q.dtype)
        done.append(merge(scratch, q.dtype))
    return join(done)


@wrong(
    case(48, 96, "float16", heads=4, kv_heads=2, causal=True),
    faults=2,
    truth="lse: lse is in units of log2, for natural; and causal is j <= i (top left) for j <= i + Sk - Sq",
    source="pytorch#181645, pytorch#181824; flash-attn#282",
)
def lse_base_two(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Online softmax over tiles of 32 keys."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    out, lse = online(masked(dot(qf, kf) * scale, visible(i - i[0] if bug else i, j, causal)), vf, q.dtype, 32)
    return out, lse * np.float32(LOG2E if bug else 1)


@wrong(
    case(60, 90, "bfloat16", heads=2, batch=2, causal=True),
    faults=2,
    truth="lse: lse is the logarithm of the row sum without the maximum; and each query sees the next key, j <= i + Sk "
    "- Sq + 1, as far as there is one",
    source="class of lse epilogues; class of off-by-one diagonals (diagonal=2 in torch.triu)",
)
def lse_without_max(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Online softmax over tiles of 24 keys."""
    qf, kf, vf = spread(q, k, v)
    (i, j), state = grid(q, k), start(q, v)
    s = masked(dot(qf, kf) * scale, visible(i + 1 if bug else i, j, causal))
    for t in tiles(k.shape[2], 24):
        state = step(state, s[..., t], vf[:, :, t], q.dtype)
    out, lse = finish(*state, q.dtype)
    return out, np.log(state[1])[..., 0] if bug else lse


@wrong(
    case(50, 60, "float32", heads=3, batch=2, causal=True),
    truth="lse: out and lse of query i of head h are stored at row i * heads + h of their batch entry, not h * Sq + i",
    source="xformers 41646dbb, mlx#2152",
)
def rows_interleaved(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Eager; rows stored one by one."""
    qf, kf, vf = spread(q, k, v)
    out, lse = eager(scores(qf, kf, scale, causal), vf, q.dtype)
    return tuple(np.ascontiguousarray(x.swapaxes(1, 2)).reshape(x.shape) if bug else x for x in (out, lse))


@wrong(
    case(64, 64, "float32", heads=2, batch=2, causal=True),
    truth="lse: lse, of a first kernel, is kept in bfloat16; the second kernel computes P as exp(s - lse) from it: out "
    "is off by the factor exp(lse - rounded lse), row by row, and lse is returned as rounded",
    source="TransformerEngine#1546 class (lse in low precision)",
)
def lse_kept_narrow(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Two kernels: lse, then exp(s - lse) @ V."""
    qf, kf, vf = spread(q, k, v)
    s = scores(qf, kf, scale, causal)
    lse = eager(s, vf, q.dtype)[1]
    lse = rounded(lse, ml_dtypes.bfloat16) if bug else lse
    return (rounded(np.exp(s - safe(lse)[..., None]), q.dtype) @ vf).astype(q.dtype), lse


@wrong(
    case(40, 56, "bfloat16", heads=4, batch=2),
    truth="lse: rows of a head are Sq apart in lse and are stored in whole tiles of 32, the last head first: the rows "
    "past Sq, of queries 0 with lse log(keys), lie over the first rows of the next head (24 of 40), whose out, exp(s - "
    "lse) @ V of a second kernel, is wrong by the same factor",
    source="flash-attn d11341fd",
)
def lse_pitch(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Two kernels: lse by tiles of 32 queries, then exp(s - lse) @ V."""
    qf, kf, vf = spread(q, k, v)
    s, (b, h, sq) = scores(qf, kf, scale, causal), q.shape[:3]
    rows = pad(eager(s, vf, q.dtype)[1].reshape(b * h, sq), 1, 32, np.log(k.shape[2]))
    lse = np.zeros(b * h * sq + rows.shape[1], np.float32)
    for n in reversed(range(b * h)):
        stop = rows.shape[1] if bug else sq
        lse[n * sq : n * sq + stop] = rows[n, :stop]
    lse = lse[: b * h * sq].reshape(b, h, sq)
    return (rounded(np.exp(s - safe(lse)[..., None]), q.dtype) @ vf).astype(q.dtype), lse
