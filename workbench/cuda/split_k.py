"""Split-K attention (Flash-Decoding): partial attention of each (query tile, split), then a reduce that merges the
splits.

The keys of a row are cut into splits of whole key tiles; `split_k_partial` runs the online softmax of `flash.py` over
the tiles of one split and stores the unnormalised partial_O with its partial_max and partial_sum; `split_k_reduce`
rescales them to the common max and divides (Dao et al. 2023, Flash-Decoding for long-context inference). Capitals and
`probe` as in `flash.py`.
"""

import math
from pathlib import Path

import numpy as np
from numba import cuda, float32
from numba.cuda import libdevice

from workbench.case import Case
from workbench.cuda import flash
from workbench.cuda.device import LANES, row_max_of, row_sum_of
from workbench.cuda.kernel import Kernel, Launch

NEG_INF = np.float32(-np.inf)


@cuda.jit(device=True)
def load_tile(tile, x, b, h, first_row, rows, head_dim):
    """Fill tile[r, d] with x[b, h, first_row + r, d] as float32, and with 0 where the row or the dim does not exist."""
    for i in range(cuda.threadIdx.x, tile.shape[0] * HEAD_DIM, THREADS):
        r, d = i // HEAD_DIM, i % HEAD_DIM
        row = first_row + r
        if row < rows and d < head_dim:
            tile[r, d] = LOAD(x[b, h, row, d])
        else:
            tile[r, d] = float32(0)


def split_k_partial(q, k, v, partial_O, partial_max, partial_sum, scale, causal, diagonal):
    """Online softmax over the key tiles of one split; grid (query tiles, heads * splits, batch).

    q [b, heads, seqlen_q, d]; k, v [b, kv_heads, seqlen_k, d]; partial_O float32 [b, heads, splits, seqlen_q, d];
    partial_max and partial_sum float32 [b, heads, splits, seqlen_q]. Split s holds the tiles from s * tiles_per_split
    on; without tiles it stores (-inf, 0, 0). A causal row i sees the keys j <= i + diagonal.
    """
    seqlen_q, seqlen_k, head_dim = q.shape[2], k.shape[2], q.shape[3]
    splits = partial_O.shape[2]
    b, h, split = cuda.blockIdx.z, cuda.blockIdx.y // splits, cuda.blockIdx.y % splits
    kv_h = h // (q.shape[1] // k.shape[1])
    r, lane = cuda.threadIdx.x // LANES, cuda.threadIdx.x % LANES
    row = cuda.blockIdx.x * BLOCK_Q + r

    s_q = cuda.shared.array((BLOCK_Q, HEAD_DIM), float32)
    s_kv = cuda.shared.array((BLOCK_K, HEAD_DIM), float32)  # K of a tile, then V of the same tile
    s_p = cuda.shared.array((BLOCK_Q, BLOCK_K), float32)  # scores of a tile, then their probs
    acc = cuda.local.array(DIMS, float32)

    load_tile(s_q, q, b, h, cuda.blockIdx.x * BLOCK_Q, seqlen_q, head_dim)
    m = NEG_INF
    l = float32(0)
    for i in range(DIMS):
        acc[i] = float32(0)

    tiles = (seqlen_k + BLOCK_K - 1) // BLOCK_K
    tiles_per_split = (tiles + splits - 1) // splits
    for tile in range(split * tiles_per_split, min((split + 1) * tiles_per_split, tiles)):
        first_key = tile * BLOCK_K
        cuda.syncthreads()  # protects V of the previous tile in s_kv, still read by other threads
        load_tile(s_kv, k, b, kv_h, first_key, seqlen_k, head_dim)
        cuda.syncthreads()  # s_q and K are complete before any thread reads them

        tile_max = NEG_INF
        for c in range(lane, BLOCK_K, LANES):
            key = first_key + c
            dot = float32(0)
            for d in range(head_dim):
                dot += s_q[r, d] * s_kv[c, d]
            s = libdevice.fmul_rn(dot, scale)  # rounded here: a fused s - m below would differ from the probed s
            if key >= seqlen_k or (causal and key > row + diagonal):
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
            s_p[r, c] = p_cast
            tile_sum += p
            if row < seqlen_q and first_key + c < seqlen_k:
                probe.probs[b, h, row, first_key + c] = p
                probe.probs_cast[b, h, row, first_key + c] = p_cast
        l = l * correction + row_sum_of(tile_sum)

        cuda.syncthreads()  # protects K in s_kv, still read by other threads; the row's probs are complete
        load_tile(s_kv, v, b, kv_h, first_key, seqlen_k, head_dim)
        cuda.syncthreads()  # V is complete before any thread reads it
        for i in range(DIMS):
            acc[i] = acc[i] * correction
        for c in range(BLOCK_K):
            p = s_p[r, c]
            for i in range(DIMS):
                acc[i] += p * s_kv[c, lane + i * LANES]

        if row < seqlen_q:
            if lane == 0:
                probe.row_max[b, h, row, tile] = m
                probe.correction[b, h, row, tile] = correction
                probe.row_sum[b, h, row, tile] = l
            for i in range(DIMS):
                if lane + i * LANES < head_dim:
                    probe.acc[b, h, row, tile, lane + i * LANES] = acc[i]

    if row < seqlen_q:
        for i in range(DIMS):
            d = lane + i * LANES
            if d < head_dim:
                partial_O[b, h, split, row, d] = acc[i]
        if lane == 0:
            partial_max[b, h, split, row] = m
            partial_sum[b, h, split, row] = l


def split_k_reduce(partial_O, partial_max, partial_sum, out, lse):
    """Merge the splits of each row; grid (query tiles, heads, batch).

    partial_O, partial_max, partial_sum as `split_k_partial` leaves them; out [b, heads, seqlen_q, d] in the storage
    dtype; lse float32 [b, heads, seqlen_q]. A split without visible keys has partial_max -inf and weighs 0; a row
    without keys gets out 0, lse -inf.
    """
    splits, seqlen_q, head_dim = partial_O.shape[2], partial_O.shape[3], partial_O.shape[4]
    b, h = cuda.blockIdx.z, cuda.blockIdx.y
    lane = cuda.threadIdx.x % LANES
    row = cuda.blockIdx.x * BLOCK_Q + cuda.threadIdx.x // LANES
    if row >= seqlen_q:
        return

    m = NEG_INF
    for s in range(splits):
        m = max(m, partial_max[b, h, s, row])
    m_safe = m if m > NEG_INF else float32(0)  # no key in any split: exp(-inf - 0) is 0

    l = float32(0)
    for s in range(splits):
        l += math.exp(partial_max[b, h, s, row] - m_safe) * partial_sum[b, h, s, row]

    acc = cuda.local.array(DIMS, float32)
    for i in range(DIMS):
        acc[i] = float32(0)
    for s in range(splits):
        weight = math.exp(partial_max[b, h, s, row] - m_safe)
        if lane == 0:
            probe.merge_weight[b, h, s, row] = weight
        for i in range(DIMS):
            d = lane + i * LANES
            if d < head_dim:
                acc[i] += weight * partial_O[b, h, s, row, d]

    for i in range(DIMS):
        d = lane + i * LANES
        if d < head_dim:
            out[b, h, row, d] = STORE(acc[i] / l if l != float32(0) else float32(0))
    if lane == 0:
        probe.merge_max[b, h, row] = m
        probe.merge_sum[b, h, row] = l
        lse[b, h, row] = m + math.log(l) if l != float32(0) else NEG_INF


# ---- on the host


def settle(kernel: Kernel, case: Case) -> Case:
    """As of `flash`, in 2 splits where none are given."""
    return flash.settle(kernel, case.but(splits=case.splits or 2))


def launches(case: Case) -> list[Launch]:
    """The partial kernel, with a block for each split besides, then the reduce."""
    query_tiles, heads, batch = flash.grid(case)
    blocks = (query_tiles, heads * case.splits, batch)
    partials = ("partial_O", "partial_max", "partial_sum")
    return [Launch("split_k_partial", blocks, partials), Launch("split_k_reduce", flash.grid(case))]


KERNEL = Kernel(
    name="split_k",
    algorithm="split_k",
    file=Path(__file__),
    functions={"split_k_partial": Path(__file__), "split_k_reduce": Path(__file__)},
    summary="Split-K attention: partial attention of each (query tile, split), then a reduce over splits",
    settles=settle,
    constants=flash.constants,
    launches=launches,
    contract=flash.contract,
    splits=True,
)
