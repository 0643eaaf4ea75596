"""Faults of online softmax, split-K merges, partial sums, empty tiles and cascades."""

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
    masked,
    merge,
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


def splits(s: Array, v: Array, dtype: np.dtype, size: int) -> list[Partial]:
    """Partial maxima, sums and accumulators of chunks of size keys."""
    return [chunk(s[..., n], v[:, :, n], dtype) for n in tiles(s.shape[-1], size)]


def combine(outs: Array, lses: Array, dtype: np.dtype) -> Pair:
    """out and lse of normalised partial outputs, weighted by their lse."""
    m = lses.max(0)
    w = np.exp(lses - safe(m))
    return finish(m, w.sum(0), (w * outs).sum(0), dtype)


@wrong(
    case(48, 128, "float16", heads=2, head_dim=64),
    truth="The merge of 4 splits subtracts scale * M from their lse and adds M back, M the largest lse of the splits: "
    "lse = log(sum exp(lse_i - scale * M)) + M is too large by (1 - scale) * M, and out = sum exp(lse_i - lse) * "
    "O_i is multiplied by exp(-(1 - scale) * M); scale = 1/8.",
    source="cutlass#2366",
)
def merge_scaled_max_8(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """An MLA split-K kernel and its reduction, 4 splits."""
    dtype = q.dtype
    q, k, v = spread(q, k, v)
    outs, lses = states(splits(scores(q, k, scale, causal), v, dtype, cdiv(k.shape[2], 4)))
    m = safe(lses.max(0))
    total = np.log(np.exp(lses - (m * np.float32(scale) if bug else m)).sum(0)) + m
    out = (np.exp(lses - safe(total)) * outs).sum(0)
    return out.astype(dtype), total[..., 0].astype(np.float32)


@wrong(
    case(64, 144, "bfloat16", heads=4, kv_heads=2, head_dim=64),
    truth="Splits of 36 keys store their lse in base 2 and the merge takes them to be in base e: split i weighs "
    "exp(lse_i / ln 2) in place of exp(lse_i). With M the largest lse_i (base e), lse is M + log(sum exp((lse_i "
    "- M) / ln 2)).",
    source="class of flashinfer merge_state and base-2 lse",
)
def merge_base_8(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A flash-decoding kernel with a base-2 softmax, 4 splits."""
    dtype = q.dtype
    q, k, v = spread(q, k, v)
    outs, lses = states(splits(scores(q, k, scale, causal), v, dtype, cdiv(k.shape[2], 4)))
    base2 = lses * np.float32(LOG2E)
    m = base2.max(0)
    w = (np.exp if bug else np.exp2)(base2 - safe(m))
    return finish(m * np.float32(LN2), w.sum(0), (w * outs).sum(0), dtype)


@wrong(
    case(33, 128, "float16", heads=4, kv_heads=1, head_dim=64, causal=True),
    truth="A split of 32 keys that a row does not see computes -inf - (-inf), and its NaN goes through the merge: rows "
    "that do not reach the last split, i + 95 < 96, so query 0 of each head, have NaN in all dims of out and in "
    "lse. Other rows are right.",
    source="vllm#28181",
)
def empty_split_nan_8(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A split-KV decode kernel with splits of 32 keys."""
    dtype = q.dtype
    q, k, v = spread(q, k, v)
    i, j = grid(q, k)
    parts = []
    for n in tiles(k.shape[2], 32):
        s = masked(dot(q, k[:, :, n]) * scale, visible(i, j[:, n], causal))
        m = top(s)
        p = np.exp(s - (m if bug else safe(m)))
        parts.append((m, p.sum(-1, keepdims=True), rounded(p, dtype) @ v[:, :, n]))
    return merge(parts, dtype)


@wrong(
    case(96, 96, "float32", heads=2, head_dim=64, causal=True),
    truth="A split of 24 keys that a row does not see writes lse 0 in place of -inf and out 0: the merge adds exp(0) = "
    "1 to the row's sum of exp(scores) for each such split, 3 for queries 0-23, 2 for 24-47, 1 for 48-71, 0 for "
    "72-95. out shrinks by that, lse grows.",
    source="class of aiter#3641 and flash-attn#978",
)
def empty_split_lse_8(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A stage-1 kernel that writes normalised partials of 4 splits and a stage-2 kernel that reduces them."""
    dtype = q.dtype
    q, k, v = spread(q, k, v)
    outs, lses = states(splits(scores(q, k, scale, causal), v, dtype, cdiv(k.shape[2], 4)))
    if bug:
        lses = np.where(lses == -np.inf, np.float32(0), lses)
    return combine(outs, lses, dtype)


@wrong(
    case(40, 135, "bfloat16", heads=8, kv_heads=2, head_dim=64),
    truth="8 splits of Sk // 8 = 16 keys cover keys 0 to 127: keys 128 to 134 are left out of out and lse.",
    source="class of flash-decoding split sizes",
)
def split_size_floor_8(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A flash-decoding kernel with 8 splits."""
    dtype = q.dtype
    q, k, v = spread(q, k, v)
    s, sk = scores(q, k, scale, causal), k.shape[2]
    size = sk // 8 if bug else cdiv(sk, 8)
    parts = []
    for n in range(8):
        t = slice(n * size, min(sk, (n + 1) * size))
        if t.start < sk:
            parts.append(chunk(s[..., t], v[:, :, t], dtype))
    return merge(parts, dtype)


@wrong(
    case(50, 100, "float16", heads=4, kv_heads=2, head_dim=64, sinks="normal"),
    truth="Two faults. Splits of 25 keys run in tiles of 16 that are bounded by Sk, not by the end of the split: keys "
    "25-31, 50-56 and 75-81 count twice, in their split and in the one before. And each of the 4 splits adds the "
    "sink: the sum has 4 * exp(sink), where exp(sink) is right.",
    source="flashinfer#1206 and rocm-libraries#12229",
    faults=2,
)
def split_end_and_sink_8(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float,
    causal: bool,
    sinks: Array | None = None,
    bug: bool = True,
) -> Pair:
    """A split-KV kernel with sinks, 4 splits in tiles of 16 keys."""
    dtype = q.dtype
    q, k, v = spread(q, k, v)
    i, j = grid(q, k)
    sk = k.shape[2]
    size = cdiv(sk, 4)
    parts = []
    for split in tiles(sk, size):
        state = start(q, v)
        if sinks is not None and (bug or split.start == 0):
            sink = np.broadcast_to(sinks.astype(np.float32)[:, None, None], state[1].shape)
            state = sink, state[1] + 1, state[2]
        for at in range(split.start, split.stop, 16):
            n = slice(at, min(sk if bug else split.stop, at + 16))
            s = masked(dot(q, k[:, :, n]) * scale, visible(i, j[:, n], causal))
            state = step(state, s, v[:, :, n], dtype)
        parts.append(state)
    return merge(parts, dtype)


@wrong(
    case(64, 192, "bfloat16", heads=2, batch=2, head_dim=64),
    truth="The second pass reads blocks // 4 rounds of 4 partial results: of 6 blocks of 32 keys it merges the first "
    "4, keys 128 to 191 are left out of out and lse.",
    source="mlx#3875",
)
def merge_rounds_8(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A two-pass vector kernel whose second pass has 4 lanes, each with every fourth block of 32 keys."""
    dtype = q.dtype
    q, k, v = spread(q, k, v)
    parts = splits(scores(q, k, scale, causal), v, dtype, 32)
    rounds = len(parts) // 4 if bug else cdiv(len(parts), 4)
    picked = [r * 4 + lane for lane in range(4) for r in range(rounds) if r * 4 + lane < len(parts)]
    return merge([parts[n] for n in picked], dtype)


@wrong(
    case(48, 96, "float16", heads=4, head_dim=64),
    truth="Partial lse of 3 splits of 32 keys are written as [split, batch, head, query] and read as [split, batch, "
    "query, head]: the merge for head h and query i takes those at flat place i * 4 + h, that is head (4i + h) "
    "// 48, query (4i + h) % 48, as weights of its own partial outputs, and lse is their log-sum-exp.",
    source="vllm-project/flash-attention#87",
)
def merge_lse_layout_8(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A flash-decoding kernel and its combine kernel, splits of 32 keys."""
    dtype = q.dtype
    q, k, v = spread(q, k, v)
    outs, lses = states(splits(scores(q, k, scale, causal), v, dtype, 32))
    if bug:
        n, batch, heads, sq, _ = lses.shape
        lses = lses.reshape(n, batch, sq, heads, 1).swapaxes(2, 3)
    return combine(outs, lses, dtype)


@wrong(
    case(64, 128, "float32", heads=6, kv_heads=2, batch=2, head_dim=32),
    truth="Two faults. Query head h reads K and V of head h % 2 in place of h // 3. And the batch stride of the "
    "partial lse is 0: batch 1 merges its partial outputs of 4 splits of 32 keys with the lse of batch 0 (same "
    "head, query and split), and its lse is that of batch 0.",
    source="flash-attn#2550 and class of GQA head maps",
    faults=2,
)
def merge_batch_and_head_8(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A varlen split-KV kernel and its combine kernel, 4 splits."""
    dtype, heads, kv_heads = q.dtype, q.shape[1], k.shape[1]
    h = np.arange(heads)
    hk = h % kv_heads if bug else h // (heads // kv_heads)
    q, k, v = (x.astype(np.float32) for x in (q, k[:, hk], v[:, hk]))
    outs, lses = states(splits(scores(q, k, scale, causal), v, dtype, cdiv(k.shape[2], 4)))
    batch = np.arange(len(q)) * (0 if bug else 1)
    return combine(outs, lses[:, batch], dtype)


@wrong(
    case(72, 160, "float32", heads=2, head_dim=64),
    truth="The lse of the 5 splits of 32 keys is rounded to bfloat16 before the merge: split i weighs "
    "exp(bf16(lse_i)), and lse is log(sum exp(bf16(lse_i))). The partial outputs are right.",
    source="TransformerEngine#1546",
)
def merge_lse_bf16_8(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A context-parallel attention that corrects the outputs of steps of 32 keys by their lse."""
    dtype = q.dtype
    q, k, v = spread(q, k, v)
    outs, lses = states(splits(scores(q, k, scale, causal), v, dtype, 32))
    return combine(outs, rounded(lses, ml_dtypes.bfloat16) if bug else lses, dtype)


@wrong(
    case(64, 256, "float16", heads=2, head_dim=64),
    truth="The accumulator is rounded to bfloat16 after each of the 16 tiles of 16 keys: acc = bf16(acc * alpha + P @ "
    "V). Maximum, sum and lse are right.",
    source="mlir-air#1600",
)
def acc_bf16_8(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A kernel that keeps its accumulator in local memory between tiles of 16 keys."""
    dtype = q.dtype
    q, k, v = spread(q, k, v)
    s = scores(q, k, scale, causal)
    state = start(q, v)
    for n in tiles(k.shape[2], 16):
        m, den, acc = step(state, s[..., n], v[:, :, n], dtype)
        state = m, den, rounded(acc, ml_dtypes.bfloat16) if bug else acc
    return finish(*state, dtype)


@wrong(
    case(56, 120, "bfloat16", heads=4, kv_heads=2, batch=2, head_dim=64),
    truth="Two faults of a cascade with a prefix of 40 keys. The suffix begins at the last whole page of 16, key 32: "
    "keys 32 to 39 count twice, in prefix and suffix. And the prefix is taken from batch 0 for all: keys 0 to 39 "
    "of the prefix of batch 1 are K and V of batch 0 (its suffix, keys 32 to 119, is its own).",
    source="class of flashinfer cascades and vLLM cascade attention",
    faults=2,
)
def cascade_prefix_8(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A cascade: a pass over the prefix, one over the suffix in pages of 16, and a merge of two states."""
    dtype = q.dtype
    q, k, v = spread(q, k, v)
    i, j = grid(q, k)
    end = min(40, k.shape[2])
    begin = end // 16 * 16 if bug else end
    at = np.arange(len(q)) * (0 if bug else 1)
    prefix = masked(dot(q, k[at, :, :end]) * scale, visible(i, j[:, :end], causal))
    parts = [chunk(prefix, v[at, :, :end], dtype)]
    state = start(q, v)
    for t in range(begin, k.shape[2], 16):
        n = slice(t, min(k.shape[2], t + 16))
        s = masked(dot(q, k[:, :, n]) * scale, visible(i, j[:, n], causal))
        state = step(state, s, v[:, :, n], dtype)
    return combine(*states([*parts, state]), dtype)


@wrong(
    case(64, 160, "float16", heads=3, head_dim=64),
    truth="Where the maximum of a row grows by no more than 8 * ln 2 from one tile of 32 keys to the next, the "
    "accumulator is not rescaled, though maximum and sum are: out = sum_t sum_{j in t} exp(s_j - m_t) v_j / "
    "sum_j exp(s_j - m), m_t the maximum of tiles 0 to t and m that of all (no growth is above 8 * ln 2 here). "
    "lse is right.",
    source="class of FlashAttention-4 conditional rescaling",
)
def lazy_rescale_8(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A Blackwell kernel that rescales its accumulator only if the maximum grows by more than a threshold."""
    dtype = q.dtype
    q, k, v = spread(q, k, v)
    s = scores(q, k, scale, causal)
    m, den, acc = start(q, v)
    for n in tiles(k.shape[2], 32):
        new = np.maximum(m, top(s[..., n]))
        skip = (m > -np.inf) & (new - m <= np.float32(8 * LN2))
        if not bug:
            new = np.where(skip, m, new)
        alpha, p = np.exp(m - safe(new)), np.exp(s[..., n] - safe(new))
        den = den * alpha + p.sum(-1, keepdims=True)
        acc = acc * np.where(skip, 1, alpha) + rounded(p, dtype) @ v[:, :, n]
        m = new
    return finish(m, den, acc, dtype)


@wrong(
    case(64, 128, "float32", heads=4, kv_heads=2, head_dim=64),
    truth="States of 4 splits of 32 keys are merged one after another, and the running lse stays that of split 0, L: "
    "out = (exp(L) * out + exp(lse_i) * O_i) / (exp(L) + exp(lse_i)) for i = 1, 2, 3, from out = O_0. The lse "
    "returned is log(exp(L) + exp(lse_3)).",
    source="flashinfer 6cbaf6e26",
)
def merge_running_lse_8(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A merge_states kernel that folds the states of splits of 32 keys into a running one."""
    dtype = q.dtype
    q, k, v = spread(q, k, v)
    outs, lses = states(splits(scores(q, k, scale, causal), v, dtype, 32))
    out, lse, total = outs[0], lses[0], lses[0]
    for o, e in zip(outs[1:], lses[1:], strict=True):
        m = np.maximum(lse, e)
        a, b = np.exp(lse - safe(m)), np.exp(e - safe(m))
        den = a + b
        out = (a * out + b * o) / np.where(den == 0, 1, den)
        total = m + np.log(den)
        lse = lse if bug else total
    return out.astype(dtype), total[..., 0]


@wrong(
    case(96, 90, "float16", heads=2, head_dim=64),
    truth="Two faults. The running sum starts at 1 with the maximum m_0 of keys 0 to 31: exp(m_0) is added to the sum "
    "of exp(scores) of each row, like a key of score m_0 and value 0. And the loop over keys makes Sk // 32 "
    "steps of 32: keys 64 to 89 are left out.",
    source="flashinfer#27 and class of floor divisions",
    faults=2,
)
def phantom_start_8(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A decode kernel that sets maximum and sum from the first tile of 32 keys."""
    dtype = q.dtype
    q, k, v = spread(q, k, v)
    s, sk = scores(q, k, scale, causal), k.shape[2]
    m, den, acc = start(q, v)
    m = top(s[..., :32])
    if bug:
        den = den + 1
    for n in tiles(sk // 32 * 32 if bug else sk, 32):
        m, den, acc = step((m, den, acc), s[..., n], v[:, :, n], dtype)
    return finish(m, den, acc, dtype)
