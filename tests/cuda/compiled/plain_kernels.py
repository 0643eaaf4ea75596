"""Attention alone, without masks of a user's, sequences and pages: what the kernels compile to where no switch is on."""
# ruff: noqa: F821

import math

import numpy as np
from numba import cuda, float32
from numba.cuda import libdevice

from workbench.cuda.device import LANES, row_max_of, row_sum_of

NEG_INF = np.float32(-np.inf)


@cuda.jit(device=True)
def load_tile(tile, x, b, h, first_row, rows, head_dim):
    for i in range(cuda.threadIdx.x, tile.shape[0] * HEAD_DIM, THREADS):
        r, d = i // HEAD_DIM, i % HEAD_DIM
        row = first_row + r
        if row < rows and d < head_dim:
            tile[r, d] = LOAD(x[b, h, row, d])
        else:
            tile[r, d] = float32(0)


def flash_forward(
    q, k, v, out, lse, partial_O, partial_max, partial_sum, scale, softcap, causal, diagonal, left, right
):
    seqlen_q, seqlen_k, head_dim = q.shape[2], k.shape[2], q.shape[3]
    b, h = cuda.blockIdx.z, cuda.blockIdx.y
    first_tile, tiles = 0, (seqlen_k + BLOCK_K - 1) // BLOCK_K
    if SPLIT:
        splits = partial_O.shape[2]
        h, split = cuda.blockIdx.y // splits, cuda.blockIdx.y % splits
        tiles_per_split = (tiles + splits - 1) // splits
        first_tile, tiles = split * tiles_per_split, min((split + 1) * tiles_per_split, tiles)
    kv_h = h // (q.shape[1] // k.shape[1])
    r, lane = cuda.threadIdx.x // LANES, cuda.threadIdx.x % LANES
    row = cuda.blockIdx.x * BLOCK_Q + r

    s_q = cuda.shared.array((BLOCK_Q, HEAD_DIM), float32)
    s_kv = cuda.shared.array((BLOCK_K, HEAD_DIM), float32)
    s_p = cuda.shared.array((BLOCK_Q, BLOCK_K), float32)
    acc = cuda.local.array(DIMS, float32)

    load_tile(s_q, q, b, h, cuda.blockIdx.x * BLOCK_Q, seqlen_q, head_dim)
    m = NEG_INF
    l = float32(0)
    for i in range(DIMS):
        acc[i] = float32(0)

    for tile in range(first_tile, tiles):
        first_key = tile * BLOCK_K
        cuda.syncthreads()
        load_tile(s_kv, k, b, kv_h, first_key, seqlen_k, head_dim)
        cuda.syncthreads()

        tile_max = NEG_INF
        for c in range(lane, BLOCK_K, LANES):
            key = first_key + c
            dot = float32(0)
            for d in range(head_dim):
                dot += s_q[r, d] * s_kv[c, d]
            s = libdevice.fmul_rn(dot, scale)
            if SOFTCAP:
                s = libdevice.fmul_rn(softcap, math.tanh(s / softcap))
            if key >= seqlen_k or (causal and key > row + diagonal):
                s = NEG_INF
            if WINDOW:
                if key < row + diagonal - left or key > row + diagonal + right:
                    s = NEG_INF
            s_p[r, c] = s
            tile_max = max(tile_max, s)

        m_prev = m
        m = max(m_prev, row_max_of(tile_max))
        m_safe = m if m > NEG_INF else float32(0)
        correction = math.exp(m_prev - m_safe)

        tile_sum = float32(0)
        for c in range(lane, BLOCK_K, LANES):
            p = math.exp(s_p[r, c] - m_safe)
            p_cast = CAST(p)
            s_p[r, c] = p_cast
            tile_sum += p
        l = l * correction + row_sum_of(tile_sum)

        cuda.syncthreads()
        load_tile(s_kv, v, b, kv_h, first_key, seqlen_k, head_dim)
        cuda.syncthreads()
        for i in range(DIMS):
            acc[i] = acc[i] * correction
        for c in range(BLOCK_K):
            p = s_p[r, c]
            for i in range(DIMS):
                acc[i] += p * s_kv[c, lane + i * LANES]

    if row < seqlen_q:
        for i in range(DIMS):
            d = lane + i * LANES
            if d < head_dim:
                if SPLIT:
                    partial_O[b, h, split, row, d] = acc[i]
                else:
                    out[b, h, row, d] = STORE(acc[i] / l if l != float32(0) else float32(0))
        if lane == 0:
            if SPLIT:
                partial_max[b, h, split, row] = m
                partial_sum[b, h, split, row] = l
            else:
                lse[b, h, row] = m + math.log(l) if l != float32(0) else NEG_INF


def split_k_reduce(partial_O, partial_max, partial_sum, out, lse):
    splits, seqlen_q, head_dim = partial_O.shape[2], partial_O.shape[3], partial_O.shape[4]
    b, h = cuda.blockIdx.z, cuda.blockIdx.y
    lane = cuda.threadIdx.x % LANES
    row = cuda.blockIdx.x * BLOCK_Q + cuda.threadIdx.x // LANES
    if row >= seqlen_q:
        return

    m = NEG_INF
    for s in range(splits):
        m = max(m, partial_max[b, h, s, row])
    m_safe = m if m > NEG_INF else float32(0)

    l = float32(0)
    for s in range(splits):
        l += math.exp(partial_max[b, h, s, row] - m_safe) * partial_sum[b, h, s, row]

    acc = cuda.local.array(DIMS, float32)
    for i in range(DIMS):
        acc[i] = float32(0)
    for s in range(splits):
        weight = math.exp(partial_max[b, h, s, row] - m_safe)
        for i in range(DIMS):
            d = lane + i * LANES
            if d < head_dim:
                acc[i] += weight * partial_O[b, h, s, row, d]

    for i in range(DIMS):
        d = lane + i * LANES
        if d < head_dim:
            out[b, h, row, d] = STORE(acc[i] / l if l != float32(0) else float32(0))
    if lane == 0:
        lse[b, h, row] = m + math.log(l) if l != float32(0) else NEG_INF
