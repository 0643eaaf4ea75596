"""Attention kernels whose faults lie in addresses, strides, tiles, head maps, pages, fragments and tails."""

import numpy as np

from ..record import (
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
    scores,
    spread,
    start,
    step,
    tiles,
    unpack,
    visible,
    wrong,
)


@wrong(
    case(64, 176, "float16", heads=4, kv_heads=2),
    truth="V only: key j is multiplied with the V row of key 64 * (j // 64) + j % 16, in all heads and rows",
    source="flashinfer#3022",
)
def v_page_hoisted_again(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a paged prefill kernel with pages of 16 tokens, key tiles of 64 and a block table."""
    page, (qf, kf, vf), (i, j) = 16, spread(q, k, v), grid(q, k)
    table = np.arange(cdiv(k.shape[2], page))[::-1]
    pool_k, pool_v = (
        pad(x, 2, page).reshape(*x.shape[:2], table.size, page, x.shape[3])[:, :, table] for x in (kf, vf)
    )
    state = start(qf, vf)
    for t in tiles(k.shape[2], 64):
        tokens = np.arange(t.start, t.stop)
        kt = pool_k[:, :, table[tokens // page], tokens % page]
        pages = np.full(tokens.size, table[t.start // page]) if bug else table[tokens // page]
        vt = pool_v[:, :, pages, tokens % page]
        state = step(state, masked(dot(qf, kt) * scale, visible(i, j[:, t], causal)), vt, q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(48, 80, "bfloat16", heads=6, kv_heads=2, head_dim=96, causal=True),
    truth="query head h reads head h % 2 of K and V, where it should read head h // 3",
    source="class of vllm-project/flash-attention GQA head maps (h % kv_heads for h // group)",
)
def gqa_interleaved(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a Triton forward kernel with one program for a head and a tile of 16 queries."""
    heads, kv_heads = q.shape[1], k.shape[1]
    head = np.arange(heads)
    head_kv = head % kv_heads if bug else head // (heads // kv_heads)
    kf, vf = k[:, head_kv].astype(np.float32), v[:, head_kv].astype(np.float32)
    i, j = grid(q, k)
    pairs = []
    for m in tiles(q.shape[2], 16):
        qf = q[:, :, m].astype(np.float32)
        pairs.append(online(masked(dot(qf, kf) * scale, visible(i[m], j, causal)), vf, q.dtype, 32))
    return join(pairs)


@wrong(
    case(96, 96, "float16", heads=3, head_dim=80, causal=True),
    truth="scores are scale * sum over d of q[d] * k[d xor 8]: the two halves of every 16 dims of K are exchanged",
    source="class of ldmatrix fragment order (flashinfer#2689)",
)
def fragment_halves(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a CUDA kernel with m16n8k16 MMAs, whose K fragment is two registers of 8 dims."""
    qf, kf, vf = spread(q, k, v)
    s = np.zeros((*q.shape[:3], k.shape[2]), np.float32)
    for c in tiles(q.shape[3], 16):
        low, high = kf[..., c.start : c.start + 8], kf[..., c.start + 8 : c.stop]
        fragment = np.concatenate((high, low) if bug else (low, high), -1)
        s += dot(qf[..., c], fragment)
    return online(masked(s * scale, visible(*grid(q, k), causal)), vf, q.dtype, 64)


@wrong(
    case(33, 100, "float32", heads=4, kv_heads=2, batch=2, head_dim=32),
    truth="V of batch 1 is read from batch 0 (K is right); and 28 keys past the 100th, with score 0 and V 0, are "
    "counted in the sum of every row, so in lse too",
    source="mlx#4431; class of pytorch#169222",
    faults=2,
)
def two_pass_batch(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a Metal 2-pass vector kernel: blocks of 32 keys in pass 1, a merge in pass 2."""
    heads, group, sk = q.shape[1], q.shape[1] // k.shape[1], k.shape[2]
    b, h = np.ogrid[: q.shape[0], :heads]
    base = (b * k.shape[1] + h // group)[..., None, None]
    base_v = (b * (not bug) * k.shape[1] + h // group)[..., None, None]
    i, qf, parts = grid(q, k)[0], q.astype(np.float32), []
    for t in range(0, sk, 32):
        j = np.arange(t, t + 32)
        row, inside = np.minimum(j, sk - 1)[:, None], (j < sk)[:, None]
        kt = np.where(inside, read(k, (base * sk + row) * k.shape[3] + np.arange(k.shape[3])), 0)
        vt = np.where(inside, read(v, (base_v * sk + row) * v.shape[3] + np.arange(v.shape[3])), 0)
        seen = visible(i, j[None], causal)
        parts.append(chunk(masked(dot(qf, kt) * scale, seen if bug else seen & inside.T), vt, q.dtype))
    return merge(parts, q.dtype)


@wrong(
    case(40, 70, "float32", heads=2, batch=2, head_dim=48),
    truth="keys 64 to 69 have K and V of keys 38 to 43: the last tile's start 64 is clamped to 70 - 32 = 38",
    source="class of jax dynamic_slice start clamping in Pallas attention (jax bd9a10e4eb)",
)
def slice_start_clamped(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a Pallas kernel that loads key tiles of 32 rows by dynamic slices."""
    (qf, kf, vf), (i, _), sk = spread(q, k, v), grid(q, k), k.shape[2]
    if not bug:
        kf, vf = pad(kf, 2, 32), pad(vf, 2, 32)
    size = min(32, kf.shape[2])
    state = start(qf, vf)
    for t in range(cdiv(sk, 32)):
        first = max(min(32 * t, kf.shape[2] - size), 0)
        kt, vt = kf[:, :, first : first + size], vf[:, :, first : first + size]
        j = np.arange(32 * t, 32 * t + size)[None]
        state = step(state, masked(dot(qf, kt) * scale, visible(i, j, causal) & (j < sk)), vt, q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(64, 120, "float16", heads=8, kv_heads=2),
    truth="the last 120 % 32 = 24 keys (96 to 119) are left out of out and lse, in all rows",
    source="flash-attn#2745; class of cdiv written as //",
)
def key_tiles_floor(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a Triton forward kernel with packed GQA rows and a loop over key tiles of 32."""
    group, sk = q.shape[1] // k.shape[1], k.shape[2]
    rows, kf, vf = pack(q, k.shape[1]).astype(np.float32), k.astype(np.float32), v.astype(np.float32)
    i = np.arange(rows.shape[2])[:, None] // group + sk - q.shape[2]
    state = start(rows, vf)
    for t in range(sk // 32 if bug else cdiv(sk, 32)):
        n = slice(32 * t, min(32 * t + 32, sk))
        seen = visible(i, np.arange(n.start, n.stop)[None], causal)
        state = step(state, masked(dot(rows, kf[:, :, n]) * scale, seen), vf[:, :, n], q.dtype)
    return unpack(finish(*state, q.dtype), q.shape[1])


@wrong(
    case(65, 65, "bfloat16", heads=2, batch=2, head_dim=96, causal=True),
    truth="dims 0 to 31 of out hold what belongs into dims 64 to 95, and dims 32 to 95 are 0; lse is right",
    source="fla#1028",
)
def value_tile_store(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a Triton kernel with a grid over tiles of 32 dims of V, each of which stores its own tile of out."""
    qf, kf, vf = spread(q, k, v)
    s = scores(qf, kf, scale, causal)
    out, lse = np.zeros((*q.shape[:3], v.shape[3]), q.dtype), np.zeros(q.shape[:3], np.float32)
    for c in tiles(v.shape[3], 32):
        tile, lse = online(s, vf[..., c], q.dtype, 64)
        offset = 0 if bug else c.start
        out[..., offset : offset + tile.shape[3]] = tile
    return out, lse


@wrong(
    case(50, 90, "float16", heads=4, kv_heads=2, head_dim=64, head_dim_v=48),
    truth="V[b, h, j, d] is read at the flat offset ((b * 2 + h) * 90 + j) * 64 + d, modulo V's size of 8640: its "
    "rows are taken to be 64 apart as those of K, and are 48",
    source="mlx#1558",
)
def value_by_key_strides(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a Metal steel kernel to which the strides of K and V are passed from the host."""
    (batch, kv_heads, sk, dim), dim_v = k.shape, v.shape[3]
    pitch = dim if bug else dim_v
    strides = (kv_heads * sk * pitch, sk * pitch, pitch)
    b, h, j, d = np.ogrid[:batch, : q.shape[1], :sk, :dim_v]
    group = q.shape[1] // kv_heads
    vf = read(v, b * strides[0] + h // group * strides[1] + j * strides[2] + d)
    qf, kf, _ = spread(q, k, v)
    return online(scores(qf, kf, scale, causal), vf, q.dtype, 32)


@wrong(
    case(37, 101, "float32", heads=4, head_dim=64, causal=True),
    truth="out[b, h, i] holds the row of head n % 4 and query n // 4, n = h * 37 + i: rows are stored at i * heads + "
    "h of a buffer that is head-major; lse is right",
    source="mlx#2152",
)
def store_token_major(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a vector kernel with one threadgroup for a head and a query, and an offset of its row of out."""
    (batch, heads, sq, _), (qf, kf, vf) = q.shape, spread(q, k, v)
    rows, lse = eager(scores(qf, kf, scale, causal), vf, q.dtype)
    h, i = np.ogrid[:heads, :sq]
    out = np.zeros((batch, heads * sq, v.shape[3]), q.dtype)
    out[:, i * heads + h if bug else h * sq + i] = rows
    return out.reshape(rows.shape), lse


@wrong(
    case(37, 64, "bfloat16", heads=6, kv_heads=2, head_dim=64, causal=True),
    truth="of the 37 * 3 = 111 packed rows (query i, head g of its group: row 3 * i + g) rows 96 to 110, which are "
    "queries 32 to 36 of all heads, are never written: out 0 and lse -inf",
    source="class of flashinfer#1148, flashinfer#1614 (floor for ceil on packed rows)",
)
def packed_rows_floor(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a prefill kernel with tiles of 16 packed rows of a KV head's group."""
    group, (_, kv_heads, sk, _) = q.shape[1] // k.shape[1], k.shape
    rows, kf, vf = pack(q, kv_heads).astype(np.float32), k.astype(np.float32), v.astype(np.float32)
    n = rows.shape[2]
    out, lse = np.zeros((*rows.shape[:3], v.shape[3]), q.dtype), np.full(rows.shape[:3], -np.inf, np.float32)
    for block in range(n // 16 if bug else cdiv(n, 16)):
        m = slice(16 * block, min(16 * block + 16, n))
        i = np.arange(m.start, m.stop)[:, None] // group + sk - q.shape[2]
        s = masked(dot(rows[:, :, m], kf) * scale, visible(i, np.arange(sk)[None], causal))
        out[:, :, m], lse[:, :, m] = online(s, vf, q.dtype, 32)
    return unpack((out, lse), q.shape[1])


@wrong(
    case(64, 96, "float32", heads=4, kv_heads=4, head_dim=64),
    truth="K of token t in its page of 16 and dim d is the number at offset 128 * (d // 8) + 8 * t + d % 8 of the "
    "page, in which token t and dim d lie at 64 * (d // 4) + 4 * t + d % 4: vectors of 8 are read, of 4 were "
    "written",
    source="class of vllm K cache layout [dim / x, page, x] with x fixed for 16 bits",
)
def key_cache_vectors(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like the first paged attention kernel of vLLM, whose K cache interleaves vectors of 16 bytes of the tokens."""
    page, x = 16, 16 // q.dtype.itemsize
    padded = pad(k.astype(np.float32), 2, page)
    batch, kv_heads, n, dim = padded.shape
    cache = padded.reshape(batch, kv_heads, n // page, page, dim // x, x).swapaxes(3, 4)
    width = 8 if bug else x
    gathered = cache.reshape(batch, kv_heads, n // page, dim // width, page, width).swapaxes(3, 4)
    qf, kf, vf = spread(q, gathered.reshape(padded.shape)[:, :, : k.shape[2]], v)
    return online(scores(qf, kf, scale, causal), vf, q.dtype, page)


@wrong(
    case(48, 128, "float16", heads=2, batch=2, head_dim=64),
    truth="logical page p (keys 16 * p to 16 * p + 15 of 8 pages) is physical page t = 7 - p; physical pages lie as "
    "K0 V0 K1 V1 ... K7 V7, and K of p is read from place t of these 16, V from place t + 1 (right: 2 * t, 2 * "
    "t + 1)",
    source="aiter#3498",
)
def interleaved_pages(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a decode kernel over a cache [pages, 2, heads, page, dim] with pages of 16 tokens."""
    page, (qf, kf, vf), sk = 16, spread(q, k, v), k.shape[2]
    n = cdiv(sk, page)
    table = np.arange(n)[::-1]
    pages = [pad(x, 2, page).reshape(*x.shape[:2], n, page, -1)[:, :, table] for x in (kf, vf)]
    pool = np.stack(pages, 3).reshape(*kf.shape[:2], 2 * n, page, -1)
    stride = 1 if bug else 2
    i, state = grid(q, k)[0], start(qf, vf)
    for p in range(n):
        kt, vt = pool[:, :, table[p] * stride], pool[:, :, table[p] * stride + 1]
        j = np.arange(page * p, page * p + page)[None]
        state = step(state, masked(dot(qf, kt) * scale, visible(i, j, causal) & (j < sk)), vt, q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(72, 72, "bfloat16", heads=4, kv_heads=1, head_dim=64, causal=True),
    truth="V of keys j with j & 4 (4 to 7 of every 8) has its dims exchanged: dim d is read from dim d xor 32",
    source="class of flash-attn eeca63a7 (swizzle of the reader is not that of the writer)",
)
def swizzle_period(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a CuTe kernel whose shared V tile of 64 rows is swizzled in vectors of 8 dims."""
    qf, kf, vf = spread(q, k, v)
    s, state = scores(qf, kf, scale, causal), start(qf, vf)
    lanes = np.arange(vf.shape[3] // 8)
    for t in tiles(k.shape[2], 64):
        rows = np.arange(t.stop - t.start)[:, None]
        vectors = vf[:, :, t].reshape(*vf.shape[:2], rows.size, lanes.size, 8)
        shared = np.empty_like(vectors)
        shared[:, :, rows, lanes ^ rows % 8] = vectors
        vt = shared[:, :, rows, lanes ^ rows % (4 if bug else 8)].reshape(*vf.shape[:2], rows.size, -1)
        state = step(state, s[..., t], vt, q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(64, 80, "float16", heads=4, batch=2, head_dim=80),
    truth="with z = 4 * b + h, K and V of batch b and head h are read from batch z % 2 and head z // 2; and dims 64 "
    "to 79 are left out of q.k",
    source="cutlass#2291; class of head_dim blocks by floor division",
    faults=2,
)
def grid_divmod(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a CUTLASS kernel with one grid axis for batch and head, and QK in blocks of 32 dims."""
    batch, heads, _, dim = q.shape
    group = heads // k.shape[1]
    z = np.arange(batch * heads).reshape(batch, heads)
    b, h = (z % batch, z // batch) if bug else (z // heads, z % heads)
    qf, kf, vf = q.astype(np.float32), k[b, h // group].astype(np.float32), v[b, h // group].astype(np.float32)
    s = np.zeros((*q.shape[:3], k.shape[2]), np.float32)
    for block in range(dim // 32 if bug else cdiv(dim, 32)):
        d = slice(32 * block, 32 * block + 32)
        s += dot(qf[..., d], kf[..., d])
    return online(masked(s * scale, visible(*grid(q, k), causal)), vf, q.dtype, 32)


def _remap(pid: int, size: int, dies: int = 4) -> int:
    """The head of a program, such that programs of one die have heads next to each other."""
    per, tall = cdiv(size, dies), size % dies or dies
    die, local = pid % dies, pid // dies
    return die * per + local if die < tall else tall * per + (die - tall) * (per - 1) + local


@wrong(
    case(56, 88, "bfloat16", heads=6, kv_heads=3, head_dim=64, causal=True),
    truth="head 5 is never computed: out 0, and -inf for its lse; then lse[b, h, i] holds the lse of head n % 6 and "
    "query n // 6, n = h * 56 + i, since it was written token-major",
    source="aiter#612; class of vllm-project/flash-attention#87",
    faults=2,
)
def die_remap(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Like a Triton kernel for several dies, which remaps program ids to heads."""
    (qf, kf, vf), (batch, heads, sq, _) = spread(q, k, v), q.shape
    out, lse = np.zeros((*q.shape[:3], v.shape[3]), q.dtype), np.full((batch, sq, heads), -np.inf, np.float32)
    for pid in range(heads):
        h = _remap(pid, heads - 1 if bug else heads)
        s = scores(qf[:, h : h + 1], kf[:, h : h + 1], scale, causal)
        tile, tile_lse = online(s, vf[:, h : h + 1], q.dtype, 64)
        out[:, h], lse[:, :, h] = tile[:, 0], tile_lse[:, 0]
    return out, lse.reshape(batch, heads, sq) if bug else np.ascontiguousarray(lse.swapaxes(1, 2))
