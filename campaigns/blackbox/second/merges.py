"""Faults of merges: split-K, rings, chains, stream-K, scratch and workspaces."""

import ml_dtypes
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
    pack,
    rounded,
    safe,
    scores,
    spread,
    start,
    states,
    step,
    tiles,
    unpack,
    visible,
    wrong,
)


def bounds(n: int, splits: int) -> list[slice]:
    """Splits of n keys of equal size, the last one shorter."""
    size = cdiv(n, splits)
    return [slice(min(n, t * size), min(n, t * size + size)) for t in range(splits)]


def weigh(outs: Array, lses: Array, dtype: object) -> Pair:
    """out and lse of normalised partials and their natural lse."""
    m = lses.max(0)
    w = np.exp(lses - safe(m))
    return finish(m, w.sum(0), (w * outs).sum(0), dtype)


@wrong(
    case(90, 64, "bfloat16", heads=2, batch=2, causal=True),
    truth="The guard of the combine compares where it should assign (`lse_max == lse_max == -inf ? 0 : lse_max`): "
    "queries 0..25, whose splits are all empty, get exp(-inf - -inf) and NaN in out and lse; all others are right",
    source="flash-attn 31920dda",
)
def combine_all_empty(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Three splits of the keys, combined from normalised partials and their lse."""
    qf, kf, vf = spread(q, k, v)
    s = scores(qf, kf, scale, causal)
    outs, lses = states([chunk(s[..., t], vf[:, :, t], q.dtype) for t in bounds(s.shape[3], 3)])
    m = lses.max(0)
    w = np.exp(lses - (m if bug else safe(m)))
    den = w.sum(0)
    out = (w / np.where(den == 0, 1, den) * outs).sum(0)
    lse = np.log(den) + m
    return out.astype(q.dtype), lse[..., 0].astype(np.float32)


@wrong(
    case(7, 150, "float16", heads=4, kv_heads=2),
    truth="Partial lse are stored only where the caller asked for lse, which the launcher forwards for the first "
    "split alone: the lse of splits 1, 2 and 3 stay at the 0 of their allocation, so that split 0 (its lse is about "
    "4) has nearly the whole weight, and the others share 1 each",
    source="flashinfer#50",
)
def partials_not_stored(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Decoding in four splits, partial outputs and lse in buffers of the workspace."""
    qf, kf, vf = spread(q, k, v)
    b, h, sq, _ = qf.shape
    outs, lses = np.zeros((4, b, h, sq, vf.shape[3]), np.float32), np.zeros((4, b, h, sq, 1), np.float32)
    i, j = grid(q, k)
    for n, part in enumerate(bounds(kf.shape[2], 4)):
        state = start(qf, vf)
        for t in tiles(part.stop - part.start, 16):
            keys = slice(part.start + t.start, part.start + t.stop)
            s = masked(dot(qf, kf[:, :, keys]) * scale, visible(i, j[:, keys], causal))
            state = step(state, s, vf[:, :, keys], q.dtype)
        outs[n], lse = finish(*state, np.float32)
        if n == 0 or not bug:
            lses[n] = lse[..., None]
    return weigh(outs, lses, q.dtype)


@wrong(
    case(19, 120, "float32", heads=3, kv_heads=1, causal=True),
    truth="The scratch of maxima and sums has half its size (allocated for bfloat16, written as float): the sums "
    "begin in the middle of the maxima, and the maxima of splits 2 and 3, written later, overwrite the sums of splits "
    "0 and 1. The merged sum takes a maximum for each of these two sums; the merged accumulator is right",
    source="pytorch#174945",
)
def scratch_of_half(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Four splits that write maximum and sum to one scratch and their accumulators to another."""
    qf, kf, vf = spread(q, k, v)
    s = scores(qf, kf, scale, causal)
    rows, n = s[..., 0].size, 4 * s[..., 0].size
    scratch = np.zeros(2 * n, np.float32)
    first = n // 2 if bug else n
    accs = []
    for split, t in enumerate(bounds(s.shape[3], 4)):
        m, den, acc = chunk(s[..., t], vf[:, :, t], q.dtype)
        scratch[split * rows : (split + 1) * rows] = m.reshape(-1)
        scratch[first + split * rows : first + (split + 1) * rows] = den.reshape(-1)
        accs.append(acc)
    shape = (4, *s.shape[:3], 1)
    ms, dens = scratch[:n].reshape(shape), scratch[first : first + n].reshape(shape)
    return merge(list(zip(ms, dens, accs, strict=True)), q.dtype)


@wrong(
    case(32, 190, "float16", heads=2, kv_heads=2, batch=2),
    truth="Partial outputs of the five splits, which are not normalised, are rounded to bfloat16 before the merge, "
    "where they should be kept in float32; maxima, sums and lse are right",
    source="flashinfer#5107",
)
def partials_in_bfloat16(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Five splits of tiles of 16 keys, merged from partial accumulators."""
    qf, kf, vf = spread(q, k, v)
    s = scores(qf, kf, scale, causal)
    parts: list[Partial] = []
    for part in bounds(s.shape[3], 5):
        state = start(qf, vf)
        for t in tiles(part.stop - part.start, 16):
            keys = slice(part.start + t.start, part.start + t.stop)
            state = step(state, s[..., keys], vf[:, :, keys], q.dtype)
        m, den, acc = state
        parts.append((m, den, rounded(acc, ml_dtypes.bfloat16) if bug else acc))
    return merge(parts, q.dtype)


@wrong(
    case(100, 132, "float16", heads=2, head_dim=32, causal=True),
    truth="A block without visible keys has lse +inf for -inf: the ring's update gives it the whole weight, and its "
    "out is 0. Blocks have 33 keys: queries 0..66 do not see the last one and get out 0 and lse +inf; queries 67..99 "
    "are right",
    source="flash-attn#978",
)
def ring_empty_block(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Four steps of a ring, out and lse updated by a sigmoid of the difference of lse."""
    qf, kf, vf = spread(q, k, v)
    s = scores(qf, kf, scale, causal)
    b, h, sq = s.shape[:3]
    out, lse = np.zeros((b, h, sq, vf.shape[3]), np.float32), np.full((b, h, sq, 1), -np.inf, np.float32)
    for t in bounds(s.shape[3], 4):
        m, den, acc = chunk(s[..., t], vf[:, :, t], q.dtype)
        empty = den == 0
        o = acc / np.where(empty, 1, den)
        e = np.where(empty, np.float32(np.inf if bug else -np.inf), m + np.log(np.where(empty, 1, den)))
        delta = np.where(e == lse, 0, e - lse)
        weight = 1 / (1 + np.exp(-delta))
        out = out - weight * (out - o)
        lse = np.logaddexp(lse, e)
    return out.astype(q.dtype), lse[..., 0].astype(np.float32)


@wrong(
    case(96, 96, "bfloat16", heads=2, batch=2, causal=True),
    truth="(1) In the steps of the second half of the queries (48..95) the lse of the half is added to the second "
    "half of the flat buffer [batch, head, query] (the whole of batch 1), not to the second half of each head: "
    "in batch 0 queries 48..95 lack two steps in their lse, in batch 1 lse of other heads and queries come in "
    "(its head 1 gets the right ones for 48..95); (2) the out of the first step is corrected with the lse after "
    "the second step, not with the final one: queries 72..95. Queries 0..47 of batch 0 are right",
    source="TransformerEngine 7b861e75d, TransformerEngine#1546 (output of a step not corrected)",
    faults=2,
)
def zigzag_halves(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Context parallel: the first half of the keys for all queries, then the rest for the second half in two steps."""
    qf, kf, vf = spread(q, k, v)
    b, h, sq, _ = qf.shape
    s = scores(qf, kf, scale, causal)
    sk = s.shape[3]
    cut = sk - sq + sq // 2 if causal else sk // 3
    half = sq // 2 if causal else 0
    parts = [(0, slice(0, cut)), (half, slice(cut, (cut + sk) // 2)), (half, slice((cut + sk) // 2, sk))]
    lse = np.full((b, h, sq), -np.inf, np.float32)
    steps, moment = [], lse
    for n, (first, keys) in enumerate(parts):
        o, e = finish(*chunk(s[:, :, first:, keys], vf[:, :, keys], q.dtype), np.float32)
        steps.append((first, o, e))
        if n == 0:
            lse = e.copy()
        elif bug and first:
            flat = lse.reshape(-1)
            flat[-e.size :] = np.logaddexp(flat[-e.size :], e.reshape(-1))
        else:
            lse[:, :, first:] = np.logaddexp(lse[:, :, first:], e)
        if n == 1:
            moment = lse.copy()
    out = np.zeros((b, h, sq, vf.shape[3]), np.float32)
    for n, (first, o, e) in enumerate(steps):
        final = moment if bug and n == 0 else lse
        out[:, :, first:] += o * np.exp(e - safe(final[:, :, first:]))[..., None]
    return out.astype(q.dtype), lse


@wrong(
    case(6, 100, "bfloat16", heads=4, kv_heads=2, batch=2, causal=True),
    truth="(1) The reduction takes the row b * 1 + i of the packed partials for b * 6 + i: request 1 gets the "
    "outs of request 0's queries 1..5 for its queries 0..4, and its own query 0 for query 5; (2) the causal "
    "extent is counted from a request of one query (i + 99): no query of any request is masked",
    source="flashinfer#4382",
    faults=2,
)
def packed_reduction(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Speculative decoding: three splits into packed rows of tokens, then a reduction a request."""
    qf, kf, vf = spread(q, k, v)
    b, h, sq, _ = qf.shape
    sk, dv = kf.shape[2], vf.shape[3]
    parts = bounds(sk, 3)
    po, pl = np.zeros((3, b * sq, h, dv), np.float32), np.full((3, b * sq, h), -np.inf, np.float32)
    extent = np.arange(sq)[:, None] + sk - (1 if bug else sq)
    for n, t in enumerate(parts):
        seen = visible(extent, np.arange(sk)[None, t], causal)
        o, e = finish(*chunk(masked(dot(qf, kf[:, :, t]) * scale, seen), vf[:, :, t], q.dtype), np.float32)
        po[n], pl[n] = o.swapaxes(1, 2).reshape(-1, h, dv), e.swapaxes(1, 2).reshape(-1, h)
    outs, lses = [], []
    for request in range(b):
        rows = request * (1 if bug else sq) + np.arange(sq)
        out, lse = weigh(po[:, rows], pl[:, rows][..., None], q.dtype)
        outs.append(out.swapaxes(0, 1))
        lses.append(lse.T)
    return np.stack(outs), np.stack(lses)


@wrong(
    case(50, 91, "float16", heads=3, kv_heads=1, batch=2, causal=True),
    truth="Whether a row was split is decided by its token's first head. Tiles of 16 folded rows whose extent is at "
    "most 64 keys are written directly, others in two chunks to the workspace: token 21 (rows 63..65) lies in the "
    "last direct and the first split tile, and its heads 1 and 2 (rows 64, 65) are copied from out, where nothing was "
    "written: out and lse are 0 there; all else is right",
    source="flashinfer#1614",
)
def split_by_token(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Folded heads of a group of 3 in tiles of 16 rows, split in chunks of 64 keys where the extent is longer."""
    h, sq = q.shape[1:3]
    hk, sk = k.shape[1:3]
    group = h // hk
    rows = pack(q.astype(np.float32), hk)
    kf, vf = k.astype(np.float32), v.astype(np.float32)
    token = np.arange(sq * group) // group
    i = (token + sk - sq)[:, None]
    shape = (*rows.shape[:3], vf.shape[3])
    out, lse = np.zeros(shape, np.float32), np.zeros(shape[:3], np.float32)
    chunks = cdiv(sk, 64)
    po, pl = np.zeros((chunks, *shape), np.float32), np.full((chunks, *shape[:3], 1), -np.inf, np.float32)
    was_split = np.zeros(sq * group, bool)
    for t in tiles(sq * group, 16):
        extent = min(sk, int(i[t][-1, 0]) + 1) if causal else sk
        was_split[t] = extent > 64
        for n, keys in enumerate(tiles(extent, 64)):
            j = np.arange(sk)[None, keys]
            s = masked(dot(rows[:, :, t], kf[:, :, keys]) * scale, visible(i[t], j, causal))
            o, e = finish(*chunk(s, vf[:, :, keys], q.dtype), np.float32)
            if extent > 64:
                po[n, :, :, t], pl[n, :, :, t, 0] = o, e
            else:
                out[:, :, t], lse[:, :, t] = o, e
    merged, total = weigh(po, pl, np.float32)
    chosen = was_split[token * group] if bug else was_split
    out, lse = np.where(chosen[:, None], merged, out), np.where(chosen, total, lse)
    return unpack((out.astype(q.dtype), lse), h)


@wrong(
    case(45, 176, "float32", heads=3, kv_heads=1, batch=2),
    truth="Stream-K: tiles of 8 queries by 4 heads (3 and one of padding) over 11 tiles of 16 keys, cut into 5 runs "
    "of work, which cuts 4 tiles. (1) The first part of a cut tile is kept with a row for the padded head "
    "(query * 4 + head) and read at query * 3 + head, so that all but query 0 of the tile add partials of other "
    "rows, or of the padding (q of zeros, scores 0); (2) the fix-up adds the sum of the first part without its "
    "factor exp(m_first - m), which matters where the second part has the maximum. Tiles that are not cut are "
    "right",
    source="llama.cpp#19115",
    faults=2,
)
def stream_k_fixup(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Runs of tiles of keys that cross tiles of queries, and a fix-up of the tiles that were cut."""
    b, h, sq, d = q.shape
    hk, sk = k.shape[1:3]
    group, padded = h // hk, 4
    nk, nq = cdiv(sk, 16), cdiv(sq, 8)
    work = b * hk * nq * nk
    cuts = {n * work // 5 for n in range(1, 5)}
    out, lse = np.zeros((b, h, sq, v.shape[3]), q.dtype), np.zeros((b, h, sq), np.float32)
    for tile in range(b * hk * nq):
        n, rest = divmod(tile, hk * nq)
        a, c = divmod(rest, nq)
        query = np.arange(c * 8, min(sq, c * 8 + 8))
        qt = np.zeros((len(query), padded, d), np.float32)
        qt[:, :group] = q[n, a * group : (a + 1) * group, query].astype(np.float32).reshape(len(query), group, d)
        qt = qt.reshape(-1, d)
        i = np.repeat(query + sk - sq, padded)[:, None]
        parts, state = [], start(qt[None, None], v)
        for kt in range(nk):
            if tile * nk + kt in cuts and kt:
                parts.append(state)
                state = start(qt[None, None], v)
            keys = slice(kt * 16, min(kt * 16 + 16, sk))
            s = masked(dot(qt, k[n, a, keys].astype(np.float32)) * scale, visible(i, np.arange(sk)[None, keys], causal))
            state = step(state, s[None, None], v[n : n + 1, a : a + 1, keys].astype(np.float32), q.dtype)
        m, den, acc = (x[:, :, np.arange(len(qt)) % padded < group] for x in state)
        row = np.arange(len(query))[:, None] * (group if bug else padded) + np.arange(group)
        for part in parts:
            pm, pd, pa = (x[:, :, row.reshape(-1)] for x in part)
            new = np.maximum(m, pm)
            alpha, beta = np.exp(m - safe(new)), np.exp(pm - safe(new))
            den = den * alpha + (pd if bug else pd * beta)
            m, acc = new, acc * alpha + pa * beta
        o, e = finish(m, den, acc, q.dtype)
        heads = slice(n, n + 1), slice(a * group, (a + 1) * group), slice(query[0], query[-1] + 1)
        out[heads] = o.reshape(1, len(query), group, -1).swapaxes(1, 2)
        lse[heads] = e.reshape(1, len(query), group).swapaxes(1, 2)
    return out, lse


@wrong(
    case(150, 128, "bfloat16", heads=2, kv_heads=1, head_dim=64),
    truth="The combine keeps the weights of 8 rows in shared memory without a barrier: in blocks 3, 7, 11, ... of a "
    "head (rows 24..31, 56..63, 88..95, 120..127) the weights of split 2 are read before they are written and are "
    "those of the 8 rows before (row - 8); lse is right",
    source="CK#2934",
)
def combine_race(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A combine of four splits by blocks of 8 rows."""
    qf, kf, vf = spread(q, k, v)
    s = scores(qf, kf, scale, causal)
    outs, lses = states([chunk(s[..., t], vf[:, :, t], q.dtype) for t in bounds(s.shape[3], 4)])
    m = lses.max(0)
    total = np.where(m == -np.inf, m, safe(m) + np.log(np.exp(lses - safe(m)).sum(0)))
    shared = np.zeros((4, *s.shape[:2], 8, 1), np.float32)
    out = np.zeros(outs.shape[1:], np.float32)
    for n, t in enumerate(tiles(s.shape[2], 8)):
        count = t.stop - t.start
        seen = shared.copy()
        shared[:, :, :, :count] = np.exp(lses[:, :, :, t] - safe(total[:, :, t]))
        weights = shared[:, :, :, :count].copy()
        if bug and n % 4 == 3:
            weights[2] = seen[2, :, :, :count]
        out[:, :, t] = (weights * outs[:, :, :, t]).sum(0)
    return out.astype(q.dtype), total[..., 0].astype(np.float32)


@wrong(
    case(64, 100, "float16", heads=2, batch=2, causal=True),
    truth="A barrier is missing at the end of the loop over rows: while a warp sums row r, row r + 1's partial of "
    "split 0 has been loaded over the stage that holds split 2's of row r (splits go round two stages); all rows but "
    "the last of a warp's four (r % 4 == 3) take it with the weight of split 2, where that is not 0",
    source="flashinfer#1661",
)
def stages_of_merge(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A merge of three index sets by rows, partials loaded ahead through two stages."""
    qf, kf, vf = spread(q, k, v)
    s = scores(qf, kf, scale, causal)
    outs, lses = states([chunk(s[..., t], vf[:, :, t], q.dtype) for t in bounds(s.shape[3], 3)])
    sq = s.shape[2]
    stages = np.zeros((2, *outs.shape[1:3], outs.shape[4]), np.float32)
    m = np.full((*outs.shape[1:4], 1), -np.inf, np.float32)
    den, acc = np.zeros_like(m), np.zeros(outs.shape[1:], np.float32)
    for r in range(sq):
        for n in range(3):
            stages[n % 2] = outs[n, :, :, r]
            if bug and n == 2 and r % 4 != 3 and r + 1 < sq:
                stages[0] = outs[0, :, :, r + 1]
            new = np.maximum(m[:, :, r], lses[n, :, :, r])
            alpha, beta = np.exp(m[:, :, r] - safe(new)), np.exp(lses[n, :, :, r] - safe(new))
            m[:, :, r], den[:, :, r] = new, den[:, :, r] * alpha + beta
            acc[:, :, r] = acc[:, :, r] * alpha + stages[n % 2] * beta
    return finish(m, den, acc, q.dtype)


@wrong(
    case(24, 160, "float32", heads=4, kv_heads=2, head_dim=48),
    truth="(1) The workspace has four slots for five splits (slot = split % 4): split 4's partial accumulator "
    "overwrites split 0's and is merged for both; (2) the release comes before the stores of the last writer: the "
    "reduction of heads 1 and 3 reads for split 3 the accumulator that the head before left. Maxima, sums and lse "
    "have slots of their own",
    source="TensorRT-LLM#18755, Fuser#2391",
    faults=2,
)
def small_workspace(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """One kernel of five splits and a reduction by the last block, a workspace reused from head to head."""
    qf, kf, vf = spread(q, k, v)
    b, h, sq, _ = qf.shape
    s = scores(qf, kf, scale, causal)
    slots = 4 if bug else 5
    space = np.zeros((slots, b, 1, sq, vf.shape[3]), np.float32)
    outs, lses = [], []
    for a in range(h):
        stats, late = [], space[3].copy()
        for n, t in enumerate(bounds(s.shape[3], 5)):
            m, den, acc = chunk(s[:, [a], :, t], vf[:, [a], t], q.dtype)
            space[n % slots] = acc
            stats.append((m, den))
        accs = [space[n % slots].copy() for n in range(5)]
        if bug and a % 2:
            accs[3] = late
        out, lse = merge([(m, den, acc) for (m, den), acc in zip(stats, accs, strict=True)], q.dtype)
        outs.append(out)
        lses.append(lse)
    return np.concatenate(outs, 1), np.concatenate(lses, 1)
