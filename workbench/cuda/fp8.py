"""Attention on codes of 8 or 4 bits: q, k and v are decoded, with a scale for each head, token or block of dims; scores
come from tensor cores, or are scalar, as of a q that has no codes.

One block for each query tile and the online softmax of `flash.py`, with max, sum and unnormalised accumulator in shared
memory. K and V are decoded by two tables of 256 entries, scale included, which each block builds, Q directly; all three
are float16 in shared memory, a Q without codes float32. Registers are those of "PTX ISA 9.0", "Matrix fragments for
mma.m16n8k16": of a 16x8 tile of sums, lane 4 g + t holds rows g and g + 8, columns 2 t and 2 t + 1.

Names in capitals are bound when the kernel is built (`fp8_build.Constants`): BLOCK_Q, BLOCK_K, multiples of 16;
HEAD_DIM, head_dim rounded up to 32, 64 or 128; DIMS = HEAD_DIM / LANES; LD, elements from one row of a tile to the
next; Q_SIZE, KV_SIZE, S_SIZE, elements of the tiles; THREADS = BLOCK_Q * LANES and WARPS; SIMULATED, INT8 and
FOUR_BITS, what codes are if not float8 with FRACTION_BITS; HEADS, whether a head has one scale, or each BLOCK dims of a
row, E8M0 or E4M3 bits or float32, with zero points (ZEROS) or a scale of the tensor (TENSOR_SCALE); TABLE, whether K
and V are looked up; CODED_Q, whether Q has codes, else LOAD reads it; Q_TYPE, of its tile, which WIDEN makes float32;
MMA, whether tensor cores multiply; CAST and `probe` as in `flash.py`.
"""

import math
from pathlib import Path

import numpy as np
from numba import cuda, float32, int16, int32, uint32
from numba.cuda import libdevice

from workbench.case.stages import CODES
from workbench.cuda import flash_build, ptx
from workbench.cuda.device import LANES, row_max_of, row_sum_of
from workbench.cuda.fp8_build import constants, contract, resolve
from workbench.cuda.kernel import Kernel, Launch

NEG_INF, NAN = np.float32(-np.inf), np.float32(np.nan)


@cuda.jit(device=True)
def pair(tile, low, high):
    """Two float16 of a tile as the register that a tensor core takes."""
    return uint32((int(tile[high]) & 0xFFFF) << 16 | int(tile[low]) & 0xFFFF)


@cuda.jit(device=True)
def a_fragment(s_q, row, d):
    """The lane's part of A, 16x16: rows `row` to row + 15 of Q, dims d to d + 15."""
    g, t = cuda.laneid // 4, cuda.laneid % 4
    upper = (row + g) * LD + d + 2 * t
    lower = upper + 8 * LD
    first, second = pair(s_q, upper, upper + 1), pair(s_q, lower, lower + 1)
    return first, second, pair(s_q, upper + 8, upper + 9), pair(s_q, lower + 8, lower + 9)


@cuda.jit(device=True)
def b_fragment(s_k, key, half, d):
    """The lane's part of B, 16x8: dims d to d + 15 by keys from key + half on, of the 16x16 tile that begins at `key`.

    B is K transposed: column-major, with K's rows as its columns and LD as its leading dimension.
    """
    g, t = cuda.laneid // 4, cuda.laneid % 4
    first = (key + half + g) * LD + d + 2 * t
    return pair(s_k, first, first + 1), pair(s_k, first + 8, first + 9)


@cuda.jit(device=True)
def store_scores(s_p, row, key, half, sums):
    """Store the lane's part of a 16x8 tile of sums, columns from key + half on of the 16x16 tile at [row, key]."""
    g, t = cuda.laneid // 4, cuda.laneid % 4
    for i in range(4):
        s_p[(row + g + i // 2 * 8) * BLOCK_K + key + half + 2 * t + i % 2] = sums[i]


@cuda.jit(device=True)
def tensor_core_scores(s_p, s_q, s_k, head_dim):
    """Fill s_p with Q K^T, 16x16 tiles of it, one warp each."""
    for tile in range(cuda.threadIdx.x // 32, BLOCK_Q // 16 * (BLOCK_K // 16), WARPS):
        row, key = tile // (BLOCK_K // 16) * 16, tile % (BLOCK_K // 16) * 16
        left = right = (float32(0), float32(0), float32(0), float32(0))
        for d in range(0, head_dim, 16):
            a = a_fragment(s_q, row, d)
            left = ptx.mma_m16n8k16_f16(a, b_fragment(s_k, key, 0, d), left)
            right = ptx.mma_m16n8k16_f16(a, b_fragment(s_k, key, 8, d), right)
        store_scores(s_p, row, key, 0, left)
        store_scores(s_p, row, key, 8, right)


@cuda.jit(device=True)
def scalar_scores(s_p, s_q, s_k, head_dim):
    """Fill s_p with Q K^T, each thread with its own keys of its own row."""
    r = cuda.threadIdx.x // LANES
    for c in range(cuda.threadIdx.x % LANES, BLOCK_K, LANES):
        dot = float32(0)
        for d in range(head_dim):
            dot += WIDEN(s_q[r * LD + d]) * libdevice.half2float(s_k[c * LD + d])
        s_p[r * BLOCK_K + c] = dot


@cuda.jit(device=True)
def float8(code, fraction_bits):
    """Value of an OCP float8 code, exact as float32: e4m3 has 3 fraction bits, e5m2 has 2."""
    exponent = code >> fraction_bits & ((1 << (7 - fraction_bits)) - 1)
    fraction = code & ((1 << fraction_bits) - 1)
    if code & 0x7F == 0x7F or (fraction_bits == 2 and exponent == 31 and fraction > 0):
        return NAN
    if fraction_bits == 2 and exponent == 31:
        return NEG_INF if code > 127 else -NEG_INF
    # a subnormal has the exponent of the smallest normal number and no leading bit
    significand = fraction | (1 << fraction_bits if exponent > 0 else 0)
    power = max(exponent, 1) - ((1 << (6 - fraction_bits)) - 1) - fraction_bits
    value = float32(significand) * libdevice.int_as_float(int32(power + 127 << 23))
    return -value if code > 127 else value


@cuda.jit(device=True)
def float4(code):
    """Value of an E2M1 code, exact as float32: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives."""
    exponent, fraction = code >> 1 & 3, code & 1
    value = float32(fraction | 2) * libdevice.int_as_float(int32(exponent + 125 << 23))
    value = value if exponent > 0 else float32(0.5) * float32(fraction)
    return -value if code > 7 else value


@cuda.jit(device=True)
def value_of(code):
    """What a code stands for before its scale, exact as float32."""
    if INT8:
        return float32(code - 256 if code > 127 else code)
    if ZEROS:
        return float32(code)
    if FOUR_BITS:
        return float4(code)
    return float8(code, FRACTION_BITS)


@cuda.jit(device=True)
def decoded(code, scale):
    """What a code stands for, as float32."""
    if SIMULATED:
        return libdevice.fmul_rn(float32(code - 128) / float32(127) * float32(448), scale)
    return libdevice.fmul_rn(value_of(code), scale)


@cuda.jit(device=True)
def scale_at(scales, b, h, row, block):
    """The scale of a block of dims of a row, as float32; 0 in E8M0 is 2^-127, below the normal numbers of float32."""
    if E8M0:
        exponent = int(scales[b, h, row, block])
        return libdevice.int_as_float(int32(exponent << 23 if exponent > 0 else 1 << 22))
    if E4M3:
        return float8(int(scales[b, h, row, block]), 3)
    return scales[b, h, row, block]


@cuda.jit(device=True)
def decode_blocks(tile, size, codes, scales, zeros, tensor_scales, b, h, first_row, rows, head_dim):
    """As `decode_tile`, each block of dims by its own scale; of two codes in a byte the first has the low half."""
    for i in range(cuda.threadIdx.x, size, THREADS):
        r, d = i // LD, i % LD
        if r < rows and d < head_dim:
            row, block = first_row + r, d // BLOCK
            if FOUR_BITS:
                value = value_of(int(codes[b, h, row, d // 2]) >> d % 2 * 4 & 15)
            else:
                value = value_of(int(codes[b, h, row, d]))
            if ZEROS:
                value = value - zeros[b, h, row, block]
            value = libdevice.fmul_rn(value, scale_at(scales, b, h, row, block))
            if TENSOR_SCALE:
                value = libdevice.fmul_rn(value, tensor_scales[h])
            tile[i] = libdevice.float2half_rn(value)
        else:
            tile[i] = int16(0)


@cuda.jit(device=True)
def decode_tile(tile, codes, table, scale, b, h, first_row, rows, head_dim):
    """Fill a tile with what the codes of rows first_row, ... stand for, as float16; with 0 beyond `rows` of them."""
    for i in range(cuda.threadIdx.x, KV_SIZE, THREADS):
        r, d = i // LD, i % LD
        if r < rows and d < head_dim:
            code = int(codes[b, h, first_row + r, d])
            tile[i] = libdevice.float2half_rn(table[code] if TABLE else decoded(code, scale))
        else:
            tile[i] = 0


def fp8_forward(
    q, codes_q, codes_k, codes_v, scale_q, scale_k, scale_v, zero_q, zero_k, zero_v, global_q, global_k, global_v,
    out, lse, scale, causal, diagonal,
):  # fmt: skip
    """out[b, h, q, d] = softmax(scale * q @ k^T, masked) @ v and lse[b, h, q], its log-sum-exp, of decoded q, k and v;
    grid (query tiles, heads, batch).

    q [b, heads, seqlen_q, d] in the storage dtype, or its codes, of which one alone is an argument of a build; codes_q
    uint8 [b, heads, seqlen_q, d], codes_k, codes_v [b, kv_heads, seqlen_k, d], d a multiple of 16, half of it where a
    byte has two codes; scale_q float32 [heads], scale_k, scale_v [kv_heads], or of blocks [b, heads, row, ceil(d /
    BLOCK)], float32 or 8 bits, with zero points, float32 of the same shape, and scales of tensors, float32 [heads],
    where the format has them; out float16 [b, heads, seqlen_q, d]; lse float32 [b, heads, seqlen_q]. A causal row i
    sees the keys j <= i + diagonal. A row that sees no key gets out 0 and lse -inf.
    """
    if CODED_Q:
        heads, seqlen_q = codes_q.shape[1], codes_q.shape[2]
    else:
        heads, seqlen_q = q.shape[1], q.shape[2]
    seqlen_k, head_dim = codes_k.shape[2], out.shape[3]
    b, h = cuda.blockIdx.z, cuda.blockIdx.y
    group = heads // codes_k.shape[1]
    kv_h = h // group
    leads = cuda.blockIdx.x == 0 and h == kv_h * group  # dumps what the blocks of a kv head hold alike
    first_row = cuda.blockIdx.x * BLOCK_Q
    r, lane = cuda.threadIdx.x // LANES, cuda.threadIdx.x % LANES
    row = first_row + r

    s_q = cuda.shared.array(Q_SIZE, Q_TYPE)  # float16 bits, or float32
    s_kv = cuda.shared.array(KV_SIZE, int16)  # float16 bits: K of a tile, then V of the same tile
    s_p = cuda.shared.array(S_SIZE, float32)  # products of a tile, then its scores, then their probs
    s_acc = cuda.shared.array((BLOCK_Q, HEAD_DIM), float32)
    s_max = cuda.shared.array(BLOCK_Q, float32)
    s_sum = cuda.shared.array(BLOCK_Q, float32)
    s_lut_k = cuda.shared.array(CODES, float32)
    s_lut_v = cuda.shared.array(CODES, float32)

    if HEADS:
        if CODED_Q:
            q_scale = scale_q[h]
        k_scale = scale_k[kv_h]
        v_scale = scale_v[kv_h]
    if TABLE:
        for c in range(cuda.threadIdx.x, CODES, THREADS):
            s_lut_k[c] = decoded(c, k_scale)
            s_lut_v[c] = decoded(c, v_scale)
            if leads and b == 0:
                probe.lut_k[kv_h, c] = s_lut_k[c]
                probe.lut_v[kv_h, c] = s_lut_v[c]
    if CODED_Q:
        if HEADS:
            for i in range(cuda.threadIdx.x, Q_SIZE, THREADS):
                x, d = first_row + i // LD, i % LD
                if x < seqlen_q and d < head_dim:
                    s_q[i] = libdevice.float2half_rn(decoded(int(codes_q[b, h, x, d]), q_scale))
                else:
                    s_q[i] = 0
        else:
            rows = seqlen_q - first_row
            decode_blocks(s_q, Q_SIZE, codes_q, scale_q, zero_q, global_q, b, h, first_row, rows, head_dim)
    else:
        for i in range(cuda.threadIdx.x, Q_SIZE, THREADS):
            x, d = first_row + i // LD, i % LD
            s_q[i] = LOAD(q[b, h, x, d]) if x < seqlen_q and d < head_dim else float32(0)
    for i in range(DIMS):
        s_acc[r, lane + i * LANES] = float32(0)
    if lane == 0:
        s_max[r] = NEG_INF
        s_sum[r] = float32(0)

    for tile in range((seqlen_k + BLOCK_K - 1) // BLOCK_K):
        first_key = tile * BLOCK_K
        keys = min(BLOCK_K, seqlen_k - first_key)
        cuda.syncthreads()  # the tables are complete; protects V of the previous tile in s_kv and its probs in s_p
        if HEADS:
            decode_tile(s_kv, codes_k, s_lut_k, k_scale, b, kv_h, first_key, keys, head_dim)
        else:
            decode_blocks(s_kv, KV_SIZE, codes_k, scale_k, zero_k, global_k, b, kv_h, first_key, keys, head_dim)
        cuda.syncthreads()  # Q and K are complete before any thread reads them
        for d in range(lane, head_dim, LANES):
            if tile == 0 and row < seqlen_q:
                probe.dequant_q[b, h, row, d] = libdevice.half2float(s_q[r * LD + d])
            for c in range(r, keys, BLOCK_Q):
                if leads:
                    probe.dequant_k[b, kv_h, first_key + c, d] = libdevice.half2float(s_kv[c * LD + d])
        if MMA:
            tensor_core_scores(s_p, s_q, s_kv, head_dim)
        else:
            scalar_scores(s_p, s_q, s_kv, head_dim)
        cuda.syncthreads()  # products are complete; protects K in s_kv, still read by other threads
        if HEADS:
            decode_tile(s_kv, codes_v, s_lut_v, v_scale, b, kv_h, first_key, keys, head_dim)
        else:
            decode_blocks(s_kv, KV_SIZE, codes_v, scale_v, zero_v, global_v, b, kv_h, first_key, keys, head_dim)

        for c in range(lane, keys, LANES):
            dot = s_p[r * BLOCK_K + c]
            s = libdevice.fmul_rn(dot, scale)  # rounded here: a fused s - m below would differ from the probed s
            if causal and first_key + c > row + diagonal:
                s = NEG_INF
            s_p[r * BLOCK_K + c] = s
            if row < seqlen_q:
                probe.qk[b, h, row, first_key + c] = dot
                probe.scores[b, h, row, first_key + c] = s
        tile_max = NEG_INF
        for c in range(lane, keys, LANES):
            tile_max = max(tile_max, s_p[r * BLOCK_K + c])
        m_prev = s_max[r]
        m = max(m_prev, row_max_of(tile_max))
        m_safe = m if m > NEG_INF else float32(0)  # no key seen yet: exp(-inf - 0) is 0, exp(-inf + inf) is NaN
        correction = math.exp(m_prev - m_safe)

        tile_sum = float32(0)
        for c in range(lane, keys, LANES):
            p = math.exp(s_p[r * BLOCK_K + c] - m_safe)
            p_cast = CAST(p)
            s_p[r * BLOCK_K + c] = p_cast
            tile_sum += p
            if row < seqlen_q:
                probe.probs[b, h, row, first_key + c] = p
                probe.probs_cast[b, h, row, first_key + c] = p_cast
        l = s_sum[r] * correction + row_sum_of(tile_sum)

        cuda.syncthreads()  # V and the row's probs are complete; all lanes of a row have read its max and sum
        if lane == 0:
            s_max[r] = m
            s_sum[r] = l
        for c in range(r, keys, BLOCK_Q):
            for d in range(lane, head_dim, LANES):
                if leads:
                    probe.dequant_v[b, kv_h, first_key + c, d] = libdevice.half2float(s_kv[c * LD + d])
        for i in range(DIMS):
            d = lane + i * LANES
            s_acc[r, d] = s_acc[r, d] * correction
        for i in range(DIMS):
            d = lane + i * LANES
            acc = s_acc[r, d]
            for c in range(BLOCK_K):  # keys that do not exist have product 0 in s_p, of a K of 0, and a V of 0
                acc += s_p[r * BLOCK_K + c] * libdevice.half2float(s_kv[c * LD + d])
            s_acc[r, d] = acc

        if row < seqlen_q:
            if lane == 0:
                probe.row_max[b, h, row, tile] = m
                probe.correction[b, h, row, tile] = correction
                probe.row_sum[b, h, row, tile] = l
            for i in range(DIMS):
                if lane + i * LANES < head_dim:
                    probe.acc[b, h, row, tile, lane + i * LANES] = s_acc[r, lane + i * LANES]

    cuda.syncthreads()  # the row's max and sum are complete
    if row < seqlen_q:
        m, l = s_max[r], s_sum[r]
        for i in range(DIMS):
            d = lane + i * LANES
            if d < head_dim:
                out[b, h, row, d] = s_acc[r, d] / l if l != float32(0) else float32(0)
        if lane == 0:
            lse[b, h, row] = m + math.log(l) if l != float32(0) else NEG_INF


# ---- on the host

KERNEL = Kernel(
    name="fp8",
    algorithm="fp8",
    file=Path(__file__),
    functions={"fp8_forward": Path(__file__)},
    summary="Quantised FlashAttention: decode tables in shared memory, scores on tensor cores",
    resolves=resolve,
    constants=constants,
    launches=lambda case: [Launch("fp8_forward", flash_build.grid(case))],
    contract=contract,
    dtypes=("float32",),
    dims=16,
    masks=False,
    quantised=True,
)
