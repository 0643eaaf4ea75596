"""Faults of scales, softcaps, sinks, bases, casts of P, quantised K and V, and dropped terms."""

import numpy as np

from ..record import (
    LN2,
    LOG2E,
    Array,
    Pair,
    Partial,
    case,
    cdiv,
    dot,
    finish,
    grid,
    masked,
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


def step2(state: Partial, s: Array, v: Array, dtype: np.dtype) -> Partial:
    """One step of an online softmax of base-2 scores."""
    m, den, acc = state
    new = np.maximum(m, top(s))
    p, alpha = np.exp2(s - safe(new)), np.exp2(m - safe(new))
    return new, den * alpha + p.sum(-1, keepdims=True), acc * alpha + rounded(p, dtype) @ v


def finish2(state: Partial, dtype: np.dtype) -> Pair:
    """out and natural lse of a base-2 state."""
    return finish(state[0] * np.float32(LN2), *state[1:], dtype)


def column(x: Array, state: Partial) -> Array:
    """A number a head, as a column for each row."""
    return np.broadcast_to(x.astype(np.float32)[:, None, None], state[1].shape)


def coded(x: Array) -> tuple[Array, Array]:
    """Codes and a scale a head, absmax / 448, both in float32."""
    x = x.astype(np.float32)
    unit = abs(x).max((2, 3), keepdims=True) / np.float32(448)
    return x / unit, unit


@wrong(
    case(64, 96, "bfloat16", heads=4, kv_heads=2, head_dim=80),
    truth="The scale is 128 ** -0.5, of the head dim padded to a power of two, in place of 80 ** -0.5: all scores are "
    "multiplied by sqrt(80 / 128) = 0.790569.",
    source="class of flashinfer#1072 and padded head dims",
)
def padded_scale_8(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A Triton kernel that pads the head dim to a power of two, with tiles of 32 keys."""
    dtype, dv = q.dtype, v.shape[3]
    width = 1 << (q.shape[3] - 1).bit_length()
    q, k, v = (pad(x, 3, width) for x in spread(q, k, v))
    factor = width**-0.5 if bug else scale
    out, lse = online(scores(q, k, factor, causal), v, dtype, 32)
    return out[..., :dv], lse


@wrong(
    case(80, 80, "float16", heads=2, head_dim=64, causal=True),
    truth="exp2 is taken of q.k * scale, the factor log2(e) is missing: P is 2 ** (s - m) in place of exp(s - m), all "
    "scores are multiplied by ln 2 = 0.693147, and lse is ln(sum 2 ** s).",
    source="flashinfer#787",
)
def missing_log2e_8(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A kernel with exp2 and tiles of 32 keys."""
    dtype = q.dtype
    q, k, v = spread(q, k, v)
    i, j = grid(q, k)
    factor = np.float32(scale if bug else scale * LOG2E)
    state = start(q, v)
    for n in tiles(k.shape[2], 32):
        s = masked(dot(q, k[:, :, n]) * factor, visible(i, j[:, n], causal))
        state = step2(state, s, v[:, :, n], dtype)
    return finish2(state, dtype)


@wrong(
    case(64, 128, "float16", heads=4, kv_heads=1, head_dim=64, softcap=3.0),
    truth="log2(e) is folded into the scale before the softcap: P is 2 ** t with t = 3 * tanh(q.k * scale * log2(e) / "
    "3), where t = log2(e) * 3 * tanh(q.k * scale / 3) is right; lse is ln(sum 2 ** t).",
    source="class of softcaps in base-2 kernels (flash-attn, TRT-LLM)",
)
def softcap_base2_8(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float,
    causal: bool,
    softcap: float = 0.0,
    bug: bool = True,
) -> Pair:
    """A kernel with exp2, a softcap and tiles of 64 keys."""
    dtype, cap = q.dtype, np.float32(softcap)
    q, k, v = spread(q, k, v)
    i, j = grid(q, k)
    early, late = (LOG2E, 1.0) if bug or not softcap else (1.0, LOG2E)
    state = start(q, v)
    for n in tiles(k.shape[2], 64):
        s = dot(q, k[:, :, n]) * np.float32(scale * early)
        if softcap:
            s = cap * np.tanh(s / cap) * np.float32(late)
        state = step2(state, masked(s, visible(i, j[:, n], causal)), v[:, :, n], dtype)
    return finish2(state, dtype)


@wrong(
    case(72, 110, "float32", heads=2, head_dim=64, softcap=6.0),
    truth="Two faults. The softcap is applied before the scale: scores are scale * 6 * tanh(q.k / 6), where 6 * "
    "tanh(q.k * scale / 6) is right (scale = 1/8). And the loop over keys makes Sk // 32 steps of 32: keys 96 to "
    "109 are left out.",
    source="class of Gemma-2 softcap ports and floor divisions",
    faults=2,
)
def softcap_and_tail_8(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float,
    causal: bool,
    softcap: float = 0.0,
    bug: bool = True,
) -> Pair:
    """A Triton decode kernel with a softcap and tiles of 32 keys."""
    dtype, cap, sk = q.dtype, np.float32(softcap), k.shape[2]
    q, k, v = spread(q, k, v)
    i, j = grid(q, k)
    state = start(q, v)
    for n in tiles(sk // 32 * 32 if bug else sk, 32):
        s = dot(q, k[:, :, n])
        if softcap and bug:
            s = cap * np.tanh(s / cap) * scale
        elif softcap:
            s = cap * np.tanh(s * scale / cap)
        else:
            s = s * scale
        state = step(state, masked(s, visible(i, j[:, n], causal)), v[:, :, n], dtype)
    return finish(*state, dtype)


@wrong(
    case(48, 96, "float32", heads=4, head_dim=32, sinks="normal"),
    truth="The sink itself is added to the row sum of exp(s - m), m the largest score of the row, in place of exp(sink "
    "- m): the sum of exp(scores) gets sink * exp(m), where exp(sink) is right, in out and lse (NaN lse if it is "
    "negative).",
    source="flash-attn e81c237e",
)
def raw_sink_8(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float,
    causal: bool,
    sinks: Array | None = None,
    bug: bool = True,
) -> Pair:
    """A FlashAttention-3 style kernel that adds the sink in its epilogue, tiles of 32 keys."""
    dtype = q.dtype
    q, k, v = spread(q, k, v)
    s = scores(q, k, scale, causal)
    state = start(q, v)
    for n in tiles(k.shape[2], 32):
        state = step(state, s[..., n], v[:, :, n], dtype)
    m, den, acc = state
    if sinks is not None:
        sink = column(sinks, state)
        if bug:
            den = den + sink
        else:
            new = np.maximum(m, sink)
            alpha = np.exp(m - new)
            m, den, acc = new, den * alpha + np.exp(sink - new), acc * alpha
    return finish(m, den, acc, dtype)


@wrong(
    case(64, 64, "bfloat16", heads=8, kv_heads=2, head_dim=64, causal=True, sinks="normal"),
    truth="The sink is used as a base-2 score without log2(e): 2 ** sink = exp(sink * ln 2) is added to the row's sum "
    "of exp(scores), in out and lse, where exp(sink) is right.",
    source="class of gpt-oss sinks in base-2 kernels",
)
def sink_base2_8(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float,
    causal: bool,
    sinks: Array | None = None,
    bug: bool = True,
) -> Pair:
    """A Triton kernel that starts its maximum at the sink and its sum at 1, with exp2 and tiles of 32 keys."""
    dtype = q.dtype
    q, k, v = spread(q, k, v)
    s = scores(q, k, scale * LOG2E, causal)
    state = start(q, v)
    if sinks is not None:
        state = column(sinks, state) * np.float32(1 if bug else LOG2E), state[1] + 1, state[2]
    for n in tiles(k.shape[2], 32):
        state = step2(state, s[..., n], v[:, :, n], dtype)
    return finish2(state, dtype)


@wrong(
    case(40, 72, "float16", heads=6, kv_heads=3, head_dim=64, sinks="normal"),
    truth="Two faults. Query head h takes the sink of its KV head, sinks[h // 2] (0 0 1 1 2 2) in place of sinks[h]. "
    "And the scale is applied twice, to Q when it is loaded and to the scores: scores are q.k * scale ** 2 = q.k "
    "/ 64.",
    source="class of sinks under GQA and of doubled scales",
    faults=2,
)
def sink_head_and_scale_8(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float,
    causal: bool,
    sinks: Array | None = None,
    bug: bool = True,
) -> Pair:
    """A decode kernel that scales Q as it loads it, with sinks and tiles of 32 keys."""
    dtype, heads, kv_heads = q.dtype, q.shape[1], k.shape[1]
    h = np.arange(heads)
    q, k, v = spread(q, k, v)
    q = q * np.float32(scale)
    s = scores(q, k, scale if bug else 1.0, causal)
    state = start(q, v)
    if sinks is not None:
        sink = sinks[h // (heads // kv_heads)] if bug else sinks
        state = column(sink, state), state[1] + 1, state[2]
    for n in tiles(k.shape[2], 32):
        state = step(state, s[..., n], v[:, :, n], dtype)
    return finish(*state, dtype)


@wrong(
    case(64, 100, "float32", heads=2, head_dim=64),
    truth="P = exp(s - m) is rounded to float16 before P @ V though inputs are float32, in tiles of 32 keys with the "
    "running maximum m; Q, K, V, row sum and lse are not.",
    source="class of casts of P to a dtype fixed in the source",
)
def p_cast_half_8(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A Triton kernel with tiles of 32 keys that casts P for the second product."""
    dtype = q.dtype
    q, k, v = spread(q, k, v)
    s = scores(q, k, scale, causal)
    state = start(q, v)
    for n in tiles(k.shape[2], 32):
        state = step(state, s[..., n], v[:, :, n], np.float16 if bug else dtype)
    return finish(*state, dtype)


@wrong(
    case(56, 88, "float32", heads=2, head_dim=128, causal=True),
    truth="Q and K are cut to TF32 before q.k: the low 13 of the 23 mantissa bits of each element are set to 0 "
    "(towards zero). P @ V is in float32.",
    source="class of triton_docs#6, TF32 products of float32 inputs",
)
def tf32_scores_8(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A Triton kernel whose first product runs on tensor cores, with tiles of 32 keys."""
    dtype = q.dtype
    q, k, v = spread(q, k, v)
    if bug:
        q, k = ((x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32) for x in (q, k))
    return online(scores(q, k, scale, causal), v, dtype, 32)


@wrong(
    case(64, 96, "float16", heads=4, kv_heads=2, head_dim=64),
    truth="V is dequantised with the scale of K: out of a head is multiplied by absmax(K) / absmax(V), each over all "
    "keys and dims of its batch and KV head. lse is right.",
    source="sglang#26852",
)
def v_scale_of_k_8(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """An FP8 cache kernel with a scale per KV head (codes unrounded), tiles of 32 keys."""
    dtype = q.dtype
    (k, ks), (v, vs) = coded(k), coded(v)
    q, k, v = spread(q, k, v)
    group = q.shape[1] // ks.shape[1]
    ks, vs = np.repeat(ks, group, axis=1), np.repeat(vs, group, axis=1)
    s = masked(dot(q, k) * (ks * np.float32(scale)), visible(*grid(q, k), causal))
    m, den, acc = start(q, v)
    for n in tiles(k.shape[2], 32):
        m, den, acc = step((m, den, acc), s[..., n], v[:, :, n], dtype)
    return finish(m, den, acc * (ks if bug else vs), dtype)


@wrong(
    case(64, 80, "bfloat16", heads=6, kv_heads=6, batch=2, head_dim=32),
    truth="Two faults, with scales absmax / 448 per batch and head. The scale of K is that of head 0 for all heads: "
    "scores of batch b, head h are multiplied by absmax(K[b, 0]) / absmax(K[b, h]). The scale of V is that of "
    "batch 0: out of batch 1, head h is multiplied by absmax(V[0, h]) / absmax(V[1, h]).",
    source="rocm-libraries#10474 and sgl-kernel-xpu#252",
    faults=2,
)
def scale_index_8(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """An FP8 kernel with descale tensors [batch, head] (codes unrounded), tiles of 64 keys."""
    dtype, kv_heads = q.dtype, k.shape[1]
    (k, ks), (v, vs) = coded(k), coded(v)
    if bug:
        ks, vs = np.broadcast_to(ks[:, :1], ks.shape), np.broadcast_to(vs[:1], vs.shape)
    q, k, v = spread(q, k, v)
    group = q.shape[1] // kv_heads
    s = dot(q, k) * (np.repeat(ks, group, axis=1) * np.float32(scale))
    s = masked(s, visible(*grid(q, k), causal))
    m, den, acc = start(q, v)
    for n in tiles(k.shape[2], 64):
        m, den, acc = step((m, den, acc), s[..., n], v[:, :, n], dtype)
    return finish(m, den, acc * np.repeat(vs, group, axis=1), dtype)


@wrong(
    case(48, 160, "float16", heads=2, head_dim=64),
    truth="K has a scale per block of 32 keys, absmax / 127, and key j takes that of block j // 64 in place of j // "
    "32: its score is multiplied by absmax(K of block j // 64) / absmax(K of block j // 32), blocks of 32 keys "
    "of the same batch and head (blocks 0 1 2 3 4 take scales 0 0 1 1 2).",
    source="class of SageAttention block scales with unequal tiles",
)
def block_scale_index_8(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """An INT8 kernel with a scale per 32 keys (codes unrounded), tiles of 64 keys."""
    dtype = q.dtype
    q, k, v = spread(q, k, v)
    i, j = grid(q, k)
    blocks = [k[:, :, n] for n in tiles(k.shape[2], 32)]
    units = [abs(x).max((2, 3), keepdims=True) / np.float32(127) for x in blocks]
    codes = np.concatenate([x / u for x, u in zip(blocks, units, strict=True)], 2)
    units = np.concatenate(units, 3)
    state = start(q, v)
    for n in tiles(k.shape[2], 64):
        block = j[0, n] // (64 if bug else 32)
        s = dot(q, codes[:, :, n]) * scale * units[..., block]
        state = step(state, masked(s, visible(i, j[:, n], causal)), v[:, :, n], dtype)
    return finish(*state, dtype)


@wrong(
    case(64, 108, "bfloat16", heads=2, head_dim=64),
    truth="In the last tile of 32 keys, keys 96 to 107, the maximum is not subtracted: P = exp(s) there in place of "
    "exp(s - m), in sum and accumulator, so these keys weigh exp(m) times too much, m the largest score of the "
    "row over all keys. lse is m + log of that sum.",
    source="tt-metal#51278",
)
def last_tile_no_max_8(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A kernel whose last, partial tile of 32 keys has code of its own."""
    dtype, sk = q.dtype, k.shape[2]
    q, k, v = spread(q, k, v)
    s = scores(q, k, scale, causal)
    m, den, acc = start(q, v)
    for t in range(cdiv(sk, 32)):
        n = slice(t * 32, min(sk, t * 32 + 32))
        new = np.maximum(m, top(s[..., n]))
        alpha = np.exp(m - safe(new))
        p = np.exp(s[..., n] if bug and n.stop == sk else s[..., n] - safe(new))
        den, acc, m = den * alpha + p.sum(-1, keepdims=True), acc * alpha + rounded(p, dtype) @ v[:, :, n], new
    return finish(m, den, acc, dtype)


@wrong(
    case(64, 128, "float16", heads=2, batch=2, head_dim=64),
    truth="K is smoothed by the mean of each tile of 32 keys in place of the mean of all keys: the score of key j "
    "lacks scale * q.(mean of K over keys 32t to 32t + 31), t = j // 32, which differs from tile to tile, while "
    "scale * q.(mean of K over all keys) is added to lse.",
    source="class of SageAttention smooth K",
)
def smooth_k_tile_8(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A kernel that takes the mean off K and puts it back into lse, tiles of 32 keys."""
    dtype = q.dtype
    q, k, v = spread(q, k, v)
    i, j = grid(q, k)
    mean = k.mean(2, keepdims=True)
    state = start(q, v)
    for n in tiles(k.shape[2], 32):
        smooth = k[:, :, n] - (k[:, :, n].mean(2, keepdims=True) if bug else mean)
        s = masked(dot(q, smooth) * scale, visible(i, j[:, n], causal))
        state = step(state, s, v[:, :, n], dtype)
    out, lse = finish(*state, dtype)
    return out, lse + (dot(q, mean) * scale)[..., 0].astype(np.float32)


@wrong(
    case(64, 72, "float16", heads=4, kv_heads=2, head_dim=64, causal=True),
    truth="Two faults. V is smoothed by its mean over all keys, and the mean is not added back: out lacks the mean of "
    "V over all 72 keys of its batch, KV head and dim. And lse is in base 2: multiplied by log2(e) = 1.442695.",
    source="class of SageAttention2 smooth V, and flash kernels that return a base-2 lse",
    faults=2,
)
def smooth_v_and_lse_8(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A kernel with exp2 that takes the mean off V and adds it in the epilogue, tiles of 32 keys."""
    dtype = q.dtype
    q, k, v = spread(q, k, v)
    mean = v.mean(2, keepdims=True)
    s = scores(q, k, scale * LOG2E, causal)
    state = start(q, v)
    for n in tiles(k.shape[2], 32):
        state = step2(state, s[..., n], v[:, :, n] - mean, dtype)
    out, lse = finish2(state, np.float32)
    if bug:
        return out.astype(dtype), lse * np.float32(LOG2E)
    return np.where(state[1] == 0, 0, out + mean).astype(dtype), lse
