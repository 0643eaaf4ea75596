"""Wrong merges: online rescaling, splits, partial sums, empty tiles, cascades."""

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


def parts(s: Array, v: Array, dtype: type, size: int) -> list[Partial]:
    """Maximum, sum and accumulator of each split of a number of keys."""
    return [chunk(s[..., t], v[:, :, t], dtype) for t in tiles(s.shape[-1], size)]


def ratio(a: Array, b: Array) -> Array:
    """a / b, and 0 where b is 0."""
    return np.where(b == 0, np.float32(0), a / np.where(b == 0, np.float32(1), b))


@wrong(
    case(64, 128, "float16", heads=4, causal=False),
    truth="Running sum and accumulator are not rescaled when a tile of 32 keys raises the maximum by at most 8 * ln "
    "2, though P of the tile is taken with the new maximum: tile t counts as exp(s - m_t), m_t the maximum of its "
    "row over tiles 0 to t, in sum and output; lse is the last m_t + log of that sum.",
    source="class of conditional rescaling (FlashAttention-4, aiter#4216)",
)
def lazy_rescale_5(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """FlashAttention-4 style: rescaling is skipped where the maximum rises by less than 2 ** 8, key tiles of 32."""
    qf, kf, vf = spread(q, k, v)
    s = scores(qf, kf, scale, causal)
    m, den, acc = start(qf, vf)
    for t in tiles(k.shape[2], 32):
        new = np.maximum(m, top(s[..., t]))
        keep = (new - m <= np.float32(8 * LN2)) & (m > -np.inf)
        reference = new if bug else np.where(keep, m, new)
        alpha = np.where(keep, np.float32(1), np.exp(m - safe(new)))
        p = np.exp(s[..., t] - safe(reference))
        den = den * alpha + p.sum(-1, keepdims=True)
        acc = acc * alpha + rounded(p, q.dtype) @ vf[:, :, t]
        m = reference
    return finish(m, den, acc, q.dtype)


@wrong(
    case(70, 96, "bfloat16", heads=2, causal=True),
    truth="Four lanes hold the columns j % 8 in (2l, 2l + 1) of a row and the sums of their own; the last reduction "
    "adds lanes 0 and 1, and 2 and 3, but not the two pairs: dims d of out with d % 8 < 4 are divided by the sum "
    "over keys with j % 8 < 4 alone, the other dims by the sum over the other keys. The maximum is right; lse has "
    "the sum over keys with j % 8 < 4.",
    source="class of quad reductions with one shuffle too few (CUDA, ThunderKittens)",
)
def quad_shuffle_5(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """mma.sync kernel in CUDA: row sums kept by lane, reduced over the quad at the end; key tiles of 32."""
    qf, kf, vf = spread(q, k, v)
    s = scores(qf, kf, scale, causal)
    m, _, acc = start(qf, vf)
    lanes = np.zeros((*q.shape[:3], 4), np.float32)
    for t in tiles(k.shape[2], 32):
        new = np.maximum(m, top(s[..., t]))
        p, alpha = np.exp(s[..., t] - safe(new)), np.exp(m - safe(new))
        lanes = lanes * alpha + pad(p, 3, 8).reshape(*q.shape[:3], -1, 4, 2).sum((3, 5))
        acc, m = acc * alpha + rounded(p, q.dtype) @ vf[:, :, t], new
    lanes = lanes + lanes[..., [1, 0, 3, 2]]
    if not bug:
        lanes = lanes + lanes[..., [2, 3, 0, 1]]
    of_dim = lanes[..., np.arange(acc.shape[3]) % 8 // 2]
    _, lse = finish(m, lanes[..., :1], acc, q.dtype)
    return ratio(acc, of_dim).astype(q.dtype), lse


@wrong(
    case(33, 192, "float16", heads=4, kv_heads=2, causal=True),
    truth="The lse e of each split of 64 keys is in base 2, and the merge weighs by exp(e - max e) instead of 2 ** "
    "(e - max e), e = log2 of the sum of exp of the scores in the split: out is the mean of the partial outputs with "
    "those weights. lse is ln 2 * (max e + ln of the sum of the weights).",
    source="class of FlashInfer states in base 2 merged as natural ones (vLLM, SGLang cascades)",
)
def base_two_states_5(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """FlashInfer decode: splits of 64 keys with states in base 2, then merge_states."""
    qf, kf, vf = spread(q, k, v)
    outs, lses = states(parts(scores(qf, kf, scale, causal), vf, q.dtype, 64))
    e = lses * np.float32(LOG2E)
    m = e.max(0)
    w = np.exp(e - safe(m)) if bug else np.exp2(e - safe(m))
    total = w.sum(0)
    out = ratio((w * outs).sum(0), total)
    lse = np.float32(LN2) * (m + (np.log(total) if bug else np.log2(total)))
    return out.astype(q.dtype), np.where(total == 0, np.float32(-np.inf), lse)[..., 0].astype(np.float32)


@wrong(
    case(80, 160, "float32", heads=2, causal=True),
    truth="Partial outputs of splits of 32 keys are normalised, and weighted by exp(m_s - max m) with the maximum "
    "m_s of the split instead of by exp(lse_s): out = sum of exp(m_s - M) * O_s / sum of exp(m_s - M) over the "
    "splits with keys. lse is right.",
    source="class of weights without the partial sum (Triton split-KV decode)",
)
def weights_by_maximum_5(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Split-KV decode in Triton: normalised partial outputs of 32 keys, a second kernel that reduces them."""
    qf, kf, vf = spread(q, k, v)
    chunks = parts(scores(qf, kf, scale, causal), vf, q.dtype, 32)
    outs, lses = states(chunks)
    ms = np.stack([m for m, _, _ in chunks])
    top_lse = lses.max(0)
    key = ms if bug else lses
    w = np.exp(key - safe(key.max(0)))
    out = ratio((w * outs).sum(0), w.sum(0))
    total = np.exp(lses - safe(top_lse)).sum(0)
    lse = np.where(total == 0, np.float32(-np.inf), safe(top_lse) + np.log(total))
    return out.astype(q.dtype), lse[..., 0].astype(np.float32)


@wrong(
    case(40, 200, "bfloat16", heads=4, kv_heads=1, head_dim=128),
    truth="The sum over splits is of exp(lse_s - scale * M) instead of exp(lse_s - M), M the largest lse_s of a row: "
    "lse is too large by (1 - scale) * M, and out is too small by the factor exp(-(1 - scale) * M); splits of 50 "
    "keys, scale = 128 ** -0.5.",
    source="cutlass#2366, flashinfer#1109",
)
def scaled_maximum_5(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """CUTLASS MLA style: four splits, a reduction kernel that forms the final lse and then the weights."""
    qf, kf, vf = spread(q, k, v)
    size = cdiv(k.shape[2], 4)
    outs, lses = states(parts(scores(qf, kf, scale, causal), vf, q.dtype, size))
    m = safe(lses.max(0))
    total = np.exp(lses - (m * np.float32(scale) if bug else m)).sum(0)
    lse = np.where(total == 0, np.float32(-np.inf), np.log(total) + m)
    out = (np.exp(lses - safe(lse)) * outs).sum(0)
    return out.astype(q.dtype), lse[..., 0].astype(np.float32)


@wrong(
    case(36, 205, "float16", heads=4, kv_heads=2, head_dim=64),
    truth="Two faults. The second pass reads 4 * (13 // 4) = 12 of the 13 splits of 16 keys: the keys 192 to 204 are "
    "left out of out and lse. The partial lse of the splits are rounded to bfloat16 before the merge, and weights "
    "and lse come from those.",
    source="mlx#3875; TransformerEngine#1546",
    faults=2,
)
def floor_reduction_5(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Two-pass vector kernel in Metal: splits of 16 keys, a second pass in blocks of 4 splits."""
    qf, kf, vf = spread(q, k, v)
    outs, lses = states(parts(scores(qf, kf, scale, causal), vf, q.dtype, 16))
    if bug:
        lses = rounded(lses, ml_dtypes.bfloat16)
    blocks = len(outs) // 4 if bug else cdiv(len(outs), 4)
    state = start(qf, vf)
    for n in range(blocks):
        m, den, acc = state
        o, e = outs[4 * n : 4 * n + 4], lses[4 * n : 4 * n + 4]
        new = np.maximum(m, e.max(0))
        alpha, w = np.exp(m - safe(new)), np.exp(e - safe(new))
        state = new, den * alpha + w.sum(0), acc * alpha + (w * o).sum(0)
    return finish(*state, q.dtype)


@wrong(
    case(128, 128, "float16", heads=2, head_dim=32, causal=True),
    truth="A split (of 32 keys) without visible keys for a row writes output 0 and lse 0 instead of -inf: it gets "
    "weight exp(0), so that each such split of a row adds 1 to its sum of exp(scores). Row i has 3 - i // 32 of "
    "them.",
    source="aiter#3641; class of empty splits",
)
def empty_split_5(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Flash-decoding: splits of 32 keys with outputs and lse in workspace, then a combine kernel."""
    qf, kf, vf = spread(q, k, v)
    outs, lses = states(parts(scores(qf, kf, scale, causal), vf, q.dtype, 32))
    if bug:
        lses = safe(lses)
    m = safe(lses.max(0))
    w = np.exp(lses - m)
    return finish(m, w.sum(0), (w * outs).sum(0), q.dtype)


@wrong(
    case(100, 100, "bfloat16", heads=4, kv_heads=2, causal=True, window_size=(32, 0)),
    truth="The new maximum is not guarded against -inf: rows whose first key tile (keys 0 to 31) lies wholly outside "
    "their window, i + Sk - Sq - 32 >= 32, that is rows 64 to 99, have exp(-inf + inf) = NaN and are NaN in out and "
    "lse. The other rows are right.",
    source="xformers 540fcbfd; class of NaN of a first tile that is masked",
)
def masked_first_tile_5(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float,
    causal: bool,
    bug: bool = True,
    window_size: tuple[int, int] = (-1, -1),
) -> Pair:
    """Triton kernel with a window by mask alone: every key tile of 32 is visited from the first on."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    m, den, acc = start(qf, vf)
    for t in tiles(k.shape[2], 32):
        s = masked(dot(qf, kf[:, :, t]) * scale, visible(i, j[:, t], causal, window_size))
        new = np.maximum(m, top(s))
        base = new if bug else safe(new)
        p, alpha = np.exp(s - base), np.exp(m - base)
        den = den * alpha + p.sum(-1, keepdims=True)
        acc, m = acc * alpha + rounded(p, q.dtype) @ vf[:, :, t], new
    return finish(m, den, acc, q.dtype)


@wrong(
    case(64, 256, "float16", heads=1, head_dim=64),
    truth="The output accumulator is rounded to bfloat16 after each tile of 16 keys, after acc * alpha + P @ V; sum "
    "and lse are right.",
    source="mlir-air#1600",
)
def narrow_accumulator_5(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Dataflow kernel: the accumulator is stored between tiles of 16 keys."""
    qf, kf, vf = spread(q, k, v)
    s = scores(qf, kf, scale, causal)
    state = start(qf, vf)
    for t in tiles(k.shape[2], 16):
        m, den, acc = step(state, s[..., t], vf[:, :, t], q.dtype)
        state = m, den, rounded(acc, ml_dtypes.bfloat16 if bug else np.float32)
    return finish(*state, q.dtype)


@wrong(
    case(50, 130, "float32", heads=4, kv_heads=2, batch=2, head_dim=32),
    truth="Two faults. A split is Sk // 4 = 32 keys long, rounded down, so that four splits leave out the keys 128 "
    "and 129. The normalised partial outputs of the splits are rounded to float16 before the merge; their lse are "
    "not.",
    source="flashinfer#5107; class of split lengths with floor",
    faults=2,
)
def short_splits_5(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Flash-decoding with a fixed number of four splits and a workspace of normalised partial outputs."""
    qf, kf, vf = spread(q, k, v)
    s = scores(qf, kf, scale, causal)
    size = k.shape[2] // 4 if bug else cdiv(k.shape[2], 4)
    ranges = [slice(n * size, (n + 1) * size) for n in range(4)]
    outs, lses = states([chunk(s[..., t], vf[:, :, t], q.dtype) for t in ranges])
    outs = rounded(outs, np.float16 if bug else np.float32)
    m = safe(lses.max(0))
    w = np.exp(lses - m)
    return finish(m, w.sum(0), (w * outs).sum(0), q.dtype)


@wrong(
    case(96, 96, "float32", heads=4, head_dim=64, causal=True),
    truth="The running sum begins at 1 with the maximum of the first tile (keys 0 to 31) of the row: sum of "
    "exp(scores) has one more term exp(m0), m0 the largest visible score among the keys 0 to 31, a phantom key with "
    "V = 0; in out and in lse.",
    source="flashinfer c6fdbd6d5",
)
def phantom_one_5(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Prefill kernel: maximum peeled from the first tile of 32 keys, the running sum initialised before the loop."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    pairs = []
    for r in tiles(q.shape[2], 32):
        s = masked(dot(qf[:, :, r], kf) * scale, visible(i[r], j, causal))
        _, den, acc = start(qf[:, :, r], vf)
        m = top(s[..., :32])
        state = m, den + np.float32(1 if bug else 0), acc
        for t in tiles(k.shape[2], 32):
            state = step(state, s[..., t], vf[:, :, t], q.dtype)
        pairs.append(finish(*state, q.dtype))
    return join(pairs)


@wrong(
    case(40, 150, "bfloat16", heads=4, kv_heads=2, causal=True),
    truth="Two faults. The second level of the cascade begins one page of 16 early, at key 48 instead of 64: the "
    "keys 48 to 63 are in both levels and count twice in out. The lse that is returned is that of the second level "
    "alone (keys from 48 on), not the merged one.",
    source="class of cascades that overlap (vLLM, SGLang shared prefixes); flashinfer 5dadb243c",
    faults=2,
)
def cascade_overlap_5(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Cascade attention: a shared prefix of 64 keys and a suffix, each with its state, merged in the end."""
    prefix, page = 64, 16
    qf, kf, vf = spread(q, k, v)
    s = scores(qf, kf, scale, causal)
    levels = []
    for t in (slice(0, prefix), slice(prefix - page if bug else prefix, k.shape[2])):
        state = start(qf, vf)
        for p in tiles(k.shape[2], page):
            rows = slice(max(p.start, t.start), min(p.stop, t.stop))
            if rows.start < rows.stop:
                state = step(state, s[..., rows], vf[:, :, rows], q.dtype)
        levels.append(state)
    out, lse = merge(levels, q.dtype)
    return out, finish(*levels[1], q.dtype)[1] if bug else lse


@wrong(
    case(35, 120, "float32", heads=4, kv_heads=2, causal=False, sinks="normal"),
    truth="Two faults. The sink is in the sum of each of the three splits of 40 keys: exp(sink) is added 3 times "
    "instead of once, to out and lse. Splits include the first key of the next one: the keys 40 and 80 are in two "
    "splits and count twice.",
    source="rocm-libraries#12229; class of inclusive ends of splits",
    faults=2,
)
def sink_in_splits_5(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True, sinks: Array | None = None
) -> Pair:
    """Split-KV kernel with sinks: three splits, unnormalised partial outputs, a combine kernel."""
    qf, kf, vf = spread(q, k, v)
    s = scores(qf, kf, scale, causal)
    sink = np.full((q.shape[1], 1, 1), -np.inf, np.float32) if sinks is None else sinks[:, None, None]
    chunks = []
    for n, t in enumerate(tiles(k.shape[2], cdiv(k.shape[2], 3))):
        rows = slice(t.start, min(t.stop + 1, k.shape[2])) if bug else t
        m, den, acc = chunk(s[..., rows], vf[:, :, rows], q.dtype)
        if bug or n == 0:
            new = np.maximum(m, sink)
            alpha = np.exp(m - safe(new))
            m, den, acc = new, den * alpha + np.exp(sink - safe(new)), acc * alpha
        chunks.append((m, den, acc))
    return merge(chunks, q.dtype)


@wrong(
    case(48, 160, "float16", heads=4, kv_heads=4, batch=2, head_dim=64, causal=False),
    truth="The lse of the first split (keys 0 to 79) is stored as [token, head] and read as [head, token]: for the "
    "merge, head h and token i take it from the element h * Sq + i of the batch's flat buffer, which holds head (h * "
    "Sq + i) % H, token (h * Sq + i) // H. The lse of the second split and both partial outputs are right; out and "
    "lse are merged with that.",
    source="vllm#21996, vllm-project/flash-attention#87",
)
def transposed_lse_5(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Two attention calls over the halves of the keys, then merge_attn_states with the lse of both."""
    qf, kf, vf = spread(q, k, v)
    outs, lses = states(parts(scores(qf, kf, scale, causal), vf, q.dtype, cdiv(k.shape[2], 2)))
    if bug:
        lses[0] = lses[0].swapaxes(1, 2).reshape(lses[0].shape)
    m = safe(lses.max(0))
    w = np.exp(lses - m)
    return finish(m, w.sum(0), (w * outs).sum(0), q.dtype)


@wrong(
    case(64, 192, "bfloat16", heads=2, head_dim=128, causal=False),
    truth="Four warps share the keys, warp w those with (j % 64) // 16 == w, each with its own maximum m_w; sums and "
    "outputs of the warps are added without exp(m_w - M): out = sum of acc_w / sum of l_w, with acc_w and l_w "
    "relative to m_w. lse is the largest m_w + log of the sum of the l_w.",
    source="class of merges across warps (llama.cpp#24451, split by key inside a block)",
)
def warp_merge_5(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """CUDA kernel split by key inside a block: four warps with 16 keys of each tile of 64, merged in shared memory."""
    qf, kf, vf = spread(q, k, v)
    s = scores(qf, kf, scale, causal)
    warps = []
    for w in range(4):
        state = start(qf, vf)
        for t in tiles(k.shape[2], 64):
            rows = slice(t.start + 16 * w, min(t.start + 16 * w + 16, t.stop))
            if rows.start < rows.stop:
                state = step(state, s[..., rows], vf[:, :, rows], q.dtype)
        warps.append(state)
    if bug:
        ms, dens, accs = (np.stack(x) for x in zip(*warps, strict=True))
        return finish(ms.max(0), dens.sum(0), accs.sum(0), q.dtype)
    return merge(warps, q.dtype)
