"""Split-K attention (Flash-Decoding): partial attention of each (query tile, split), then a reduce that merges the
splits.

The keys of a row are cut into splits of whole key tiles; `flash_forward` of `flash.py`, built with SPLIT, runs the
online softmax over the tiles of one split and stores the unnormalised partial_O with its partial_max and partial_sum;
`split_k_reduce` rescales them to the common max and divides (Dao et al. 2023, Flash-Decoding for long-context
inference). Capitals and `probe` as in `flash.py`.
"""

import math
from pathlib import Path

import numpy as np
from numba import cuda, float32

from workbench.case.case import Case
from workbench.cuda import flash_build
from workbench.cuda.device import LANES
from workbench.cuda.kernel import Kernel, Launch

NEG_INF = np.float32(-np.inf)


def split_k_reduce(partial_O, partial_max, partial_sum, out, lse, cu_seqlens_q):
    """Merge the splits of each row; grid (query tiles, heads, batch).

    partial_O, partial_max, partial_sum as `flash_forward` leaves them; out [b, heads, seqlen_q, d] in the storage
    dtype; lse float32 [b, heads, seqlen_q]. A split without visible keys has partial_max -inf and weighs 0; a row
    without keys gets out 0, lse -inf. PACKED_Q: as of `flash_forward`.
    """
    splits, seqlen_q, head_dim = partial_O.shape[2], partial_O.shape[3], partial_O.shape[4]
    b, h = cuda.blockIdx.z, cuda.blockIdx.y
    first_q = 0
    if PACKED_Q:
        first_q, seqlen_q = cu_seqlens_q[b], cu_seqlens_q[b + 1] - cu_seqlens_q[b]
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
            out[b, h, first_q + row, d] = STORE(acc[i] / l if l != float32(0) else float32(0))
    if lane == 0:
        probe.merge_max[b, h, row] = m
        probe.merge_sum[b, h, row] = l
        lse[b, h, first_q + row] = m + math.log(l) if l != float32(0) else NEG_INF


# ---- on the host


def resolve(kernel: Kernel, case: Case) -> Case:
    """As of `flash`, in 2 splits where none are given."""
    return flash_build.resolve(kernel, case.but(splits=case.splits or 2))


def launches(case: Case) -> list[Launch]:
    """`flash_forward`, then the reduce."""
    partials = ("partial_O", "partial_max", "partial_sum")
    return [
        Launch("flash_forward", flash_build.forward_grid(case), partials),
        Launch("split_k_reduce", flash_build.grid(case)),
    ]


KERNEL = Kernel(
    name="split_k",
    algorithm="split_k",
    file=Path(__file__),
    functions={"flash_forward": Path(__file__).with_name("flash.py"), "split_k_reduce": Path(__file__)},
    summary="Split-K attention: partial attention per (query tile, split), then a reduce over splits",
    resolves=resolve,
    constants=flash_build.constants,
    launches=launches,
    contract=flash_build.contract,
    splits=True,
)
