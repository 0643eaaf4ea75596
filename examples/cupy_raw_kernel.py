"""Attention in CUDA C++ by way of CuPy, one thread a query, float32, head_dim up to 128:

workbench diff examples/cupy_raw_kernel.py:attention --arrays cupy --causal
"""

import cupy

KERNEL = cupy.RawKernel(
    r"""
extern "C" __global__ void attention(const float *q, const float *k, const float *v, float *scores, float *out,
                                     float *lse, int group, int seqlen_q, int seqlen_k, int dim, float scale,
                                     int causal)
{
    const int row = blockIdx.x * blockDim.x + threadIdx.x, head = blockIdx.y;  // head: of all heads of all batches
    if (row >= seqlen_q) return;
    q += ((long long)head * seqlen_q + row) * dim;
    k += (long long)(head / group) * seqlen_k * dim;
    v += (long long)(head / group) * seqlen_k * dim;
    scores += ((long long)head * seqlen_q + row) * seqlen_k;
    const int keys = causal ? min(seqlen_k, max(0, row + 1 + seqlen_k - seqlen_q)) : seqlen_k;
    float top = -__int_as_float(0x7f800000), sum = 0, acc[128] = {};
    for (int j = 0; j < seqlen_k; ++j) {
        float s = 0;
        for (int d = 0; d < dim; ++d) s += q[d] * k[(long long)j * dim + d];
        scores[j] = j < keys ? s * scale : -__int_as_float(0x7f800000);
        top = fmaxf(top, scores[j]);
    }
    for (int j = 0; j < keys; ++j) {
        const float p = expf(scores[j] - top);
        sum += p;
        for (int d = 0; d < dim; ++d) acc[d] += p * v[(long long)j * dim + d];
    }
    for (int d = 0; d < dim; ++d) out[((long long)head * seqlen_q + row) * dim + d] = keys ? acc[d] / sum : 0;
    lse[(long long)head * seqlen_q + row] = keys ? top + logf(sum) : -__int_as_float(0x7f800000);
}
""",
    "attention",
)


def attention(q, k, v, *, scale, causal):
    """Scores, out and lse of q [batch, heads, seqlen_q, head_dim], k and v [batch, kv_heads, seqlen_k, head_dim], CuPy
    arrays of any strides.
    """
    if q.dtype != cupy.float32 or q.shape[3] > 128:
        raise ValueError(f"float32 with head_dim up to 128 is all it takes; got {q.dtype} with {q.shape[3]}")
    (batch, heads, seqlen_q, dim), kv_heads, seqlen_k = q.shape, k.shape[1], k.shape[2]
    q, k, v = (cupy.ascontiguousarray(x) for x in (q, k, v))
    out, lse = cupy.empty_like(q), cupy.empty(q.shape[:3], q.dtype)
    scores = cupy.empty((*q.shape[:3], seqlen_k), q.dtype)
    sizes = (heads // kv_heads, seqlen_q, seqlen_k, dim, cupy.float32(scale), int(causal))
    KERNEL((-(-seqlen_q // 64), batch * heads), (64,), (q, k, v, scores, out, lse, *sizes))
    contract = {"scores_dtype": "float32", "probs_dtype": "float32", "accumulation": "nearest", "exp_ulps_per_x": 0.0}
    return {"scores": scores, "out": out, "lse": lse, "contract": contract}
