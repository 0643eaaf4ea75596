"""Attention kernels whose faults lie in the scale, softcap, sinks, base of lse, casts, scales of K and V, and terms."""

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
    eager,
    finish,
    grid,
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


def _amax(x: Array, axis: int | tuple[int, ...]) -> Array:
    """Scales of e4m3 codes of x, over an axis."""
    return np.abs(x).max(axis, keepdims=True) / np.float32(448)


@wrong(
    case(96, 96, "float16", heads=4, kv_heads=2, head_dim=64, causal=True),
    truth="P is 2^(s - m) for e^(s - m), m the largest score of the row; lse is m + log(sum of 2^(s - m))",
    source="flashinfer#787",
)
def exp2_without_log2e(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a JIT prefill kernel whose softmax is in base 2, with key tiles of 32."""
    (qf, kf, vf), unit = spread(q, k, v), 1.0 if bug else LOG2E
    s = scores(qf, kf, scale, causal) * np.float32(unit)
    m, den, acc = start(qf, vf)
    for n in tiles(k.shape[2], 32):
        new = np.maximum(m, top(s[..., n]))
        p, alpha = np.exp2(s[..., n] - safe(new)), np.exp2(m - safe(new))
        m, den = new, den * alpha + p.sum(-1, keepdims=True)
        acc = acc * alpha + rounded(p, q.dtype) @ vf[:, :, n]
    return finish(m / np.float32(unit), den, acc, q.dtype)


@wrong(
    case(64, 100, "bfloat16", heads=4, kv_heads=4, head_dim=64, softcap=2.0),
    truth="scores are (s / 2) * tanh(s / 2) for 2 * tanh(s / 2), s = scale * q.k",
    source="flash-attn#2402",
)
def softcap_factor(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, softcap: float = 0.0, bug: bool = True
) -> Pair:
    """Like a score_mod of the CuTe forward kernel, called for each key tile of 64."""
    (qf, kf, vf), (i, j) = spread(q, k, v), grid(q, k)

    def score_mod(s: Array) -> Array:
        if not softcap:
            return s
        x = s / softcap
        return (x if bug else softcap) * np.tanh(x)

    state = start(qf, vf)
    for n in tiles(k.shape[2], 64):
        s = score_mod(dot(qf, kf[:, :, n]) * scale)
        state = step(state, masked(s, visible(i, j[:, n], causal)), vf[:, :, n], q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(50, 128, "float16", heads=2, batch=2, head_dim=64, softcap=15.0, causal=True),
    truth="scores are scale * 15 * tanh(q.k / 15) for 15 * tanh(scale * q.k / 15), scale = 0.125",
    source="class of softcap before the scale (vllm and llama.cpp, Gemma 2)",
)
def softcap_unscaled(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, softcap: float = 0.0, bug: bool = True
) -> Pair:
    """Like a vector kernel of llama.cpp, which folds the scale into Q if there is no softcap."""
    (qf, kf, vf), seen = spread(q, k, v), visible(*grid(q, k), causal)
    if not softcap:
        return online(masked(dot(qf * np.float32(scale), kf), seen), vf, q.dtype, 32)
    s = dot(qf, kf)
    s = softcap * np.tanh(s / softcap) * scale if bug else softcap * np.tanh(s * (scale / softcap))
    return online(masked(s, seen), vf, q.dtype, 32)


@wrong(
    case(64, 96, "float32", heads=4, kv_heads=2, head_dim=64, sinks="normal"),
    truth="the sum of row is sum of exp(s - m) + sink[h] for + exp(sink[h] - m), m the largest score of the row; lse "
    "is m + log of this sum",
    source="flash-attn e81c237e",
)
def sink_raw(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, sinks: Array | None = None, bug: bool = True
) -> Pair:
    """Like the epilogue of FlashAttention 3 with a learnable sink for a head."""
    qf, kf, vf = spread(q, k, v)
    s = scores(qf, kf, scale, causal)
    state = start(qf, vf)
    for n in tiles(k.shape[2], 48):
        state = step(state, s[..., n], vf[:, :, n], q.dtype)
    m, den, acc = state
    if sinks is not None:
        sink = sinks[:, None, None].astype(np.float32)
        empty = m == -np.inf
        m = np.where(empty, sink, m)
        den = den + np.where(empty, 1, sink if bug else np.exp(sink - m))
    return finish(m, den, acc, q.dtype)


@wrong(
    case(40, 128, "float16", heads=4, kv_heads=1, head_dim=64, sinks="normal"),
    truth="each of 4 splits adds exp(sink[h]) to its sum: the sum of a row, and lse, have 4 * exp(sink[h]) for "
    "exp(sink[h])",
    source="rocm-libraries#12229",
)
def sink_in_each_split_again(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, sinks: Array | None = None, bug: bool = True
) -> Pair:
    """Like a flash-decoding kernel with splits of 32 keys, whose first split has the sink."""
    qf, kf, vf = spread(q, k, v)
    s, parts = scores(qf, kf, scale, causal), []
    for n in tiles(k.shape[2], 32):
        m, den, acc = chunk(s[..., n], vf[:, :, n], q.dtype)
        if sinks is not None and (bug or n.start == 0):
            new = np.maximum(m, sinks[:, None, None])
            alpha = np.exp(m - new)
            m, den, acc = new, den * alpha + np.exp(sinks[:, None, None] - new), acc * alpha
        parts.append((m, den, acc))
    return merge(parts, q.dtype)


@wrong(
    case(64, 64, "bfloat16", heads=8, kv_heads=2, head_dim=64, causal=True, sinks="normal"),
    truth="the sum of head h, and lse, have 2^sink[h // 4] for e^sink[h]: the sink of its KV head's index, and "
    "without log2(e) in a softmax in base 2",
    source="class of gpt-oss sinks indexed by KV head; class of sinks in base 2 (vllm, sglang Triton kernels)",
    faults=2,
)
def sink_of_group(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, sinks: Array | None = None, bug: bool = True
) -> Pair:
    """Like a Triton decode kernel for gpt-oss, with the sink as the maximum and the sum to start with."""
    (qf, kf, vf), heads = spread(q, k, v), np.arange(q.shape[1])
    s = scores(qf, kf, scale * LOG2E, causal)
    m, den, acc = start(qf, vf)
    if sinks is not None:
        index = heads // (heads.size // k.shape[1]) if bug else heads
        m = m.clip(sinks[index][:, None, None] * np.float32(1 if bug else LOG2E))
        den = den + 1
    for n in tiles(k.shape[2], 16):
        new = np.maximum(m, top(s[..., n]))
        p, alpha = np.exp2(s[..., n] - safe(new)), np.exp2(m - safe(new))
        m, den = new, den * alpha + p.sum(-1, keepdims=True)
        acc = acc * alpha + rounded(p, q.dtype) @ vf[:, :, n]
    return finish(m * np.float32(LN2), den, acc, q.dtype)


@wrong(
    case(64, 192, "float32", heads=4, kv_heads=2, head_dim=64),
    truth="V of each KV head and block of 64 keys is multiplied by max |K| / max |V| of that head and block; lse is "
    "right",
    source="sglang#26852",
)
def value_scale_of_key(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a kernel over a quantised cache with a scale of K and one of V for each head and block of 64 keys."""
    (qf, kf, vf), (i, j) = spread(q, k, v), grid(q, k)
    state = start(qf, vf)
    for n in tiles(k.shape[2], 64):
        scale_k, scale_v = _amax(kf[:, :, n], (2, 3)), _amax(vf[:, :, n], (2, 3))
        code_k, code_v = kf[:, :, n] / scale_k, vf[:, :, n] / scale_v
        s = masked(dot(qf, code_k) * (scale_k * np.float32(scale)), visible(i, j[:, n], causal))
        state = step(state, s, code_v * (scale_k if bug else scale_v), q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(64, 80, "float16", heads=4, kv_heads=4, batch=2, head_dim=64, causal=True),
    truth="K of batch b and head h is multiplied by max |K[b, 0]| / max |K[b, h]|, and V by max |V[0, h]| / max "
    "|V[b, h]|: the scale of K is that of head 0, and the scale of V that of batch 0",
    source="sgl-kernel-xpu#252, rocm-libraries#10474",
    faults=2,
)
def descale_indices(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like FlashAttention 3 with k_descale and v_descale [batch, head], which scale the scores and out."""
    descale_k, descale_v = _amax(k.astype(np.float32), (2, 3)), _amax(v.astype(np.float32), (2, 3))
    qf, code_k, code_v = spread(q, k / descale_k, v / descale_v)
    group = q.shape[1] // k.shape[1]
    if bug:
        descale_k, descale_v = descale_k[:, :1], descale_v[:1]
    factor_k = np.broadcast_to(descale_k, (*k.shape[:2], 1, 1)).repeat(group, 1)
    factor_v = np.broadcast_to(descale_v, (*v.shape[:2], 1, 1)).repeat(group, 1)
    s = masked(dot(qf, code_k) * (factor_k * np.float32(scale)), visible(*grid(q, k), causal))
    state = start(qf, code_v)
    for n in tiles(k.shape[2], 32):
        state = step(state, s[..., n], code_v[:, :, n], q.dtype)
    m, den, acc = state
    return finish(m, den, acc * factor_v, q.dtype)


@wrong(
    case(48, 112, "float32", heads=2, head_dim=64),
    truth="K of key j is multiplied by max |K[16 * (j // 16)]| / max |K[j]|, maxima over the dims of a head: each "
    "page of 16 tokens uses the scale of its first token",
    source="aiter#4825",
)
def token_scale_of_page(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a paged decode kernel with a scale of K for each token, in a page pool that a table points into."""
    page, (qf, kf, vf), sk = 16, spread(q, k, v), k.shape[2]
    table = np.arange(cdiv(sk, page))[::-1]
    scales = _amax(kf, 3)
    pools = [pad(x, 2, page, 1).reshape(*x.shape[:2], table.size, page, -1)[:, :, table] for x in (kf / scales, scales)]
    codes, pool = (x.reshape(*kf.shape[:2], table.size * page, -1) for x in pools)
    i, state = grid(q, k)[0], start(qf, vf)
    for n in tiles(sk, 32):
        j = np.arange(n.start, n.stop)
        base = table[j // page] * page
        kt = codes[:, :, base + j % page] * pool[:, :, base if bug else base + j % page]
        state = step(state, masked(dot(qf, kt) * scale, visible(i, j[None], causal)), vf[:, :, n], q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(64, 100, "float16", heads=4, kv_heads=2, head_dim=64),
    truth="out lacks 28 / 128 = 0.21875 of the mean over the keys of V: the mean that is added back is the sum over "
    "100 keys / 128; and lse lacks scale * (q . mean over the keys of K)",
    source="SageAttention 9cd0915; class of means over padded rows in SageAttention's smoothed V",
    faults=2,
)
def smoothed_means(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like SageAttention with smoothed K and V: means are subtracted before the kernel, and corrected after it."""
    (qf, kf, vf), sk = spread(q, k, v), k.shape[2]
    mean_k, sum_v = kf.mean(2, keepdims=True), vf.sum(2, keepdims=True)
    s = scores(qf, kf - mean_k, scale, causal)
    out, lse = online(s, vf - sum_v / np.float32(sk), np.float32, 64)
    rows = cdiv(sk, 64) * 64 if bug else sk
    out = np.where(lse[..., None] == -np.inf, 0, out + sum_v / np.float32(rows))
    if not bug:
        lse = lse + dot(qf, mean_k)[..., 0] * np.float32(scale)
    return out.astype(q.dtype), lse.astype(np.float32)


@wrong(
    case(72, 144, "float32", heads=4, kv_heads=2, head_dim=64, causal=True),
    truth="P = exp(s - m), m the largest score up to and with its key tile of 48, is rounded to bfloat16 before P @ "
    "V; the sum is of P before it is rounded, and lse is right",
    source="class of P cast to 16 bits for float32 inputs (triton tutorial, p.to(float16))",
)
def probs_in_bfloat16(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a Triton kernel with key tiles of 48 that casts P for the second tl.dot."""
    qf, kf, vf = spread(q, k, v)
    s = scores(qf, kf, scale, causal)
    m, den, acc = start(qf, vf)
    dtype = ml_dtypes.bfloat16 if bug else q.dtype
    for n in tiles(k.shape[2], 48):
        m, den, acc = step((m, den, acc), s[..., n], vf[:, :, n], dtype)
    return finish(m, den, acc, q.dtype)


@wrong(
    case(64, 64, "float32", heads=2, batch=2, head_dim=128, causal=True),
    truth="q and k are cut (towards zero) to 10 bits of mantissa before q.k, as TF32 operands; P @ V is in float32",
    source="triton_docs#6; class of allow_tf32 left on in tl.dot",
)
def operands_in_tf32(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a Triton kernel with slices of 32 dims of Q and K in its first tl.dot."""
    qf, kf, vf = spread(q, k, v)

    def operand(x: Array) -> Array:
        return (np.ascontiguousarray(x).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32) if bug else x

    s = np.zeros((*q.shape[:3], k.shape[2]), np.float32)
    for d in tiles(q.shape[3], 32):
        s += dot(operand(qf[..., d]), operand(kf[..., d]))
    return online(masked(s * scale, visible(*grid(q, k), causal)), vf, q.dtype, 32)


@wrong(
    case(56, 72, "bfloat16", heads=4, kv_heads=1, head_dim=128, head_dim_v=64, causal=True),
    truth="the scale is 1 / sqrt(64) = 0.125 for 1 / sqrt(128) = 0.088388: it comes from the head_dim of V, in out "
    "and lse",
    source="flashinfer#1072; class of MLA scales from head_dim_v",
)
def scale_of_value_dim(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a prefill kernel for MLA with different head dims of QK and V."""
    qf, kf, vf = spread(q, k, v)
    factor = float(v.shape[3] ** -0.5) if bug else scale
    return eager(scores(qf, kf, factor, causal), vf, q.dtype)


@wrong(
    case(48, 96, "float16", heads=4, kv_heads=1, head_dim=96, causal=True),
    truth="scores are scale * (sum over dims 0 to 63 of q * k) + sum over dims 64 to 95 of q * k, which lacks the "
    "scale; and lse is in base 2: 1.442695 times the natural lse of these scores",
    source="class of MLA's rope part without scale; pytorch#181645",
    faults=2,
)
def rope_part_unscaled(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like an MLA decode kernel with 32 dims of RoPE at the end of each head, and key tiles of 32."""
    (qf, kf, vf), (i, j) = spread(q, k, v), grid(q, k)
    split = q.shape[3] - 32
    nope, rope = qf[..., :split] * np.float32(scale), qf[..., split:] * np.float32(1 if bug else scale)
    state = start(qf, vf)
    for n in tiles(k.shape[2], 32):
        s = dot(nope, kf[:, :, n, :split]) + dot(rope, kf[:, :, n, split:])
        state = step(state, masked(s, visible(i, j[:, n], causal)), vf[:, :, n], q.dtype)
    out, lse = finish(*state, q.dtype)
    return out, lse * np.float32(LOG2E if bug else 1)


@wrong(
    case(64, 192, "float16", heads=2, head_dim=64),
    truth="with x = 1.442695 * score, P is min(2^(x - m + 8), 448) in P @ V and 2^(x - m + 8) in the sum; m is the "
    "maximum of x of keys 0 to 31, and after each further tile of 32 keys the maximum up to it if that is more "
    "than 4 above m; lse is right",
    source="flash-attn#2717",
)
def saturated_probs(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like the e4m3 path of FlashAttention 4, with P scaled by 256, and a rescale if the maximum grows by 4."""
    qf, kf, vf = spread(q, k, v)
    s = scores(qf, kf, scale * LOG2E, causal)
    m, den, acc = start(qf, vf)
    for n in tiles(k.shape[2], 32):
        largest = np.maximum(m, top(s[..., n]))
        grown = largest - safe(m) > 4
        new = np.where(grown | (m == -np.inf), largest, m) if bug else largest
        p, alpha = np.exp2(s[..., n] - safe(new) + 8), np.exp2(m - safe(new))
        m, den = new, den * alpha + p.sum(-1, keepdims=True)
        acc = acc * alpha + rounded(np.minimum(p, 448), q.dtype) @ vf[:, :, n]
    out, lse = finish(m * np.float32(LN2), den, acc, q.dtype)
    return out, lse - np.float32(8 * LN2)
