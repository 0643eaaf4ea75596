"""FlashAttention forward: one block for each query tile, online softmax over the key tiles, all of them or those of one
split. The first of four steps (docs/trust/speed.md), with 2.2 TFLOP/s on an H100 (float16, 4096 keys, d 64, no mask).

Algorithm 1 of FlashAttention-2 (Dao 2023, section 3.1.1) with float32 arithmetic. Four threads (LANES) share a query
row: thread `lane` of row `r` holds the scores of keys lane, lane + 4, ... of a tile and the dims lane, lane + 4, ... of
the accumulator.

Names in capitals are bound when the kernel is built (`flash_build.Constants`): BLOCK_Q, BLOCK_K; HEAD_DIM, the larger
head_dim rounded up; DIMS = HEAD_DIM / LANES; CHUNK, dims that are in shared memory at a time, all of them where WHOLE;
THREADS = BLOCK_Q * LANES; LOAD and STORE, conversions between the storage dtype and float32; CAST, which rounds probs
to the dtype in which they meet V; SPLIT, whether a block takes one split of the keys (Flash-Decoding) and leaves what
`split_k.py` merges; and the switches that `flash_forward` tells of. An `if` of a switch is absent where it is off, with
the parameters that only it reads. A line `probe.<stage>[...] = value` dumps a stage in builds that ask for it and is
absent from all others.
"""

import math
from pathlib import Path

import numpy as np
from numba import cuda, float32
from numba.cuda import libdevice

from workbench.cuda.device import LANES, row_max_of, row_sum_of
from workbench.cuda.flash_build import constants, contract, forward_grid, resolve
from workbench.cuda.kernel import Kernel, Launch

NEG_INF = np.float32(-np.inf)


@cuda.jit(device=True)
def load_tile(tile, x, b, h, first_row, rows, first_dim, head_dim):
    """Fill tile[r, d] with x[b, h, first_row + r, first_dim + d] as float32, with 0 where row or dim do not exist."""
    for i in range(cuda.threadIdx.x, tile.shape[0] * CHUNK, THREADS):
        r, d = i // CHUNK, i % CHUNK
        row = first_row + r
        if row < rows and first_dim + d < head_dim:
            tile[r, d] = LOAD(x[b, h, row, first_dim + d])
        else:
            tile[r, d] = float32(0)


@cuda.jit(device=True)
def load_pages(tile, x, block_table, b, h, first_row, rows, first_dim, head_dim):
    """The same of pages x[page, h, row of the page, d], of which block_table[b, i] is the i-th of a sequence."""
    for i in range(cuda.threadIdx.x, tile.shape[0] * CHUNK, THREADS):
        r, d = i // CHUNK, i % CHUNK
        row, size = first_row + r, x.shape[2]
        tile[r, d] = 0
        if row < rows and first_dim + d < head_dim:
            tile[r, d] = LOAD(x[block_table[b, row // size], h, row % size, first_dim + d])


@cuda.jit(device=True)
def load_row(tile, r, lane, q, b, h, row, rows, first_dim, head_dim):
    """Fill row r of the tile with q[b, h, row, first_dim + d], every thread with the dims of its lane."""
    for d in range(lane, CHUNK, LANES):
        exists = row < rows and first_dim + d < head_dim
        tile[r, d] = LOAD(q[b, h, row, first_dim + d]) if exists else float32(0)


@cuda.jit(device=True)
def spread(x, b, h, row, key):
    """x[b, h, row, key] of an array that has size 1 along axes where it is the same."""
    return x[
        min(b, x.shape[0] - 1), min(h, x.shape[1] - 1), min(row, x.shape[2] - 1), min(key, x.shape[3] - 1)
    ]  # fmt: skip


def flash_forward(
    q, k, v, out, lse, partial_O, partial_max, partial_sum, cu_seqlens_q, cu_seqlens_k, cache_seqlens, block_table,
    mask, bias, dropout_mask, alibi_slopes, sinks, scale, softcap, keep_scale, causal, diagonal, left, right,
    bottom_right, max_seqlen_k
):  # fmt: skip
    """out[b, h, q, d] = softmax(scale * q @ k^T, masked) @ v and lse[b, h, q], its log-sum-exp; grid (query tiles,
    heads, batch).

    q, out [b, heads, seqlen_q, d]; k, v [b, kv_heads, seqlen_k, d]; lse float32 [b, heads, seqlen_q]. A causal row i
    sees the keys j <= i + diagonal. A row that sees no key gets out 0 and lse -inf. DIM_V: v and out have another d.

    SOFTCAP: softmax of softcap * tanh(scale * q @ k^T / softcap), masked. WINDOW: row i sees at most the keys from i +
    diagonal - left to i + diagonal + right; tiles without one are visited all the same, as they are where causal.
    BIAS: a capped score has one added, float32 [b, heads, q, k] (of size 1 along an axis where it is the same); ALIBI:
    slope * -|j - i - diagonal| of the head's slope, with COLUMN slope * j. MASK: keys are seen where mask, uint8 of
    that shape, is not 0. SINKS: each head has a score more, whose v is 0. DROPOUT: probs are kept, times keep_scale,
    where dropout_mask is not 0; sums of a row are those of all its probs.

    RAGGED: sequences have lengths of their own, and a diagonal, which ends at the last key if bottom_right. PACKED_Q:
    q, out and lse of sequences lie behind each other, with a batch stride of 0; sequence b begins at row
    cu_seqlens_q[b]. PACKED_K: likewise k and v. LENGTHS: sequence b has cache_seqlens[b] keys. PAGED: k and v are
    [page, kv_heads, row of a page, d]. PACK_GQA: rows of a tile are (query, head of a group), whose keys are the same;
    grid (tiles of these, kv_heads, batch).

    SPLIT: no out and no lse, but the unnormalised partial_O float32 [b, heads, splits, seqlen_q, d], partial_max and
    partial_sum float32 [b, heads, splits, seqlen_q]; grid (query tiles, heads * splits, batch). Split s holds the tiles
    from s * tiles_per_split on, counted on the longest sequence; without tiles it stores (-inf, 0, 0).
    """
    seqlen_q, seqlen_k, head_dim = q.shape[2], k.shape[2], q.shape[3]
    head_dim_v = head_dim
    if DIM_V:
        head_dim_v = v.shape[3]
    b, h = cuda.blockIdx.z, cuda.blockIdx.y
    first_q, first_k = 0, 0
    if PACKED_Q:
        first_q, seqlen_q = cu_seqlens_q[b], cu_seqlens_q[b + 1] - cu_seqlens_q[b]
    if PACKED_K:
        first_k, seqlen_k = cu_seqlens_k[b], cu_seqlens_k[b + 1] - cu_seqlens_k[b]
    if LENGTHS:
        seqlen_k = cache_seqlens[b]
    if RAGGED:
        diagonal = seqlen_k - seqlen_q if bottom_right else 0
    first_tile, tiles = 0, (seqlen_k + BLOCK_K - 1) // BLOCK_K
    if SPLIT:
        splits = partial_O.shape[2]
        h, split = cuda.blockIdx.y // splits, cuda.blockIdx.y % splits
        most_tiles = tiles
        if RAGGED:
            most_tiles = (max_seqlen_k + BLOCK_K - 1) // BLOCK_K
        tiles_per_split = (most_tiles + splits - 1) // splits
        first_tile, tiles = split * tiles_per_split, min((split + 1) * tiles_per_split, tiles)
    kv_h = h // (q.shape[1] // k.shape[1])
    r, lane = cuda.threadIdx.x // LANES, cuda.threadIdx.x % LANES
    row = cuda.blockIdx.x * BLOCK_Q + r
    if PACK_GQA:
        group = q.shape[1] // k.shape[1]
        # so far h is a kv head, and row a query and a head of its group
        kv_h, h, row = h, h * group + row % group, row // group
    if PACKED_Q:
        last_q = seqlen_q
        if PACK_GQA:
            last_q = seqlen_q * group
        if cuda.blockIdx.x * BLOCK_Q >= last_q:
            return  # behind the end of the sequence

    s_q = cuda.shared.array((BLOCK_Q, CHUNK), float32)
    s_kv = cuda.shared.array((BLOCK_K, CHUNK), float32)  # K of a tile, then V of the same tile
    s_p = cuda.shared.array((BLOCK_Q, BLOCK_K), float32)  # scores of a tile, then their probs
    acc = cuda.local.array(DIMS, float32)

    if WHOLE:
        if PACK_GQA:
            load_row(s_q, r, lane, q, b, h, first_q + row, first_q + seqlen_q, 0, head_dim)
        else:
            load_tile(s_q, q, b, h, first_q + cuda.blockIdx.x * BLOCK_Q, first_q + seqlen_q, 0, head_dim)
    m = NEG_INF
    l = float32(0)
    if SINKS:
        if first_tile == 0:  # in the first split alone
            m = sinks[h]
            l = float32(1) if m > NEG_INF else float32(0)
    for i in range(DIMS):
        acc[i] = float32(0)

    for tile in range(first_tile, tiles):
        first_key = tile * BLOCK_K
        if WHOLE:
            cuda.syncthreads()  # protects V of the previous tile in s_kv, still read by other threads
            if PAGED:
                load_pages(s_kv, k, block_table, b, kv_h, first_key, seqlen_k, 0, head_dim)
            else:
                load_tile(s_kv, k, b, kv_h, first_k + first_key, first_k + seqlen_k, 0, head_dim)
            cuda.syncthreads()  # s_q and K are complete before any thread reads them
        else:
            for first_dim in range(0, head_dim, CHUNK):
                cuda.syncthreads()  # protects the chunks before, still read by other threads
                load_row(s_q, r, lane, q, b, h, first_q + row, first_q + seqlen_q, first_dim, head_dim)
                if PAGED:
                    load_pages(s_kv, k, block_table, b, kv_h, first_key, seqlen_k, first_dim, head_dim)
                else:
                    load_tile(s_kv, k, b, kv_h, first_k + first_key, first_k + seqlen_k, first_dim, head_dim)
                cuda.syncthreads()  # the chunks are complete before any thread reads them
                for c in range(lane, BLOCK_K, LANES):
                    part = s_p[r, c] if first_dim > 0 else float32(0)
                    for d in range(min(CHUNK, head_dim - first_dim)):
                        part += s_q[r, d] * s_kv[c, d]
                    s_p[r, c] = part

        tile_max = NEG_INF
        for c in range(lane, BLOCK_K, LANES):
            key = first_key + c
            dot = float32(0)
            if WHOLE:
                for d in range(head_dim):
                    dot += s_q[r, d] * s_kv[c, d]
            else:
                dot = s_p[r, c]
            s = libdevice.fmul_rn(dot, scale)  # rounded here: a fused s - m below would differ from the probed s
            if SOFTCAP:
                s = libdevice.fmul_rn(softcap, math.tanh(s / softcap))
                if row < seqlen_q and key < seqlen_k:
                    probe.capped[b, h, row, key] = s
            if BIAS:
                if row < seqlen_q and key < seqlen_k:
                    s += spread(bias, b, h, row, key)
            if ALIBI:
                if COLUMN:
                    s += libdevice.fmul_rn(alibi_slopes[h], float32(key))
                else:
                    s -= libdevice.fmul_rn(alibi_slopes[h], float32(abs(key - row - diagonal)))
            if key >= seqlen_k or (causal and key > row + diagonal):
                s = NEG_INF
            if WINDOW:
                if key < row + diagonal - left or key > row + diagonal + right:
                    s = NEG_INF
            if MASK:
                if row < seqlen_q and key < seqlen_k and spread(mask, b, h, row, key) == 0:
                    s = NEG_INF
            s_p[r, c] = s
            tile_max = max(tile_max, s)
            if row < seqlen_q and key < seqlen_k:
                probe.qk[b, h, row, key] = dot
                probe.scores[b, h, row, key] = s

        m_prev = m
        m = max(m_prev, row_max_of(tile_max))
        m_safe = m if m > NEG_INF else float32(0)  # no key seen yet: exp(-inf - 0) is 0, exp(-inf + inf) is NaN
        correction = math.exp(m_prev - m_safe)

        tile_sum = float32(0)
        for c in range(lane, BLOCK_K, LANES):
            p = math.exp(s_p[r, c] - m_safe)
            p_cast = CAST(p)
            if DROPOUT:
                exists = row < seqlen_q and first_key + c < seqlen_k
                kept = exists and spread(dropout_mask, b, h, row, first_key + c) != 0
                p_cast = CAST(libdevice.fmul_rn(p, keep_scale)) if kept else float32(0)
            s_p[r, c] = p_cast
            tile_sum += p
            if row < seqlen_q and first_key + c < seqlen_k:
                probe.probs[b, h, row, first_key + c] = p
                probe.probs_cast[b, h, row, first_key + c] = p_cast
        l = l * correction + row_sum_of(tile_sum)

        if WHOLE:
            cuda.syncthreads()  # protects K in s_kv, still read by other threads; the row's probs are complete
            if PAGED:
                load_pages(s_kv, v, block_table, b, kv_h, first_key, seqlen_k, 0, head_dim_v)
            else:
                load_tile(s_kv, v, b, kv_h, first_k + first_key, first_k + seqlen_k, 0, head_dim_v)
            cuda.syncthreads()  # V is complete before any thread reads it
        for i in range(DIMS):
            acc[i] = acc[i] * correction
        if WHOLE:
            for c in range(BLOCK_K):
                p = s_p[r, c]
                for i in range(DIMS):
                    acc[i] += p * s_kv[c, lane + i * LANES]
        else:
            for first_dim in range(0, head_dim_v, CHUNK):
                cuda.syncthreads()  # protects the chunk before; the row's probs are complete
                if PAGED:
                    load_pages(s_kv, v, block_table, b, kv_h, first_key, seqlen_k, first_dim, head_dim_v)
                else:
                    load_tile(s_kv, v, b, kv_h, first_k + first_key, first_k + seqlen_k, first_dim, head_dim_v)
                cuda.syncthreads()  # the chunk is complete before any thread reads it
                for c in range(BLOCK_K):
                    p = s_p[r, c]
                    for i in range(CHUNK // LANES):
                        acc[first_dim // LANES + i] += p * s_kv[c, lane + i * LANES]

        if row < seqlen_q:
            if lane == 0:
                probe.row_max[b, h, row, tile] = m
                probe.correction[b, h, row, tile] = correction
                probe.row_sum[b, h, row, tile] = l
            for i in range(DIMS):
                if lane + i * LANES < head_dim_v:
                    probe.acc[b, h, row, tile, lane + i * LANES] = acc[i]

    if row < seqlen_q:
        for i in range(DIMS):
            d = lane + i * LANES
            if d < head_dim_v:
                if SPLIT:
                    partial_O[b, h, split, row, d] = acc[i]
                else:
                    out[b, h, first_q + row, d] = STORE(acc[i] / l if l != float32(0) else float32(0))
        if lane == 0:
            if SPLIT:
                partial_max[b, h, split, row] = m
                partial_sum[b, h, split, row] = l
            else:
                lse[b, h, first_q + row] = m + math.log(l) if l != float32(0) else NEG_INF


# ---- on the host

KERNEL = Kernel(
    name="flash",
    algorithm="flash",
    file=Path(__file__),
    functions={"flash_forward": Path(__file__)},
    summary="FlashAttention forward: one block per query tile, online softmax over key tiles",
    resolves=resolve,
    constants=constants,
    launches=lambda case: [Launch("flash_forward", forward_grid(case))],
    contract=contract,
)
