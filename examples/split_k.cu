// Split-K attention: partial attention of each (query tile, split), then a reduce that merges the splits.
// Compiled by cuda_split_k.py, with ELEMENT, the storage type, and HEAD_DIM, BLOCK_Q, BLOCK_K, LANES, SPLITS numbers.

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif
#include "workbench_probe.cuh"

#define INF __int_as_float(0x7f800000)
using Element = ELEMENT;
constexpr int THREADS = BLOCK_Q * LANES, DIMS = (HEAD_DIM + LANES - 1) / LANES;

__device__ float row_max_of(float x) {
    for (int offset = LANES / 2; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, offset));
    return x;
}

__device__ float row_sum_of(float x) {
    for (int offset = LANES / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffff, x, offset);
    return x;
}

// tile[r][d] = x[first + r][d], 0 where the row does not exist; x is the matrix of one head
template <int ROWS> __device__ void load_tile(float (&tile)[ROWS][HEAD_DIM], const Element *x, int first, int rows) {
    for (int i = threadIdx.x; i < ROWS * HEAD_DIM; i += THREADS) {
        const int r = i / HEAD_DIM, d = i % HEAD_DIM;
        tile[r][d] = first + r < rows ? float(x[(first + r) * HEAD_DIM + d]) : 0.0f;
    }
}

// grid (query tiles, heads * SPLITS, batch); a causal row i sees the keys j <= i + seqlen_k - seqlen_q
extern "C" __global__ void split_k_partial(const Element *q, const Element *k, const Element *v, float *partial_O,
                                           float *partial_max, float *partial_sum, float scale, int causal, int heads,
                                           int kv_heads, int seqlen_q, int seqlen_k) {
    __shared__ float s_q[BLOCK_Q][HEAD_DIM], s_kv[BLOCK_K][HEAD_DIM], s_p[BLOCK_Q][BLOCK_K];
    const int b = blockIdx.z, h = blockIdx.y / SPLITS, split = blockIdx.y % SPLITS;
    const int kv_h = h / (heads / kv_heads), first_row = blockIdx.x * BLOCK_Q;
    const int r = threadIdx.x / LANES, lane = threadIdx.x % LANES, row = first_row + r;
    const Element *k_head = k + size_t(b * kv_heads + kv_h) * seqlen_k * HEAD_DIM;
    const Element *v_head = v + size_t(b * kv_heads + kv_h) * seqlen_k * HEAD_DIM;

    load_tile(s_q, q + size_t(b * heads + h) * seqlen_q * HEAD_DIM, first_row, seqlen_q);
    float m = -INF, l = 0, acc[DIMS] = {};
    const int tiles = (seqlen_k + BLOCK_K - 1) / BLOCK_K, tiles_per_split = (tiles + SPLITS - 1) / SPLITS;
    for (int tile = split * tiles_per_split; tile < min((split + 1) * tiles_per_split, tiles); ++tile) {
        const int first_key = tile * BLOCK_K;
        __syncthreads();  // V of the previous tile is not read any more
        load_tile(s_kv, k_head, first_key, seqlen_k);
        __syncthreads();  // Q and K are complete

        float tile_max = -INF;
        for (int c = lane; c < BLOCK_K; c += LANES) {
            const int key = first_key + c;
            float dot = 0;
            for (int d = 0; d < HEAD_DIM; ++d) dot += s_q[r][d] * s_kv[c][d];
            float s = __fmul_rn(dot, scale);  // rounded here, with and without probes: not fused with what follows
            if (key >= seqlen_k || (causal && key > row + seqlen_k - seqlen_q)) s = -INF;
            s_p[r][c] = s;
            tile_max = fmaxf(tile_max, s);
            if (row < seqlen_q && key < seqlen_k) {
                WB_PROBE(qk, dot, b, h, row, key);
                WB_PROBE(scores, s, b, h, row, key);
            }
        }
        const float m_prev = m;
        m = fmaxf(m, row_max_of(tile_max));
        const float m_safe = m > -INF ? m : 0.0f;  // no key seen yet: exp(-inf - 0) is 0, exp(-inf + inf) NaN
        const float correction = expf(m_prev - m_safe);
        float tile_sum = 0;
        for (int c = lane; c < BLOCK_K; c += LANES) tile_sum += s_p[r][c] = expf(s_p[r][c] - m_safe);
        l = l * correction + row_sum_of(tile_sum);

        __syncthreads();  // K is not read any more, the probs are complete
        WB_PROBE_TILE(probs, i, BLOCK_Q, c, BLOCK_K, s_p[i][c], b, h, first_row + i, first_key + c);
        load_tile(s_kv, v_head, first_key, seqlen_k);
        __syncthreads();  // V is complete
        for (int i = 0; i < DIMS; ++i) acc[i] = __fmul_rn(acc[i], correction);
        for (int c = 0; c < BLOCK_K; ++c)
            for (int d = lane; d < HEAD_DIM; d += LANES) acc[d / LANES] += s_p[r][c] * s_kv[c][d];

        if (row < seqlen_q) {
            WB_PROBE(row_max, m, b, h, row, tile);
            WB_PROBE(correction, correction, b, h, row, tile);
            WB_PROBE(row_sum, l, b, h, row, tile);
            for (int d = lane; d < HEAD_DIM; d += LANES) {
                WB_PROBE(acc, acc[d / LANES], b, h, row, tile, d);
            }
        }
    }
    if (row >= seqlen_q) return;
    const size_t slot = (size_t(b * heads + h) * SPLITS + split) * seqlen_q + row;
    for (int d = lane; d < HEAD_DIM; d += LANES) partial_O[slot * HEAD_DIM + d] = acc[d / LANES];
    if (lane == 0) partial_max[slot] = m, partial_sum[slot] = l;
}

// grid (query tiles, heads, batch); a split without visible keys weighs 0, a row without keys gets out 0 and lse -inf
extern "C" __global__ void split_k_reduce(const float *partial_O, const float *partial_max, const float *partial_sum,
                                          Element *out, float *lse, int heads, int seqlen_q) {
    const int b = blockIdx.z, h = blockIdx.y, lane = threadIdx.x % LANES;
    const int row = blockIdx.x * BLOCK_Q + threadIdx.x / LANES;
    if (row >= seqlen_q) return;
    const size_t head = size_t(b * heads + h), first = head * SPLITS * seqlen_q + row;

    float m = -INF, l = 0, acc[DIMS] = {};
    for (int s = 0; s < SPLITS; ++s) m = fmaxf(m, partial_max[first + s * seqlen_q]);
    for (int s = 0; s < SPLITS; ++s) {
        const size_t slot = first + s * seqlen_q;
        float weight = expf(partial_max[slot] - (m > -INF ? m : 0.0f));
        l += weight * partial_sum[slot];
#ifdef COUNTS_SUM_TWICE
        weight = __fmul_rn(weight, partial_sum[slot]);  // the bug: partial_O is not divided by it
#endif
        WB_PROBE(merge_weight, weight, b, h, s, row);
        for (int d = lane; d < HEAD_DIM; d += LANES) acc[d / LANES] += weight * partial_O[slot * HEAD_DIM + d];
    }
    WB_PROBE(merge_max, m, b, h, row);
    WB_PROBE(merge_sum, l, b, h, row);
    for (int d = lane; d < HEAD_DIM; d += LANES)
        out[(head * seqlen_q + row) * HEAD_DIM + d] = Element(l == 0 ? 0.0f : acc[d / LANES] / l);
    if (lane == 0) lse[head * seqlen_q + row] = l == 0 ? -INF : m + logf(l);
}
