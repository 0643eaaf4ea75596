"""Faults of scales, softcap, bases, steps of the online softmax, and precision."""

import ml_dtypes
import numpy as np

from .record import (
    LN2,
    LOG2E,
    Array,
    Pair,
    case,
    cdiv,
    chunk,
    dot,
    eager,
    finish,
    grid,
    masked,
    merge,
    online,
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


def total(p: Array) -> Array:
    """The sum of each row."""
    return p.sum(-1, keepdims=True)


def rise(m: Array, s: Array) -> tuple[Array, Array, Array]:
    """The maximum after a tile, the tile's P, and the correction of what came before."""
    new = np.maximum(m, top(s))
    return new, np.exp(s - safe(new)), np.exp(m - safe(new))


@wrong(
    case(64, 64, "float32", heads=2, batch=2, head_dim=40, causal=True),
    truth="scale: the argument is ignored for 1 / sqrt of D rounded up to a power of two (64 for 40)",
    source="flashinfer#1072; class of padded head dimensions",
)
def scale_of_padded_dim(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Online softmax over tiles of 32 keys."""
    qf, kf, vf = spread(q, k, v)
    if bug:
        scale = (1 << (q.shape[3] - 1).bit_length()) ** -0.5
    return online(scores(qf, kf, scale, causal), vf, q.dtype, 32)


@wrong(
    case(64, 96, "float16", heads=4, kv_heads=2, causal=True),
    truth="scale: exp2 of scores that lack the factor log2(e): P is 2^(s - max); lse is max + ln of the sum of those",
    source="flashinfer#787",
)
def exp2_of_natural(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Eager, exp2 with log2(e) folded into its argument."""
    qf, kf, vf = spread(q, k, v)
    s = scores(qf, kf, scale, causal)
    m = top(s)
    p = np.exp2((s - safe(m)) * (1 if bug else LOG2E))
    return finish(m, total(p), rounded(p, q.dtype) @ vf, q.dtype)


@wrong(
    case(48, 80, "bfloat16", heads=2, batch=2),
    truth="scale: log2(e) is folded into the scale and multiplied again in exp2's argument: P is exp(log2(e) * (s - "
    "max)); lse is max + ln of the sum of those",
    source="class of log2(e) folded twice (Triton sm_scale * 1.44269504)",
)
def log2e_twice(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Eager, scores in units of log2."""
    qf, kf, vf = spread(q, k, v)
    s = scores(qf, kf, scale * LOG2E, causal)
    m = top(s)
    p = np.exp2((s - safe(m)) * (LOG2E if bug else 1))
    return finish(m * LN2, total(p), rounded(p, q.dtype) @ vf, q.dtype)


@wrong(
    case(56, 56, "float32", heads=4, kv_heads=2, causal=True),
    faults=2,
    truth="scale: Q is multiplied by sqrt(scale) and K is not, so that scores are too large by 1 / sqrt(scale); and "
    "the causal test is j < i + Sk - Sq for <=, query 0 has no keys",
    source="class of sqrt(scale) on both operands (PyTorch math SDPA); class of off-by-one diagonals",
)
def sqrt_scale_once(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Q and K each multiplied by sqrt(scale); online softmax over tiles of 16 keys."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    s = dot(qf * scale**0.5, kf * (1 if bug else scale**0.5))
    return online(masked(s, visible(i - 1 if bug else i, j, causal)), vf, q.dtype, 16)


@wrong(
    case(80, 112, "float32", heads=2, causal=True),
    truth="scale: scores of key tiles (of 32) in which the mask hides a key from any query are not multiplied by "
    "scale; tiles that all queries see wholly are right",
    source="class of separate loops for masked and unmasked tiles (flash-attn, Triton)",
)
def masked_tiles_unscaled(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Online softmax over tiles of 32 keys, a branch for masked tiles."""
    qf, kf, vf = spread(q, k, v)
    (i, j), state = grid(q, k), start(q, v)
    for t in tiles(k.shape[2], 32):
        s, seen = dot(qf, kf[:, :, t]), visible(i, j[:, t], causal)
        s = s * scale if seen.all() else masked(s * (1 if bug else scale), seen)
        state = step(state, s, vf[:, :, t], q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(1, 128, "bfloat16", heads=4, kv_heads=1, batch=3, softcap=2.0),
    truth="scale: softcap is dropped in the path of splits, which runs for up to 8 queries",
    source="vllm-metal#665, sgl-kernel-xpu#491",
)
def softcap_dropped(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, softcap: float, bug: bool = True
) -> Pair:
    """Split-K over 32 keys for a few queries, else eager."""
    qf, kf, vf = spread(q, k, v)
    raw, split = dot(qf, kf) * scale, q.shape[2] <= 8
    s = raw if bug and split else np.tanh(raw / softcap) * softcap
    s = masked(s, visible(*grid(q, k), causal))
    return merge(
        [chunk(s[..., t], vf[:, :, t], q.dtype) for t in tiles(s.shape[3], 32 if split else s.shape[3])], q.dtype
    )


@wrong(
    case(64, 64, "float32", heads=2, batch=2, causal=True, softcap=5.0),
    truth="scale: softcap gives (s / c) * tanh(s / c) for c * tanh(s / c)",
    source="flash-attn#2402",
)
def softcap_quotient(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, softcap: float, bug: bool = True
) -> Pair:
    """Online softmax over tiles of 32 keys."""
    qf, kf, vf = spread(q, k, v)
    x = dot(qf, kf) * (scale / softcap)
    s = np.tanh(x) * (x if bug else softcap)
    return online(masked(s, visible(*grid(q, k), causal)), vf, q.dtype, 32)


@wrong(
    case(40, 72, "float32", heads=3, causal=True, softcap=10.0),
    truth="scale: the cap is applied before scale, scale * c * tanh(q.k / c) for c * tanh(scale * q.k / c)",
    source="class of softcap order (Gemma 2 ports)",
)
def softcap_before_scale(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, softcap: float, bug: bool = True
) -> Pair:
    """Eager softmax of whole rows."""
    qf, kf, vf = spread(q, k, v)
    inner, outer = (1, scale) if bug else (scale, 1)
    s = np.tanh(dot(qf, kf) * inner / softcap) * softcap * outer
    return eager(masked(s, visible(*grid(q, k), causal)), vf, q.dtype)


@wrong(
    case(64, 64, "float16", heads=4, kv_heads=2, causal=True, softcap=4.0),
    truth="scale: the cap is applied after the mask: masked scores -inf become -c and count with exp(-c - max), in the "
    "sum and with their values",
    source="flashinfer#350, onnx#7865",
)
def softcap_after_mask(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, softcap: float, bug: bool = True
) -> Pair:
    """Online softmax over tiles of 16 keys."""
    qf, kf, vf = spread(q, k, v)
    s, seen = dot(qf, kf) * scale, visible(*grid(q, k), causal)
    s = np.tanh(masked(s, seen) / softcap) * softcap
    return online(s if bug else masked(s, seen), vf, q.dtype, 16)


@wrong(
    case(48, 90, "float32", heads=2, softcap=3.0),
    faults=2,
    truth="scale: log2(e) is folded into the scale before the cap, which is not converted: s is c * tanh(log2(e) * s / "
    "c) in units of log2; and the row sum lacks the last tile of 32 keys, whose values are in out; lse too",
    source="class of softcap with folded log2(e) (flashinfer logits_soft_cap); class of pipelined epilogues",
)
def softcap_in_log2(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, softcap: float, bug: bool = True
) -> Pair:
    """Two passes, exp2: maximum and sum, then P @ V."""
    qf, kf, vf = spread(q, k, v)
    cap = softcap if bug else softcap * LOG2E
    s = masked(np.tanh(dot(qf, kf) * (scale * LOG2E) / cap) * cap, visible(*grid(q, k), causal))
    m, n = top(s), k.shape[2]
    p = np.exp2(s - safe(m))
    return finish(m * LN2, total(p[..., : (cdiv(n, 32) - 1) * 32 if bug else n]), rounded(p, q.dtype) @ vf, q.dtype)


@wrong(
    case(64, 128, "float16", heads=2, causal=True),
    truth="online: the accumulator is not multiplied by exp(max_old - max_new); the row sum is",
    source="class of online softmax corrections (synthetic)",
)
def acc_not_rescaled(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Online softmax over tiles of 16 keys."""
    qf, kf, vf = spread(q, k, v)
    s, (m, den, acc) = scores(qf, kf, scale, causal), start(q, v)
    for t in tiles(k.shape[2], 16):
        m, p, alpha = rise(m, s[..., t])
        den = den * alpha + total(p)
        acc = acc * (1 if bug else alpha) + rounded(p, q.dtype) @ vf[:, :, t]
    return finish(m, den, acc, q.dtype)


@wrong(
    case(64, 96, "float32", heads=4, kv_heads=2),
    truth="online: the row sum is not multiplied by exp(max_old - max_new); the accumulator is",
    source="class of online softmax corrections (synthetic)",
)
def sum_not_rescaled(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Online softmax over tiles of 24 keys, from the last to the first."""
    qf, kf, vf = spread(q, k, v)
    s, (m, den, acc) = scores(qf, kf, scale, causal), start(q, v)
    for t in reversed(list(tiles(k.shape[2], 24))):
        m, p, alpha = rise(m, s[..., t])
        den = (den if bug else den * alpha) + total(p)
        acc = acc * alpha + rounded(p, q.dtype) @ vf[:, :, t]
    return finish(m, den, acc, q.dtype)


@wrong(
    case(50, 100, "float32", heads=2, head_dim=32, causal=True),
    truth="online: the accumulator is multiplied by the inverse exp(max_new - max_old); the row sum is right",
    source="class of inverted corrections (acc / alpha)",
)
def acc_correction_inverted(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Online softmax over tiles of 32 keys."""
    qf, kf, vf = spread(q, k, v)
    s, (m, den, acc) = scores(qf, kf, scale, causal), start(q, v)
    for t in tiles(k.shape[2], 32):
        m, p, alpha = rise(m, s[..., t])
        den = den * alpha + total(p)
        acc = acc * (np.where(alpha > 0, 1 / alpha, 0) if bug else alpha) + rounded(p, q.dtype) @ vf[:, :, t]
    return finish(m, den, acc, q.dtype)


@wrong(
    case(32, 96, "float32", heads=2),
    truth="online: the maximum is not reduced over the four lanes of a row: lane l takes that of its columns j with j "
    "// 2 % 4 == l for their P and their part of the sum, and for the correction of out's columns d with d // 2 % 4 == "
    "l; the sum is reduced over lanes, lse takes lane 0's maximum",
    source="class of reductions over lanes (flashinfer 6c6417903, llama.cpp#24451)",
)
def max_of_a_lane(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Online softmax over tiles of 32 keys, rows held by four lanes."""
    qf, kf, vf = spread(q, k, v)
    s, (m, den, acc) = scores(qf, kf, scale, causal), start(q, v)
    m, den, lane_v = np.repeat(m, 4, -1), np.repeat(den, 4, -1), np.arange(v.shape[3]) // 2 % 4
    for t in tiles(k.shape[2], 32):
        lane = np.arange(t.stop - t.start) // 2 % 4
        best = np.concatenate([top(masked(s[..., t], lane == n)) for n in range(4)], -1)
        new = np.maximum(m, best if bug else top(best))
        p, alpha = np.exp(s[..., t] - safe(new)[..., lane]), np.exp(m - safe(new))
        den = den * alpha + np.stack([(p * (lane == n)).sum(-1) for n in range(4)], -1)
        acc = acc * alpha[..., lane_v] + rounded(p, q.dtype) @ vf[:, :, t]
        m = new
    return finish(m[..., :1], total(den), acc, q.dtype)


@wrong(
    case(64, 80, "float16", heads=4, kv_heads=1),
    truth="online: row sums are not reduced over the four lanes of a row: columns d of out with d // 2 % 4 == l are "
    "divided by the sum over keys j with j // 2 % 4 == l only; lse holds lane 0's sum",
    source="class of missing quad reductions of the row sum (flash-attn softmax.h)",
)
def sum_of_a_lane(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Eager, rows held by four lanes."""
    qf, kf, vf = spread(q, k, v)
    s, lane, lane_v = scores(qf, kf, scale, causal), np.arange(k.shape[2]) // 2 % 4, np.arange(v.shape[3]) // 2 % 4
    m = top(s)
    p = np.exp(s - safe(m))
    den = np.stack([(p * (lane == n)).sum(-1) for n in range(4)], -1)
    den = den if bug else np.repeat(total(den), 4, -1)
    out = finish(m, den[..., lane_v], rounded(p, q.dtype) @ vf, q.dtype)[0]
    return out, finish(m, den[..., :1], m, q.dtype)[1]


@wrong(
    case(72, 72, "float32", heads=2, batch=2, causal=True),
    truth="online: the mask holds for the maximum and for P @ V and not for the row sum, which counts exp(s - max) of "
    "all keys of the tiles (of 24 queries and keys) that are read, masked or not",
    source="FluxML/NNkernels.jl#16 (one of several bound checks missing)",
)
def sum_unmasked(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Eager over the tiles that a query's tile sees."""
    qf, kf, vf = spread(q, k, v)
    (i, j), raw = grid(q, k), dot(qf, kf) * scale
    seen = visible(i, j, causal)
    last = i - np.arange(q.shape[2])[:, None] % 24 + 23
    m = top(masked(raw, seen))
    p = np.exp(masked(raw, visible(last, j // 24 * 24, causal) if bug else seen) - safe(m))
    return finish(m, total(p), rounded(np.where(seen, p, 0), q.dtype) @ vf, q.dtype)


@wrong(
    case(64, 112, "float16", heads=2, causal=True),
    truth="online: rescaling is put off while the maximum grows by less than 8 ln 2, but the maximum moves on all the "
    "same: then neither accumulator nor sum are corrected, though P and lse take the new maximum",
    source="flash-attn#2717 class (conditional rescaling with a threshold)",
)
def lazy_rescale(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Online softmax over tiles of 16 keys, rescaled when it must be."""
    qf, kf, vf = spread(q, k, v)
    s, (m, den, acc) = scores(qf, kf, scale, causal), start(q, v)
    for t in tiles(k.shape[2], 16):
        new = np.maximum(m, top(s[..., t]))
        lazy = new - m < 8 * LN2
        alpha = np.where(lazy, 1, np.exp(m - safe(new)))
        m = new if bug else np.where(lazy, m, new)
        p = np.exp(s[..., t] - safe(m))
        den, acc = den * alpha + total(p), acc * alpha + rounded(p, q.dtype) @ vf[:, :, t]
    return finish(m, den, acc, q.dtype)


@wrong(
    case(64, 64, "float32", heads=4, kv_heads=2, batch=2),
    truth="online: the new maximum is the tile's alone and may fall; the correction exp(max_old - max_new) is limited "
    "to 1, so that accumulator and sum are too small by it wherever the maximum falls",
    source="aiter#4216 (maximum without the old one)",
)
def falling_max(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Online softmax over tiles of 8 keys."""
    qf, kf, vf = spread(q, k, v)
    s, (m, den, acc) = scores(qf, kf, scale, causal), start(q, v)
    for t in tiles(k.shape[2], 8):
        new = top(s[..., t]) if bug else np.maximum(m, top(s[..., t]))
        p, alpha = np.exp(s[..., t] - safe(new)), np.minimum(np.exp(m - safe(new)), 1)
        den, acc, m = den * alpha + total(p), acc * alpha + rounded(p, q.dtype) @ vf[:, :, t], new
    return finish(m, den, acc, q.dtype)


@wrong(
    case(60, 100, "float32", heads=2, causal=True, window_size=(40, 0)),
    faults=2,
    truth="online: out is divided by the row sum before the last tile (of 32 keys, corrected to the last maximum), and "
    "lse takes it too; and the window's left edge is exclusive, i - j < left for <=",
    source="class of software-pipelined epilogues; transformers#39408",
)
def sum_before_last(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, window_size: tuple[int, int], bug: bool = True
) -> Pair:
    """Online softmax over tiles of 32 keys, sums one step late."""
    qf, kf, vf = spread(q, k, v)
    left, right = window_size
    s = masked(dot(qf, kf) * scale, visible(*grid(q, k), causal, (left - bug if left > 0 else left, right)))
    (m, den, acc), late = start(q, v), np.float32(0)
    for t in tiles(k.shape[2], 32):
        m, p, alpha = rise(m, s[..., t])
        den, late = (den + late) * alpha, total(p)
        acc = acc * alpha + rounded(p, q.dtype) @ vf[:, :, t]
    return finish(m, den if bug else den + late, acc, q.dtype)


@wrong(
    case(64, 64, "bfloat16", heads=4, kv_heads=2, causal=True),
    truth="online: the row sum starts at 1 beside the first tile's maximum, and is not scaled down by the first step: "
    "it holds one key more, with that maximum as score and values 0",
    source="flashinfer c6fdbd6d5 (#27)",
)
def phantom_key(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Online softmax over tiles of 16 keys."""
    qf, kf, vf = spread(q, k, v)
    s, (m, den, acc) = scores(qf, kf, scale, causal), start(q, v)
    if bug:
        m, den = top(s[..., :16]), den + 1
    for t in tiles(k.shape[2], 16):
        m, den, acc = step((m, den, acc), s[..., t], vf[:, :, t], q.dtype)
    return finish(m, den, acc, q.dtype)


@wrong(
    case(48, 80, "float32", heads=3, head_dim=32),
    truth="online: P of the last tile (of 32 keys) is exp(s) without the maximum; correction and lse have it",
    source="tt-metal#51278",
)
def last_tile_no_max(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Online softmax over tiles of 32 keys."""
    qf, kf, vf = spread(q, k, v)
    s, (m, den, acc) = scores(qf, kf, scale, causal), start(q, v)
    for t in tiles(k.shape[2], 32):
        new = np.maximum(m, top(s[..., t]))
        p, alpha = np.exp(s[..., t] - (0 if bug and t.stop == k.shape[2] else safe(new))), np.exp(m - safe(new))
        den, acc, m = den * alpha + total(p), acc * alpha + rounded(p, q.dtype) @ vf[:, :, t], new
    return finish(m, den, acc, q.dtype)


@wrong(
    case(64, 96, "bfloat16", heads=2, causal=True),
    truth="online: the second pass takes each tile's (of 24 keys) own maximum for the row's: P of a tile is too large "
    "by exp(max - max of the tile); the row sum and lse, of the first pass, are right",
    source="class of two-pass kernels (statistics of the first pass not used)",
)
def second_pass_max(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Two passes over tiles of 24 keys: maximum and sum, then P @ V."""
    qf, kf, vf = spread(q, k, v)
    s, (m, den, acc) = scores(qf, kf, scale, causal), start(q, v)
    for t in tiles(k.shape[2], 24):
        m, den, _ = step((m, den, acc), s[..., t], vf[:, :, t], q.dtype)
    for t in tiles(k.shape[2], 24):
        p = np.exp(s[..., t] - safe(top(s[..., t]) if bug else m))
        acc = acc + rounded(p, q.dtype) @ vf[:, :, t]
    return finish(m, den, acc, q.dtype)


@wrong(
    case(64, 128, "float32", heads=2, causal=True),
    truth="online: rows r and r + 8 of each 16 queries correct their accumulators with each other's exp(max_old - "
    "max_new); their sums with their own",
    source="class of mma fragments (rows r and r + 8 of a thread)",
)
def correction_rows_swapped(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Online softmax over tiles of 16 keys."""
    qf, kf, vf = spread(q, k, v)
    s, (m, den, acc), r = scores(qf, kf, scale, causal), start(q, v), np.arange(q.shape[2])
    other = np.where((r ^ 8) < q.shape[2], r ^ 8, r) if bug else r
    for t in tiles(k.shape[2], 16):
        m, p, alpha = rise(m, s[..., t])
        acc = acc * alpha[:, :, other] + rounded(p, q.dtype) @ vf[:, :, t]
        den = den * alpha + total(p)
    return finish(m, den, acc, q.dtype)


@wrong(
    case(64, 96, "float16", heads=4, kv_heads=2),
    truth="online: the correction is exp of a difference of maxima in units of log2, for exp2, of accumulator and sum: "
    "exp(log2(e) * (max_old - max_new)); P is right",
    source="class of mixed bases (Triton exp2 kernels)",
)
def correction_base(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Online softmax over tiles of 16 keys, scores in units of log2."""
    qf, kf, vf = spread(q, k, v)
    s, (m, den, acc) = scores(qf, kf, scale * LOG2E, causal), start(q, v)
    for t in tiles(k.shape[2], 16):
        new = np.maximum(m, top(s[..., t]))
        p, alpha = np.exp2(s[..., t] - safe(new)), (np.exp if bug else np.exp2)(m - safe(new))
        den, acc, m = den * alpha + total(p), acc * alpha + rounded(p, q.dtype) @ vf[:, :, t], new
    return finish(m * LN2, den, acc, q.dtype)


@wrong(
    case(48, 96, "float32", heads=2, batch=2, causal=True),
    faults=2,
    truth="online: the accumulator is not corrected in the last step, of keys 0 to 15, the sum is; and causal is "
    "aligned to the top left, j <= i for j <= i + Sk - Sq",
    source="class of peeled last iterations; flash-attn#1778",
)
def last_step_top_left(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Online softmax from the last tile of 16 keys to the first."""
    qf, kf, vf = spread(q, k, v)
    (i, j), (m, den, acc) = grid(q, k), start(q, v)
    s = masked(dot(qf, kf) * scale, visible(i - i[0] if bug else i, j, causal))
    for t in reversed(list(tiles(k.shape[2], 16))):
        m, p, alpha = rise(m, s[..., t])
        den = den * alpha + total(p)
        acc = acc * (1 if bug and t.start == 0 else alpha) + rounded(p, q.dtype) @ vf[:, :, t]
    return finish(m, den, acc, q.dtype)


@wrong(
    case(96, 96, "float16", heads=2, causal=True),
    truth="online: P is raised by 8 (3 ln 2 in the exponent) in tiles of 32 keys where a query of the 32 is masked, "
    "and not in the others; lse takes the offset off: keys of the other tiles weigh an eighth",
    source="llama.cpp#24909, llama.cpp#18614",
)
def offset_in_masked_tiles(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Online softmax over tiles of 32 queries and keys, P raised against underflow."""
    qf, kf, vf = spread(q, k, v)
    seen, raw, (m, den, acc) = visible(*grid(q, k), causal), dot(qf, kf) * scale, start(q, v)
    first = np.arange(q.shape[2]) // 32 * 32
    for t in tiles(k.shape[2], 32):
        whole = seen[first, t].all(-1)[:, None]
        s = masked(raw[..., t], seen[:, t])
        new = np.maximum(m, top(s))
        p, alpha = np.exp(s - safe(new) + np.where(bug & whole, 0, np.float32(3 * LN2))), np.exp(m - safe(new))
        den, acc, m = den * alpha + total(p), acc * alpha + rounded(p, q.dtype) @ vf[:, :, t], new
    return finish(m - 3 * LN2, den, acc, q.dtype)


@wrong(
    case(64, 80, "float32", heads=4, kv_heads=2),
    truth="online: P takes the maximum before the tile (0 for the first tile), while correction and lse take the new "
    "one: P of a tile is too large by exp(max_new - max_old), exp(max_new) in the first",
    source="class of statistics read before they are written (mlx#2042)",
)
def p_of_old_max(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Online softmax over tiles of 40 keys."""
    qf, kf, vf = spread(q, k, v)
    s, (m, den, acc) = scores(qf, kf, scale, causal), start(q, v)
    for t in tiles(k.shape[2], 40):
        new = np.maximum(m, top(s[..., t]))
        p, alpha = np.exp(s[..., t] - safe(m if bug else new)), np.exp(m - safe(new))
        den, acc, m = den * alpha + total(p), acc * alpha + rounded(p, q.dtype) @ vf[:, :, t], new
    return finish(m, den, acc, q.dtype)


@wrong(
    case(64, 128, "bfloat16", heads=2, batch=2),
    truth="online: the tile's sum is added before the correction and multiplied by it: den = (den + sum P) * "
    "exp(max_old - max_new), 1 in the first tile; the accumulator is right",
    source="class of online softmax order (l update)",
)
def sum_then_correction(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Online softmax over tiles of 16 keys."""
    qf, kf, vf = spread(q, k, v)
    s, (m, den, acc) = scores(qf, kf, scale, causal), start(q, v)
    for t in tiles(k.shape[2], 16):
        new = np.maximum(m, top(s[..., t]))
        p, alpha = np.exp(s[..., t] - safe(new)), np.where(m == -np.inf, 1, np.exp(m - safe(new)))
        den = (den + total(p)) * alpha if bug else den * alpha + total(p)
        acc, m = acc * alpha + rounded(p, q.dtype) @ vf[:, :, t], new
    return finish(m, den, acc, q.dtype)


@wrong(
    case(40, 64, "float32", heads=2, causal=True),
    truth="online: maxima are of q.k, and P is exp(scale * q.k - max) without scale at the maximum; the correction "
    "exp(scale * (max_old - max_new)) has it, so that tiles before a new maximum are too large; lse takes scale * max",
    source="cutlass#2366, flashinfer#1109 class (scale at the maximum)",
)
def max_without_scale(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Online softmax over tiles of 16 keys, scale applied within exp."""
    qf, kf, vf = spread(q, k, v)
    s, (m, den, acc) = scores(qf, kf, 1.0, causal), start(q, v)
    for t in tiles(k.shape[2], 16):
        new = np.maximum(m, top(s[..., t]))
        p, alpha = np.exp(s[..., t] * scale - safe(new) * (1 if bug else scale)), np.exp((m - safe(new)) * scale)
        den, acc, m = den * alpha + total(p), acc * alpha + rounded(p, q.dtype) @ vf[:, :, t], new
    return finish(m * scale, den, acc, q.dtype)


@wrong(
    case(48, 96, "float32", heads=4, kv_heads=1, head_dim=48),
    truth="online: the second half of each tile of 32 keys reads the row maximum before the barrier: its P takes the "
    "maximum of the tiles before (0 in the first tile), that of the first half the new one",
    source="flash-attn#2229, llama.cpp#17887 class (statistics in shared memory without a barrier)",
)
def half_tile_old_max(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Online softmax over tiles of 32 keys, two warps a tile."""
    qf, kf, vf = spread(q, k, v)
    s, (m, den, acc) = scores(qf, kf, scale, causal), start(q, v)
    for t in tiles(k.shape[2], 32):
        new = np.maximum(m, top(s[..., t]))
        late = np.arange(t.stop - t.start) >= 16
        p, alpha = np.exp(s[..., t] - np.where(bug & late, safe(m), safe(new))), np.exp(m - safe(new))
        den, acc, m = den * alpha + total(p), acc * alpha + rounded(p, q.dtype) @ vf[:, :, t], new
    return finish(m, den, acc, q.dtype)


@wrong(
    case(64, 64, "float16", heads=4, kv_heads=2, causal=True),
    truth="precision: q.k is accumulated in float16, rounded after each slice of 8 dimensions",
    source="llama.cpp#20589, llama.cpp#10232",
)
def half_dot(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """q.k by slices of 8 dimensions; online softmax over tiles of 32 keys."""
    (qf, kf, vf), s = spread(q, k, v), np.float32(0)
    for d in range(0, q.shape[3], 8):
        s = s + dot(qf[..., d : d + 8], kf[..., d : d + 8])
        s = rounded(s, np.float16) if bug else s
    return online(masked(s * scale, visible(*grid(q, k), causal)), vf, q.dtype, 32)


@wrong(
    case(32, 160, "bfloat16", heads=2),
    truth="precision: the accumulator of P @ V is rounded to bfloat16 after each tile of 8 keys",
    source="Xilinx/mlir-air#1600",
)
def bfloat16_accumulator(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Online softmax over tiles of 8 keys."""
    qf, kf, vf = spread(q, k, v)
    s, state = scores(qf, kf, scale, causal), start(q, v)
    for t in tiles(k.shape[2], 8):
        m, den, acc = step(state, s[..., t], vf[:, :, t], q.dtype)
        state = m, den, rounded(acc, ml_dtypes.bfloat16) if bug else acc
    return finish(*state, q.dtype)


@wrong(
    case(64, 96, "float32", heads=2, causal=True),
    truth="precision: 2^f of the fraction f in [0, 1) is 1 + f * (0.6565 + 0.3435 * f), up to 0.32% off, in tiles of "
    "32 keys that all queries see; tiles with masked keys take the exact exp2",
    source="flash-attn#2595 (polynomial exp2 on unmasked tiles only)",
)
def polynomial_exp2(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Online softmax over tiles of 32 keys, scores in units of log2."""
    qf, kf, vf = spread(q, k, v)
    s, (m, den, acc) = scores(qf, kf, scale * LOG2E, causal), start(q, v)
    for t in tiles(k.shape[2], 32):
        new = np.maximum(m, top(s[..., t]))
        x, alpha = s[..., t] - safe(new), np.exp2(m - safe(new))
        p, f = np.exp2(x), x - np.floor(x)
        if bug and (x > -np.inf).all():
            p = np.exp2(np.floor(x)) * (1 + f * (np.float32(0.6565) + np.float32(0.3435) * f))
        den, acc, m = den * alpha + total(p), acc * alpha + rounded(p, q.dtype) @ vf[:, :, t], new
    return finish(m * LN2, den, acc, q.dtype)


@wrong(
    case(64, 64, "bfloat16", heads=4, kv_heads=2, causal=True),
    truth="precision: scale * log2(e) is rounded to bfloat16 and folded into Q, which is rounded to bfloat16 again",
    source="mlx#3119",
)
def q_scaled_narrow(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Eager, scores in units of log2."""
    qf, kf, vf = spread(q, k, v)
    factor = np.float32(scale * LOG2E)
    qs = rounded(qf * rounded(factor, q.dtype), q.dtype) if bug else qf * factor
    s = scores(qs, kf, 1.0, causal)
    m = top(s)
    p = np.exp2(s - safe(m))
    return finish(m * LN2, total(p), rounded(p, q.dtype) @ vf, q.dtype)


@wrong(
    case(64, 80, "float32", heads=3),
    truth="precision: Q and K are cut off to the 10 mantissa bits of TF32 for q.k; V and P are not",
    source="triton_docs#6, class of TF32 by default in tl.dot",
)
def tf32_dot(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Online softmax over tiles of 16 keys."""
    qf, kf, vf = spread(q, k, v)
    if bug:
        qf, kf = ((x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32) for x in (qf, kf))
    return online(scores(qf, kf, scale, causal), vf, q.dtype, 16)


@wrong(
    case(48, 128, "float32", heads=2, head_dim=32, causal=True),
    truth="precision: the accumulator's correction exp(max_old - max_new) is rounded to bfloat16; the sum's is not",
    source="vllm-gaudi#1419 (rescaling in a narrow type)",
)
def narrow_correction(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Online softmax over tiles of 16 keys."""
    qf, kf, vf = spread(q, k, v)
    s, (m, den, acc) = scores(qf, kf, scale, causal), start(q, v)
    for t in tiles(k.shape[2], 16):
        m, p, alpha = rise(m, s[..., t])
        acc = acc * (rounded(alpha, ml_dtypes.bfloat16) if bug else alpha) + rounded(p, q.dtype) @ vf[:, :, t]
        den = den * alpha + total(p)
    return finish(m, den, acc, q.dtype)


@wrong(
    case(64, 96, "float16", heads=2, batch=2),
    truth="precision: P is exp(s - 14), a fixed number for the maximum, and mostly subnormal in float16, in which it "
    "is rounded for P @ V; the sum is of the unrounded P",
    source="HabanaAI/vllm-fork#275 class (dummy maximum)",
)
def fixed_max(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Eager softmax of whole rows."""
    qf, kf, vf = spread(q, k, v)
    s = scores(qf, kf, scale, causal)
    m = np.full_like(top(s), 14) if bug else top(s)
    p = np.exp(s - safe(m))
    return finish(m, total(p), rounded(p, q.dtype) @ vf, q.dtype)
