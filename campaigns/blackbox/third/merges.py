"""Faults of merges: split-K, cascades, rings; what is kept between two kernels."""

import numpy as np

from ..record import (
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


def combine(outs: Array, lses: Array, dtype: np.dtype) -> Pair:
    """out and lse of a stack of normalised partial outputs and their lse."""
    m = lses.max(0)
    w = np.exp(lses - safe(m))
    return finish(m, w.sum(0), (w * outs).sum(0), dtype)


def split(s: Array, v: Array, dtype: np.dtype, size: int) -> list[Partial]:
    """Chunks of size keys."""
    return [chunk(s[..., t], v[:, :, t], dtype) for t in tiles(s.shape[-1], size)]


@wrong(
    case(16, 160, "float16", batch=2, causal=True),
    truth="the batch stride of the partial outputs is 0: all sequences write the slot of sequence 0, the last one "
    "wins, and the combine reads the partial outputs of batch 1 for both, with the right weights of each; lse is right",
    source="flash-attn#2550",
)
def partial_batch_stride(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Split-K in 3, normalised partial outputs in a flat buffer."""
    qf, kf, vf = spread(q, k, v)
    outs, lses = states(split(scores(qf, kf, scale, causal), vf, q.dtype, cdiv(k.shape[2], 3)))
    n, b = outs.shape[:2]
    size = outs[0, 0].size
    buffer = np.empty(n * b * size, np.float32)
    slots = np.arange(n)[:, None] * b * size + np.arange(b) * (0 if bug else size)
    for batch in range(b):
        buffer[slots[:, batch, None] + np.arange(size)] = outs[:, batch].reshape(n, size)
    return combine(buffer[slots[..., None] + np.arange(size)].reshape(outs.shape), lses, q.dtype)


@wrong(
    case(80, 80, "float32", heads=3, causal=True),
    truth="a tile of 32 queries without keys in its split leaves early and stores lse = -inf with heads a padded "
    "pitch of 96 rows apart, where the buffer has 80: in head h the lse of the 32 rows from 16 h on is lost in the "
    "splits 2 and 3, and the combine leaves these partial outputs out (rows 40..47 of "
    "head 1, 40..63 of head 2)",
    source="flash-attn#2573, flash-attn#2851",
)
def early_exit_offset(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Split-K in 4; tiles of 32 queries leave early where the split lies right of the diagonal."""
    qf, kf, vf = spread(q, k, v)
    size = cdiv(k.shape[2], 4)
    outs, lses = states(split(scores(qf, kf, scale, causal), vf, q.dtype, size))
    b, h, sq, _ = q.shape
    flat, i = lses.reshape(-1).copy(), grid(q, k)[0]
    pitch = cdiv(sq, 32) * 32 if bug else sq
    for n in range(len(outs)):
        for rows in tiles(sq, 32):
            if causal and i[rows][-1, 0] < n * size:
                at = n * b * h * sq + np.arange(b * h)[:, None] * pitch + np.arange(rows.start, rows.stop)
                flat[at[at < flat.size]] = -np.inf
    return combine(outs, flat.reshape(lses.shape), q.dtype)


@wrong(
    case(32, 176, "float16", heads=4, kv_heads=2, causal=True),
    truth="every chunk of the shared prefix writes the final lse slot: the prefix keeps the lse of its last chunk "
    "(keys 48..95) and not of all 96 keys, and its (right) output gets too little weight beside that of the suffix",
    source="flashinfer#58",
)
def prefix_lse(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A cascade: a prefix of 96 keys, split in 2, is merged with the suffix."""
    qf, kf, vf = spread(q, k, v)
    s = scores(qf, kf, scale, causal)
    parts = split(s[..., :96], vf[:, :, :96], q.dtype, 48)
    out, lse = merge(parts, np.float32)
    if bug:
        lse = finish(*parts[-1], np.float32)[1]
    pairs = [(out, lse)]
    if s.shape[-1] > 96:
        pairs.append(finish(*chunk(s[..., 96:], vf[:, :, 96:], q.dtype), np.float32))
    return combine(np.stack([o for o, _ in pairs]), np.stack([e for _, e in pairs])[..., None], q.dtype)


@wrong(
    case(96, 150, "float16", heads=4, kv_heads=2),
    truth="(1) the lse correction q . mean(K) of smoothed keys is indexed by the head of K: query head h adds that of "
    "query head h // 2; (2) the factor 448 of P in the quantised kernel (all chunks but the last) stays in the lse "
    "that it returns, log(448) too large; both spoil the weights of the merge",
    source="SageAttention 9cd0915, SageAttention 3ec1f13",
    faults=2,
)
def smoothed_ring(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A ring of 3 chunks; the last is in 16 bits, the others subtract the mean of K and multiply P by 448."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    bounds = list(tiles(k.shape[2], cdiv(k.shape[2], 3)))
    head = np.arange(q.shape[1]) // (q.shape[1] // k.shape[1] if bug else 1)
    outs, lses = [], []
    for t in bounds:
        local = t != bounds[-1]
        mean = kf[:, :, t].mean(2, keepdims=True) * np.float32(local)
        s = masked(dot(qf, kf[:, :, t] - mean) * scale, visible(i, j[:, t], causal))
        m, factor = top(s), np.float32(448 if local else 1)
        p = np.exp(s - safe(m)) * factor
        out, lse = finish(m, p.sum(-1, keepdims=True), rounded(p, q.dtype) @ vf[:, :, t], np.float32)
        correction = (dot(qf, mean) * scale)[..., 0]
        outs.append(out)
        lses.append(lse + correction[:, head] - (0 if bug else np.log(factor)))
    return combine(np.stack(outs), np.stack(lses)[..., None], q.dtype)


@wrong(
    case(50, 150, "bfloat16"),
    truth="the store of the partial lse is guarded by the alignment (i < 32) and not by the number of rows: rows from "
    "32 on keep the 0 of the buffer in every split, the 4 splits get the same weight there, and lse is log(4)",
    source="xformers 76173784",
)
def lse_row_guard(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Split-K in 4 with normalised partial outputs."""
    qf, kf, vf = spread(q, k, v)
    outs, lses = states(split(scores(qf, kf, scale, causal), vf, q.dtype, cdiv(k.shape[2], 4)))
    stored = np.zeros_like(lses)
    rows = 32 if bug else q.shape[2]
    stored[..., :rows, :] = lses[..., :rows, :]
    return combine(outs, stored, q.dtype)


@wrong(
    case(96, 64, "float16", heads=2, causal=True),
    truth="the merge of prefix and suffix has no guard where both lse are -inf: queries 0..31, which see no key, get "
    "exp(-inf - -inf) = NaN in out and lse",
    source="vllm#28181, vllm#27491",
)
def two_empty_states(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """merge_attn_states of a prefix and a suffix."""
    qf, kf, vf = spread(q, k, v)
    (out_p, out_s), (lse_p, lse_s) = states(split(scores(qf, kf, scale, causal), vf, q.dtype, cdiv(k.shape[2], 2)))
    m = np.maximum(lse_p, lse_s)
    shift = m if bug else safe(m)
    w_p, w_s = np.exp(lse_p - shift), np.exp(lse_s - shift)
    total = w_p + w_s
    den = total if bug else np.where(total == 0, np.float32(1), total)
    out = out_p * (w_p / den) + out_s * (w_s / den)
    return out.astype(q.dtype), (np.log(total) + shift)[..., 0]


@wrong(
    case(40, 150, "float32", heads=2, kv_heads=1, causal=True),
    truth="(1) the workspace has slots for 3 of the 4 splits: split 3 overwrites slot 0, and the merge reads it for "
    "split 0 and for split 3; (2) tiles of 16 keys are not cut at the end of a split of 38: the first 10 keys of the "
    "next split are counted in both",
    source="vllm#45844; flashinfer#1206 class",
    faults=2,
)
def short_workspace(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Split-K in 4, each an online softmax over tiles of 16 keys; partials in a workspace of slots."""
    qf, kf, vf = spread(q, k, v)
    s, sk = scores(qf, kf, scale, causal), k.shape[2]
    size = cdiv(sk, 4)
    bounds = list(tiles(sk, size))
    slots = max(len(bounds) - 1, 1) if bug else len(bounds)
    workspace: dict[int, Partial] = {}
    for n, bound in enumerate(bounds):
        state = start(qf, vf)
        for a in range(bound.start, bound.stop, 16):
            t = slice(a, min(a + 16, sk if bug else bound.stop))
            state = step(state, s[..., t], vf[:, :, t], q.dtype)
        workspace[n % slots] = state
    return merge([workspace[n % slots] for n in range(len(bounds))], q.dtype)


@wrong(
    case(8, 190, "bfloat16", heads=4, kv_heads=2),
    truth="the second pass is compiled for 8 blocks, the first ran with ceil(190 / 16) = 12: keys j with j % 12 >= 8 "
    "are left out of max, sum and output",
    source="mlx#3099",
)
def compiled_block_count(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """MLX in two passes: block n takes keys n, n + blocks, ..; a second kernel merges the blocks."""
    qf, kf, vf = spread(q, k, v)
    s, blocks = scores(qf, kf, scale, causal), cdiv(k.shape[2], 16)
    parts = [chunk(s[..., n::blocks], vf[:, :, n::blocks], q.dtype) for n in range(blocks)]
    return merge(parts[:8] if bug else parts, q.dtype)


@wrong(
    case(24, 150, "float16", heads=2),
    truth="(1) the reduce reads the partial outputs, stored [split, b, h, s, d], with the strides of out [b, s, h, d]: "
    "head h, query i gets row i * H + h; (2) the number of tiles of 16 keys is rounded down: the last 6 keys are in "
    "no split",
    source="flash-attn 9ee0ff1d, aiter#2808; class of rounded down tile counts",
    faults=2,
)
def reduce_strides(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Split-K in 3 over whole tiles of 16 keys; the reduce goes through flat offsets."""
    qf, kf, vf = spread(q, k, v)
    s, sk = scores(qf, kf, scale, causal), k.shape[2]
    count = sk // 16 if bug and sk >= 16 else cdiv(sk, 16)
    used = min(16 * count, sk)
    outs, lses = states(split(s[..., :used], vf[:, :, :used], q.dtype, 16 * cdiv(count, 3)))
    n, b, h, sq, d = outs.shape
    part, batch, head, row = np.ogrid[:n, :b, :h, :sq]
    rows = part * b * h * sq + batch * h * sq + (row * h + head if bug else head * sq + row)
    return combine(outs.reshape(-1, d)[rows], lses, q.dtype)


@wrong(
    case(50, 130, "bfloat16", heads=3),
    truth="maxima and sums of a split are stored without a row guard: the 14 rows past the end of the last tile of 32 "
    "queries (max 0 and a sum of the number of keys, as their Q is 0) overwrite those of queries 0..13 of the next "
    "head; its partial outputs stay, so that these rows are weighted and divided wrongly",
    source="llama.cpp#7465",
)
def meta_row_guard(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Split-K in 2; blocks store the max and sum of 32 rows at flat offsets, all heads of a tile together."""
    qf, kf, vf = spread(q, k, v)
    b, h, sq, _ = q.shape
    i, j = grid(q, k)
    padded = pad(qf, 2, 32)
    position = i[0, 0] + np.arange(padded.shape[2])[:, None]
    parts = []
    for t in tiles(k.shape[2], cdiv(k.shape[2], 2)):
        s = masked(dot(padded, kf[:, :, t]) * scale, visible(position, j[:, t], causal))
        m, den, acc = chunk(s, vf[:, :, t], q.dtype)
        meta = np.zeros((2, b * h * sq + 32), np.float32)
        for rows in tiles(padded.shape[2], 32):
            row = np.arange(rows.start, rows.stop if bug else min(rows.stop, sq))
            at = np.arange(b * h)[:, None] * sq + row
            for x, stored in zip((m, den), meta, strict=True):
                stored[at] = x[:, :, row, 0].reshape(b * h, -1)
        m, den = meta[:, : b * h * sq].reshape(2, b, h, sq, 1)
        parts.append((m, den, acc[:, :, :sq]))
    return merge(parts, q.dtype)
