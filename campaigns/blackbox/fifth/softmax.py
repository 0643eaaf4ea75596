"""Wrong softmax: scale, softcap, sinks, bases, casts of P, scales of quantised K and V, dropped terms."""

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


def sink_of(sinks: Array | None, heads: int) -> Array:
    """Sinks by head, in a shape that goes with row sums; -inf without sinks."""
    return (np.full(heads, -np.inf, np.float32) if sinks is None else sinks)[:, None, None]


@wrong(
    case(66, 66, "float16", heads=4, kv_heads=2, causal=True),
    truth="P is 2 ** (s - m) of natural scores, without log2(e): all scores are too small by the factor ln 2, in out "
    "and in lse.",
    source="flashinfer#787",
)
def missing_log2e_5(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Prefill kernel with exp2: log2(e) folded into the scale, key tiles of 64."""
    qf, kf, vf = spread(q, k, v)
    s = scores(qf, kf, scale if bug else scale * LOG2E, causal)
    m, den, acc = start(qf, vf)
    for t in tiles(k.shape[2], 64):
        new = np.maximum(m, top(s[..., t]))
        p, alpha = np.exp2(s[..., t] - safe(new)), np.exp2(m - safe(new))
        den = den * alpha + p.sum(-1, keepdims=True)
        acc, m = acc * alpha + rounded(p, q.dtype) @ vf[:, :, t], new
    return finish(m * np.float32(LN2), den, acc, q.dtype)


@wrong(
    case(40, 140, "float16", heads=4, head_dim=64, causal=False),
    truth="Q is multiplied by scale * log2(e) in bfloat16: the factor 0.125 * 1.442695 is rounded to bfloat16 "
    "(0.18066406), and the product with Q is rounded to bfloat16 too, before the dot product with K.",
    source="mlx#3119; FastVideo#1730",
)
def narrow_prescale_5(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Vector kernel in Metal: Q multiplied by scale * log2(e) at its load, exp2, key tiles of 32."""
    qf, kf, vf = spread(q, k, v)
    kind = ml_dtypes.bfloat16 if bug else np.float32
    qf = rounded(qf * rounded(np.float32(scale * LOG2E), kind), kind)
    return online(scores(qf, kf, LN2, causal), vf, q.dtype, 32)


@wrong(
    case(80, 80, "bfloat16", heads=2, causal=True, softcap=2.0),
    truth="log2(e) is folded into the scale before the softcap: the score in base 2 is c * tanh(q.k * scale * "
    "log2(e) / c) instead of log2(e) * c * tanh(q.k * scale / c), c = 2; the natural score is ln 2 times that.",
    source="class of softcap with exp2 (flash-attn, FlashInfer, Triton unified attention)",
)
def cap_in_base_two_5(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True, softcap: float = 0.0
) -> Pair:
    """Unified attention in Triton with exp2: a scale in base 2, a softcap, key tiles of 32."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    m, den, acc = start(qf, vf)
    for t in tiles(k.shape[2], 32):
        s = dot(qf, kf[:, :, t])
        if softcap and bug:
            s = softcap * np.tanh(s * (scale * LOG2E / softcap))
        elif softcap:
            s = softcap * LOG2E * np.tanh(s * (scale / softcap))
        else:
            s = s * (scale * LOG2E)
        s = masked(s, visible(i, j[:, t], causal))
        new = np.maximum(m, top(s))
        p, alpha = np.exp2(s - safe(new)), np.exp2(m - safe(new))
        den = den * alpha + p.sum(-1, keepdims=True)
        acc, m = acc * alpha + rounded(p, q.dtype) @ vf[:, :, t], new
    return finish(m * np.float32(LN2), den, acc, q.dtype)


@wrong(
    case(64, 120, "float32", heads=4, kv_heads=2, head_dim=32, causal=False, softcap=5.0),
    truth="The softcap acts on the raw product: scores are scale * 5 * tanh(q.k / 5) instead of 5 * tanh(q.k * scale "
    "/ 5), scale = 32 ** -0.5.",
    source="class of the order of scale and softcap (vLLM, SGLang, JAX ports of Gemma 2)",
)
def cap_before_scale_5(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True, softcap: float = 0.0
) -> Pair:
    """Flex-attention style: a function that changes the scores, called for each key tile of 64."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)

    def changed(s: Array) -> Array:
        if not softcap:
            return s * scale
        return softcap * np.tanh(s / softcap) * scale if bug else softcap * np.tanh(s * scale / softcap)

    state = start(qf, vf)
    for t in tiles(k.shape[2], 64):
        s = masked(changed(dot(qf, kf[:, :, t])), visible(i, j[:, t], causal))
        state = step(state, s, vf[:, :, t], q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(72, 72, "bfloat16", heads=8, kv_heads=2, causal=True, sinks="normal"),
    truth="The sink itself is added to the row sum instead of its exponential: sum of exp(s - m) + sink, m the "
    "maximum of the scores of the row; in out and lse. (Negative sinks can make sums negative, and lse NaN.)",
    source="flash-attn e81c237e",
)
def raw_sink_5(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True, sinks: Array | None = None
) -> Pair:
    """FlashAttention in CuTe with learnable sinks: the sink enters the row sum after the last key tile of 64."""
    qf, kf, vf = spread(q, k, v)
    s = scores(qf, kf, scale, causal)
    sink = sink_of(sinks, q.shape[1])
    state = start(qf, vf)
    for t in tiles(k.shape[2], 64):
        state = step(state, s[..., t], vf[:, :, t], q.dtype)
    m, den, acc = state
    if bug and sinks is not None:
        return finish(m, den + sink, acc, q.dtype)
    new = np.maximum(m, sink)
    alpha = np.exp(m - safe(new))
    return finish(new, den * alpha + np.exp(sink - safe(new)), acc * alpha, q.dtype)


@wrong(
    case(50, 90, "float32", heads=6, kv_heads=2, causal=True, sinks="normal"),
    truth="Two faults. Query head h has the sink of index h // 3 (its head of K) instead of h. The sink is not "
    "brought to base 2: 2 ** sink is added to the sum of exp(scores) instead of exp(sink); in out and lse.",
    source="class of sinks under grouped queries and exp2 (vLLM, SGLang, Triton)",
    faults=2,
)
def group_sink_base_two_5(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True, sinks: Array | None = None
) -> Pair:
    """Decode kernel in Triton with exp2: the running maximum begins at the sink and the sum at 1."""
    qf, kf, vf = spread(q, k, v)
    heads = q.shape[1]
    sink = sink_of(sinks, heads)
    sink = sink[np.arange(heads) // (heads // k.shape[1])] if bug else sink * np.float32(LOG2E)
    s = scores(qf, kf, scale * LOG2E, causal)
    m, den, acc = start(qf, vf)
    m = np.maximum(m, sink)
    den = den + (m > -np.inf)
    for t in tiles(k.shape[2], 32):
        new = np.maximum(m, top(s[..., t]))
        p, alpha = np.exp2(s[..., t] - safe(new)), np.exp2(m - safe(new))
        den = den * alpha + p.sum(-1, keepdims=True)
        acc, m = acc * alpha + rounded(p, q.dtype) @ vf[:, :, t], new
    return finish(m * np.float32(LN2), den, acc, q.dtype)


@wrong(
    case(56, 100, "float16", heads=4, causal=False, sinks="normal"),
    truth="The sink is added to the row sum as exp(sink), not as exp(sink - m), m the maximum of the scores of the "
    "row: relative to the sum of exp(scores) its term is exp(sink + m) instead of exp(sink); in out and lse.",
    source="class of sinks without the maximum (GPT-OSS ports)",
)
def unshifted_sink_5(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True, sinks: Array | None = None
) -> Pair:
    """GPT-OSS kernel in Triton: query tiles of 32, the sink added to the sum in the epilogue."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    sink = sink_of(sinks, q.shape[1])
    pairs = []
    for r in tiles(q.shape[2], 32):
        state = start(qf[:, :, r], vf)
        for t in tiles(k.shape[2], 64):
            s = masked(dot(qf[:, :, r], kf[:, :, t]) * scale, visible(i[r], j[:, t], causal))
            state = step(state, s, vf[:, :, t], q.dtype)
        m, den, acc = state
        new = m if bug else np.maximum(m, sink)
        alpha = np.exp(m - safe(new))
        term = np.exp(sink) if bug else np.exp(sink - safe(new))
        pairs.append(finish(new, den * alpha + term, acc * alpha, q.dtype))
    return join(pairs)


@wrong(
    case(90, 128, "float32", heads=2, head_dim=64, causal=True),
    truth="P = exp(s - m), m the running maximum after the tile of 32 keys, is rounded to float16 before P @ V "
    "though the inputs are float32; the row sum takes the unrounded P, and lse is right.",
    source="class of hard-coded casts of P (Triton tutorials, p.to(tl.float16))",
)
def half_probs_5(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Triton tutorial: query tiles of 64, key tiles of 32, P cast before the second product."""
    qf, kf, vf = spread(q, k, v)
    s = scores(qf, kf, scale, causal)
    pairs = []
    for r in tiles(q.shape[2], 64):
        state = start(qf[:, :, r], vf)
        for t in tiles(k.shape[2], 32):
            state = step(state, s[:, :, r, t], vf[:, :, t], np.float16 if bug else q.dtype)
        pairs.append(finish(*state, q.dtype))
    return join(pairs)


@wrong(
    case(48, 110, "float16", heads=8, kv_heads=4, causal=False),
    truth="Two faults. K and V are codes with a scale for each of their heads: 2 ** -(h % 3) for K, 2 ** (h % 2) for "
    "V (1, 0.5, 0.25, 1 and 1, 2, 1, 2 for the heads 0 to 3). V is dequantised with the scale of K: V of the heads 0 "
    "to 3 is multiplied by 1, 0.25, 0.25, 0.5. K is dequantised with the scale of head 0 in all heads: K of the "
    "heads 0 to 3 is multiplied by 1, 2, 4, 1.",
    source="sglang#26852; rocm-libraries#10474",
    faults=2,
)
def head_descales_5(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """FlashAttention-3 with descales: codes of K and V, one scale a head, applied to scores and to the output."""
    heads, hk = q.shape[1], k.shape[1]
    of_k = (2.0 ** -(np.arange(hk) % 3)).astype(np.float32)
    of_v = (2.0 ** (np.arange(hk) % 2)).astype(np.float32)
    codes_k, codes_v = (x.astype(np.float32) / y[:, None, None] for x, y in ((k, of_k), (v, of_v)))
    qf, kf, vf = spread(q, codes_k, codes_v)
    head = np.arange(heads) // (heads // hk)
    s_scale = np.full(heads, of_k[0]) if bug else of_k[head]
    o_scale = of_k[head] if bug else of_v[head]
    i, j = grid(q, k)
    state = start(qf, vf)
    for t in tiles(k.shape[2], 64):
        s = dot(qf, kf[:, :, t]) * (s_scale[:, None, None] * np.float32(scale))
        state = step(state, masked(s, visible(i, j[:, t], causal)), vf[:, :, t], q.dtype)
    m, den, acc = state
    return finish(m, den, acc * o_scale[:, None, None], q.dtype)


@wrong(
    case(60, 128, "bfloat16", heads=4, kv_heads=2, head_dim=32, causal=True),
    truth="Each key of K has the scale 2 ** ceil(log2(max |K[j]|)), a power of two, in pages of 16. The scale is "
    "read at the first slot of the page: K[b, h, j] is multiplied by sc[16 * (j // 16)] / sc[j] (0.25 to 4) in the "
    "scores.",
    source="aiter#4825",
)
def page_scale_5(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Paged decode over quantised K: pages of 16 tokens with a scale for each slot."""
    qf, kf, vf = spread(q, k, v)
    sc = np.exp2(np.ceil(np.log2(np.abs(kf).max(-1, keepdims=True)))).astype(np.float32)
    codes = kf / sc
    i, j = grid(q, k)
    state = start(qf, vf)
    for t in tiles(k.shape[2], 16):
        slots = sc[:, :, t][:, :, :1] if bug else sc[:, :, t]
        s = dot(qf, codes[:, :, t]) * np.swapaxes(slots, -1, -2) * scale
        state = step(state, masked(s, visible(i, j[:, t], causal)), vf[:, :, t], q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(64, 150, "float32", heads=4, head_dim=64, causal=False),
    truth="From each tile of 64 keys its mean is taken (the last tile has 22 keys), and not made up for: the scores "
    "of query i with the keys of tile t are too small by scale * q_i . mean of K over the keys of tile t; in out and "
    "lse.",
    source="class of smoothed K without the correction (SageAttention)",
)
def smoothed_tiles_5(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """SageAttention style: K smoothed in tiles of 64 keys, the product with the mean added to the scores."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    state = start(qf, vf)
    for t in tiles(k.shape[2], 64):
        mean = kf[:, :, t].mean(2, keepdims=True)
        s = dot(qf, kf[:, :, t] - mean)
        if not bug:
            s = s + dot(qf, mean)
        state = step(state, masked(s * scale, visible(i, j[:, t], causal)), vf[:, :, t], q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(40, 100, "bfloat16", heads=4, kv_heads=2, head_dim=128, causal=False),
    truth="In the last key tile (of 64: keys 64 to 99) P is exp(s) without the maximum: the keys 64 to 99 count "
    "exp(m) times too much in sum and output, m the maximum of all scores of the row; in out and lse.",
    source="tt-metal#51278",
)
def last_tile_shift_5(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Kernel with a separate path for the last key tile of 64."""
    qf, kf, vf = spread(q, k, v)
    s = scores(qf, kf, scale, causal)
    cuts = list(tiles(k.shape[2], 64))
    m, den, acc = start(qf, vf)
    for n, t in enumerate(cuts):
        new = np.maximum(m, top(s[..., t]))
        alpha = np.exp(m - safe(new))
        p = np.exp(s[..., t] if bug and n == len(cuts) - 1 else s[..., t] - safe(new))
        den = den * alpha + p.sum(-1, keepdims=True)
        acc, m = acc * alpha + rounded(p, q.dtype) @ vf[:, :, t], new
    return finish(m, den, acc, q.dtype)


@wrong(
    case(64, 128, "float16", heads=2, head_dim=64, causal=False),
    truth="The running maximum is of unscaled products, and the rescaling factor lacks the scale: exp(m_old - m_new) "
    "instead of exp(scale * (m_old - m_new)), m the running maximum of q.k over tiles of 32 keys, for sum and "
    "output; P = exp(scale * (q.k - m)) is right. lse is scale * m + log of that sum.",
    source="class of rescaling without softmax_scale (flash-attn style kernels with raw maxima)",
)
def unscaled_alpha_5(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """FlashAttention-2 arithmetic: raw maxima, the scale in the exponent, key tiles of 32."""
    qf, kf, vf = spread(q, k, v)
    s = scores(qf, kf, 1.0, causal)
    factor = np.float32(scale)
    m, den, acc = start(qf, vf)
    for t in tiles(k.shape[2], 32):
        new = np.maximum(m, top(s[..., t]))
        alpha = np.exp((m - safe(new)) * (np.float32(1) if bug else factor))
        p = np.exp((s[..., t] - safe(new)) * factor)
        den = den * alpha + p.sum(-1, keepdims=True)
        acc, m = acc * alpha + rounded(p, q.dtype) @ vf[:, :, t], new
    return finish(m * factor, den, acc, q.dtype)


@wrong(
    case(70, 110, "float16", heads=4, causal=True, softcap=2.0, alibi_slopes="geometric"),
    truth="Two faults. The softcap of 2 is not applied. The ALiBi bias is added to scores in base 2 without log2(e): "
    "it is -ln 2 * slope * |i + Sk - Sq - j| instead of -slope * |i + Sk - Sq - j|.",
    source="vllm-metal#665; class of biases with exp2 (flash-attn, Triton, aiter)",
    faults=2,
)
def alibi_in_base_two_5(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float,
    causal: bool,
    bug: bool = True,
    softcap: float = 0.0,
    alibi_slopes: Array | None = None,
) -> Pair:
    """Paged prefill in Triton with exp2: softcap, then ALiBi, then the mask, for key tiles of 64."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    s = dot(qf, kf) * scale
    if softcap and not bug:
        s = softcap * np.tanh(s / softcap)
    s = s * LOG2E
    if alibi_slopes is not None:
        bias = alibi_slopes[:, None, None] * np.abs(i - j).astype(np.float32)
        s = s - (bias if bug else bias * LOG2E)
    s = masked(s, visible(i, j, causal))
    m, den, acc = start(qf, vf)
    for t in tiles(k.shape[2], 64):
        new = np.maximum(m, top(s[..., t]))
        p, alpha = np.exp2(s[..., t] - safe(new)), np.exp2(m - safe(new))
        den = den * alpha + p.sum(-1, keepdims=True)
        acc, m = acc * alpha + rounded(p, q.dtype) @ vf[:, :, t], new
    return finish(m * np.float32(LN2), den, acc, q.dtype)


@wrong(
    case(60, 84, "bfloat16", heads=4, kv_heads=4, batch=2, head_dim=64, causal=True),
    truth="Two faults. K has a scale for each head, 2 ** -(1 + h % 2) (0.5 and 0.25 in turn), which is applied both "
    "when K is dequantised and to the scores: scores of even heads are multiplied by 0.5, of odd heads by 0.25. lse "
    "is in base 2: the natural logarithm (of those scores) divided by ln 2.",
    source="vllm#48016; pytorch#181645",
    faults=2,
)
def double_descale_5(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Paged cache with quantised K: dequantised at the load, softmax over whole rows."""
    hk = k.shape[1]
    sc = (2.0 ** -(1.0 + np.arange(hk) % 2)).astype(np.float32)[:, None, None]
    codes = k.astype(np.float32) / sc
    qf, kf, vf = spread(q, codes * sc, v)
    s = dot(qf, kf) * scale
    if bug:
        s = s * np.repeat(sc, q.shape[1] // hk, axis=0)
    out, lse = eager(masked(s, visible(*grid(q, k), causal)), vf, q.dtype)
    return out, lse / np.float32(LN2) if bug else lse
