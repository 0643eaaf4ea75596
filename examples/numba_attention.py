"""A naive attention kernel in numba.cuda, a thread for each query, with a probe for each of its stages.

    workbench diff examples/numba_attention.py:attention --causal
    workbench check examples/numba_attention.py:attention --seqlen 40 --causal

Both need no GPU. In production the kernel is compiled without its probes.
"""

import math

import numpy as np
from numba import cuda, float32

from workbench.foreign.probes.numba_cuda import probe, probed

THREADS, DIMS = 64, 128  # queries of a block, the largest head_dim


@cuda.jit
@probed(block_k=1)  # keys of a tile: it takes one after the other
def flash(q, k, v, out, lse, scale, causal):
    row, h, b = cuda.grid(1), cuda.blockIdx.y, cuda.blockIdx.z
    if row >= q.shape[2]:
        return
    h_kv, dims = h // (q.shape[1] // k.shape[1]), q.shape[3]
    acc = cuda.local.array(DIMS, float32)
    for d in range(dims):
        acc[d] = 0
    row_max, row_sum = float32(-math.inf), float32(0)
    last = row + k.shape[2] - q.shape[2] if causal else k.shape[2] - 1
    for key in range(last + 1):
        qk = float32(0)
        for d in range(dims):
            qk += float32(q[b, h, row, d]) * float32(k[b, h_kv, key, d])
        probe.qk[b, h, row, key] = qk
        score = qk * scale
        probe.scores[b, h, row, key] = score
        larger = max(row_max, score)
        correction = math.exp(row_max - larger)
        probe.correction[b, h, row, key] = correction
        row_max = larger
        probe.row_max[b, h, row, key] = row_max
        prob = math.exp(score - row_max)
        probe.probs[b, h, row, key] = prob
        row_sum = row_sum * correction + prob
        probe.row_sum[b, h, row, key] = row_sum
        for d in range(dims):
            acc[d] = acc[d] * correction + prob * float32(v[b, h_kv, key, d])
            probe.acc[b, h, row, key, d] = acc[d]
    total = row_sum if row_sum > 0 else float32(1)  # a row without keys: out 0, lse -inf
    for d in range(dims):
        out[b, h, row, d] = acc[d] / total
    lse[b, h, row] = row_max + math.log(total)


def attention(q, k, v, *, scale, causal):
    """What attention leaves behind: out and lse of NumPy arrays q [batch, heads, seqlen_q, head_dim], k and v [batch,
    kv_heads, seqlen_k, head_dim].
    """
    batch, heads, seqlen_q, _ = q.shape
    out, lse = cuda.device_array(q.shape, q.dtype), cuda.device_array(q.shape[:3], np.float32)
    grid = (-(-seqlen_q // THREADS), heads, batch)
    q, k, v = cuda.to_device(q), cuda.to_device(k), cuda.to_device(v)
    flash[grid, THREADS](q, k, v, out, lse, np.float32(scale), causal)
    contract = {"probs_dtype": "float32", "exp_ulps": 2, "exp_ulps_per_x": 0, "normalisation": "division"}
    return {"out": out.copy_to_host(), "lse": lse.copy_to_host(), "contract": contract}
