// Attention on FP8 codes (uint8, e4m3) with a scale a head: decode tables in shared memory, products on tensor cores
// (WMMA, float16 with float32 sums). fp8_attention.py compiles it and has the wrong versions, each a macro:
//
// TABLE_K(c), TABLE_V(c)  which code's number stands at entry c of a table
// K_FRAGMENT, V_FRAGMENT  order in which fragments of K and V are loaded: col_major and row_major are right
// K_CHUNK(r), V_CHUNK(r)  by what a row's chunks of 8 elements are swizzled when they are stored, and not when loaded

#include <cuda_fp16.h>
#include <math_constants.h>
#include <mma.h>

#ifndef TABLE_K
#define TABLE_K(c) (c)
#endif
#ifndef TABLE_V
#define TABLE_V(c) (c)
#endif
#ifndef TABLE_Q
#define TABLE_Q(c) (c)
#endif
#ifndef K_FRAGMENT
#define K_FRAGMENT col_major
#endif
#ifndef V_FRAGMENT
#define V_FRAGMENT row_major
#endif
#ifndef K_CHUNK
#define K_CHUNK(r) 0
#endif
#ifndef V_CHUNK
#define V_CHUNK(r) 0
#endif

using namespace nvcuda;

constexpr int DIM = 64, ROWS = 32, KEYS = 64, LANES = 32, TILE = 16;

// What an e4m3 code stands for: 1 sign, 4 bits of exponent with bias 7, 3 of fraction.
__device__ float decoded(int code) {
    int exponent = code >> 3 & 15, fraction = code & 7;
    float size = exponent ? ldexpf(8 + fraction, exponent - 10) : ldexpf(fraction, -9);
    return code & 0x80 ? -size : size;
}

// Rows of codes [rows, DIM] as float16 in shared memory; 0 behind the end.
__device__ void load(half *to, const unsigned char *codes, const half *table, int first, int rows, int count, int *chunk) {
    for (int i = threadIdx.x; i < count * DIM; i += blockDim.x) {
        int r = i / DIM, c = i % DIM;
        int at = r * DIM + (c ^ chunk[r] * 8);
        to[at] = first + r < rows ? table[codes[(long long)(first + r) * DIM + c]] : __float2half(0.0f);
    }
}

extern "C" __global__ void fp8_attention(const unsigned char *q, const unsigned char *k, const unsigned char *v,
                                         const float *scale_q, const float *scale_k, const float *scale_v, float *out,
                                         float scale, int causal, int heads, int kv_heads, int rows, int keys) {
    __shared__ half table_q[256], table_k[256], table_v[256];
    __shared__ __align__(32) half Q[ROWS * DIM], K[KEYS * DIM], V[KEYS * DIM], P[ROWS * KEYS];
    __shared__ __align__(32) float S[ROWS * KEYS], O[ROWS * DIM];
    __shared__ int chunk_q[ROWS], chunk_k[KEYS], chunk_v[KEYS];

    int head = blockIdx.y, batch = blockIdx.z, kv = head / (heads / kv_heads), first = blockIdx.x * ROWS;
    const unsigned char *mine_q = q + (long long)(batch * heads + head) * rows * DIM;
    const unsigned char *mine_k = k + (long long)(batch * kv_heads + kv) * keys * DIM;
    const unsigned char *mine_v = v + (long long)(batch * kv_heads + kv) * keys * DIM;
    float of_scores = scale * scale_q[head] * scale_k[kv];

    for (int c = threadIdx.x; c < 256; c += blockDim.x) {
        table_q[c] = __float2half(decoded(TABLE_Q(c)));
        table_k[c] = __float2half(decoded(TABLE_K(c)));
        table_v[c] = __float2half(decoded(TABLE_V(c)));
    }
    for (int r = threadIdx.x; r < KEYS; r += blockDim.x) {
        if (r < ROWS) chunk_q[r] = 0;
        chunk_k[r] = K_CHUNK(r);
        chunk_v[r] = V_CHUNK(r);
    }
    for (int i = threadIdx.x; i < ROWS * DIM; i += blockDim.x) O[i] = 0.0f;
    __syncthreads();  // tables are whole before a code is looked up
    load(Q, mine_q, table_q, first, rows, ROWS, chunk_q);

    // a warp has 16 rows, two lanes a row
    int warp = threadIdx.x / LANES, lane = threadIdx.x % LANES, row = warp * TILE + lane / 2, half_of = lane % 2;
    float top = -CUDART_INF_F, sum = 0.0f;
    int last = causal ? min(keys, first + ROWS + keys - rows) : keys;
    for (int begin = 0; begin < last; begin += KEYS) {
        __syncthreads();  // the tile before was read
        load(K, mine_k, table_k, begin, keys, KEYS, chunk_k);
        load(V, mine_v, table_v, begin, keys, KEYS, chunk_v);
        __syncthreads();  // K, V (and Q) are whole before fragments are loaded

        for (int n = 0; n < KEYS; n += TILE) {
            wmma::fragment<wmma::accumulator, TILE, TILE, TILE, float> s;
            wmma::fill_fragment(s, 0.0f);
            for (int d = 0; d < DIM; d += TILE) {
                wmma::fragment<wmma::matrix_a, TILE, TILE, TILE, half, wmma::row_major> a;
                wmma::fragment<wmma::matrix_b, TILE, TILE, TILE, half, wmma::K_FRAGMENT> b;
                wmma::load_matrix_sync(a, Q + warp * TILE * DIM + d, DIM);
                wmma::load_matrix_sync(b, K + n * DIM + d, DIM);
                wmma::mma_sync(s, a, b, s);
            }
            wmma::store_matrix_sync(S + warp * TILE * KEYS + n, s, KEYS, wmma::mem_row_major);
        }
        __syncwarp();  // scores are whole before lanes read those of others

        float most = top;
        for (int j = half_of; j < KEYS; j += 2) {
            bool seen = begin + j < keys && (!causal || begin + j <= first + row + keys - rows);
            float s = seen ? S[row * KEYS + j] * of_scores : -CUDART_INF_F;
            S[row * KEYS + j] = s;
            most = fmaxf(most, s);
        }
        most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, 1));
        float correction = most == -CUDART_INF_F ? 1.0f : expf(top - most), more = 0.0f;
        for (int j = half_of; j < KEYS; j += 2) {
            float p = most == -CUDART_INF_F ? 0.0f : expf(S[row * KEYS + j] - most);
            P[row * KEYS + j] = __float2half(p);
            more += p;
        }
        sum = sum * correction + more + __shfl_xor_sync(0xffffffff, more, 1);
        top = most;
        for (int c = half_of; c < DIM; c += 2) O[row * DIM + c] *= correction;
        __syncwarp();  // P and O are whole before fragments are loaded

        for (int d = 0; d < DIM; d += TILE) {
            wmma::fragment<wmma::accumulator, TILE, TILE, TILE, float> o;
            wmma::load_matrix_sync(o, O + warp * TILE * DIM + d, DIM, wmma::mem_row_major);
            for (int n = 0; n < KEYS; n += TILE) {
                wmma::fragment<wmma::matrix_a, TILE, TILE, TILE, half, wmma::row_major> a;
                wmma::fragment<wmma::matrix_b, TILE, TILE, TILE, half, wmma::V_FRAGMENT> b;
                wmma::load_matrix_sync(a, P + warp * TILE * KEYS + n, KEYS);
                wmma::load_matrix_sync(b, V + n * DIM + d, DIM);
                wmma::mma_sync(o, a, b, o);
            }
            wmma::store_matrix_sync(O + warp * TILE * DIM + d, o, DIM, wmma::mem_row_major);
        }
        __syncwarp();  // O is whole before it is corrected or written
    }
    if (first + row < rows) {
        float *to = out + ((long long)(batch * heads + head) * rows + first + row) * DIM;
        for (int c = half_of; c < DIM; c += 2) to[c] = sum > 0.0f ? O[row * DIM + c] / sum * scale_v[kv] : 0.0f;
    }
}
