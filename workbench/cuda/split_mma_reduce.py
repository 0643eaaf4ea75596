"""The second pass of Split-K on tensor cores: the splits of each row, merged by warps that share them.

What `split_k.split_k_reduce` does, in the units of `split_mma.py`: maxima are not scaled, but where SCALED. Capitals
as there; besides LANE_DIMS, the dims of a lane, LOAD, which reads as many at once, and STORE of the dtype of out.
"""

import math

import numpy as np
from numba import cuda, float32
from numba.cuda import libdevice

from workbench.cuda import ptx
from workbench.cuda.device import FULL_WARP

NEG_INF = np.float32(-np.inf)
LOG2_E = np.float32(math.log2(math.e))


def split_mma_reduce(partial_O, partial_max, partial_sum, out, lse, cu_seqlens_q, scale):
    """Merge the splits of each row; grid (seqlen_q, heads, batch): a block for each row.

    partial_O, partial_max, partial_sum as `split_mma_forward` leaves them; out [b, heads, seqlen_q, d] of 16 bits, lse
    float32 [b, heads, seqlen_q]. A warp has every WARPS-th split, a lane LANE_DIMS dims of all of them. A row without
    keys gets out 0, lse -inf.
    """
    splits, seqlen_q, head_dim = partial_O.shape[2], partial_O.shape[3], partial_O.shape[4]
    row, h, b = cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z
    first_q = 0
    if PACKED_Q:
        first_q, seqlen_q = cu_seqlens_q[b], cu_seqlens_q[b + 1] - cu_seqlens_q[b]
    if row >= seqlen_q:
        return
    warp, lane = cuda.threadIdx.x >> 5, cuda.laneid
    exp2_scale = libdevice.fmul_rn(scale, LOG2_E)
    if SCALED:
        exp2_scale = LOG2_E

    m = NEG_INF
    for s in range(lane, splits, 32):
        m = max(m, partial_max[b, h, s, row])
    for i in range(5):
        m = max(m, cuda.shfl_xor_sync(FULL_WARP, m, 1 << i))
    safe = m if m > NEG_INF else float32(0)  # no key in any split

    l = float32(0)  # of the lane's own splits
    acc = cuda.local.array(LANE_DIMS, float32)
    for i in range(LANE_DIMS):
        acc[i] = float32(0)
    d = min(lane * LANE_DIMS, head_dim - LANE_DIMS)  # lanes behind the last dim do its work once more
    for first in range(warp, splits, 32 * WARPS):
        own = first + lane * WARPS
        weight = float32(0)
        if own < splits:
            weight = ptx.ex2_approx((partial_max[b, h, own, row] - safe) * exp2_scale)
            l += weight * partial_sum[b, h, own, row]
            probe.merge_weight[b, h, own, row] = weight
        for i in range(min(32, (splits - first + WARPS - 1) // WARPS)):
            of_split = cuda.shfl_sync(FULL_WARP, weight, i)
            values = LOAD(partial_O, (b, h, first + i * WARPS, row, d))
            for j in range(LANE_DIMS):
                acc[j] += of_split * values[j]
    for i in range(5):
        l += cuda.shfl_xor_sync(FULL_WARP, l, 1 << i)

    s_acc = cuda.shared.array(ACC_SIZE, float32)  # [warp, d]
    s_sum = cuda.shared.array(WARPS, float32)
    for i in range(LANE_DIMS):
        s_acc[warp * HEAD_DIM + lane * LANE_DIMS + i] = acc[i]
    if lane == 0:
        s_sum[warp] = l
    cuda.syncthreads()  # sums of all warps are complete
    total = float32(0)
    for w in range(WARPS):
        total += s_sum[w]
    for x in range(cuda.threadIdx.x, head_dim, THREADS):
        numerator = float32(0)
        for w in range(WARPS):
            numerator += s_acc[w * HEAD_DIM + x]
        out[b, h, first_q + row, x] = STORE(numerator / total if total != float32(0) else float32(0))
    if cuda.threadIdx.x == 0:
        probe.merge_max[b, h, row] = m
        probe.merge_sum[b, h, row] = total
        largest = m * scale
        if SCALED:
            largest = m
        lse[b, h, first_q + row] = largest + math.log(total) if total != float32(0) else NEG_INF
