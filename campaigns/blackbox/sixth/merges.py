"""Faults of online rescaling, splits, their merges, partial sums, empty tiles and cascades."""

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
    case(64, 160, "bfloat16", heads=4, kv_heads=2),
    truth="In the online softmax over tiles of 32 keys, row sum and accumulator are not multiplied by exp(m_old - "
    "m_new) where m_new - m_old <= 8 ln 2, and yet the maximum becomes m_new = max(m_old, maximum of the tile). So "
    "the keys of tile t have weight exp(s - m_t), with m_t the running maximum at that tile.",
    source="class of conditional rescaling, as aiter#4216",
)
def lazy_rescale_6(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a Blackwell forward that rescales only where the maximum grows by more than 2^8."""
    qf, kf, vf = spread(q, k, v)
    s = scores(qf, kf, scale, causal)
    m, den, acc = start(qf, vf)
    for t in tiles(k.shape[2], 32):
        new = np.maximum(m, top(s[..., t]))
        skip = (m > -np.inf) & (new - safe(m) <= 8 * LN2)
        alpha = np.where(skip, 1, np.exp(m - safe(new)))
        m = new if bug else np.where(skip, m, new)
        p = np.exp(s[..., t] - safe(m))
        den, acc = den * alpha + p.sum(-1, keepdims=True), acc * alpha + rounded(p, q.dtype) @ vf[:, :, t]
    return finish(m, den, acc, q.dtype)


@wrong(
    case(33, 170, "float16", heads=4, kv_heads=2),
    truth="Of 11 blocks, of which block c holds the keys j % 11 == c, the second pass merges 11 // 4 * 4 = 8: keys "
    "with j % 11 >= 8 are dropped.",
    source="mlx#3875",
)
def blocks_floor_6(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a two-pass vector kernel whose blocks take every n-th key."""
    qf, kf, vf = spread(q, k, v)
    s = scores(qf, kf, scale, causal)
    blocks = cdiv(k.shape[2], 16)
    parts = [chunk(s[..., c::blocks], vf[:, :, c::blocks], q.dtype) for c in range(blocks)]
    loops = blocks // 4 if bug else cdiv(blocks, 4)
    return merge([part for c in range(loops) for part in parts[4 * c : 4 * c + 4]], q.dtype)


@wrong(
    case(48, 200, "float32", heads=4, head_dim=64),
    truth="Normalised outputs of 4 splits (keys 0..63, 64..127, 128..191, 192..199) are averaged with the weights "
    "exp(m_s - max m_s) of their maxima alone, without their row sums: out = sum w_s O_s / sum w_s. lse is right.",
    source="class of paged attention v2 reductions without exp_sums",
)
def max_weights_6(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a paged attention of two kernels with maxima and sums of partitions of 64 keys."""
    qf, kf, vf = spread(q, k, v)
    s = scores(qf, kf, scale, causal)
    parts = [chunk(s[..., t], vf[:, :, t], q.dtype) for t in tiles(k.shape[2], 64)]
    outs, _ = states(parts)
    ms, dens = (np.stack([p[n] for p in parts]) for n in (0, 1))
    m = ms.max(0)
    w = np.exp(ms - safe(m))
    total = (w * dens).sum(0)
    _, lse = finish(m, total, np.zeros_like(qf), q.dtype)
    weights = w if bug else w * dens
    below = weights.sum(0)
    out = (weights * outs).sum(0) / np.where(below == 0, 1, below)
    return out.astype(q.dtype), lse


@wrong(
    case(96, 144, "float32", heads=2, head_dim=64, causal=True),
    truth="(1) A split of 48 keys that a row does not see at all has lse 0 instead of -inf (its out is 0): rows i < 48 "
    "do not see split 2 (keys 96..143), and the merge adds exp(0) = 1 to their row sum, in lse too. (2) Outputs of "
    "splits are rounded to bfloat16 before the merge.",
    source="aiter#3641 and flashinfer#5107",
    faults=2,
)
def empty_lse_6(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a flash-decoding combine of normalised outputs and lse of splits."""
    qf, kf, vf = spread(q, k, v)
    s = scores(qf, kf, scale, causal)
    outs, lses = states([chunk(s[..., t], vf[:, :, t], q.dtype) for t in tiles(k.shape[2], 48)])
    if bug:
        outs, lses = rounded(outs, ml_dtypes.bfloat16), safe(lses)
    m = lses.max(0)
    w = np.exp(lses - safe(m))
    return finish(m, w.sum(0), (w * outs).sum(0), q.dtype)


@wrong(
    case(80, 130, "bfloat16", heads=2, head_dim=128, causal=True),
    truth="The lse of splits (of 32 keys) are in base 2 and the merge takes their exponential in base e: split s has "
    "weight exp((L_s - M) / ln 2) instead of exp(L_s - M), with L_s its natural lse and M their maximum; lse = M + "
    "ln(sum of those weights).",
    source="class of flashinfer and vllm reports of log2 and natural lse in a merge",
)
def merge_base_6(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a merge of states that kernels in base 2 wrote."""
    qf, kf, vf = spread(q, k, v)
    s = scores(qf, kf, scale, causal)
    outs, lses = states([chunk(s[..., t], vf[:, :, t], q.dtype) for t in tiles(k.shape[2], 32)])
    lses = lses * np.float32(LOG2E)
    m = lses.max(0)
    w = (np.exp if bug else np.exp2)(lses - safe(m))
    return finish(m * np.float32(LN2), w.sum(0), (w * outs).sum(0), q.dtype)


@wrong(
    case(64, 128, "float16", heads=4),
    truth="In the online softmax over tiles of 32 keys, the accumulator of rows i with i % 16 >= 8 is rescaled by "
    "exp(m_old - m_new) of row i - 8. Row sums and lse are right.",
    source="class of fragments with two rows a thread and one factor",
)
def fragment_alpha_6(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a kernel of m16n8k16 products, each thread holding rows r and r + 8."""
    qf, kf, vf = spread(q, k, v)
    s = scores(qf, kf, scale, causal)
    row = np.arange(q.shape[2])
    owner = np.where(row % 16 >= 8, row - 8, row) if bug else row
    m, den, acc = start(qf, vf)
    for t in tiles(k.shape[2], 32):
        new = np.maximum(m, top(s[..., t]))
        alpha, p = np.exp(m - safe(new)), np.exp(s[..., t] - safe(new))
        den = den * alpha + p.sum(-1, keepdims=True)
        acc = acc * alpha[:, :, owner] + rounded(p, q.dtype) @ vf[:, :, t]
        m = new
    return finish(m, den, acc, q.dtype)


@wrong(
    case(100, 192, "float32", heads=2, head_dim=32),
    truth="From the second tile of 64 keys on, the row sum is (l + sum p) * alpha instead of l * alpha + sum p, with "
    "p = exp(s - m_new) and alpha = exp(m_old - m_new). The accumulator is right; lse has that row sum.",
    source="class of rescaling in the wrong order",
)
def sum_then_alpha_6(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a forward with its first tile peeled off the loop."""
    qf, kf, vf = spread(q, k, v)
    s = scores(qf, kf, scale, causal)
    first, *rest = tiles(k.shape[2], 64)
    m, den, acc = chunk(s[..., first], vf[:, :, first], q.dtype)
    for t in rest:
        new = np.maximum(m, top(s[..., t]))
        alpha, p = np.exp(m - safe(new)), np.exp(s[..., t] - safe(new))
        total = p.sum(-1, keepdims=True)
        den = (den + total) * alpha if bug else den * alpha + total
        acc = acc * alpha + rounded(p, q.dtype) @ vf[:, :, t]
        m = new
    return finish(m, den, acc, q.dtype)


@wrong(
    case(40, 128, "bfloat16", heads=4, kv_heads=2, batch=2),
    truth="(1) The shared prefix is keys 0..68, the suffix starts at its last page: keys 64..68 count twice. (2) The "
    "lse of the prefix, stored [token, head], is read as [head, token]: head h, token i takes that of flat index n = "
    "h * 40 + i, token n // 4 of head n % 4, for the weight and for the merged lse. The batch is right.",
    source="class of cascade reports, and vllm-project/flash-attention#87",
    faults=2,
)
def cascade_prefix_6(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a cascade of a shared prefix and own suffixes, their states merged."""
    b, h, sq, _ = q.shape
    qf, kf, vf = spread(q, k, v)
    s = scores(qf, kf, scale, causal)
    prefix = k.shape[2] // 2 + 5
    suffix = prefix // 16 * 16 if bug else prefix
    outs, lses = states([chunk(s[..., t], vf[:, :, t], q.dtype) for t in (slice(prefix), slice(suffix, None))])
    if bug:
        lses[0] = lses[0].swapaxes(1, 2).reshape(b, h, sq, 1)
    m = lses.max(0)
    w = np.exp(lses - safe(m))
    return finish(m, w.sum(0), (w * outs).sum(0), q.dtype)


@wrong(
    case(96, 80, "float16", heads=2, head_dim=64, causal=False),
    truth="Maximum, row sum and accumulator are not reset between tiles of 32 queries: row i holds the merged softmax "
    "state of rows i, i - 32 and i - 64 (those >= 0), in out and lse.",
    source="flashinfer#5029",
)
def state_kept_6(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a persistent kernel, one worker over the tiles of queries of a head."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    state: Partial | None = None
    pairs = []
    for rows in tiles(q.shape[2], 32):
        n = rows.stop - rows.start
        if state is None or not bug:
            state = start(qf[:, :, rows], vf)
        m, den, acc = state
        state = m[:, :, :n], den[:, :, :n], acc[:, :, :n]
        for t in tiles(k.shape[2], 32):
            s = masked(dot(qf[:, :, rows], kf[:, :, t]) * scale, visible(i[rows], j[:, t], causal))
            state = step(state, s, vf[:, :, t], q.dtype)
        pairs.append(finish(*state, q.dtype))
    return join(pairs)


@wrong(
    case(64, 150, "float16", heads=8, kv_heads=2, head_dim=32),
    truth="(1) 10 tiles of 16 keys are dealt to 4 splits of 10 // 4 = 2 tiles: keys 128..149 are dropped. (2) lse is "
    "in base 2: log2 of the sum of exp(s) instead of ln.",
    source="class of split counts rounded down, and pytorch#181645",
    faults=2,
)
def split_floor_6(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a flash-decoding kernel in base 2 with a fixed number of splits."""
    sk, size, splits = k.shape[2], 16, 4
    n = cdiv(sk, size)
    per = (n // splits if bug else cdiv(n, splits)) * size
    qf, kf, vf = spread(q, k, v)
    s = scores(qf, kf, scale, causal) * np.float32(LOG2E)
    parts = []
    for c in range(splits):
        m, den, acc = start(qf, vf)
        for at in range(c * per, min(sk, c * per + per), size):
            t = slice(at, min(sk, at + size))
            new = np.maximum(m, top(s[..., t]))
            alpha, p = np.exp2(m - safe(new)), np.exp2(s[..., t] - safe(new))
            den, acc = den * alpha + p.sum(-1, keepdims=True), acc * alpha + rounded(p, q.dtype) @ vf[:, :, t]
            m = new
        parts.append((m * np.float32(LN2), den, acc))
    out, lse = merge(parts, q.dtype)
    return out, lse * np.float32(LOG2E) if bug else lse


@wrong(
    case(160, 160, "float32", heads=2, head_dim=64, causal=True, window_size=(40, 0)),
    truth="Rows whose first tile of 64 keys is masked throughout are NaN in out and lse: rows i >= 104. All other rows "
    "are right.",
    source="xformers#722",
)
def nan_first_tile_6(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float,
    causal: bool,
    bug: bool = True,
    window_size: tuple[int, int] = (-1, -1),
) -> Pair:
    """Like a forward that visits all tiles and masks what the window hides."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    m, den, acc = start(qf, vf)
    for t in tiles(k.shape[2], 64):
        s = masked(dot(qf, kf[:, :, t]) * scale, visible(i, j[:, t], causal, window_size))
        new = np.maximum(m, top(s))
        base = new if bug else safe(new)
        alpha, p = np.exp(m - base), np.exp(s - base)
        den, acc, m = den * alpha + p.sum(-1, keepdims=True), acc * alpha + rounded(p, q.dtype) @ vf[:, :, t], new
    return finish(m, den, acc, q.dtype)


@wrong(
    case(100, 64, "bfloat16", heads=4, kv_heads=2, causal=True),
    truth="Rows that see no key in both halves of the keys, i < 36, are NaN in out and lse instead of 0 and -inf.",
    source="vllm#39148",
)
def both_empty_6(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a merge of two attention states, of a prefix and of a suffix."""
    qf, kf, vf = spread(q, k, v)
    s, half = scores(qf, kf, scale, causal), k.shape[2] // 2
    outs, lses = states([chunk(s[..., t], vf[:, :, t], q.dtype) for t in (slice(half), slice(half, None))])
    m = lses.max(0)
    w = np.exp(lses - (m if bug else safe(m)))
    return finish(m, w.sum(0), (w * outs).sum(0), q.dtype)


@wrong(
    case(72, 128, "float16", heads=2, head_dim=80),
    truth="Of 4 shards of 32 keys, each after the first is merged as out += w * (out_shard - out) with w = 1 / (1 + "
    "exp(L_new - L_shard)), L_new = ln(exp(L) + exp(L_shard)) being the lse already updated; it should be L. lse is "
    "right.",
    source="class of ring attention updates that read the new lse",
)
def ring_update_6(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like ring attention, the output updated by a sigmoid of differences of lse."""
    qf, kf, vf = spread(q, k, v)
    s = scores(qf, kf, scale, causal)
    outs, lses = states([chunk(s[..., t], vf[:, :, t], q.dtype) for t in tiles(k.shape[2], cdiv(k.shape[2], 4))])
    out, lse = outs[0], lses[0]
    for o, e in zip(outs[1:], lses[1:], strict=True):
        new = np.logaddexp(lse, e)
        w = np.where(e == -np.inf, 0, 1 / (1 + np.exp((new if bug else lse) - safe(e))))
        out, lse = out + w * (o - out), new
    return out.astype(q.dtype), lse[..., 0].astype(np.float32)


@wrong(
    case(56, 160, "bfloat16", heads=2, head_dim=96, causal=True),
    truth="Probabilities of a tile of 32 keys are exp(s - m_tile), with the maximum of that tile, and are added to row "
    "sum and accumulator without the factor exp(m_tile - m_new), m_new = max(m_old, m_tile). What was summed before is "
    "rescaled rightly by exp(m_old - m_new).",
    source="class of the first online softmax formula with its second factor left out",
)
def tile_max_6(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like the first version of the online softmax, two factors a step."""
    qf, kf, vf = spread(q, k, v)
    s = scores(qf, kf, scale, causal)
    m, den, acc = start(qf, vf)
    for t in tiles(k.shape[2], 32):
        own = top(s[..., t])
        new = np.maximum(m, own)
        alpha, beta = np.exp(m - safe(new)), np.exp(own - safe(new))
        p = np.exp(s[..., t] - safe(own))
        if bug:
            beta = np.ones_like(beta)
        den = den * alpha + p.sum(-1, keepdims=True) * beta
        acc, m = acc * alpha + rounded(p, q.dtype) @ vf[:, :, t] * beta, new
    return finish(m, den, acc, q.dtype)


@wrong(
    case(64, 160, "float32", heads=4, kv_heads=2, head_dim=64),
    truth="(1) The sum over 32 lanes stops a step early: row sums hold only keys with j % 32 < 16, while out sums all. "
    "(2) The merge leaves out the last of 5 splits of 32 keys: keys 128..159 are in neither out nor lse.",
    source="flashinfer 6c6417903 and class of merges that stop a split early",
    faults=2,
)
def lane_sum_6(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a split kernel with a key a lane, sums by shuffles and a merge of splits."""
    qf, kf, vf = spread(q, k, v)
    s = scores(qf, kf, scale, causal)
    parts = []
    for t in tiles(k.shape[2], 32):
        m = top(s[..., t])
        p = np.exp(s[..., t] - safe(m))
        lanes = np.zeros((*p.shape[:3], 32), np.float32)
        lanes[..., : p.shape[3]] = p
        for offset in (1, 2, 4, 8) if bug else (1, 2, 4, 8, 16):
            lanes = lanes + lanes[..., np.arange(32) ^ offset]
        parts.append((m, lanes[..., :1], rounded(p, q.dtype) @ vf[:, :, t]))
    return merge(parts[:-1] if bug else parts, q.dtype)
