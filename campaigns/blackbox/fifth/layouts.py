"""Wrong addresses: strides, head maps, pages, fragments, tails of tiles."""

import numpy as np

from ..record import (
    Array,
    Pair,
    case,
    cdiv,
    dot,
    eager,
    finish,
    grid,
    join,
    masked,
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


def beside(pairs: list[Pair]) -> Pair:
    """out and lse of heads, one beside the other."""
    outs, lses = zip(*pairs, strict=True)
    return np.concatenate(outs, 1), np.concatenate(lses, 1)


def paged(x: Array, size: int) -> Array:
    """Pages [page, slot, head, dim] of all batches; the page p of batch b is the page b * pages + p from the end."""
    b, h, _, d = x.shape
    full = pad(x, 2, size)
    return full.reshape(b, h, -1, size, d).transpose(0, 2, 3, 1, 4).reshape(-1, size, h, d)[::-1].copy()


@wrong(
    case(65, 130, "float16", heads=8, kv_heads=2, causal=True),
    truth="Query head h reads K and V of the head h % 2 instead of h // 4 (8 query heads, 2 heads of K and V).",
    source="class of grouped-query head maps with % for // (llama.cpp, MLX and Triton ports)",
)
def head_modulo_5(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Forward kernel in Triton: a program for each query head, an online softmax over key tiles of 64."""
    heads, kv_heads = q.shape[1], k.shape[1]
    i, j = grid(q, k)
    pairs = []
    for h in range(heads):
        hk = h % kv_heads if bug else h // (heads // kv_heads)
        qh, kh, vh = (x.astype(np.float32) for x in (q[:, h : h + 1], k[:, hk : hk + 1], v[:, hk : hk + 1]))
        state = start(qh, vh)
        for t in tiles(k.shape[2], 64):
            s = masked(dot(qh, kh[:, :, t]) * scale, visible(i, j[:, t], causal))
            state = step(state, s, vh[:, :, t], q.dtype)
        pairs.append(finish(*state, q.dtype))
    return beside(pairs)


@wrong(
    case(72, 96, "float16", heads=4, kv_heads=2, head_dim=32, head_dim_v=64),
    truth="V[b, h, j, d] is read at the flat offset ((b * Hkv + h) * Sk + j) * 32 + d of the contiguous V, whose "
    "rows are 64 long: the row stride is that of K (head_dim 32), not that of V (head_dim 64), and the strides of "
    "heads and batches with it.",
    source="mlx#1558",
)
def values_by_key_strides_5(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Vector kernel in Metal: flat pointers to K and V, strides passed by the host."""
    b, hk, sk, d = k.shape
    row = d if bug else v.shape[3]
    base = np.arange(b)[:, None, None, None] * hk + np.arange(hk)[:, None, None]
    index = (base * sk + np.arange(sk)[:, None]) * row + np.arange(v.shape[3])
    qf, kf, vf = spread(q, k, read(v, index))
    return online(scores(qf, kf, scale, causal), vf, q.dtype, 32)


@wrong(
    case(40, 112, "bfloat16", heads=4, kv_heads=2, causal=True),
    truth="K and V lie in one pool [page, K or V, slot, head, dim] with pages of 16 slots; the logical page p of "
    "batch b lies in the physical page n - 1 - (b * P + p), P pages a batch, n in all. The page stride lacks the "
    "factor 2: with half-page 2x the K and half-page 2x + 1 the V of physical page x, K of physical page x is read "
    "from half-page x instead of 2x, and V from half-page x + 1 instead of 2x + 1.",
    source="aiter#3498",
)
def interleaved_pages_5(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Paged decode in Triton: K and V interleaved in one pool, a tile for each page of 16."""
    size, (b, hk, sk, d) = 16, k.shape
    pages = cdiv(sk, size)
    pool = np.stack([paged(k, size), paged(v, size)], 1)
    slot = hk * d
    page = size * slot if bug else 2 * size * slot
    table = b * pages - 1 - np.arange(b * pages).reshape(b, pages)
    inner = np.arange(hk)[:, None, None] * d + np.arange(size)[:, None] * slot + np.arange(d)
    qf = q.astype(np.float32)
    group = q.shape[1] // hk
    i, j = grid(q, k)
    state = start(qf, v)
    for p, t in enumerate(tiles(sk, size)):
        index = table[:, p, None, None, None] * page + inner
        kt, vt = (
            np.repeat(read(pool, index + base)[:, :, : t.stop - t.start], group, axis=1) for base in (0, size * slot)
        )
        state = step(state, masked(dot(qf, kt) * scale, visible(i, j[:, t], causal)), vt, q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(77, 150, "bfloat16", heads=4),
    truth="The number of key tiles of 64 is Sk // 64, rounded down: the keys from 64 * (Sk // 64) on (128 to 149 of "
    "150) are left out of maximum, sum and output.",
    source="class of floor for ceil in the number of key tiles (Triton tutorials, CuTe ports)",
)
def floor_tiles_5(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """FlashAttention-2 in CuTe: query tiles of 64, key tiles of 64 from the last to the first."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    count = k.shape[2] // 64 if bug else cdiv(k.shape[2], 64)
    pairs = []
    for r in tiles(q.shape[2], 64):
        state = start(qf[:, :, r], vf)
        for n in reversed(range(count)):
            t = slice(64 * n, 64 * n + 64)
            s = dot(qf[:, :, r], kf[:, :, t]) * scale
            state = step(state, masked(s, visible(i[r], j[:, t], causal)), vf[:, :, t], q.dtype)
        pairs.append(finish(*state, q.dtype))
    return join(pairs)


@wrong(
    case(90, 90, "float16", heads=2, head_dim=80, causal=True),
    truth="q.k is summed over the dims 0 to 32 * (D // 32) - 1 only: of head_dim 80 the dims 64 to 79 of Q and K are "
    "left out of the scores. V and out have all dims.",
    source="class of head dims that are no multiple of the slice (llama.cpp Vulkan, Triton ports; head_dim 80)",
)
def head_dim_slices_5(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Vulkan coopmat kernel: q.k over slices of 32 dims, key tiles of 32."""
    qf, kf, vf = spread(q, k, v)
    d = q.shape[3]
    i, j = grid(q, k)
    state = start(qf, vf)
    for t in tiles(k.shape[2], 32):
        s = np.zeros((*q.shape[:3], t.stop - t.start), np.float32)
        for c in range(d // 32 if bug else cdiv(d, 32)):
            dims = slice(32 * c, 32 * c + 32)
            s += dot(qf[..., dims], kf[:, :, t, dims])
        state = step(state, masked(s * scale, visible(i, j[:, t], causal)), vf[:, :, t], q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(64, 100, "bfloat16", heads=4, head_dim=96),
    truth="The store of a tile of 32 dims of V lacks the offset of the tile: out[..., 0:32] holds the last tile "
    "(dims 64 to 95 of head_dim 96), out[..., 32:96] is 0. lse is right.",
    source="fla#1028",
)
def value_tile_store_5(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Parallel attention in Triton: a program for each tile of 32 dims of V, which stores its block of the output."""
    qf, kf, vf = spread(q, k, v)
    s = scores(qf, kf, scale, causal)
    out = np.zeros((*q.shape[:3], v.shape[3]), q.dtype)
    lse = np.zeros(q.shape[:3], np.float32)
    for dims in tiles(v.shape[3], 32):
        o, lse = online(s, vf[..., dims], q.dtype, 64)
        base = 0 if bug else dims.start
        out[..., base : base + o.shape[3]] = o
    return out, lse


@wrong(
    case(50, 80, "float32", heads=4, kv_heads=2, batch=2, head_dim=80),
    truth="Two faults. V of every batch is that of batch 0 (K is right). The scale is 128 ** -0.5, of the head_dim "
    "padded to a power of two, instead of 80 ** -0.5.",
    source="mlx#4431; class of scales from a padded head_dim",
    faults=2,
)
def padded_batch_5(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Two-pass vector kernel in Metal, first pass only: head_dim padded to a power of two, flat pointers."""
    b, hk, sk, dv = v.shape
    width = 1 << (q.shape[3] - 1).bit_length()
    factor = width**-0.5 if bug else scale
    batch = np.zeros(b, int) if bug else np.arange(b)
    base = batch[:, None, None, None] * hk + np.arange(hk)[:, None, None]
    values = read(v, (base * sk + np.arange(sk)[:, None]) * dv + np.arange(dv))
    qf, kf, vf = spread(pad(q, 3, width), pad(k, 3, width), values)
    return online(scores(qf, kf, factor, causal), vf, q.dtype, 32)


@wrong(
    case(33, 100, "float16", heads=4, kv_heads=1, batch=2, causal=True),
    truth="Pages of 16 tokens, 7 a batch; rows of the block table are 7 long and are addressed with the stride Sk // "
    "16 = 6. Batch 0 is right. In batch 1 the page 0 (keys 0 to 15) is the page 6 of batch 0 (its keys 96 to 99 in "
    "slots 0 to 3, and zero K and V in slots 4 to 15), and the page p >= 1 is the page p - 1 of batch 1: key j >= 16 "
    "reads K and V of key j - 16. Masks go by j.",
    source="class of block-table strides (vLLM, FlashInfer, aiter)",
)
def table_stride_5(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Paged attention in CUDA: a flat block table, pages of 16, one page a step."""
    size, (b, hk, sk, _) = 16, k.shape
    pages = cdiv(sk, size)
    table = (b * pages - 1 - np.arange(b * pages)).astype(np.int32)
    stride = sk // size if bug else pages
    pool_k, pool_v = paged(k, size), paged(v, size)
    group = q.shape[1] // hk
    qf = q.astype(np.float32)
    i, j = grid(q, k)
    state = start(qf, v)
    for p, t in enumerate(tiles(sk, size)):
        physical = table[np.arange(b) * stride + p]
        kt, vt = (
            np.repeat(x[physical, : t.stop - t.start].swapaxes(1, 2).astype(np.float32), group, axis=1)
            for x in (pool_k, pool_v)
        )
        state = step(state, masked(dot(qf, kt) * scale, visible(i, j[:, t], causal)), vt, q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(64, 64, "float16", heads=1, head_dim=64),
    truth="The second half of each k16 step of q.k starts from 0 instead of from the sum: of the scores only the "
    "last 8 dims of Q and K (56 to 63 of head_dim 64) are left.",
    source="flashinfer#448",
)
def halved_mma_5(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Prefill kernel for Turing: each m16n16k16 product as two of m16n8k8, key tiles of 32."""
    qf, kf, vf = spread(q, k, v)
    i, j = grid(q, k)
    state = start(qf, vf)
    for t in tiles(k.shape[2], 32):
        c = np.zeros((*q.shape[:3], t.stop - t.start), np.float32)
        for d in range(0, q.shape[3], 16):
            low, high = slice(d, d + 8), slice(d + 8, d + 16)
            c = c + dot(qf[..., low], kf[:, :, t, low])
            c = (np.zeros_like(c) if bug else c) + dot(qf[..., high], kf[:, :, t, high])
        state = step(state, masked(c * scale, visible(i, j[:, t], causal)), vf[:, :, t], q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(50, 70, "float32", heads=6, kv_heads=2, causal=True),
    truth="Rows of a group of 3 query heads are packed as r = i * 3 + g; the epilogue takes them for g * Sq + i: the "
    "row r of out and of lse is stored at head 3 * hk + r // Sq, token r % Sq instead of head 3 * hk + r % 3, token "
    "r // 3.",
    source="xformers 41646dbb (fi#850); class of packed GQA rows in the epilogue",
)
def packed_epilogue_5(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """FlashAttention-3 with packed GQA: tiles of 64 packed rows, key tiles of 64."""
    b, heads, sq, _ = q.shape
    hk, sk = k.shape[1:3]
    group = heads // hk
    rows = pack(q, hk).astype(np.float32)
    kf, vf = k.astype(np.float32), v.astype(np.float32)
    i = np.arange(rows.shape[2])[:, None] // group + sk - sq
    j = np.arange(sk)[None]
    pairs = []
    for r in tiles(rows.shape[2], 64):
        s = masked(dot(rows[:, :, r], kf) * scale, visible(i[r], j, causal))
        pairs.append(online(s, vf, q.dtype, 64))
    out, lse = join(pairs)
    if bug:
        return out.reshape(b, heads, sq, -1), lse.reshape(b, heads, sq)
    return unpack((out, lse), heads)


@wrong(
    case(60, 75, "bfloat16", heads=4, head_dim=32, causal=True),
    truth="K and V are packed as [batch, token, head, 2, dim] and read as [batch, token, 2, head, dim], with H "
    "heads: K of head h is the row h of the 2H rows of a token, V of head h is the row H + h, and row r is K (r "
    "even) or V (r odd) of head r // 2. So heads 0 to 3 have as K: K0, V0, K1, V1, and as V: K2, V2, K3, V3.",
    source="class of packed KV layouts (Megatron's interleaved heads in TransformerEngine and FlashAttention)",
)
def packed_kv_5(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Packed KV interface: one buffer, views of K and V by strides, an online softmax over tiles of 64."""
    b, hk, sk, d = k.shape
    buffer = np.stack([k, v], 2).transpose(0, 3, 1, 2, 4).reshape(b, sk, 2 * hk * d)
    views = buffer.reshape(b, sk, 2, hk, d) if bug else buffer.reshape(b, sk, hk, 2, d).swapaxes(2, 3)
    qf, kf, vf = spread(q, *(views[:, :, x].swapaxes(1, 2) for x in (0, 1)))
    return online(scores(qf, kf, scale, causal), vf, q.dtype, 64)


@wrong(
    case(100, 100, "float16", heads=2, head_dim=64, causal=True),
    truth="Rows of K in shared memory are written with chunks of 8 dims at c ^ (row & 7) and read at c ^ (row & 3): "
    "for keys j with j % 8 >= 4 the dim d of K is that of d ^ 32 (the halves 0 to 31 and 32 to 63 are swapped). V is "
    "right.",
    source="flash-attn eeca63a7",
)
def swizzle_bits_5(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """CUDA kernel with K in swizzled shared memory: tiles of 64 keys, chunks of 8 dims XOR-ed with the row."""
    qf, kf, vf = spread(q, k, v)
    chunks = q.shape[3] // 8
    i, j = grid(q, k)
    state = start(qf, vf)
    for t in tiles(k.shape[2], 64):
        row, c = np.arange(t.stop - t.start)[:, None], np.arange(chunks)
        tile = kf[:, :, t].reshape(*kf.shape[:2], -1, chunks, 8)
        shared = np.empty_like(tile)
        shared[:, :, row, c ^ (row & (chunks - 1))] = tile
        kt = shared[:, :, row, c ^ (row & (chunks // 2 - 1 if bug else chunks - 1))].reshape(kf[:, :, t].shape)
        state = step(state, masked(dot(qf, kt) * scale, visible(i, j[:, t], causal)), vf[:, :, t], q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(65, 160, "bfloat16", heads=4, kv_heads=2, head_dim=128),
    truth="Two faults. The page of V (32 tokens) is looked up once for each key tile of 64: key j reads the V of key "
    "64 * (j // 64) + j % 32, so that the second half of a tile takes the V of the first. The bound of the tail is j "
    "< Sk - 1: the last key is left out.",
    source="TRT-LLM#18244; class of tail bounds that are off by one",
    faults=2,
)
def hoisted_page_5(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Paged kernel of TensorRT-LLM: key tiles of 64 over pages of 32, the page of V looked up for each half tile."""
    size, sk = 32, k.shape[2]
    qf, kf, vf = spread(q, k, v)
    kf, vf = pad(kf, 2, 64), pad(vf, 2, 64)
    pages = vf.reshape(*vf.shape[:2], -1, size, vf.shape[3])
    i, j = grid(q, kf)
    i = i - kf.shape[2] + sk
    bound = sk - 1 if bug else sk
    state = start(qf, vf)
    for t in tiles(kf.shape[2], 64):
        first = t.start // size
        vt = np.concatenate([pages[:, :, first if bug else first + n] for n in range(2)], 2)
        seen = visible(i, j[:, t], causal) & (j[:, t] < bound)
        state = step(state, masked(dot(qf, kf[:, :, t]) * scale, seen), vt, q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(70, 100, "float32", heads=2, batch=2, causal=False),
    truth="The slice of the last key tile (32 keys from 96 on, of 100) is clamped to the end of K and V, so that it "
    "holds the keys 68 to 99, and is masked as if it began at 96: the keys at positions 96 to 99 have the K and V of "
    "the keys 68 to 71.",
    source="class of clamped dynamic slices (JAX, Pallas)",
)
def clamped_slice_5(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Pallas kernel: dynamic slices of 32 keys, the tail masked by position."""
    size, sk = 32, k.shape[2]
    qf, kf, vf = spread(q, k, v)
    if not bug:
        kf, vf = pad(kf, 2, size), pad(vf, 2, size)
    i, _ = grid(q, k)
    state = start(qf, vf)
    for n in range(cdiv(sk, size)):
        j = np.arange(n * size, (n + 1) * size)[None]
        first = min(n * size, kf.shape[2] - size)
        t = slice(first, first + size)
        seen = visible(i, j, causal) & (j < sk)
        state = step(state, masked(dot(qf, kf[:, :, t]) * scale, seen), vf[:, :, t], q.dtype)
    return finish(*state, q.dtype)


@wrong(
    case(120, 72, "float16", heads=8, kv_heads=4, batch=2, head_dim=32),
    truth="Two faults. Query head h reads the head h // 4 of K and V (divided by the number of their heads) instead "
    "of h // 2. The batch stride of out is that of V, Hkv * Sk * D = 4 * 72 * 32 elements instead of 8 * 120 * 32: "
    "batch 0 is written at element 0 of a zeroed flat buffer, then batch 1 at element 9216, over what lies there; "
    "what neither wrote (from element 39936 on) is 0. lse has only the first fault.",
    source="aiter#970; class of grouped-query head maps",
    faults=2,
)
def output_batch_stride_5(q: Array, k: Array, v: Array, *, scale: float, causal: bool, bug: bool = True) -> Pair:
    """Composable-kernel style: a loop over batches, flat output pointer with its own batch stride."""
    (b, heads, sq, _), (_, hk, sk, dv) = q.shape, v.shape
    head = np.arange(heads) // (hk if bug else heads // hk)
    head = np.minimum(head, hk - 1)
    stride = hk * sk * dv if bug else heads * sq * dv
    out = np.zeros(b * heads * sq * dv, q.dtype)
    lse = np.zeros((b, heads, sq), np.float32)
    for n in range(b):
        qf, kf, vf = (x.astype(np.float32) for x in (q[n : n + 1], k[n : n + 1, head], v[n : n + 1, head]))
        o, lse[n : n + 1] = eager(scores(qf, kf, scale, causal), vf, q.dtype)
        target = out[n * stride : n * stride + o.size]
        target[:] = o.reshape(-1)[: target.size]
    return out.reshape(b, heads, sq, dv), lse
