"""A kernel of a user's in numba.cuda, with tiles in shared memory and two probes."""

import math

import numpy as np
from numba import cuda, float32

from workbench.foreign.probes.numba_cuda import probe, probed

ROWS, KEYS, DIM = 64, 32, 64  # queries of a block, keys of a tile, head_dim


@cuda.jit
@probed(block_k=KEYS)
def flash(q, k, v, out, lse, scale, causal):
    row, h, b, lane = cuda.grid(1), cuda.blockIdx.y, cuda.blockIdx.z, cuda.threadIdx.x
    k_tile = cuda.shared.array((KEYS, DIM), float32)
    v_tile = cuda.shared.array((KEYS, DIM), float32)
    acc = cuda.local.array(DIM, float32)
    for d in range(DIM):
        acc[d] = float32(0)
    row_max, row_sum = float32(-math.inf), float32(0)
    for first in range(0, k.shape[2], KEYS):
        for i in range(lane, KEYS * DIM, ROWS):
            if first + i // DIM < k.shape[2]:
                k_tile[i // DIM, i % DIM] = k[b, h, first + i // DIM, i % DIM]
                v_tile[i // DIM, i % DIM] = v[b, h, first + i // DIM, i % DIM]
        cuda.syncthreads()
        for j in range(min(KEYS, k.shape[2] - first)):
            if row < q.shape[2] and (not causal or first + j <= row + k.shape[2] - q.shape[2]):
                score = float32(0)
                for d in range(DIM):
                    score += q[b, h, row, d] * k_tile[j, d]
                score *= scale
                probe.scores[b, h, row, first + j] = score
                larger = max(row_max, score)
                correction, prob = math.exp(row_max - larger), math.exp(score - larger)
                row_max, row_sum = larger, row_sum * correction + prob
                for d in range(DIM):
                    acc[d] = acc[d] * correction + prob * v_tile[j, d]
        cuda.syncthreads()
        probe.row_max[b, h, row, first // KEYS] = row_max
    if row < q.shape[2]:
        for d in range(DIM):
            out[b, h, row, d] = acc[d] / row_sum
        lse[b, h, row] = row_max + math.log(row_sum)


def attention(q, k, v, *, scale, causal):
    out, lse = cuda.device_array(q.shape, np.float32), cuda.device_array(q.shape[:3], np.float32)
    grid = (-(-q.shape[2] // ROWS), q.shape[1], q.shape[0])
    flash[grid, ROWS](cuda.to_device(q), cuda.to_device(k), cuda.to_device(v), out, lse, np.float32(scale), causal)
    return out.copy_to_host(), lse.copy_to_host()
