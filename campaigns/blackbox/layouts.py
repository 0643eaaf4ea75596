"""Faults of layouts and index maps of Q, K, V and out."""

import numpy as np

from .record import (
    Array,
    Pair,
    case,
    cdiv,
    chunk,
    dot,
    eager,
    finish,
    grid,
    join,
    masked,
    merge,
    online,
    pack,
    pad,
    read,
    rounded,
    safe,
    scores,
    spread,
    start,
    step,
    tiles,
    top,
    unpack,
    visible,
    wrong,
)


@wrong(
    case(64, 80, "float32", heads=2, head_dim=64, head_dim_v=32),
    truth="layout: V's rows are D (K's row stride) apart for Dv: row j of a head is read at its base + j * D, row j * "
    "D / Dv counted from the head's first, which runs on into later heads and wraps at the end of V",
    source="mlx#1558",
)
def v_by_k_stride(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Online softmax over tiles of 16 keys; V at flat offsets."""
    qf, kf, _ = spread(q, k, v)
    b, hk, sk, dv = v.shape
    base = np.arange(b * hk).reshape(b, hk, 1, 1) * sk * dv
    index = base + np.arange(sk)[:, None] * (k.shape[3] if bug else dv) + np.arange(dv)
    vf = np.repeat(read(v, index), q.shape[1] // hk, axis=1)
    return online(scores(qf, kf, scale, causal), vf, q.dtype, 16)


@wrong(
    case(4, 128, "float16", heads=6, kv_heads=2, batch=3, causal=True),
    truth="layout: the batch term is missing in the offsets of K and V: every batch entry reads those of entry 0",
    source="mlx#4431",
)
def kv_batch_term(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Two passes: partial results of blocks of 32 keys, then a merge."""
    qf, kf, vf = spread(q, k, v)
    if bug:
        kf, vf = (np.broadcast_to(x[:1], x.shape) for x in (kf, vf))
    s = scores(qf, kf, scale, causal)
    return merge([chunk(s[..., t], vf[:, :, t], q.dtype) for t in tiles(k.shape[2], 32)], q.dtype)


@wrong(
    case(48, 48, "float32", heads=4, kv_heads=2, batch=2, head_dim=32, causal=True),
    truth="layout: head offsets are (h // heads) * stride for h * stride: every head reads Q, K and V of head 0",
    source="attorch#14",
)
def head_zero(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A program for each batch entry and head; eager."""
    out, lse = np.empty((*q.shape[:3], v.shape[3]), q.dtype), np.empty(q.shape[:3], np.float32)
    for b, h in np.ndindex(q.shape[:2]):
        at = h // q.shape[1] if bug else h
        hk = at // (q.shape[1] // k.shape[1])
        one = (q[b, at], k[b, hk], v[b, hk])
        qf, kf, vf = (x.astype(np.float32)[None, None] for x in one)
        out[b : b + 1, h : h + 1], lse[b : b + 1, h : h + 1] = eager(scores(qf, kf, scale, causal), vf, q.dtype)
    return out, lse


@wrong(
    case(40, 72, "bfloat16", heads=3, batch=2),
    truth="layout: program z reads batch entry z % batch and head z // batch of Q, K and V, and stores out and lse to "
    "batch entry z // heads and head z % heads",
    source="cutlass#2291",
)
def batch_head_divmod(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """A grid over batch entries and heads, one after the other; online softmax over tiles of 24 keys."""
    qf, kf, vf = spread(q, k, v)
    b, h = q.shape[:2]
    if bug:
        z = np.arange(b * h)
        qf, kf, vf = (x[z % b, z // b].reshape(x.shape) for x in (qf, kf, vf))
    return online(scores(qf, kf, scale, causal), vf, q.dtype, 24)


@wrong(
    case(64, 64, "float32", heads=6, kv_heads=2, causal=True),
    faults=2,
    truth="layout: head h reads head h % kv_heads of K and V for h // (heads // kv_heads); and Q, multiplied by scale "
    "when loaded, gives scores that are multiplied by scale again",
    source="class of GQA head maps (expand against repeat_interleave); vllm#48016 class",
)
def kv_head_modulo_rescaled(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Online softmax over tiles of 32 keys; Q is scaled when loaded."""
    h, hk = q.shape[1], k.shape[1]
    head = np.arange(h) % hk if bug else np.arange(h) // (h // hk)
    qf, kf, vf = q.astype(np.float32) * scale, k.astype(np.float32)[:, head], v.astype(np.float32)[:, head]
    return online(scores(qf, kf, scale if bug else 1.0, causal), vf, q.dtype, 32)


@wrong(
    case(36, 100, "float16", heads=6, kv_heads=3, causal=True),
    truth="layout: the head of V is h % kv_heads for h // (heads // kv_heads); that of K is right",
    source="class of GQA head maps (guard or map right for K, not for V)",
)
def v_head_modulo(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Eager softmax of whole rows."""
    qf, kf, vf = spread(q, k, v)
    if bug:
        vf = v.astype(np.float32)[:, np.arange(q.shape[1]) % v.shape[1]]
    return eager(scores(qf, kf, scale, causal), vf, q.dtype)


@wrong(
    case(33, 65, "float32", heads=3, head_dim=32),
    truth="layout: row i of head h of out is stored at row i * heads + h of its batch entry for h * Sq + i; lse is "
    "right",
    source="mlx#2152",
)
def out_row_interleaved(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Online softmax over tiles of 8 keys, stores to flat rows."""
    qf, kf, vf = spread(q, k, v)
    out, lse = online(scores(qf, kf, scale, causal), vf, q.dtype, 8)
    b, h, sq, dv = out.shape
    row, i = np.arange(h)[:, None], np.arange(sq)
    flat = np.zeros((b, h * sq, dv), out.dtype)
    flat[:, i * h + row if bug else row * sq + i] = out
    return flat.reshape(out.shape), lse


@wrong(
    case(64, 64, "float32", heads=4, batch=2, causal=True),
    truth="layout: Q is read as if it lay as [batch, Sq, heads, D]: query i of head h reads row i * heads + h of its "
    "batch entry's rows (head-major), for h * Sq + i",
    source="pytorch#181151 (contiguous strides assumed for permuted tensors)",
)
def q_as_bshd(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Online softmax over tiles of 32 keys."""
    qf, kf, vf = spread(q, k, v)
    if bug:
        b, h, sq, d = qf.shape
        qf = qf.reshape(b, sq, h, d).swapaxes(1, 2)
    return online(scores(qf, kf, scale, causal), vf, q.dtype, 32)


@wrong(
    case(50, 70, "bfloat16", heads=2, causal=True),
    truth="layout: the store of a tile of 32 columns of out lacks the tile's offset: columns 0 to 31 hold the last "
    "tile's, columns 32 and above are never stored and stay 0",
    source="fla#1028, fla#1031",
)
def out_column_tile(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Eager; out by tiles of 32 columns."""
    qf, kf, vf = spread(q, k, v)
    s, out = scores(qf, kf, scale, causal), np.zeros((*q.shape[:3], v.shape[3]), q.dtype)
    for t in tiles(v.shape[3], 32):
        tile, lse = eager(s, vf[..., t], q.dtype)
        out[..., slice(0, t.stop - t.start) if bug else t] = tile
    return out, lse


@wrong(
    case(64, 64, "float32", heads=4, kv_heads=2, batch=2, head_dim=40, causal=True),
    faults=2,
    truth="layout: q.k runs over D // 16 slices of 16 dimensions, so that the last D % 16 (32 to 39 of 40) are "
    "missing; and V's batch term is missing, all entries read V of entry 0",
    source="class of head dimensions that are no multiple of the MMA's k; mlx#4431",
)
def head_dim_floor(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Slices of 16 dimensions in q.k; online softmax over tiles of 16 keys."""
    qf, kf, vf = spread(q, k, v)
    s = np.float32(0)
    for n in range(q.shape[3] // 16 if bug else cdiv(q.shape[3], 16)):
        s = s + dot(qf[..., n * 16 : n * 16 + 16], kf[..., n * 16 : n * 16 + 16])
    s = masked(s * scale, visible(*grid(q, k), causal))
    return online(s, np.broadcast_to(vf[:1], vf.shape) if bug else vf, q.dtype, 16)


@wrong(
    case(48, 64, "float16", heads=2, head_dim=48),
    truth="layout: rows of Q and K of 48 dimensions are loaded 64 wide without a bound: q.k has 16 further products of "
    "the first 16 dimensions of the next rows of Q and K (the next head's after the last row, the first row after the "
    "last head)",
    source="class of head dimensions padded to a power of two (Triton BLOCK_DMODEL)",
)
def head_dim_overrun(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Rows loaded as vectors of a power of two elements; eager."""
    d = q.shape[3]
    wide = np.arange(1 << (d - 1).bit_length())

    def rows(x: Array) -> Array:
        at = np.arange(x.size // d).reshape(x.shape[:3])[..., None] * d + wide
        return read(x, at) if bug else read(x, at) * (wide < d)

    kf = np.repeat(rows(k), q.shape[1] // k.shape[1], axis=1)
    return eager(scores(rows(q), kf, scale, causal), spread(q, k, v)[2], q.dtype)


@wrong(
    case(64, 96, "float32", heads=2, batch=2, causal=True),
    truth="layout: V is stored in shared memory with its chunk c of 8 columns at c ^ (j % chunks), and read without "
    "the XOR in rows 8 to 15 of 16: their chunks c are chunks c ^ (j % chunks)",
    source="flash-attn eeca63a7 (swizzle of the writer is not the reader's)",
)
def v_swizzle_half(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Online softmax over tiles of 32 keys; V swizzled by chunks of 8 columns."""
    qf, kf, vf = spread(q, k, v)
    n, j = v.shape[3] // 8, np.arange(k.shape[2])
    n = n & -n
    flip = np.arange(v.shape[3]) ^ (j % n * 8)[:, None]
    stored = np.take_along_axis(vf, np.broadcast_to(flip, vf.shape), -1)
    back = np.where((j % 16 >= 8)[:, None], np.arange(v.shape[3]), flip) if bug else flip
    return online(
        scores(qf, kf, scale, causal), np.take_along_axis(stored, np.broadcast_to(back, vf.shape), -1), q.dtype, 32
    )


@wrong(
    case(64, 64, "float16", heads=4, kv_heads=1),
    truth="layout: in each 16 x 16 block of P, rows 8 to 15 of columns 0 to 7 and rows 0 to 7 of columns 8 to 15 are "
    "swapped as operand of P @ V (registers a1 and a2); the row sum is right",
    source="class of mma.m16n8k16 fragments: accumulator reused as A operand",
)
def p_fragment_swapped(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Eager; P in fragments of 16 x 16."""
    qf, kf, vf = spread(q, k, v)
    s = scores(qf, kf, scale, causal)
    m = top(s)
    p = np.exp(s - safe(m))
    den, p = p.sum(-1, keepdims=True), pad(pad(p, 2, 16), 3, 16)
    if bug:
        f = p.reshape(*p.shape[:2], p.shape[2] // 16, 2, 8, -1, 2, 8)
        f[..., 1, :, :, 0, :], f[..., 0, :, :, 1, :] = f[..., 0, :, :, 1, :].copy(), f[..., 1, :, :, 0, :].copy()
    return finish(m, den, rounded(p[:, :, : q.shape[2]], q.dtype) @ pad(vf, 2, 16), q.dtype)


@wrong(
    case(64, 128, "bfloat16", heads=2, causal=True),
    truth="layout: each whole 8 x 8 block of K (keys by dimensions) is loaded transposed",
    source="flashinfer#2689 (ldmatrix transposed where it should not be)",
)
def k_block_transposed(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Online softmax over tiles of 64 keys; K by blocks of 8 x 8."""
    qf, kf, vf = spread(q, k, v)
    if bug:
        n, d = k.shape[2] // 8 * 8, k.shape[3] // 8 * 8
        block = kf[:, :, :n, :d].reshape(*qf.shape[:2], n // 8, 8, d // 8, 8)
        kf[:, :, :n, :d] = block.swapaxes(3, 5).reshape(*qf.shape[:2], n, d)
    return online(scores(qf, kf, scale, causal), vf, q.dtype, 64)


def _pool(x: Array, page: int) -> tuple[Array, Array]:
    """Pages of x in a pool [batch, heads, pages, page, dim], and the table of where each is."""
    x = pad(x, 2, page)
    x = x.reshape(*x.shape[:2], -1, page, x.shape[3])
    table = np.argsort(np.arange(x.shape[2]) * 7 % 11, kind="stable")
    pool = np.empty_like(x)
    pool[:, :, table] = x
    return pool, table


@wrong(
    case(32, 144, "float32", heads=4, kv_heads=2, causal=True),
    truth="layout: V's page is looked up once for a tile of 32 keys, which has two pages of 16: V of keys 16 to 31 of "
    "each tile is V of its keys 0 to 15; K is right",
    source="TRT-LLM#18244, flashinfer#3022",
)
def v_page_hoisted(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Paged cache with pages of 16; online softmax over tiles of 32 keys."""
    qf, kf, vf = spread(q, k, v)
    (pool, table), s, state = _pool(vf, 16), scores(qf, kf, scale, causal), start(q, v)
    for t in tiles(k.shape[2], 32):
        pages = np.arange(t.start // 16, cdiv(t.stop, 16))
        pages = pages * 0 + pages[0] if bug else pages
        tile = pool[:, :, table[pages]].reshape(*q.shape[:2], -1, v.shape[3])[:, :, : t.stop - t.start]
        state = step(state, s[..., t], tile, q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(1, 160, "bfloat16", heads=4, kv_heads=2, batch=2, causal=True),
    truth="layout: tile t of 32 keys takes pages t and t + 1 of 16 from the table for 2t and 2t + 1, of K and V: the "
    "second half of a tile is read again as the first half of the next, and pages past the number of tiles are never "
    "read",
    source="flash-attn#2745 (wrong page table entries)",
)
def page_table_step(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Paged cache with pages of 16; online softmax over tiles of 32 keys."""
    qf, kf, vf = spread(q, k, v)
    (ks, table), (vs, _), state, (i, j) = _pool(kf, 16), _pool(vf, 16), start(q, v), grid(q, k)
    for n, t in enumerate(tiles(k.shape[2], 32)):
        at = table[(n if bug else 2 * n) + np.arange(cdiv(t.stop - t.start, 16))]
        kt, vt = (x[:, :, at].reshape(*q.shape[:2], -1, x.shape[4])[:, :, : t.stop - t.start] for x in (ks, vs))
        state = step(state, masked(dot(qf, kt) * scale, visible(i, j[:, t], causal)), vt, q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(48, 128, "float32", heads=2, head_dim=32),
    truth="layout: the two stages of V's buffer are 16 rows apart, the tile of queries, for 32, and tile t + 1 is "
    "prefetched before tile t is used: even tiles read rows 0 to 15 of the next for their rows 16 to 31, odd tiles "
    "rows 16 to 31 of the next for their rows 0 to 15; the last tile is right",
    source="flash-attn bbe25bac (#2338)",
)
def v_stage_pitch(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Online softmax over tiles of 32 keys, V two stages deep."""
    qf, kf, vf = spread(q, k, v)
    s, state, pitch = scores(qf, kf, scale, causal), start(q, v), 16 if bug else 32
    buffer, cuts = np.zeros((*qf.shape[:2], 64, v.shape[3]), np.float32), list(tiles(k.shape[2], 32))
    for n, t in enumerate(cuts):
        for m in range(n if n == 0 else n + 1, min(n + 2, len(cuts))):
            u = cuts[m]
            buffer[:, :, m % 2 * pitch : m % 2 * pitch + u.stop - u.start] = vf[:, :, u]
        at = n % 2 * pitch
        state = step(state, s[..., t], buffer[:, :, at : at + t.stop - t.start], q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(64, 40, "float16", heads=2, batch=2),
    truth="layout: the batch stride of out is V's, heads * Sk * Dv, for heads * Sq * Dv: entry b is stored b * heads * "
    "Sk * Dv after the start, over the end of the entry before, and the end of the buffer stays 0; lse is right",
    source="aiter#970",
)
def out_batch_stride(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Eager; out stored entry after entry, stores past the end are dropped."""
    qf, kf, vf = spread(q, k, v)
    out, lse = eager(scores(qf, kf, scale, causal), vf, q.dtype)
    flat, size = np.zeros(out.size, out.dtype), out[0].size
    for b in range(q.shape[0]):
        at = b * (q.shape[1] * k.shape[2] * v.shape[3] if bug else size)
        flat[at : at + size] = out[b].reshape(-1)[: max(0, out.size - at)]
    return flat.reshape(out.shape), lse


@wrong(
    case(50, 70, "float32", heads=2, batch=2),
    faults=2,
    truth="layout: the last partial tile of queries is loaded from Sq - 32 and stored from its own start, so that its "
    "rows hold earlier queries' out and lse; and zeros that pad K and V to tiles of 32 are not masked, each adds "
    "exp(0) to the row sum",
    source="class of clamped tile starts (Pallas, Triton block pointers); SageAttention 3917283",
)
def last_tile_shifted(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Tiles of 32 queries; online softmax over padded tiles of 32 keys."""
    qf, kf, vf = spread(q, k, v)
    kp, vp, done = pad(kf, 2, 32), pad(vf, 2, 32), []
    i, j = grid(q, k)[0], np.arange(kp.shape[2])[None]
    for r in tiles(q.shape[2], 32):
        at = max(0, min(r.start, q.shape[2] - 32)) if bug else r.start
        rows = slice(at, at + r.stop - r.start)
        seen = visible(i[rows], j, causal) & (j < (kp if bug else k).shape[2])
        done.append(online(masked(dot(qf[:, :, rows], kp) * scale, seen), vp, q.dtype, 32))
    return join(done)


@wrong(
    case(40, 60, "bfloat16", heads=6, kv_heads=2, causal=True),
    truth="layout: packed rows are i * G + g, and out and lse of query i of head g of a group are read from g * Sq + i",
    source="class of packed GQA epilogues (flash-attn PackGQA, vllm-project/flash-attention#87)",
)
def packed_rows_transposed(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Packed GQA; online softmax over tiles of 32 keys."""
    (b, h, sq, _), (_, hk, sk, _) = q.shape, k.shape
    qp = pack(q.astype(np.float32), hk)
    i = np.arange(qp.shape[2])[:, None] // (h // hk) + sk - sq
    s = masked(dot(qp, k.astype(np.float32)) * scale, visible(i, np.arange(sk)[None], causal))
    out, lse = online(s, v.astype(np.float32), q.dtype, 32)
    return (out.reshape(b, h, sq, -1), lse.reshape(b, h, sq)) if bug else unpack((out, lse), h)


@wrong(
    case(40, 80, "float32", heads=4, kv_heads=2, causal=True),
    truth="layout: K's cache is [D / 8, Sk, 8] in a head and is read as [D / 4, Sk, 4]: K[j, d] is the element (d // "
    "4) * 4 * Sk + 4 * j + d % 4 of the head's memory",
    source="class of vLLM key caches (x = 16 / itemsize)",
)
def k_cache_x(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Key cache split along D by 8; eager."""
    qf, kf, vf = spread(q, k, v)
    b, h, sk, d = kf.shape
    cache, x = kf.reshape(b, h, sk, d // 8, 8).swapaxes(2, 3), 4 if bug else 8
    kf = np.ascontiguousarray(cache).reshape(b, h, d // x, sk, x).swapaxes(2, 3).reshape(b, h, sk, d)
    return eager(scores(qf, kf, scale, causal), vf, q.dtype)


@wrong(
    case(2, 128, "float16", heads=4, kv_heads=2, batch=2, causal=True),
    truth="layout: pages of K and V alternate in a head's cache, and the stride of a page leaves V's out: page p of K "
    "is read at half page p for 2p and page p of V at p + 1 for 2p + 1: K gets K's page p / 2 for even p and V's (p - "
    "1) / 2 for odd p, V gets V's page p / 2 for even p and K's (p + 1) / 2 for odd p",
    source="aiter#3498 (page stride assumed)",
)
def kv_page_stride(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Pages of 16 keys and of their values, one after the other; online softmax over tiles of 16 keys."""
    qf, kf, vf = spread(q, k, v)
    kp, vp = (pad(x, 2, 16).reshape(*x.shape[:2], -1, 16, x.shape[3]) for x in (kf, vf))
    cache = np.stack([kp, vp], 3).reshape(*kp.shape[:2], -1, 16, kp.shape[4])
    p = np.arange(kp.shape[2]) * (1 if bug else 2)
    kf, vf = (cache[:, :, p + n].reshape(*qf.shape[:2], -1, q.shape[3])[:, :, : k.shape[2]] for n in (0, 1))
    return online(scores(qf, kf, scale, causal), vf, q.dtype, 16)


@wrong(
    case(64, 64, "float32", heads=3, causal=True),
    truth="layout: columns 2c and 2c + 1 of V are swapped in rows 8 to 15 of each 16 keys",
    source="class of V transposed in the kernel by byte permutes (flash-attn 3 FP8, SageAttention)",
)
def v_pairs_swapped(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Online softmax over tiles of 32 keys."""
    qf, kf, vf = spread(q, k, v)
    if bug:
        rows = np.arange(v.shape[2]) % 16 >= 8
        vf[:, :, rows] = vf[:, :, rows][..., np.arange(v.shape[3]) ^ 1]
    return online(scores(qf, kf, scale, causal), vf, q.dtype, 32)


@wrong(
    case(32, 160, "float32", heads=4, batch=2),
    truth="layout: offsets of K's elements are 16 bits wide: from element 65536 of K on, counted over batch, heads and "
    "rows, K is read from its start again; V is right",
    source="class of narrow offsets (xformers 471569b4, SageAttention#386), with 2^16 for 2^31",
)
def k_offset_16_bits(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Online softmax over tiles of 40 keys; K at flat offsets."""
    qf, _, vf = spread(q, k, v)
    index = np.arange(k.size).reshape(k.shape)
    kf = np.repeat(read(k, index & 0xFFFF if bug else index), q.shape[1] // k.shape[1], axis=1)
    return online(scores(qf, kf, scale, causal), vf, q.dtype, 40)


@wrong(
    case(64, 96, "bfloat16", heads=4, kv_heads=2, batch=2, causal=True),
    truth="layout: K lies as [batch, Sk, kv_heads, D] and its row stride is D for kv_heads * D: row j of head n is "
    "token (j + n) // kv_heads of head (j + n) % kv_heads; V is right",
    source="class of stride arguments (flash-attn k_row_stride, vLLM)",
)
def k_row_stride(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """K from memory with tokens before heads; eager."""
    b, hk, sk, d = k.shape
    memory = k.astype(np.float32).swapaxes(1, 2).reshape(b, sk * hk, d)
    rows = np.arange(sk) * (1 if bug else hk) + np.arange(hk)[:, None]
    kf = np.repeat(memory[:, rows], q.shape[1] // hk, axis=1)
    qf, _, vf = spread(q, k, v)
    return eager(scores(qf, kf, scale, causal), vf, q.dtype)
