"""Wrong softmax: scale, softcap, sinks, the base of lse, casts, scales of quantised K and V, dropped terms."""

import ml_dtypes
import numpy as np

from ..record import (
    LN2,
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


@wrong(
    case(100, 100, "float16", heads=2, kv_heads=2, head_dim=80, causal=True),
    truth="The scale is that of the padded head_dim 128: scores are q.k * 80^-0.5 * (80 / 128)^0.5 = q.k * 128^-0.5.",
    source="flashinfer#1072; class of scales from a padded head_dim",
)
def padded_scale_7(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A kernel compiled for head_dim 64, 128 and 256, inputs padded to the next of them."""
    d = q.shape[3]
    size = next(n for n in (64, 128, 256) if n >= d)
    q32, k32, v32 = spread(q, k, v)
    q32, k32 = (np.pad(x, [(0, 0)] * 3 + [(0, size - d)]) for x in (q32, k32))
    s = scores(q32, k32, scale * (d / size) ** 0.5 if bug else scale, causal)
    return join([online(s[:, :, t], v32, q.dtype, 64) for t in tiles(q.shape[2], 64)])


@wrong(
    case(64, 144, "float32", heads=4, kv_heads=2, head_dim=64, causal=True),
    truth="exp2 without log2(e): P is 2^(s - m), not e^(s - m), as if the scale were ln 2 times smaller (0.6931 / 8); "
    "the row sum is that of these P, and lse is ln 2 * log2(sum 2^s) = ln(sum_j 2^s_j).",
    source="flashinfer#787",
)
def exp2_plain_7(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A Triton kernel that keeps its scores in base 2."""
    q32, k32, v32 = spread(q, k, v)
    s = scores(q32, k32, scale if bug else scale * LOG2E, causal)
    m, den, acc = start(q, v)
    for t in tiles(k.shape[2], 32):
        new = np.maximum(m, top(s[..., t]))
        p, alpha = np.exp2(s[..., t] - safe(new)), np.exp2(m - safe(new))
        den, acc = den * alpha + p.sum(-1, keepdims=True), acc * alpha + rounded(p, q.dtype) @ v32[:, :, t]
        m = new
    return finish(m * np.float32(LN2), den, acc, q.dtype)


@wrong(
    case(80, 120, "bfloat16", heads=2, batch=2, head_dim=64, softcap=2.0),
    truth="The soft cap returns (s / c) tanh(s / c) with s = q.k * scale and c = 2, instead of c tanh(s / c).",
    source="flash-attn#2402",
)
def cap_formula_7(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True, softcap: float = 0.0
) -> Pair:
    """A CuTe kernel with a score_mod for the soft cap."""
    q32, k32, v32 = spread(q, k, v)
    i, j = grid(q, k)
    c, state = np.float32(softcap), start(q, v)
    for t in tiles(k.shape[2], 64):
        x = dot(q32, k32[:, :, t]) * scale / c
        s = masked((x if bug else c) * np.tanh(x), visible(i, j[:, t], causal))
        state = step(state, s, v32[:, :, t], q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(96, 96, "float32", heads=4, kv_heads=2, head_dim=64, causal=True, softcap=3.0),
    truth="The cap is applied to scores already multiplied with log2(e), with c unchanged: capped scores are c tanh(s "
    "log2(e) / c) / log2(e) = 2.0794 tanh(s * 1.442695 / 3) instead of 3 tanh(s / 3).",
    source="class of soft caps in base 2 (flash-attn, vLLM Triton)",
)
def cap_in_base_two_7(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True, softcap: float = 0.0
) -> Pair:
    """A unified-attention kernel in Triton, with the soft cap before exp2."""
    q32, k32, v32 = spread(q, k, v)
    seen = visible(*grid(q, k), causal)
    c = np.float32(softcap)
    m, den, acc = start(q, v)
    for t in tiles(k.shape[2], 32):
        raw = dot(q32, k32[:, :, t]) * scale
        s = c * np.tanh(raw * np.float32(LOG2E) / c) if bug else c * np.tanh(raw / c) * np.float32(LOG2E)
        s = masked(s, seen[:, t])
        new = np.maximum(m, top(s))
        p, alpha = np.exp2(s - safe(new)), np.exp2(m - safe(new))
        den, acc = den * alpha + p.sum(-1, keepdims=True), acc * alpha + rounded(p, q.dtype) @ v32[:, :, t]
        m = new
    return finish(m * np.float32(LN2), den, acc, q.dtype)


@wrong(
    case(64, 128, "float32", heads=4, kv_heads=2, head_dim=64, causal=True, sinks="normal"),
    truth="The sink is not multiplied with log2(e) in the exp2 domain: its weight in the row sum is 2^sink instead of "
    "e^sink (2^sink = exp(0.6931 sink)), in lse too.",
    source="class of sinks in base 2 (vLLM, Triton gpt-oss kernels)",
)
def sink_base_7(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True, sinks: Array | None = None
) -> Pair:
    """A Triton kernel that starts its running maximum and sum from the sink, in base 2."""
    q32, k32, v32 = spread(q, k, v)
    s = scores(q32, k32, scale * LOG2E, causal)
    m, den, acc = start(q, v)
    if sinks is not None:
        first = sinks[:, None, None] * np.float32(1 if bug else LOG2E)
        m, den = np.broadcast_to(first, den.shape), den + np.float32(1)
    for t in tiles(k.shape[2], 32):
        new = np.maximum(m, top(s[..., t]))
        p, alpha = np.exp2(s[..., t] - safe(new)), np.exp2(m - safe(new))
        den, acc = den * alpha + p.sum(-1, keepdims=True), acc * alpha + rounded(p, q.dtype) @ v32[:, :, t]
        m = new
    return finish(m * np.float32(LN2), den, acc, q.dtype)


@wrong(
    case(40, 100, "float16", heads=8, kv_heads=2, batch=2, head_dim=64, sinks="normal"),
    truth="The sink of a query head is indexed within its group: head h takes sinks[h % 4] instead of sinks[h].",
    source="class of per-head sinks with packed GQA (SGLang, FlashInfer, flash-attn)",
)
def sink_in_group_7(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True, sinks: Array | None = None
) -> Pair:
    """A packed-GQA decode kernel with a sink added in its epilogue."""
    q32, k32, v32 = spread(q, k, v)
    s, state = scores(q32, k32, scale, causal), start(q, v)
    for t in tiles(k.shape[2], 64):
        state = step(state, s[..., t], v32[:, :, t], q.dtype)
    m, den, acc = state
    if sinks is not None:
        heads, group = np.arange(q.shape[1]), q.shape[1] // k.shape[1]
        own = sinks[heads % group if bug else heads][:, None, None]
        new = np.maximum(m, own)
        den, acc, m = den * np.exp(m - new) + np.exp(own - new), acc * np.exp(m - new), new
    return finish(m, den, acc, q.dtype)


@wrong(
    case(64, 160, "float32", heads=2, kv_heads=1, head_dim=64, causal=True),
    truth="P, relative to the running maximum after its tile of 32 keys, is rounded to bfloat16 before P @ V; the row "
    "sum takes the P that are not rounded.",
    source="class of casts of P to a fixed dtype (Triton tutorial kernels, xFormers)",
)
def p_bf16_7(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A Triton kernel that casts P for the second dot."""
    q32, k32, v32 = spread(q, k, v)
    s = scores(q32, k32, scale, causal)
    dtype = ml_dtypes.bfloat16 if bug else q.dtype
    pairs = []
    for rows in tiles(q.shape[2], 64):
        state = start(q[:, :, rows], v)
        for t in tiles(k.shape[2], 32):
            state = step(state, s[:, :, rows, t], v32[:, :, t], dtype)
        pairs.append(finish(*state, q.dtype))
    return join(pairs)


@wrong(
    case(64, 96, "float16", heads=4, kv_heads=4, batch=2, head_dim=64),
    truth="V's scale is never applied: out is divided by amax_v[b, h] / 448, the largest |V| of the batch and head "
    "over 448 (out = P @ V * 448 / amax). lse is right.",
    source="flashinfer#1416",
)
def v_scale_lost_7(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A prefill kernel over K and V scaled to the range of e4m3 by head, scales applied to scores and out."""
    q32, k32, v32 = spread(q, k, v)
    ks, vs = (np.abs(x).max((2, 3), keepdims=True) / np.float32(448) for x in (k32, v32))
    s = masked(dot(q32, k32 / ks) * ks * scale, visible(*grid(q, k), causal))
    m, den, acc = start(q, v)
    for t in tiles(k.shape[2], 64):
        m, den, acc = step((m, den, acc), s[..., t], v32[:, :, t] / vs, q.dtype)
    return finish(m, den, acc if bug else acc * vs, q.dtype)


@wrong(
    case(48, 128, "float32", heads=4, kv_heads=2, batch=2, head_dim=64),
    truth="V is dequantised with K's scale: out of batch b and KV head n is multiplied with amax |K[b, n]| / amax "
    "|V[b, n]| (maxima over keys and dims). lse is right.",
    source="sglang#26852",
)
def v_scale_of_k_7(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A split-K decode kernel over K and V with a scale for each KV head."""
    ks, vs = (np.abs(x.astype(np.float32)).max((2, 3), keepdims=True) / np.float32(448) for x in (k, v))
    codes = k.astype(np.float32) / ks, v.astype(np.float32) / vs
    q32, k32, v32 = spread(q, codes[0] * ks, codes[1] * (ks if bug else vs))
    s = scores(q32, k32, scale, causal)
    return merge([chunk(s[..., t], v32[:, :, t], q.dtype) for t in tiles(k.shape[2], cdiv(k.shape[2], 4))], q.dtype)


@wrong(
    case(50, 130, "bfloat16", heads=2, head_dim=128, causal=True),
    truth="K's scale is read at the page and not at the token: key j is multiplied with amax |K[16 (j // 16)]| / amax "
    "|K[j]| (maxima over dims, by batch and head), so its scores are wrong by this factor. V is right.",
    source="aiter#4825",
)
def page_scale_7(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A paged kernel with a scale of K for each token, pages of 16."""
    q32, k32, v32 = spread(q, k, v)
    ks = np.abs(k32).max(-1) / np.float32(127)
    codes = k32 / ks[..., None]
    j = np.arange(k.shape[2])
    used = ks[..., j // 16 * 16] if bug else ks
    s = masked(dot(q32, codes) * used[:, :, None] * scale, visible(*grid(q, k), causal))
    return online(s, v32, q.dtype, 16)


@wrong(
    case(120, 150, "float16", heads=2, kv_heads=1, head_dim=64, causal=True),
    truth="(1) The last tile of 64 keys (128..149) is not shifted: its P are exp(s) instead of exp(s - m), m the "
    "maximum over all visible keys, while the sums of keys 0..127 are relative to m; these keys so weigh exp(m) too "
    "much. (2) The tile's row sum takes P twice there: l = l_old exp(m_old - m) + 2 sum exp(s_j) over keys 128..149, "
    "while P @ V takes it once. lse = m + log(l).",
    source="tt-metal#35817, #51278; class of partial sums counted twice",
    faults=2,
)
def last_tile_unshifted_7(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A flash kernel with its last tile of keys peeled off."""
    q32, k32, v32 = spread(q, k, v)
    s, (m, den, acc) = scores(q32, k32, scale, causal), start(q, v)
    for t in tiles(k.shape[2], 64):
        odd = bug and t.stop == k.shape[2]
        new = np.maximum(m, top(s[..., t]))
        p = np.exp(s[..., t] - (0 if odd else safe(new)))
        alpha = np.exp(m - safe(new))
        den = den * alpha + p.sum(-1, keepdims=True) * np.float32(2 if odd else 1)
        acc = acc * alpha + rounded(p, q.dtype) @ v32[:, :, t]
        m = new
    return finish(m, den, acc, q.dtype)


@wrong(
    case(96, 128, "float32", heads=2, batch=2, head_dim=64),
    truth="Q is smoothed by the mean of each block of 32 queries (rows 32 t .. 32 t + 31, by batch, head and dim), and "
    "the term mean(Q) K^T is not added back: scores are (q_i - mean of its block) . k_j * scale.",
    source="SageAttention: class of dropped correction terms of smoothed Q",
)
def smooth_q_7(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A SageAttention2 kernel: Q less its block's mean, a row of corrections for each block."""
    q32, k32, v32 = spread(q, k, v)
    i, j = grid(q, k)
    pairs = []
    for t in tiles(q.shape[2], 32):
        mean = q32[:, :, t].mean(2, keepdims=True)
        s = dot(q32[:, :, t] - mean, k32)
        if not bug:
            s = s + dot(mean, k32)
        pairs.append(online(masked(s * scale, visible(i[t], j, causal)), v32, q.dtype, 64))
    return join(pairs)


@wrong(
    case(33, 200, "bfloat16", heads=4, kv_heads=1, head_dim=96),
    truth="(1) Scores are sums of two parts, dims 0..63 and dims 64..95, and the second has its own scale 32^-0.5 "
    "instead of 96^-0.5: s = 96^-0.5 q.k[0..63] + 32^-0.5 q.k[64..95]. (2) The merge of the two splits (keys [0, "
    "100), [100, 200)) lacks their weights exp(m_s - M): out = sum A_s / sum L_s with A_s and L_s relative to the "
    "split's own maximum, lse = m_0 + log(L_0 + L_1).",
    source="class of MLA scales of the nope and the rope part; class of merges without maxima",
    faults=2,
)
def two_part_scale_7(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """An MLA decode kernel: a nope part and a rope part of the score, two splits."""
    q32, k32, v32 = spread(q, k, v)
    d = q.shape[3]
    nope = d * 2 // 3
    factor = np.float32((d / (d - nope)) ** 0.5 if bug else 1)
    s = (dot(q32[..., :nope], k32[..., :nope]) + factor * dot(q32[..., nope:], k32[..., nope:])) * scale
    s = masked(s, visible(*grid(q, k), causal))
    parts = [chunk(s[..., t], v32[:, :, t], q.dtype) for t in tiles(k.shape[2], cdiv(k.shape[2], 2))]
    if bug:
        return finish(parts[0][0], sum(x[1] for x in parts), sum(x[2] for x in parts), q.dtype)
    return merge(parts, q.dtype)


@wrong(
    case(64, 128, "float32", heads=4, kv_heads=2, head_dim=64, causal=True),
    truth="(1) K's scale is that of KV head 0 for all heads: scores of query heads 2, 3 are multiplied with amax "
    "|K[0]| / amax |K[1]| (over keys and dims of the KV heads). (2) The epilogue normalises by the row sum plus 1 "
    "(the sum starts at 1 relative to the first tile's maximum m_0, keys 0..31): denominator sum_j exp(s_j) + "
    "exp(m_0), in lse too.",
    source="rocm-libraries#10474; flashinfer#27: class of row sums that start at 1",
    faults=2,
)
def scale_zero_and_one_7(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A kernel over codes of K with a scale for each KV head."""
    k32 = k.astype(np.float32)
    ks = np.abs(k32).max((2, 3), keepdims=True) / np.float32(127)
    used = np.broadcast_to(ks[:, :1], ks.shape) if bug else ks
    q32, k32, v32 = spread(q, k32 / ks * used, v)
    s, state = scores(q32, k32, scale, causal), start(q, v)
    for n, t in enumerate(tiles(k.shape[2], 32)):
        m, den, acc = step(state, s[..., t], v32[:, :, t], q.dtype)
        state = m, den + np.float32(bug and n == 0), acc
    return finish(*state, q.dtype)


@wrong(
    case(72, 136, "float16", heads=2, kv_heads=2, batch=2, head_dim=64, causal=True, softcap=5.0),
    truth="(1) The soft cap is dropped: scores are q.k * scale, without 5 tanh(s / 5). (2) The last tile of P (keys "
    "128..135, tiles of 64) has the V of the tile before it, its first 8 rows: V of keys 64..71.",
    source="vllm-metal#665; class of a stale V tile in shared memory",
    faults=2,
)
def cap_lost_7(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True, softcap: float = 0.0
) -> Pair:
    """A Metal prefill kernel with a function constant for the soft cap."""
    q32, k32, v32 = spread(q, k, v)
    i, j = grid(q, k)
    cap = np.float32(0 if bug else softcap)
    state, shared = start(q, v), None
    for t in tiles(k.shape[2], 64):
        s = dot(q32, k32[:, :, t]) * scale
        if cap:
            s = cap * np.tanh(s / cap)
        if shared is None or not bug or t.stop < k.shape[2]:
            shared = v32[:, :, t]
        state = step(state, masked(s, visible(i, j[:, t], causal)), shared[:, :, : t.stop - t.start], q.dtype)
    return finish(*state, q.dtype)
