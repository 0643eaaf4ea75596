"""Wrong merges: rescaling of the online softmax, split-K, partial sums, empty tiles, cascades."""

import ml_dtypes
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
    masked,
    merge,
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


@wrong(
    case(16, 224, "float32", heads=4, kv_heads=2, batch=2, head_dim=64),
    truth="The splits are keys [0, 56), [56, 112), [112, 168), [168, 224). Their lse are natural logarithms, but the "
    "merge takes them for logarithms of base 2: the weight of split s is 2^(lse_s - max lse) = exp(ln 2 (lse_s - max "
    "lse)) over the sum of these, instead of exp(lse_s - max lse) over its sum; lse is max lse + ln(the sum of the "
    "weights).",
    source="FlashInfer, vLLM: class of the base of lse in merge_state",
)
def merge_base_7(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A flash-decoding kernel with normalised partial outputs and their lse."""
    q32, k32, v32 = spread(q, k, v)
    s = scores(q32, k32, scale, causal)
    outs, lses = states([chunk(s[..., t], v32[:, :, t], q.dtype) for t in tiles(k.shape[2], cdiv(k.shape[2], 4))])
    m = lses.max(0)
    w = np.exp2(lses - safe(m)) if bug else np.exp(lses - safe(m))
    return finish(m, w.sum(0), (w * outs).sum(0), q.dtype)


@wrong(
    case(32, 208, "float16", heads=4, kv_heads=1, head_dim=128, causal=True),
    truth="The second pass merges 13 // 4 * 4 = 12 of the 13 splits of 16 keys: keys 192..207 are missing.",
    source="mlx#3875",
)
def pass_two_floor_7(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A Metal two-pass vector kernel: the second pass loops over fours of blocks."""
    q32, k32, v32 = spread(q, k, v)
    s = scores(q32, k32, scale, causal)
    parts = [chunk(s[..., t], v32[:, :, t], q.dtype) for t in tiles(k.shape[2], 16)]
    rounds = len(parts) // 4 if bug else cdiv(len(parts), 4)
    return merge(parts[: 4 * rounds], q.dtype)


@wrong(
    case(128, 128, "bfloat16", heads=2, head_dim=64, causal=True),
    truth="A split (keys [0, 32), [32, 64), [64, 96), [96, 128)) of which a query sees no key writes lse 0 and output "
    "0 instead of lse -inf: query i has e = 3 - i // 32 of them, and the denominator is sum_j exp(s_j) + e. lse is "
    "log(sum_j exp(s_j) + e).",
    source="aiter#3641; vllm#47188",
)
def empty_split_zero_7(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A Triton split-K kernel with an early exit of empty splits, and its reduction."""
    q32, k32, v32 = spread(q, k, v)
    s = scores(q32, k32, scale, causal)
    outs, lses = states([chunk(s[..., t], v32[:, :, t], q.dtype) for t in tiles(k.shape[2], cdiv(k.shape[2], 4))])
    if bug:
        lses = safe(lses)
    m = lses.max(0)
    w = np.exp(lses - safe(m))
    return finish(m, w.sum(0), (w * outs).sum(0), q.dtype)


@wrong(
    case(96, 96, "float16", heads=2, kv_heads=2, batch=2, head_dim=64, causal=True, window_size=(24, 0)),
    truth="Rows whose first tile is fully masked become NaN, out and lse: exp(-inf - -inf) without a guard. Query i "
    "sees keys i - 24..i and the tiles of keys are 32 wide, all of them visited, so queries 56..95 (i - 24 >= 32) are "
    "NaN; queries 0..55 are right.",
    source="xformers 540fcbfd; llama.cpp#12776",
)
def first_tile_nan_7(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float,
    causal: bool,
    bug: bool = True,
    window_size: tuple[int, int] = (-1, -1),
) -> Pair:
    """A Vulkan kernel that goes through all tiles of keys of a window."""
    q32, k32, v32 = spread(q, k, v)
    seen = visible(*grid(q, k), causal, window_size)
    m, den, acc = start(q, v)
    for t in tiles(k.shape[2], 32):
        s = masked(dot(q32, k32[:, :, t]) * scale, seen[:, t])
        new = np.maximum(m, top(s))
        base = new if bug else safe(new)
        p, alpha = np.exp(s - base), np.exp(m - base)
        den, acc = den * alpha + p.sum(-1, keepdims=True), acc * alpha + rounded(p, q.dtype) @ v32[:, :, t]
        m = new
    return finish(m, den, acc, q.dtype)


@wrong(
    case(48, 240, "float32", heads=2, head_dim=64),
    truth="Splits of 80 keys are read in tiles of 32, and the last tile of a split is masked by the length 240 and not "
    "by the split's end: split 0 also reads keys 80..95, split 1 keys 160..175. These 32 keys count twice.",
    source="flashinfer#1206",
)
def chunk_end_7(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A FlashInfer split-KV prefill kernel, its chunk no multiple of the tile."""
    q32, k32, v32 = spread(q, k, v)
    sk = k.shape[2]
    s, size, parts = scores(q32, k32, scale, causal), cdiv(sk, 3), []
    for c in tiles(sk, size):
        state = start(q, v)
        for n in range(c.start, c.stop, 32):
            t = slice(n, min(n + 32, sk if bug else c.stop))
            state = step(state, s[..., t], v32[:, :, t], q.dtype)
        parts.append(state)
    return merge(parts, q.dtype)


@wrong(
    case(64, 256, "float32", heads=2, kv_heads=1, head_dim=64),
    truth="The normalised partial output of each split (keys [0, 64), [64, 128), [128, 192), [192, 256)) is rounded to "
    "bfloat16 before the merge. lse and the weights are right.",
    source="flashinfer#5107; TransformerEngine#1546",
)
def partial_bf16_7(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A split-K decode kernel with a scratch for partial outputs."""
    q32, k32, v32 = spread(q, k, v)
    s = scores(q32, k32, scale, causal)
    outs, lses = states([chunk(s[..., t], v32[:, :, t], q.dtype) for t in tiles(k.shape[2], 64)])
    if bug:
        outs = rounded(outs, ml_dtypes.bfloat16)
    m = lses.max(0)
    w = np.exp(lses - safe(m))
    return finish(m, w.sum(0), (w * outs).sum(0), q.dtype)


@wrong(
    case(64, 256, "float32", heads=2, batch=2, head_dim=32, causal=True),
    truth="The accumulator of P @ V (un-normalised, relative to the running maximum) is rounded to bfloat16 after each "
    "tile of 32 keys; the row sum is kept in float32.",
    source="Xilinx/mlir-air#1600",
)
def accumulator_bf16_7(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """An AIE kernel: an online softmax over tiles, its accumulator in memory."""
    q32, k32, v32 = spread(q, k, v)
    s, state = scores(q32, k32, scale, causal), start(q, v)
    for t in tiles(k.shape[2], 32):
        m, den, acc = step(state, s[..., t], v32[:, :, t], q.dtype)
        state = m, den, rounded(acc, ml_dtypes.bfloat16) if bug else acc
    return finish(*state, q.dtype)


@wrong(
    case(48, 160, "float16", heads=4, kv_heads=2, head_dim=64),
    truth="The partial lse (keys [0, 64), [64, 128), [128, 160)) are written as [head, query] and read as [query, "
    "head]: in the merge, head h and query i take the lse at flat position f = 4 i + h of [4, 48], that of head f // "
    "48, query f % 48. This holds for all splits; lse is that of head f // 48, query f % 48, too. Partial outputs are "
    "right.",
    source="vllm-project/flash-attention#87",
)
def lse_layout_7(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A flash-decoding combine kernel after the swap of heads and query rows."""
    q32, k32, v32 = spread(q, k, v)
    b, h, sq, _ = q.shape
    s = scores(q32, k32, scale, causal)
    outs, lses = states([chunk(s[..., t], v32[:, :, t], q.dtype) for t in tiles(k.shape[2], 64)])
    if bug:
        lses = lses.reshape(-1, b, sq, h).swapaxes(2, 3)[..., None]
    m = lses.max(0)
    w = np.exp(lses - safe(m))
    return finish(m, w.sum(0), (w * outs).sum(0), q.dtype)


@wrong(
    case(32, 160, "bfloat16", heads=4, kv_heads=2, head_dim=64, causal=True),
    truth="The weights of the two states are swapped: the output of the prefix (keys 0..95) has the weight of the "
    "suffix (keys 96..159), exp(lse_suffix) / (exp(lse_prefix) + exp(lse_suffix)), and the suffix's output the weight "
    "of the prefix. lse is right.",
    source="class of cascade merges (FlashInfer, vLLM merge_attn_states)",
)
def cascade_swapped_7(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A cascade: attention to a shared prefix of pages of 16 and to the rest, then merge_attn_states."""
    q32, k32, v32 = spread(q, k, v)
    sk = k.shape[2]
    prefix = max(sk * 3 // 5 // 16 * 16, 1)
    s = scores(q32, k32, scale, causal)
    outs, lses = states([chunk(s[..., t], v32[:, :, t], q.dtype) for t in (slice(0, prefix), slice(prefix, sk))])
    m = lses.max(0)
    w = np.exp(lses - safe(m))
    return finish(m, w.sum(0), ((w[::-1] if bug else w) * outs).sum(0), q.dtype)


@wrong(
    case(96, 192, "float32", heads=2, head_dim=128, causal=True),
    truth="In the last tile of keys (128..191) the row sum is not rescaled: l = l_old + sum p instead of l_old "
    "exp(m_old - m_new) + sum p. So where the maximum over all visible keys M exceeds that of keys 0..127, m, out is "
    "sum_j exp(s_j - M) v_j / (sum_(j < 128) exp(s_j - m) + sum_(j >= 128) exp(s_j - M)). lse is M + the "
    "denominator's log.",
    source="class of l that is not rescaled in the masked epilogue (Triton kernels)",
)
def sum_not_rescaled_7(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A kernel with a loop over tiles of 64 keys and the last tile peeled off."""
    q32, k32, v32 = spread(q, k, v)
    s, state = scores(q32, k32, scale, causal), start(q, v)
    for t in tiles(k.shape[2], 64):
        new = step(state, s[..., t], v32[:, :, t], q.dtype)
        if bug and t.stop == k.shape[2]:
            new = new[0], state[1] + np.exp(s[..., t] - safe(new[0])).sum(-1, keepdims=True), new[2]
        state = new
    return finish(*state, q.dtype)


@wrong(
    case(80, 150, "float16", heads=4, kv_heads=4, head_dim=64),
    truth="The row sum is reduced over 3 of 4 warps: within each tile of 64 keys, P of keys with j % 64 >= 48 is "
    "missing in the row sum (keys 48..63 and 112..127), not in P @ V. lse lacks them too.",
    source="class of reductions over the wrong number of warps (llama.cpp#24451, flashinfer 6c6417903)",
)
def three_warps_7(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A CUDA kernel, each of four warps with 16 keys of a tile, sums reduced in shared memory."""
    q32, k32, v32 = spread(q, k, v)
    s, (m, den, acc) = scores(q32, k32, scale, causal), start(q, v)
    for t in tiles(k.shape[2], 64):
        new = np.maximum(m, top(s[..., t]))
        p, alpha = np.exp(s[..., t] - safe(new)), np.exp(m - safe(new))
        sums = np.stack([p[..., w].sum(-1, keepdims=True) for w in tiles(64, 16)])
        den = den * alpha + sums[: 3 if bug else 4].sum(0)
        acc = acc * alpha + rounded(p, q.dtype) @ v32[:, :, t]
        m = new
    return finish(m, den, acc, q.dtype)


@wrong(
    case(64, 192, "bfloat16", heads=2, batch=2, head_dim=64, sinks="normal"),
    truth="(1) Each of the 3 splits (keys [0, 64), [64, 128), [128, 192)) adds exp(sink) to its row sum: 3 exp(sink) "
    "in all, in lse too. (2) The merge is unrolled by two splits, and its remainder (the last split) adds dims 0..31 "
    "only: in dims 32..63 of out the keys 128..191 are missing in P @ V, though their P is in the row sum.",
    source="rocm-libraries#12229; class of remainders of unrolled loops",
    faults=2,
)
def sink_each_split_7(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True, sinks: Array | None = None
) -> Pair:
    """A split-K kernel with attention sinks."""
    q32, k32, v32 = spread(q, k, v)
    s, parts = scores(q32, k32, scale, causal), []
    sink = np.full((q.shape[1], 1, 1), -np.inf, np.float32) if sinks is None else sinks[:, None, None]
    for n, t in enumerate(tiles(k.shape[2], 64)):
        own = sink if bug or n == 0 else np.float32(-np.inf)
        m = np.maximum(top(s[..., t]), own)
        p = np.exp(s[..., t] - safe(m))
        acc = rounded(p, q.dtype) @ v32[:, :, t]
        if bug and n % 2 == 0 and t.stop == k.shape[2]:
            acc[..., acc.shape[3] // 2 :] = 0
        parts.append((m, p.sum(-1, keepdims=True) + np.exp(own - safe(m)), acc))
    return merge(parts, q.dtype)


@wrong(
    case(70, 180, "float32", heads=4, kv_heads=2, batch=1, head_dim=64),
    truth="(1) The merge of the ring's steps takes the new lse for the old: block s > 0 (keys [0, 60), [60, 120), "
    "[120, 180)) gets the weight sigmoid(lse_s - lse_(0..s)), out = out + weight (out_s - out), instead of "
    "sigmoid(lse_s - lse_(0..s-1)). lse is right. (2) Each block's last key (59, 119, 179) has the V of the key "
    "before it.",
    source="ring-flash-attention, TransformerEngine: class of context-parallel corrections; class of V rows off by one",
    faults=2,
)
def ring_sigmoid_7(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Ring attention: a block of K and V each step, merged into out by a sigmoid of lse."""
    q32, k32, v32 = spread(q, k, v)
    s, size = scores(q32, k32, scale, causal), cdiv(k.shape[2], 3)
    total, out = None, None
    for t in tiles(k.shape[2], size):
        vt = v32[:, :, t].copy()
        if bug and vt.shape[2] > 1:
            vt[:, :, -1] = vt[:, :, -2]
        (o,), (lse,) = states([chunk(s[..., t], vt, q.dtype)])
        if total is None:
            total, out = lse, o
            continue
        new = np.logaddexp(total, lse)
        old = new if bug else total
        weight = np.where(lse == -np.inf, np.float32(0), 1 / (1 + np.exp(safe(old) - lse)))
        weight = np.where((old == -np.inf) & (lse > -np.inf), np.float32(1), weight)
        out, total = out + weight * (o - out), new
    return out.astype(q.dtype), total[..., 0].astype(np.float32)


@wrong(
    case(64, 192, "float16", heads=2, kv_heads=1, batch=2, head_dim=64),
    truth="(1) Lazy rescaling: in tiles of 32 keys, as long as the tile's maximum exceeds the reference m (that of "
    "tile 0 at first) by at most 1.5, m stays, but the tile's P is taken relative to the running maximum max(m, "
    "tile's maximum): p = exp(s - max(m, tile's)), added to sums relative to m. If it exceeds m by more, all is "
    "rescaled and m = tile's maximum. (2) The last tile (keys 160..191) is masked by j < 191: key 191 is missing.",
    source="flash-attn#2717: class of lazy rescaling; class of tails off by one",
    faults=2,
)
def lazy_rescale_7(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A Blackwell forward kernel that rescales only if the maximum grows by more than a threshold."""
    q32, k32, v32 = spread(q, k, v)
    sk = k.shape[2]
    s = scores(q32, k32, scale, causal)
    if bug:
        s = masked(s, np.arange(sk)[None] < max(sk - 1, 1))
    m, den, acc = start(q, v)
    for t in tiles(sk, 32):
        tile = np.maximum(m, top(s[..., t]))
        new = np.where(tile - safe(m) > 1.5, tile, m)
        new = np.where(m == -np.inf, tile, new)
        p, alpha = np.exp(s[..., t] - safe(tile if bug else new)), np.exp(m - safe(new))
        den, acc = den * alpha + p.sum(-1, keepdims=True), acc * alpha + rounded(p, q.dtype) @ v32[:, :, t]
        m = new
    return finish(m, den, acc, q.dtype)


@wrong(
    case(100, 100, "bfloat16", heads=8, kv_heads=4, head_dim=32, causal=True),
    truth="(1) Warps w = 0, 1 take the keys with j % 32 // 16 == w, each with its own running maximum M_w, and their "
    "sums and accumulators are added without a rescale to a common maximum: out = sum_w A_w / sum_w L_w, A_w = sum "
    "exp(s_j - M_w) v_j, L_w = sum exp(s_j - M_w). (2) exp2 is taken of s - M without log2(e): 2^(s_j - M_w) for "
    "exp(s_j - M_w) in both. lse is max_w M_w + log(sum_w L_w). A warp without visible keys adds nothing.",
    source="llama.cpp#24451: class of a maximum that is not shared between warps; flashinfer#787",
    faults=2,
)
def warp_maxima_7(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A CUDA vector kernel: two warps split the keys of a tile and meet after the loop."""
    q32, k32, v32 = spread(q, pad(k, 2, 32), pad(v, 2, 32))
    i, j = grid(q, k)[0], np.arange(k32.shape[2])[None]
    seen = visible(i, j, causal) & (j < k.shape[2])
    factor = np.float32(1 if bug else LOG2E)
    parts = []
    for w in range(2):
        m, den, acc = start(q, v)
        for t in tiles(k32.shape[2], 32):
            at = slice(t.start + 16 * w, t.start + 16 * w + 16)
            s = masked(dot(q32, k32[:, :, at]) * scale, seen[:, at])
            new = np.maximum(m, top(s))
            p, alpha = np.exp2((s - safe(new)) * factor), np.exp2((m - safe(new)) * factor)
            den, acc = den * alpha + p.sum(-1, keepdims=True), acc * alpha + rounded(p, q.dtype) @ v32[:, :, at]
            m = new
        parts.append((m, den, acc))
    if not bug:
        return merge(parts, q.dtype)
    (m0, den0, acc0), (m1, den1, acc1) = parts
    return finish(np.maximum(m0, m1), den0 + den1, acc0 + acc1, q.dtype)
