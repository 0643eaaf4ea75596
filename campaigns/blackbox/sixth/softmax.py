"""Faults of scale, softcap, sinks, bases, casts of P, scales of K and V, and dropped terms."""

import ml_dtypes
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


def codes(x: Array, axes: tuple[int, ...]) -> tuple[Array, Array]:
    """x over its scale, and the scale that takes its largest magnitude to 6."""
    x = x.astype(np.float32)
    factor = np.maximum(np.abs(x).max(axes, keepdims=True), np.float32(1e-12)) / 6
    return x / factor, factor


def sunk(q: Array, v: Array, sinks: Array | None, unit: float = 1.0) -> Partial:
    """The state before the first tile, which holds the sink."""
    m, den, acc = start(q, v)
    return (m, den, acc) if sinks is None else (den + sinks[:, None, None] * np.float32(unit), den + 1, acc)


@wrong(
    case(64, 96, "float16", heads=4, kv_heads=2, causal=True),
    truth="The scale 0.125 is applied twice, to q and to the scores: scores are q.k / 64 instead of q.k / 8.",
    source="class of scales folded into Q and applied again, as vllm#48016",
)
def scale_twice_6(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a kernel that scales Q as it loads it."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    pairs = []
    for rows in tiles(q.shape[2], 32):
        tile = qf[:, :, rows] * np.float32(scale)
        state = start(tile, vf)
        for t in tiles(k.shape[2], 64):
            s = dot(tile, kf[:, :, t])
            if bug:
                s = s * np.float32(scale)
            state = step(state, masked(s, visible(i[rows], j[:, t], causal)), vf[:, :, t], q.dtype)
        pairs.append(finish(*state, q.dtype))
    return join(pairs)


@wrong(
    case(80, 80, "bfloat16", heads=3, head_dim=96, causal=True),
    truth="The scale is 128^-0.5, of the head dim filled up to a power of two, instead of 96^-0.5: scores are sqrt(3) "
    "/ 2 = 0.866025 times what they should be.",
    source="flashinfer#1072, with a padded head dim",
)
def padded_scale_6(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a Triton wrapper that fills the head dim up to a power of two."""
    qf, kf, vf = spread(q, k, v)
    full = 1 << (q.shape[3] - 1).bit_length()
    qf, kf = pad(qf, 3, full), pad(kf, 3, full)
    factor = full**-0.5 if bug else scale
    return online(scores(qf, kf, factor, causal), vf, q.dtype, 32)


@wrong(
    case(50, 140, "float32", heads=2, head_dim=64),
    truth="Probabilities are 2^(s - m) instead of e^(s - m): weights of keys are 2^s, and lse = ln(sum of 2^s).",
    source="flashinfer#787",
)
def exp2_bare_6(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a kernel in base 2, log2(e) folded into the scale."""
    qf, kf, vf = spread(q, k, v)
    s = scores(qf, kf, scale * (1.0 if bug else LOG2E), causal)
    m, den, acc = start(qf, vf)
    for t in tiles(k.shape[2], 64):
        new = np.maximum(m, top(s[..., t]))
        alpha, p = np.exp2(m - safe(new)), np.exp2(s[..., t] - safe(new))
        den, acc = den * alpha + p.sum(-1, keepdims=True), acc * alpha + rounded(p, q.dtype) @ vf[:, :, t]
        m = new
    return finish(m * np.float32(LN2), den, acc, q.dtype)


@wrong(
    case(64, 128, "float32", heads=2, head_dim=128, softcap=2.0, causal=True),
    truth="Scores x = q.k * scale become (x / 2) * tanh(x / 2) instead of 2 * tanh(x / 2).",
    source="flash-attn#2402",
)
def cap_product_6(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True, softcap: float = 0.0
) -> Pair:
    """Like a kernel with a user function for the scores."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    state = start(qf, vf)
    for t in tiles(k.shape[2], 64):
        s = dot(qf, kf[:, :, t]) * scale
        if softcap:
            s = (s / softcap if bug else softcap) * np.tanh(s / softcap)
        state = step(state, masked(s, visible(i, j[:, t], causal)), vf[:, :, t], q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(70, 90, "float16", heads=4, kv_heads=2, softcap=15.0),
    truth="The softcap works on unscaled products: scores are 15 * tanh(q.k / 15) * 0.125 instead of 15 * tanh(q.k * "
    "0.125 / 15).",
    source="class of softcaps that forget the scale",
)
def cap_unscaled_6(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True, softcap: float = 0.0
) -> Pair:
    """Like a forward that folds scale and softcap into two factors beside tanh."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    inner, outer = 1.0, scale
    if softcap:
        inner, outer = (1 / softcap, softcap * scale) if bug else (scale / softcap, softcap)
    state = start(qf, vf)
    for t in tiles(k.shape[2], 32):
        s = dot(qf, kf[:, :, t]) * inner
        s = (np.tanh(s) if softcap else s) * outer
        state = step(state, masked(s, visible(i, j[:, t], causal)), vf[:, :, t], q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(64, 100, "bfloat16", heads=8, kv_heads=2, causal=True, sinks="normal"),
    truth="The sink is added to the row sum without subtracting the maximum: row sum = sum exp(s - M) + exp(sink), M = "
    "max(maximum of the row, sink), instead of + exp(sink - M); the same row sum is in lse = M + ln(row sum).",
    source="flash-attn e81c237e",
)
def sink_shift_6(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True, sinks: Array | None = None
) -> Pair:
    """Like a forward that adds the sink after the loop over keys."""
    qf, kf, vf = spread(q, k, v)
    s, state = scores(qf, kf, scale, causal), start(qf, vf)
    for t in tiles(k.shape[2], 64):
        state = step(state, s[..., t], vf[:, :, t], q.dtype)
    m, den, acc = state
    if sinks is not None:
        sink = sinks[:, None, None]
        new = np.maximum(m, sink)
        alpha = np.exp(m - new)
        m, den, acc = new, den * alpha + np.exp(sink if bug else sink - new), acc * alpha
    return finish(m, den, acc, q.dtype)


@wrong(
    case(40, 180, "float16", heads=4, sinks="normal"),
    truth="Each of 4 splits of 48 keys adds the sink: the row sum holds 4 * exp(sink) instead of exp(sink), in out and "
    "lse.",
    source="rocm-libraries#12229",
)
def sink_splits_6(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True, sinks: Array | None = None
) -> Pair:
    """Like a split-KV decode with a sink."""
    qf, kf, vf = spread(q, k, v)
    s = scores(qf, kf, scale, causal)
    parts = []
    for n, t in enumerate(tiles(k.shape[2], 48)):
        state = sunk(qf, vf, sinks) if n == 0 or bug else start(qf, vf)
        for u in tiles(t.stop - t.start, 16):
            at = slice(t.start + u.start, t.start + u.stop)
            state = step(state, s[..., at], vf[:, :, at], q.dtype)
        parts.append(state)
    return merge(parts, q.dtype)


@wrong(
    case(90, 120, "float32", heads=6, kv_heads=2, head_dim=64, causal=True, sinks="normal"),
    truth="(1) The sink is not brought to base 2: its term is 2^sink instead of e^sink. (2) Query head h takes the "
    "sink of index h // 3. Both in out and lse.",
    source="class of kernels in base 2 with a sink in base e, and of sinks indexed by the head of K",
    faults=2,
)
def sink_base_6(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True, sinks: Array | None = None
) -> Pair:
    """Like a Triton forward in base 2 that starts its row maximum from the sink."""
    h, group = q.shape[1], q.shape[1] // k.shape[1]
    qf, kf, vf = spread(q, k, v)
    s = scores(qf, kf, scale * LOG2E, causal)
    if sinks is not None and bug:
        sinks = sinks[np.arange(h) // group]
    m, den, acc = sunk(qf, vf, sinks, 1.0 if bug else LOG2E)
    for t in tiles(k.shape[2], 32):
        new = np.maximum(m, top(s[..., t]))
        alpha, p = np.exp2(m - safe(new)), np.exp2(s[..., t] - safe(new))
        den, acc = den * alpha + p.sum(-1, keepdims=True), acc * alpha + rounded(p, q.dtype) @ vf[:, :, t]
        m = new
    return finish(m * np.float32(LN2), den, acc, q.dtype)


@wrong(
    case(64, 130, "float32", heads=2, head_dim=32, causal=True),
    truth="Probabilities exp(s - m), m the running maximum over tiles of 32 keys, are rounded to float16 before P @ V, "
    "though the inputs are float32. Row sums and lse are not.",
    source="class of a cast of P to a fixed type, as in the Triton tutorial",
)
def half_probs_6(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a Triton forward, P cast before its product with V."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    pairs = []
    for rows in tiles(q.shape[2], 64):
        state = start(qf[:, :, rows], vf)
        for t in tiles(k.shape[2], 32):
            s = masked(dot(qf[:, :, rows], kf[:, :, t]) * scale, visible(i[rows], j[:, t], causal))
            state = step(state, s, vf[:, :, t], np.float16 if bug else q.dtype)
        pairs.append(finish(*state, q.dtype))
    return join(pairs)


@wrong(
    case(60, 100, "float16", heads=8, kv_heads=4, batch=2),
    truth="K is stored as codes over a scale for each batch and head, max |K[b, hk]| / 6; the scores of all heads are "
    "multiplied by the scale of head 0 of their batch: they are off by the factor max |K[b, 0]| / max |K[b, hk]|.",
    source="rocm-libraries#10474",
)
def k_scale_zero_6(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a kernel with a quantised K (codes left unrounded) and a scale for each head."""
    group = q.shape[1] // k.shape[1]
    kc, ks = codes(k, (2, 3))
    if bug:
        ks = np.broadcast_to(ks[:, :1], ks.shape)
    factor = np.repeat(ks, group, axis=1) * np.float32(scale)
    qf, kf, vf = spread(q, kc, v)
    i, j = grid(q, k)
    state = start(qf, vf)
    for t in tiles(k.shape[2], 64):
        s = masked(dot(qf, kf[:, :, t]) * factor, visible(i, j[:, t], causal))
        state = step(state, s, vf[:, :, t], q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(48, 112, "bfloat16", heads=4, kv_heads=2, head_dim=128, causal=True),
    truth="K and V are stored as codes over scales for each head, ks = max |K[hk]| / 6 and vs = max |V[hk]| / 6. (1) "
    "The scores are multiplied by ks twice: they are ks times too large. (2) out is multiplied by ks instead of vs: it "
    "is ks / vs times too large.",
    source="vllm#48016 and sglang#26852",
    faults=2,
)
def v_scale_of_k_6(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a decode kernel on a quantised cache (codes left unrounded), scales applied to S and out."""
    group = q.shape[1] // k.shape[1]
    (kc, ks), (vc, vs) = codes(k, (2, 3)), codes(v, (2, 3))
    ks, vs = np.repeat(ks, group, axis=1), np.repeat(vs, group, axis=1)
    qf, kf, vf = spread(q, kc, vc)
    if bug:
        kf = kf * ks
    i, j = grid(q, k)
    state = start(qf, vf)
    for t in tiles(k.shape[2], 32):
        s = masked(dot(qf, kf[:, :, t]) * (ks * np.float32(scale)), visible(i, j[:, t], causal))
        state = step(state, s, vf[:, :, t], q.dtype)
    m, den, acc = state
    return finish(m, den, acc * (ks if bug else vs), q.dtype)


@wrong(
    case(66, 192, "float16", heads=4, kv_heads=2, head_dim=64),
    truth="(1) K has a scale for each block of 64 keys, max |K[b, hk, block]| / 6, and key j takes that of block j // "
    "128 instead of j // 64: scores of keys 64..127 are off by the ratio of block 0 to block 1, of keys 128..191 by "
    "block 1 to block 2. (2) The mean of V over the keys is subtracted and added to out again, but that of head h % 2 "
    "instead of h // 2: out of head 1 has the mean of V head 1 minus that of head 0 added, head 2 the reverse.",
    source="class of SageAttention scales of blocks, and SageAttention 9cd0915 for V",
    faults=2,
)
def block_scales_6(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a kernel with scales of blocks of K (codes left unrounded) and V smoothed by its mean."""
    h, kv_heads, sk = q.shape[1], k.shape[1], k.shape[2]
    blocks = [codes(k[:, :, t], (2, 3)) for t in tiles(sk, 64)]
    heads = np.arange(h) // (h // kv_heads)
    mean = v.astype(np.float32).mean(2, keepdims=True)
    qf, _, vf = spread(q, k, v.astype(np.float32) - mean)
    i, j = grid(q, k)
    state = start(qf, vf)
    for n, t in enumerate(tiles(sk, 64)):
        kt, ks = blocks[n][0][:, heads], blocks[n // 2 if bug else n][1][:, heads]
        s = masked(dot(qf, kt) * (ks * np.float32(scale)), visible(i, j[:, t], causal))
        state = step(state, s, vf[:, :, t], q.dtype)
    out, lse = finish(*state, np.float32)
    back = mean[:, np.arange(h) % kv_heads if bug else heads]
    return np.where(lse[..., None] == -np.inf, 0, out + back).astype(q.dtype), lse


@wrong(
    case(100, 120, "bfloat16", heads=2, head_dim=64),
    truth="The row sum starts from 1 together with the maximum of the first tile of 32 keys: it holds exp(m_0) too "
    "much, m_0 being the largest score of the row over keys 0..31, in out and lse.",
    source="flashinfer#27",
)
def phantom_sum_6(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a forward whose first tile sets the maximum before the loop."""
    qf, kf, vf = spread(q, k, v)
    s = scores(qf, kf, scale, causal)
    first, *rest = tiles(k.shape[2], 32)
    m, den, acc = chunk(s[..., first], vf[:, :, first], q.dtype)
    state = m, den + np.float32(1 if bug else 0), acc
    for t in rest:
        state = step(state, s[..., t], vf[:, :, t], q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(64, 224, "float16", heads=2, head_dim=64),
    truth="The accumulator (not normalised, relative to the running maximum) is rounded to bfloat16 after each tile of "
    "32 keys; row sums and lse are not.",
    source="mlir-air#1600",
)
def bf16_sums_6(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a kernel that keeps its accumulator in memory between tiles."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    state = start(qf, vf)
    for n in range(cdiv(k.shape[2], 32)):
        t = slice(n * 32, min(k.shape[2], n * 32 + 32))
        s = masked(dot(qf, kf[:, :, t]) * scale, visible(i, j[:, t], causal))
        m, den, acc = step(state, s, vf[:, :, t], q.dtype)
        state = m, den, rounded(acc, ml_dtypes.bfloat16) if bug else acc
    return finish(*state, q.dtype)


@wrong(
    case(128, 128, "float32", heads=4, kv_heads=2, head_dim=64, causal=True),
    truth="q and k are cut to 10 bits of mantissa (the low 13 bits of each float32 set to 0, towards zero) before "
    "their product; V and P are not.",
    source="triton_docs#6",
)
def tf32_cut_6(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a forward on tensor cores with float32 inputs."""
    qf, kf, vf = spread(q, k, v)
    if bug:
        qf, kf = ((x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32) for x in (qf, kf))
    i, j = grid(q, k)
    pairs = []
    for rows in tiles(q.shape[2], 64):
        state = start(qf[:, :, rows], vf)
        for t in tiles(k.shape[2], 64):
            s = masked(dot(qf[:, :, rows], kf[:, :, t]) * scale, visible(i[rows], j[:, t], causal))
            state = step(state, s, vf[:, :, t], q.dtype)
        pairs.append(finish(*state, q.dtype))
    return join(pairs)
