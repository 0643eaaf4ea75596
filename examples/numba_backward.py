"""The backward pass of attention in numba.cuda: a thread for each query makes dQ, a thread for each key dK and dV.

    workbench diff examples/numba_backward.py:backward --operation attention_backward,causal

It needs no GPU. P, dP and dS are stored for the workbench, delta for the second kernel.
"""

import math

import numpy as np
from numba import cuda, float32

THREADS, DIMS = 32, 128  # threads of a block, the largest head dimension


@cuda.jit
def of_queries(q, k, v, out, lse, dout, scale, causal, probs, dprobs, dscores, delta, dq):
    row, h, b = cuda.grid(1), cuda.blockIdx.y, cuda.blockIdx.z
    if row >= q.shape[2]:
        return
    h_kv, dims, dims_v = h // (q.shape[1] // k.shape[1]), q.shape[3], v.shape[3]
    total = float32(0)
    for e in range(dims_v):
        total += float32(dout[b, h, row, e]) * float32(out[b, h, row, e])
    delta[b, h, row] = total
    acc = cuda.local.array(DIMS, float32)
    for d in range(dims):
        acc[d] = 0
    last = row + k.shape[2] - q.shape[2] if causal else k.shape[2] - 1
    for key in range(last + 1):
        qk, dp = float32(0), float32(0)
        for d in range(dims):
            qk += float32(q[b, h, row, d]) * float32(k[b, h_kv, key, d])
        for e in range(dims_v):
            dp += float32(dout[b, h, row, e]) * float32(v[b, h_kv, key, e])
        p = math.exp(qk * scale - lse[b, h, row])
        ds = p * (dp - total)
        probs[b, h, row, key], dprobs[b, h, row, key], dscores[b, h, row, key] = p, dp, ds
        for d in range(dims):
            acc[d] += ds * float32(k[b, h_kv, key, d])
    for d in range(dims):
        dq[b, h, row, d] = acc[d] * scale


@cuda.jit
def of_keys(q, k, v, lse, dout, delta, scale, causal, dk, dv):
    key, h_kv, b = cuda.grid(1), cuda.blockIdx.y, cuda.blockIdx.z
    if key >= k.shape[2]:
        return
    group, dims, dims_v = q.shape[1] // k.shape[1], q.shape[3], v.shape[3]
    of_k, of_v = cuda.local.array(DIMS, float32), cuda.local.array(DIMS, float32)
    for d in range(DIMS):
        of_k[d], of_v[d] = 0, 0
    first = max(0, key + q.shape[2] - k.shape[2]) if causal else 0
    for h in range(h_kv * group, (h_kv + 1) * group):
        for row in range(first, q.shape[2]):
            qk, dp = float32(0), float32(0)
            for d in range(dims):
                qk += float32(q[b, h, row, d]) * float32(k[b, h_kv, key, d])
            for e in range(dims_v):
                dp += float32(dout[b, h, row, e]) * float32(v[b, h_kv, key, e])
            p = math.exp(qk * scale - lse[b, h, row])
            ds = p * (dp - delta[b, h, row])
            for d in range(dims):
                of_k[d] += ds * float32(q[b, h, row, d])
            for e in range(dims_v):
                of_v[e] += p * float32(dout[b, h, row, e])
    for d in range(dims):
        dk[b, h_kv, key, d] = of_k[d] * scale
    for e in range(dims_v):
        dv[b, h_kv, key, e] = of_v[e]


def backward(q, k, v, out, lse, dout, *, scale, causal):
    """dq, dk and dv of NumPy arrays, with P, dP, dS and delta; P and dS meet the next product in float32."""
    batch, heads, rows, _ = q.shape
    kv_heads, keys = k.shape[1], k.shape[2]
    inputs = [cuda.to_device(x) for x in (q, k, v, out, lse, dout)]
    on_q, on_k, on_v, _, on_lse, on_dout = inputs
    weights = [cuda.to_device(np.zeros((batch, heads, rows, keys), np.float32)) for _ in range(3)]
    delta = cuda.to_device(np.zeros((batch, heads, rows), np.float32))
    dq, dk, dv = (cuda.to_device(np.zeros(x.shape, np.float32)) for x in (q, k, v))
    size = np.float32(scale)
    of_queries[(-(-rows // THREADS), heads, batch), THREADS](*inputs, size, causal, *weights, delta, dq)
    of_keys[(-(-keys // THREADS), kv_heads, batch), THREADS](
        on_q, on_k, on_v, on_lse, on_dout, delta, size, causal, dk, dv
    )
    made = {"delta": delta, "dq": dq, "dk": dk, "dv": dv}
    stages = {name: x.copy_to_host() for name, x in made.items()}
    stages |= {name: x.copy_to_host() for name, x in zip(("probs", "dprobs", "dscores"), weights, strict=True)}
    return {**stages, "contract": {"probs_dtype": "float32", "dscores_dtype": "float32"}}
