"""Faults of layouts: index maps, strides, head maps, pages, scratch slots and stores."""

import numpy as np

from ..record import (
    Array,
    Pair,
    case,
    cdiv,
    dot,
    finish,
    grid,
    join,
    masked,
    merge,
    read,
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


def exponent(x: Array, axis: int = -1) -> Array:
    """The power of two at or under the largest magnitude along an axis."""
    return np.exp2(np.floor(np.log2(np.maximum(np.abs(x).max(axis, keepdims=True), 1e-30))))


@wrong(
    case(77, 97, "float16", heads=3, kv_heads=1, causal=True),
    truth="The bound of the Q load lost its comparison (`row ? q : 0` for `row < Sq ? q : 0`): query 0 of each head "
    "is loaded as zeros, so that its scores are all 0 and out is the plain mean of the visible values; other rows are "
    "right",
    source="llama.cpp#7904",
)
def tile_first_query(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Tiles of 16 queries loaded under a guard, online softmax over 32 keys."""
    b, h, sq, d = q.shape
    _, kf, vf = spread(q, k, v)
    sk = kf.shape[2]
    base = np.arange(b * h).reshape(b, h, 1) * sq
    pairs = []
    for ic0 in range(0, sq, 16):
        row = ic0 + np.arange(16)
        guard = row != 0 if bug else row < sq
        qt = np.where(guard[:, None], read(q, (base + row)[..., None] * d + np.arange(d)), 0)
        state = start(qt, vf)
        for t in tiles(sk, 32):
            seen = visible(row[:, None] + sk - sq, np.arange(sk)[None, t], causal)
            state = step(state, masked(dot(qt, kf[:, :, t]) * scale, seen), vf[:, :, t], q.dtype)
        pairs.append(finish(*state, q.dtype))
    out, lse = join(pairs)
    return out[:, :, :sq], lse[:, :, :sq]


@wrong(
    case(80, 112, "bfloat16", heads=4, kv_heads=2, batch=2),
    truth="The launcher of the vector path, which takes the 16 queries after the last whole tile of 64, passes K for "
    "Q: queries 64..79 of each head are read from K at Q's offsets (past the end of K they wrap round); queries 0..63 "
    "are right",
    source="llama.cpp#9374",
)
def vec_path_src1(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Whole tiles of 64 queries take a matrix path, the rest a path of vectors."""
    b, h, sq, d = q.shape
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    pairs = []
    for t in tiles(sq, 64):
        rows = np.arange(t.start, t.stop)
        vector = len(rows) < 64
        offsets = ((np.arange(b * h).reshape(b, h, 1) * sq + rows)[..., None]) * d + np.arange(d)
        qt = read(k if bug and vector else q, offsets) if vector else qf[:, :, t]
        state = start(qt, vf)
        for n in tiles(kf.shape[2], 16 if vector else 64):
            s = masked(dot(qt, kf[:, :, n]) * scale, visible(i[t], j[:, n], causal))
            state = step(state, s, vf[:, :, n], q.dtype)
        pairs.append(finish(*state, q.dtype))
    return join(pairs)


@wrong(
    case(5, 107, "float32", heads=3, kv_heads=3, batch=2),
    truth="Each of 32 lanes walks the keys lane, lane + 32, ... by the count of blocks of 32 without testing j < Sk: "
    "the keys 107..127 are read as well, which are the first 21 keys and values of the next head (of the first one "
    "for the last head), and take part in maximum, sum and accumulator",
    source="pytorch#169222",
)
def simd_lanes_unbounded(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Decoding: a running softmax for each of 32 lanes over strided keys, merged over the lanes."""
    b, h, sq, d = q.shape
    sk, group = k.shape[2], h // k.shape[1]
    qf = q.astype(np.float32)
    i, _ = grid(q, k)
    lanes = np.arange(32)
    head = (np.arange(b)[:, None] * k.shape[1] + np.arange(h) // group)[:, :, None]
    m = np.full((b, h, sq, 32), -np.inf, np.float32)
    den, acc = np.zeros_like(m), np.zeros((b, h, sq, 32, v.shape[3]), np.float32)
    for block in range(cdiv(sk, 32)):
        j = block * 32 + lanes
        offsets = (head * sk + j)[..., None]
        kt = read(k, offsets * d + np.arange(d))
        vt = read(v, offsets * v.shape[3] + np.arange(v.shape[3]))
        seen = visible(i, np.minimum(j, sk - 1)[None], causal)
        if not bug:
            seen = seen & (j < sk)
        s = masked(dot(qf, kt) * scale, seen)
        new = np.maximum(m, s)
        p, alpha = np.exp(s - safe(new)), np.exp(m - safe(new))
        m, den = new, den * alpha + p
        acc = acc * alpha[..., None] + rounded(p, q.dtype)[..., None] * vt[:, :, None]
    return merge([(m[..., [n]], den[..., [n]], acc[..., n, :]) for n in range(32)], q.dtype)


@wrong(
    case(44, 61, "float16", heads=4, kv_heads=2, batch=2, head_dim=32, causal=True),
    truth="Packed tokens [token, head, dim]. (1) K of sequence b starts at cu_k[b] * heads * D for cu_k[b] * kv_heads "
    "* D, so that sequence 1 reads (round the end) K of sequence 0; (2) V of sequence b starts at token cu_q[b], so "
    "that sequence 1 reads values 17 tokens too early, the first 17 from sequence 0. Sequence 0 is right",
    source="jax be78ee0f15",
    faults=2,
)
def packed_tokens(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Packed sequences, heads folded by group, blocks of 32 keys."""
    b, h, sq, d = q.shape
    hk, sk, dv = k.shape[1], k.shape[2], v.shape[3]
    kp, vp = (np.ascontiguousarray(x.swapaxes(1, 2)) for x in (k, v))
    outs, lses = [], []
    for n in range(b):
        cu_q, cu_k = n * sq, n * sk
        qf = q[n : n + 1].astype(np.float32)
        k0 = cu_k * (h if bug else hk) * d
        v0 = (cu_q if bug else cu_k) * hk * dv
        state = start(qf, v)
        head = (np.arange(h) // (h // hk))[:, None, None]
        for t in tiles(sk, 32):
            j = np.arange(sk)[t]
            kt = read(kp, k0 + (j[:, None] * hk + head) * d + np.arange(d))[None]
            vt = read(vp, v0 + (j[:, None] * hk + head) * dv + np.arange(dv))[None]
            s = masked(dot(qf, kt) * scale, visible(np.arange(sk - sq, sk)[:, None], j[None], causal))
            state = step(state, s, vt, q.dtype)
        out, lse = finish(*state, q.dtype)
        outs.append(out)
        lses.append(lse)
    return np.concatenate(outs), np.concatenate(lses)


@wrong(
    case(70, 150, "float32", heads=2, kv_heads=1),
    truth="The block index of V is clamped to the blocks of Q's length (3 of 32 rows) where K has 5: for keys 96..149 "
    "the weights are right, and yet V's third block (rows 64..95) is multiplied in their place; the sums are right",
    source="jax bd9a10e4eb",
)
def pallas_v_blocks(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A grid over blocks of 32 queries and keys with index maps that clamp to the last block."""
    qf, kf, vf = spread(q, k, v)
    sq, sk = qf.shape[2], kf.shape[2]
    i, j = grid(q, k)
    last = cdiv(sq if bug else sk, 32) - 1
    pairs = []
    for t in tiles(sq, 32):
        state = start(qf[:, :, t], vf)
        for n in range(cdiv(sk, 32)):
            keys = slice(n * 32, min(n * 32 + 32, sk))
            v0 = min(n, last) * 32
            vt = vf[:, :, v0 : v0 + keys.stop - keys.start]
            s = masked(dot(qf[:, :, t], kf[:, :, keys]) * scale, visible(i[t], j[:, keys], causal))
            state = step(state, s, vt, q.dtype)
        pairs.append(finish(*state, q.dtype))
    return join(pairs)


def remap(pid: int, count: int, dies: int) -> int:
    """The head that a program takes when heads are dealt to dies in contiguous runs."""
    per, tall = cdiv(count, dies), count % dies or dies
    die, local = pid % dies, pid // dies
    return die * per + local if die < tall else tall * per + (die - tall) * (per - 1) + local


@wrong(
    case(50, 83, "bfloat16", heads=4, kv_heads=2, causal=True),
    truth="(1) Programs are mapped to heads with a count of H - 1: programs 0..3 take heads 0, 1, 2, 1, so that head "
    "3 is never written (out 0, lse 0); (2) the head of K and V comes from the program id before the mapping: head 1 "
    "(written last by program 3) reads K and V of head 1 where it should read 0; heads 0 and 2 are right",
    source="aiter#612",
    faults=2,
)
def xcd_heads(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A program for each head, remapped over 3 dies."""
    b, h, sq, _ = q.shape
    group = h // k.shape[1]
    qf, kf, vf = (x.astype(np.float32) for x in (q, k, v))
    out, lse = np.zeros((b, h, sq, v.shape[3]), q.dtype), np.zeros((b, h, sq), np.float32)
    for pid in range(h):
        hq = remap(pid, h - 1 if bug else h, 3)
        hk = (pid if bug else hq) // group
        s = scores(qf[:, [hq]], kf[:, [hk]], scale, causal)
        state = start(s, vf)
        for t in tiles(s.shape[3], 32):
            state = step(state, s[..., t], vf[:, [hk], t], q.dtype)
        out[:, [hq]], lse[:, [hq]] = finish(*state, q.dtype)
    return out, lse


@wrong(
    case(96, 75, "bfloat16", heads=2, head_dim=96, batch=2),
    truth="The predicate of Q's register prefetch counts chunks of 16 bytes as if elements had one byte: after the "
    "first tile of 32 queries only dims 0..47 are loaded, and dims 48..95 keep the first tile's query of the same row "
    "(query i reads the upper half of query i % 32); queries 0..31 are right",
    source="flashinfer#2689 (prefetch predicate)",
)
def q_prefetch_half(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Persistent tiles of 32 queries whose registers are filled by chunks of 16 bytes."""
    qf, kf, vf = spread(q, k, v)
    d, sq = qf.shape[3], qf.shape[2]
    i, j = grid(q, k)
    chunk = 16 // q.dtype.itemsize
    registers = np.zeros((*qf.shape[:2], 32, d), np.float32)
    pairs = []
    for n, t in enumerate(tiles(sq, 32)):
        rows = t.stop - t.start
        for c in range(d // chunk):
            if n == 0 or not bug or c * 16 < d:
                part = slice(c * chunk, (c + 1) * chunk)
                registers[:, :, :rows, part] = qf[:, :, t, part]
        state = start(registers[:, :, :rows], vf)
        for keys in tiles(kf.shape[2], 32):
            s = masked(dot(registers[:, :, :rows], kf[:, :, keys]) * scale, visible(i[t], j[:, keys], causal))
            state = step(state, s, vf[:, :, keys], q.dtype)
        pairs.append(finish(*state, q.dtype))
    return join(pairs)


@wrong(
    case(3, 141, "float16", heads=4, kv_heads=2, batch=2, causal=True),
    truth="K is stored with a power of two a token as its scale. The gather of the scale takes page * 16 without "
    "token % 16: every token of a page is scaled by the scale of the page's first token, so that scores are off by 2 "
    "or 1/2 where these differ; the codes of K are gathered right",
    source="aiter#4825",
)
def paged_k_scale(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Decoding from pages of 16 tokens, a scale of K for each token."""
    b, h, sq, d = q.shape
    hk, sk = k.shape[1:3]
    page, pages = 16, cdiv(sk, 16)
    table = np.random.default_rng(7).permutation(b * pages).reshape(b, pages)
    cache = np.zeros((2, b * pages * page, hk, d), np.float32)
    token = np.arange(sk)
    slots = table[:, token // page] * page + token % page
    for n, x in enumerate((k, v)):
        cache[n][slots] = x.astype(np.float32).swapaxes(1, 2)
    factor = exponent(cache[0])
    codes = cache[0] / factor
    qf = q.reshape(b, hk, h // hk * sq, d).astype(np.float32)
    i = np.tile(np.arange(sk - sq, sk), h // hk)[:, None]
    state = start(qf, v)
    for t in tiles(sk, 48):
        where = slots[:, t]
        scale_at = table[:, token[t] // page] * page + (0 if bug else token[t] % page)
        kt = (codes[where] * factor[scale_at]).swapaxes(1, 2)
        s = masked(dot(qf, kt) * scale, visible(i, token[None, t], causal))
        state = step(state, s, cache[1][where].swapaxes(1, 2), q.dtype)
    out, lse = finish(*state, q.dtype)
    return out.reshape(b, h, sq, -1), lse.reshape(b, h, sq)


@wrong(
    case(65, 128, "float16", heads=4, kv_heads=2, head_dim=64),
    truth="K and V are stored with powers of two as scales of 16 dims. (1) V's scales are stored with the groups of a "
    "token as 0, 2, 1, 3 and read in order, so that dims 16..31 and 32..47 take each other's scale; (2) K's scales "
    "are read from K head 0 for all heads: query heads 2 and 3 have K's groups off by powers of two",
    source="vllm#46329, rocm-libraries#10474",
    faults=2,
)
def block_scales(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Codes of K and V with a scale for 16 dims, V's scales swizzled in groups of four."""
    qf, kf, vf = (x.astype(np.float32) for x in (q, k, v))
    b, hk, sk, d = kf.shape
    kg, vg = kf.reshape(b, hk, sk, -1, 16), vf.reshape(b, hk, sk, -1, 4, 16)
    ks, vs = exponent(kg), exponent(vg)
    order = np.array([0, 2, 1, 3])
    stored = vs[..., order, :]
    kcodes, vcodes = kg / ks, vg / vs
    group = q.shape[1] // hk
    i, j = grid(q, k)
    outs, lses = [], []
    for h in range(q.shape[1]):
        n = h // group
        kh = (kcodes[:, n] * ks[:, 0 if bug else n]).reshape(b, 1, sk, d)
        vh = (vcodes[:, n] * (stored[:, n] if bug else stored[:, n][..., order, :])).reshape(b, 1, sk, d)
        state = start(qf[:, [h]], vh)
        for t in tiles(sk, 64):
            s = masked(dot(qf[:, [h]], kh[:, :, t]) * scale, visible(i, j[:, t], causal))
            state = step(state, s, vh[:, :, t], q.dtype)
        out, lse = finish(*state, q.dtype)
        outs.append(out)
        lses.append(lse)
    return np.concatenate(outs, 1), np.concatenate(lses, 1)


@wrong(
    case(88, 128, "float32", heads=3, causal=True, window_size=(24, 0)),
    truth="A tile of 32 queries that sees no key of its split stores zeros and -inf to all 32 rows of its tile, not "
    "to those under Sq: the last tile (rows 64..95) of split 0 clears rows 0..7 of the next head, whose keys all lie "
    "in split 0: out 0 and lse -inf for queries 0..7 of heads 1 and 2",
    source="flash-attn a3a257c7",
)
def early_exit_store(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, window_size: tuple[int, int], bug: bool = True
) -> Pair:
    """Two splits of the keys, heads from the last to the first, rows of partials one after the other."""
    b, h, sq, _ = q.shape
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    sk, dv = kf.shape[2], vf.shape[3]
    rows = b * h * sq
    po = np.zeros((2, rows + 32, dv), np.float32)
    pl = np.full((2, rows + 32), -np.inf, np.float32)
    for split in range(2):
        keys = slice(split * cdiv(sk, 2), min(sk, (split + 1) * cdiv(sk, 2)))
        for n in range(b * h - 1, -1, -1):
            bi, hi = divmod(n, h)
            for t in tiles(sq, 32):
                seen = visible(i[t], j[:, keys], causal, window_size)
                row = n * sq + t.start
                if not seen.any():
                    stop = row + (32 if bug else t.stop - t.start)
                    po[split, row:stop], pl[split, row:stop] = 0, -np.inf
                    continue
                s = masked(dot(qf[bi, hi, t], kf[bi, hi, keys]) * scale, seen)
                m = top(s)
                p = np.exp(s - safe(m))
                den = p.sum(-1, keepdims=True)
                out, lse = finish(m, den, rounded(p, q.dtype) @ vf[bi, hi, keys], np.float32)
                po[split, row : row + len(out)], pl[split, row : row + len(out)] = out, lse
    shape = (2, b, h, sq)
    lse = pl[:, :rows].reshape(*shape, 1)
    out = po[:, :rows].reshape(*shape, dv)
    m = lse.max(0)
    w = np.exp(lse - safe(m))
    return finish(m, w.sum(0), (w * out).sum(0), q.dtype)


@wrong(
    case(33, 135, "float16", heads=2, head_dim=32, batch=2, causal=True),
    truth="V is double-buffered in one scratch whose slot 1 begins at row 1, not at row 32: the prefetch of tile t + "
    "1 overlaps the tile in use. For even t the rows 1..31 are those before them of tile t + 1, for odd t the rows "
    "0..30 are the rows 1..31 of tile t + 1 (of the last tile, 7 rows long, 6); with no prefetch in flight, the last "
    "tile is right",
    source="flashinfer#3276",
)
def v_scratch_slot(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Tiles of 32 keys, V through a scratch of two slots, filled one tile ahead."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    sk, size = kf.shape[2], 32
    scratch = np.zeros((*vf.shape[:2], 2 * size, vf.shape[3]), np.float32)
    keys = list(tiles(sk, size))

    def fill(n: int) -> None:
        first = n % 2 * (1 if bug else size)
        scratch[:, :, first : first + keys[n].stop - keys[n].start] = vf[:, :, keys[n]]

    fill(0)
    state = start(qf, vf)
    for n, t in enumerate(keys):
        if n + 1 < len(keys):
            fill(n + 1)
        first = n % 2 * (1 if bug else size)
        s = masked(dot(qf, kf[:, :, t]) * scale, visible(i, j[:, t], causal))
        state = step(state, s, scratch[:, :, first : first + t.stop - t.start], q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(53, 72, "bfloat16", heads=4, kv_heads=2, causal=True),
    truth="The last tile of 16 queries (48..63) stores the rows past Sq too, after all heads stored their first tile: "
    "rows 0..10 of heads 1, 2 and 3 are overwritten by their own queries with K and V of the head before and the "
    "causal limit of rows 53..63 (all keys visible): heads 1 and 3 share K and V with it and err by the mask alone",
    source="llama.cpp#7479",
)
def tail_rows_store(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Tiles of 16 queries outside, heads inside; rows past the end are read from what follows."""
    b, h, sq, d = q.shape
    _, kf, vf = spread(q, k, v)
    sk, dv = kf.shape[2], vf.shape[3]
    rows = b * h * sq
    out, lse = np.zeros((rows + 16, dv), q.dtype), np.zeros(rows + 16, np.float32)
    for i0 in range(0, sq, 16):
        for n in range(b * h):
            row = i0 + np.arange(16)
            qt = read(q, (n * sq + row)[:, None] * d + np.arange(d))[None, None]
            kt, vt = (x.reshape(-1, *x.shape[2:])[n][None, None] for x in (kf, vf))
            s = masked(dot(qt, kt) * scale, visible(row[:, None] + sk - sq, np.arange(sk)[None], causal))
            state = start(qt, vt)
            for t in tiles(sk, 64):
                state = step(state, s[..., t], vt[:, :, t], q.dtype)
            o, e = finish(*state, q.dtype)
            count = 16 if bug else min(16, sq - i0)
            first = n * sq + i0
            out[first : first + count], lse[first : first + count] = o[0, 0, :count], e[0, 0, :count]
    return out[:rows].reshape(b, h, sq, dv), lse[:rows].reshape(b, h, sq)


@wrong(
    case(100, 145, "bfloat16", heads=2, kv_heads=1, head_dim=96, causal=True),
    truth="(1) V's tile is stored over K's before the second part of Q K^T: for every second tile of 48 keys (48..95 "
    "and 144) dims 64..95 of K are V's; (2) O is staged over V's first tile: for queries past 49 dims 64..95 of "
    "values 0..47 are the outputs of the query tile before (query 0..47 of it)",
    source="rocm-libraries#4742, xformers 8ac612ea",
    faults=2,
)
def lds_v_over_k(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Tiles of 50 queries and 48 keys, Q K^T in parts of 64 dims, shared memory reused between stages."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    staged: Array | None = None
    pairs = []
    for t in tiles(qf.shape[2], 50):
        state = start(qf[:, :, t], vf)
        for n, keys in enumerate(tiles(kf.shape[2], 48)):
            sk, sv = kf[:, :, keys].copy(), vf[:, :, keys].copy()
            s = dot(qf[:, :, t, :64], sk[..., :64])
            if bug and n % 2:
                sk[..., 64:] = sv[..., 64:]
            s = s + dot(qf[:, :, t, 64:], sk[..., 64:])
            if bug and n == 0 and staged is not None:
                sv[..., 64:] = staged[:, :, : sv.shape[2], 64:]
            state = step(state, masked(s * scale, visible(i[t], j[:, keys], causal)), sv, q.dtype)
        pairs.append(finish(*state, q.dtype))
        staged = pairs[-1][0].astype(np.float32)
    return join(pairs)
