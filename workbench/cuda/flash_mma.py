"""FlashAttention-2 on tensor cores: mma.sync, fragments by ldmatrix, tiles that are copied while others are multiplied.
One source of two kernels: `flash_mma` on floats and, where CODES is on, `fp8_mma` on codes of 8 bits (`fp8_mma.py`).

The third of four steps (docs/trust/speed.md), with 314 TFLOP/s on an H100 where the second has 108. Algorithm 1 of
FlashAttention-2 (Dao 2023, section 3.1.1), its query rows split between warps (section 3.3): scores and accumulator of
16 or 32 rows stay in a warp's registers. Of a 16x8 tile of sums lane 4 g + t holds rows g and g + 8, columns 2 t and 2
t + 1 ("PTX ISA 9.0", matrix fragments for mma.m16n8k16); the probs of 16 keys, cast and packed, are then the left
factor of the product with V as they lie. Copies are asynchronous: V is on its way while Q meets K, the next K while
probs meet V. Scores are raw: the scale enters with exp2 alone, exp2(fma(s, scale * log2(e), -max_scaled)).

A warp issues one instruction at a time, and those beside products are what tensor cores wait for. So the loops of both
products are unrolled: where a fragment lies is then one XOR of the lane's own place, and an offset for which ldmatrix
has room (`dims`). And in tall blocks each fragment of K and V that is read meets 32 rows, not 16. At head_dim 128 the
first takes the loop over tiles from 4.15 other instructions for each mma.sync to 3.32 in tiles of 64x64, both to 2.68
in tiles of 128x64, which need more than the 48 KiB of static shared memory: it is dynamic.

Names in capitals are bound when the kernel is built (`flash_mma_build.Constants`): BLOCK_Q, BLOCK_K; HEAD_DIM, head_dim
rounded up to CHUNKS of 8 dims; ROWS_AT_ONCE, which all threads copy together; the rows of shared memory at which Q, K
and V begin; THREADS; rows of a warp and of a lane, and registers of a lane; MMA, PACK and CAST of the dtype. Switches,
whose `if` is absent where they are off: CAUSAL, WINDOW, SOFTCAP, SCALED (scores are scaled before their maximum is
sought), PADDED (rows have fewer than HEAD_DIM dims), Q_IN_REGISTERS, RAGGED, PACKED_Q, PACKED_K and LENGTHS as in
`flash.py`.

Of codes alone (`fp8_mma.Constants`): CODES_K and CODES_V are where they wait to be decoded. Of a tile of keys a thread
has CODE_CHUNKS of 16 codes: four threads have 64 dims of a row, of which a row has PANELS. NOTHING is four codes of 0.
Switches: HEADS, whether a head has one scale, E4M3 and INTEGERS, what codes are if not e5m2, and INT8, which integers.

What is inlined is a part of the kernel: numba puts it there, and the code is the same as if it stood there.
"""

import math
from pathlib import Path

import numpy as np
from numba import cuda, float32, int16, int32, uint32
from numba.cuda import libdevice

from workbench.cuda import ptx
from workbench.cuda.device import FULL_WARP, row_max_of, row_sum_of
from workbench.cuda.flash_mma_build import DTYPES, Constants, contract, grid, resolve
from workbench.cuda.fragments import column, dims, lane_row, register
from workbench.cuda.fragments_build import DIMS_AT_ONCE
from workbench.cuda.kernel import Kernel, Launch
from workbench.cuda.loops import unrolled

NEG_INF = np.float32(-np.inf)
LOG2_E = np.float32(math.log2(math.e))


@cuda.jit(device=True)
def place(at, first, more, c):
    """Where dims 8 c, ... of row `first + more` begin in the tile whose rows begin at row `at` of shared memory: chunks
    of a row change places by its last bits, so that ldmatrix, which reads one chunk of 8 neighbouring rows, finds each
    in other banks. What a multiple of 8 adds as `more` is a constant.
    """
    return (at + more) * HEAD_DIM + (first * HEAD_DIM + (c ^ (first + more & 7)) * 8)


@cuda.jit(device=True)
def copy_rows(tiles, at, x, b, h, first_row, rows, head_dim, count):
    """Ask for rows first_row, ... of x[b, h], `count` of them, from row `at` of shared memory on; those from `rows` on,
    and dims that there are not, are 0: a product with what lies there may be NaN.
    """
    # a thread has the same dims of every row that it copies
    first, c = cuda.threadIdx.x // CHUNKS, cuda.threadIdx.x % CHUNKS
    row = first_row + first
    if first_row + count <= rows and not PADDED and count % ROWS_AT_ONCE == 0:
        for step in range(count // ROWS_AT_ONCE):  # without tests, which cost as many instructions as copies
            more = step * ROWS_AT_ONCE
            ptx.cp_async_16(tiles, place(at, first, more, c), x, (b, h, row + more, c * 8))
    else:
        for step in range((count + ROWS_AT_ONCE - 1) // ROWS_AT_ONCE):
            more = step * ROWS_AT_ONCE
            if row + more < rows and first + more < count and (not PADDED or c * 8 < head_dim):
                ptx.cp_async_16(tiles, place(at, first, more, c), x, (b, h, row + more, c * 8))
            elif first + more < count:
                zeros = (uint32(0), uint32(0), uint32(0), uint32(0))
                ptx.st_v4_u32(tiles, place(at, first, more, c), zeros)


@cuda.jit(device=True)
def whole(x, i):
    """Integer i of four in a word, exact as float32: the last byte of 2^23 + x, less 2^23 and the zero point."""
    return libdevice.int_as_float(int32(libdevice.byte_perm(x, 0x4B000000, 0x7440 + i))) - float32(2**23 + 128)


@cuda.jit(device=True)
def decoded(x):
    """What four codes in a word stand for before their scale and UNIT, exact, as two words of two float16."""
    if INTEGERS:
        if INT8:
            x = uint32(x ^ uint32(0x80808080))  # 128 more, as the zero point of the others
        return ptx.cvt_f16x2_f32(whole(x, 0), whole(x, 1)), ptx.cvt_f16x2_f32(whole(x, 2), whole(x, 3))
    # codes 0 and 1, then 2 and 3, each in the upper byte of a half
    low, high = uint32(libdevice.byte_perm(x, 0, 0x1404)), uint32(libdevice.byte_perm(x, 0, 0x3424))
    if E4M3:
        return halved(low), halved(high)
    return low, high


@cuda.jit(device=True)
def halved(x):
    """Two codes of e4m3 in the upper bytes of halves as float16, 2^-8 of their values: exponent and fraction move down
    by a bit, for float16 has one more of the former. Of a NaN, 0x7f, all of its bits are set then but this one.
    """
    size = uint32((x & uint32(0x7F007F00)) >> uint32(1))
    return uint32(x & uint32(0x80008000) | size | (size + uint32(0x00800080)) & uint32(0x40004000))


@cuda.jit(device=True)
def scaled(pair, unit):
    """Two float16 in a word times their scale, rounded once more."""
    low, high = ptx.cvt_f32_f16x2(pair)
    return ptx.cvt_f16x2_f32(libdevice.fmul_rn(low, unit), libdevice.fmul_rn(high, unit))


@cuda.jit(device=True)
def eight(x, y, unit):
    """What eight codes stand for, in four words, times `unit` where each row has a scale."""
    a, b = decoded(x)
    c, d = decoded(y)
    if HEADS:
        return a, b, c, d
    return scaled(a, unit), scaled(b, unit), scaled(c, unit), scaled(d, unit)


@cuda.jit(device=True)
def store(tiles, at, i, codes, unit):
    """Store what 16 codes, four words, stand for: chunk i of this thread in the tile at row `at` of shared memory."""
    # rows of a thread are multiples of 8 apart, so that its chunks are so from the first
    first, to = (
        place(0, cuda.threadIdx.x // 4, 0, cuda.threadIdx.x % 4 * 2),
        (at + i // PANELS * ROWS_AT_ONCE) * HEAD_DIM,
    )
    ptx.st_v4_u32(tiles, to + i % PANELS * 64 + first, eight(codes[0], codes[1], unit))
    ptx.st_v4_u32(tiles, to + i % PANELS * 64 + (first ^ 8), eight(codes[2], codes[3], unit))


@cuda.jit(device=True)
def unit_of(scales, b, h, row):
    """What the codes of a row are multiplied with, 0 of rows that there are not."""
    return libdevice.fmul_rn(scales[b, h, row, 0], UNIT) if row < scales.shape[2] else float32(0)


@cuda.jit(device=True)
def ask(tiles, at, units, codes, scales, b, h, first_row, head_dim):
    """Ask for the codes that this thread decodes of the BLOCK_K keys from `first_row` on, as a group of copies to `at`,
    and put the scales of their rows into `units`. Of rows and dims that there are not codes stand for 0.
    """
    for i in unrolled(CODE_CHUNKS):
        row = first_row + i // PANELS * ROWS_AT_ONCE + cuda.threadIdx.x // 4
        d = i % PANELS * 64 + cuda.threadIdx.x % 4 * 16
        to = (at + i * THREADS + cuda.threadIdx.x) * 8
        if row < codes.shape[2] and (not PADDED or d < head_dim):
            ptx.cp_async_16(tiles, to, codes, (b, h, row, d))
        else:
            ptx.st_v4_u32(tiles, to, (uint32(NOTHING), uint32(NOTHING), uint32(NOTHING), uint32(NOTHING)))
        units[i] = float32(1) if HEADS else unit_of(scales, b, h, row)
    ptx.cp_async_commit()


@cuda.jit(device=True)
def decode(tiles, at, codes_at, units):
    """Decode what this thread asked for, when all but its last group of copies have come, to rows `at`, ... of shared
    memory.
    """
    ptx.cp_async_wait_group(1)
    for i in unrolled(CODE_CHUNKS):
        codes = ptx.ld_v4_u32(tiles, (codes_at + i * THREADS + cuda.threadIdx.x) * 8)
        store(tiles, at, i, codes, units[i])


@cuda.jit(device=True, inline="always")
def decode_q(tiles, coded, scales, b, h, first_row, head_dim):
    """Decode the codes of a tile of Q, of which this thread loads each itself."""
    for i in range(BLOCK_Q // ROWS_AT_ONCE * PANELS):
        this_row = first_row + i // PANELS * ROWS_AT_ONCE + cuda.threadIdx.x // 4
        d = i % PANELS * 64 + cuda.threadIdx.x % 4 * 16
        codes = (uint32(NOTHING), uint32(NOTHING), uint32(NOTHING), uint32(NOTHING))
        if this_row < coded.shape[2] and (not PADDED or d < head_dim):
            codes = ptx.ld_v4_u32(coded, (b, h, this_row, d))
        if HEADS:
            unit = float32(1)
        else:
            unit = unit_of(scales, b, h, this_row)
        store(tiles, Q_AT, i, codes, unit)


@cuda.jit(device=True)
def held(tiles, at, row, d):
    """What a tile holds, as float32."""
    return libdevice.half2float(tiles[at * HEAD_DIM + place(0, row, 0, d // 8) + d % 8])


@cuda.jit(device=True, inline="always")
def read_q(q_registers, tiles, lane_q):
    """Read the fragments of a warp's rows of Q."""
    for i in range(Q_REGISTERS // 4):
        at = i // (HEAD_DIM // 16) * 16 * HEAD_DIM
        fragment = ptx.ldmatrix_x4(tiles, at + dims(lane_q, i % (HEAD_DIM // 16)))
        for j in range(4):
            q_registers[4 * i + j] = fragment[j]


@cuda.jit(device=True, inline="always")
def multiply_v(acc, p, tiles, at_v):
    """acc += P @ V of one tile."""
    for n in unrolled(BLOCK_K // 16):
        for i in range(HEAD_DIM // 16):
            b0, b1, b2, b3 = ptx.ldmatrix_x4_trans(tiles, 16 * n * HEAD_DIM + dims(at_v, i))
            for tall in range(WARP_ROWS // 16):
                x = (tall * (BLOCK_K // 16) + n) * 4
                a = (p[x], p[x + 1], p[x + 2], p[x + 3])
                y = (tall * (HEAD_DIM // 16) + i) * 8
                left_sums = MMA(a, (b0, b1), (acc[y], acc[y + 1], acc[y + 2], acc[y + 3]))
                right_sums = MMA(a, (b2, b3), (acc[y + 4], acc[y + 5], acc[y + 6], acc[y + 7]))
                for j in range(4):
                    acc[y + j] = left_sums[j]
                    acc[y + 4 + j] = right_sums[j]


@cuda.jit(device=True, inline="always")
def multiply_v_apart(acc, correction, pv, p, tiles, at_v):
    """The same of codes: summed apart, PV_DIMS at once, and added to the corrected accumulator in float32."""
    for i in unrolled(HEAD_DIM // PV_DIMS):
        for j in range(PV_REGISTERS):
            pv[j] = float32(0)
        for n in range(BLOCK_K // 16):
            for c in range(PV_DIMS // 16):
                b0, b1, b2, b3 = ptx.ldmatrix_x4_trans(tiles, 16 * n * HEAD_DIM + dims(at_v, i * (PV_DIMS // 16) + c))
                for tall in range(WARP_ROWS // 16):
                    x = (tall * (BLOCK_K // 16) + n) * 4
                    a = (p[x], p[x + 1], p[x + 2], p[x + 3])
                    y = (tall * (PV_DIMS // 16) + c) * 8
                    left_sums = MMA(a, (b0, b1), (pv[y], pv[y + 1], pv[y + 2], pv[y + 3]))
                    right_sums = MMA(a, (b2, b3), (pv[y + 4], pv[y + 5], pv[y + 6], pv[y + 7]))
                    for j in range(4):
                        pv[y + j] = left_sums[j]
                        pv[y + 4 + j] = right_sums[j]
        for r in range(LANE_ROWS):
            for j in range(PV_DIMS // 4):
                x = register(r, i * (PV_DIMS // 4) + j, HEAD_DIM)
                acc[x] = cuda.fma(acc[x], correction[r], pv[register(r, j, PV_DIMS)])


@cuda.jit(device=True, inline="always")
def store_rows(out, acc, b, h, first_q, row, rows, head_dim, t):
    """Store the accumulator, its rows `row` and every 8th from there, as far as there are so many rows."""
    for tall in range(WARP_ROWS // 16):
        this_row = row + tall * 16 + t % 2 * 8
        for i in range(HEAD_DIM // 8):
            x, d = (tall * (HEAD_DIM // 8) + i) * 4, i * 8 + t // 2 * 4
            upper, lower = PACK(acc[x], acc[x + 1]), PACK(acc[x + 2], acc[x + 3])
            # lanes swap halves, so that each has 4 neighbours of one row: even ones of the upper, odd ones of the lower
            other = uint32(cuda.shfl_xor_sync(FULL_WARP, int32(lower if t % 2 == 0 else upper), 1))
            if this_row < rows and (not PADDED or d < head_dim):
                ptx.st_v2_u32(out, (b, h, first_q + this_row, d), (upper, other) if t % 2 == 0 else (other, lower))


def flash_mma_forward(
    q, k, v, codes_q, codes_k, codes_v, scale_q, scale_k, scale_v, out, lse, cu_seqlens_q, cu_seqlens_k, cache_seqlens,
    scale, softcap, diagonal, left, right, bottom_right
):  # fmt: skip
    """out[b, h, q, d] = softmax(scale * q @ k^T, masked) @ v and lse[b, h, q], its log-sum-exp; grid (query tiles,
    heads, batch).

    q, out [b, heads, seqlen_q, d], k, v [b, kv_heads, seqlen_k, d], of 16 bits, d a multiple of 8 and of stride 1, rows
    that begin at multiples of 16 bytes; lse float32 [b, heads, seqlen_q]. Masks, and sequences of lengths of their own,
    are those of `flash.flash_forward`; tiles that no row of a block sees are not visited. A row that sees no key gets
    out 0 and lse -inf.

    Of CODES q, k and v are what codes_q, codes_k, codes_v uint8 stand for, d a multiple of 16 to 128; scale_q float32
    [heads], scale_k, scale_v [kv_heads], or of rows [b, heads, row, 1]; out float16.
    """
    b, h = cuda.blockIdx.z, cuda.blockIdx.y
    # divisions are of 32 bits: those of 64 are loops
    if CODES:
        seqlen_q, seqlen_k, head_dim = codes_q.shape[2], codes_k.shape[2], codes_q.shape[3]
        group = uint32(codes_q.shape[1]) // uint32(codes_k.shape[1])
        kv_h = uint32(h) // group
    else:
        seqlen_q, seqlen_k, head_dim = q.shape[2], k.shape[2], q.shape[3]
        kv_h = uint32(h * k.shape[1]) // uint32(q.shape[1])
    first_q, first_k = 0, 0
    if PACKED_Q:
        first_q, seqlen_q = cu_seqlens_q[b], cu_seqlens_q[b + 1] - cu_seqlens_q[b]
    if PACKED_K:
        first_k, seqlen_k = cu_seqlens_k[b], cu_seqlens_k[b + 1] - cu_seqlens_k[b]
    if LENGTHS:
        seqlen_k = cache_seqlens[b]
    if RAGGED:
        diagonal = seqlen_k - seqlen_q if bottom_right else 0
    block = cuda.blockIdx.x
    if CAUSAL:
        block = cuda.gridDim.x - 1 - block  # blocks with the most keys first: the last to end is a short one
    first_row = block * BLOCK_Q
    if PACKED_Q:
        if first_row >= seqlen_q:
            return  # behind the end of the sequence

    first_tile, end_tile = 0, (seqlen_k + BLOCK_K - 1) // BLOCK_K
    if CODES:
        tiles_of_row = end_tile
    if CAUSAL:
        end_tile = max(0, min(end_tile, (first_row + BLOCK_Q - 1 + diagonal + BLOCK_K) // BLOCK_K))
    if WINDOW:
        end_tile = max(0, min(end_tile, (first_row + BLOCK_Q - 1 + diagonal + right + BLOCK_K) // BLOCK_K))
        first_tile = max(0, first_row + diagonal - left) // BLOCK_K
    if CODES:
        # dumps what the blocks of a kv head hold alike, for which it visits tiles that a mask hides from all rows, too
        leads = block == cuda.gridDim.x - 1 and h == kv_h * group
        (end_tile,) = probe(tiles_of_row if leads else end_tile)

    warp_row, lane = (cuda.threadIdx.x >> 5) * WARP_ROWS, cuda.laneid
    g, t = lane >> 2, lane & 3
    # where a lane's row of the four 8x8 matrices is that ldmatrix reads, each given by 8 lanes. Of K: dims 0 to 7 and 8
    # to 15 of keys 0 to 7, then of keys 8 to 15; of V and Q: dims 0 to 7 of rows 0 to 7 and 8 to 15, then dims 8 to 15
    lane_k = (lane >> 1 & 8 | lane & 7) * HEAD_DIM + (lane >> 3 & 1 ^ lane & 7) * 8
    lane_v = (lane & 15) * HEAD_DIM + (lane >> 4 ^ lane & 7) * 8
    lane_q = warp_row * HEAD_DIM + lane_v
    row = first_row + warp_row + g  # and every 8th from there: LANE_ROWS of them
    # the last key that the first row of the warp sees, and the first key that its last row sees
    high = seqlen_k - 1
    if CAUSAL:
        high = min(high, first_row + warp_row + diagonal)
    if WINDOW:
        high = min(high, first_row + warp_row + diagonal + right)
        low = first_row + warp_row + WARP_ROWS - 1 + diagonal - left

    tiles = cuda.shared.array(0, int16, alignment=16)
    if CODES:
        units_k = cuda.local.array(CODE_CHUNKS, float32)
        units_v = cuda.local.array(CODE_CHUNKS, float32)
        pv = cuda.local.array(PV_REGISTERS, float32)  # of a tile and PV_DIMS
    q_registers = cuda.local.array(Q_REGISTERS, uint32)
    s = cuda.local.array(S_REGISTERS, float32)
    p = cuda.local.array(P_REGISTERS, uint32)
    acc = cuda.local.array(ACC_REGISTERS, float32)
    m = cuda.local.array(LANE_ROWS, float32)
    l = cuda.local.array(LANE_ROWS, float32)  # of the lane's own keys, until the end
    correction = cuda.local.array(LANE_ROWS, float32)
    for i in range(ACC_REGISTERS):
        acc[i] = float32(0)
    for r in range(LANE_ROWS):
        m[r] = NEG_INF
        l[r] = float32(0)
    exp2_scale = libdevice.fmul_rn(scale, LOG2_E)
    if SCALED:
        exp2_scale = LOG2_E

    if CODES:
        q_unit = k_unit = v_unit = float32(1)  # of rows they are in what is decoded
        if HEADS:
            q_unit, k_unit = libdevice.fmul_rn(scale_q[h], UNIT), libdevice.fmul_rn(scale_k[kv_h], UNIT)
            v_unit = libdevice.fmul_rn(scale_v[kv_h], UNIT)
        ask(tiles, CODES_K, units_k, codes_k, scale_k, b, kv_h, 0, head_dim)
        ask(tiles, CODES_V, units_v, codes_v, scale_v, b, kv_h, 0, head_dim)
        decode_q(tiles, codes_q, scale_q, b, h, first_row, head_dim)  # while those are under way
        cuda.syncthreads()  # all threads' Q has arrived
        if Q_IN_REGISTERS:
            read_q(q_registers, tiles, lane_q)
        for i in range(cuda.threadIdx.x, BLOCK_Q * HEAD_DIM, THREADS):
            r, d = i // HEAD_DIM, i % HEAD_DIM
            if first_row + r < seqlen_q and d < head_dim:
                probe.dequant_q[b, h, first_row + r, d] = libdevice.fmul_rn(held(tiles, Q_AT, r, d), q_unit)
    else:
        if first_tile < end_tile:
            copy_rows(tiles, Q_AT, q, b, h, first_q + first_row, first_q + seqlen_q, head_dim, BLOCK_Q)
            first_key = first_k + first_tile * BLOCK_K
            copy_rows(tiles, K_AT, k, b, kv_h, first_key, first_k + seqlen_k, head_dim, BLOCK_K)
            if Q_IN_REGISTERS:
                ptx.cp_async_wait_all()
                cuda.syncthreads()  # all threads' Q has arrived
                read_q(q_registers, tiles, lane_q)
    at_k, at_v = K_AT * HEAD_DIM + lane_k, V_AT * HEAD_DIM + lane_v

    for tile in range(first_tile, end_tile):
        first_key = tile * BLOCK_K
        if CODES:
            decode(tiles, K_AT, CODES_K, units_k)
            ask(tiles, CODES_K, units_k, codes_k, scale_k, b, kv_h, first_key + BLOCK_K, head_dim)
            cuda.syncthreads()  # all threads' K is decoded; protects V, which all warps are done multiplying
            for i in range(cuda.threadIdx.x, BLOCK_K * HEAD_DIM, THREADS):
                r, d = i // HEAD_DIM, i % HEAD_DIM
                if leads and first_key + r < seqlen_k and d < head_dim:
                    probe.dequant_k[b, kv_h, first_key + r, d] = libdevice.fmul_rn(held(tiles, K_AT, r, d), k_unit)
        else:
            ptx.cp_async_wait_all()
            cuda.syncthreads()  # all threads' K has arrived; protects V, which all warps are done multiplying
            copy_rows(tiles, V_AT, v, b, kv_h, first_k + first_key, first_k + seqlen_k, head_dim, BLOCK_K)

        for i in range(S_REGISTERS):
            s[i] = float32(0)
        for i in unrolled(HEAD_DIM // 16):
            if not Q_IN_REGISTERS:
                for tall in range(WARP_ROWS // 16):
                    fragment = ptx.ldmatrix_x4(tiles, tall * 16 * HEAD_DIM + dims(lane_q, i))
                    for j in range(4):
                        q_registers[4 * tall + j] = fragment[j]
            for n in range(BLOCK_K // 16):
                b0, b1, b2, b3 = ptx.ldmatrix_x4(tiles, 16 * n * HEAD_DIM + dims(at_k, i))
                for tall in range(WARP_ROWS // 16):
                    x = tall * 4
                    if Q_IN_REGISTERS:
                        x = (tall * (HEAD_DIM // 16) + i) * 4
                    a = (q_registers[x], q_registers[x + 1], q_registers[x + 2], q_registers[x + 3])
                    y = (tall * (BLOCK_K // 16) + n) * 8
                    left_sums = MMA(a, (b0, b1), (s[y], s[y + 1], s[y + 2], s[y + 3]))
                    right_sums = MMA(a, (b2, b3), (s[y + 4], s[y + 5], s[y + 6], s[y + 7]))
                    for j in range(4):
                        s[y + j] = left_sums[j]
                        s[y + 4 + j] = right_sums[j]

        if CODES:
            if HEADS:
                for i in range(S_REGISTERS):
                    # one after the other: the product of both may be below the numbers of float32
                    s[i] = libdevice.fmul_rn(libdevice.fmul_rn(s[i], q_unit), k_unit)
        for r in unrolled(LANE_ROWS):
            if row + 8 * r < seqlen_q:
                probe.qk[b, h, row + 8 * r, first_key:seqlen_k] = lane_row(s, r, BLOCK_K, t)
        if SCALED:
            for i in range(S_REGISTERS):
                s[i] = libdevice.fmul_rn(s[i], scale)
        if SOFTCAP:
            for i in range(S_REGISTERS):
                s[i] = libdevice.fmul_rn(softcap, ptx.tanh_approx(s[i] / softcap))
            for r in unrolled(LANE_ROWS):
                if row + 8 * r < seqlen_q:
                    probe.capped[b, h, row + 8 * r, first_key:seqlen_k] = lane_row(s, r, BLOCK_K, t)
        if first_key + BLOCK_K - 1 > high:
            cuda.syncwarp()  # protects nothing: it keeps the branch, which compilers turn into selects in every tile
            for r in range(LANE_ROWS):
                last = seqlen_k - 1
                if CAUSAL:
                    last = min(last, row + 8 * r + diagonal)
                if WINDOW:
                    last = min(last, row + 8 * r + diagonal + right)
                column_of_last = int32(last - first_key - 2 * t)
                for i in range(BLOCK_K // 4):
                    if column(i, 0) > column_of_last:
                        s[register(r, i, BLOCK_K)] = NEG_INF
        if WINDOW:
            if first_key < low:
                cuda.syncwarp()  # likewise
                for r in range(LANE_ROWS):
                    column_of_first = int32(row + 8 * r + diagonal - left - first_key - 2 * t)
                    for i in range(BLOCK_K // 4):
                        if column(i, 0) < column_of_first:
                            s[register(r, i, BLOCK_K)] = NEG_INF
        for r in unrolled(LANE_ROWS):
            if row + 8 * r < seqlen_q:
                probe.scores[b, h, row + 8 * r, first_key:seqlen_k] = lane_row(s, r, BLOCK_K, t)

        for r in range(LANE_ROWS):
            largest = m[r]
            for i in range(BLOCK_K // 4):
                largest = max(largest, s[register(r, i, BLOCK_K)])
            largest = row_max_of(largest)
            # no key seen yet: exp(-inf - 0) is 0, exp(-inf + inf) is NaN
            safe = largest if largest > NEG_INF else float32(0)
            correction[r] = ptx.ex2_approx((m[r] - safe) * exp2_scale)
            m[r] = largest
            scaled_max = libdevice.fmul_rn(safe, exp2_scale)
            total = l[r] * correction[r]
            for i in range(BLOCK_K // 4):
                x = register(r, i, BLOCK_K)
                s[x] = ptx.ex2_approx(cuda.fma(s[x], exp2_scale, -scaled_max))
                total += s[x]
            l[r] = total
        for r in unrolled(LANE_ROWS):
            if row + 8 * r < seqlen_q:
                probe.probs[b, h, row + 8 * r, first_key:seqlen_k] = lane_row(s, r, BLOCK_K, t)
        for i in range(S_REGISTERS):
            (s[i],) = probe(CAST(s[i]))  # as they are packed, for which they are the same
        for r in unrolled(LANE_ROWS):
            if row + 8 * r < seqlen_q:
                probe.probs_cast[b, h, row + 8 * r, first_key:seqlen_k] = lane_row(s, r, BLOCK_K, t)
        for i in range(P_REGISTERS):
            p[i] = PACK(s[2 * i], s[2 * i + 1])
        if CODES:
            decode(tiles, V_AT, CODES_V, units_v)
            ask(tiles, CODES_V, units_v, codes_v, scale_v, b, kv_h, first_key + BLOCK_K, head_dim)
            cuda.syncthreads()  # all threads' V is decoded; protects K, which all warps are done multiplying
            for i in range(cuda.threadIdx.x, BLOCK_K * HEAD_DIM, THREADS):
                r, d = i // HEAD_DIM, i % HEAD_DIM
                if leads and first_key + r < seqlen_k and d < head_dim:
                    probe.dequant_v[b, kv_h, first_key + r, d] = libdevice.fmul_rn(held(tiles, V_AT, r, d), v_unit)
            multiply_v_apart(acc, correction, pv, p, tiles, at_v)
        else:
            for r in range(LANE_ROWS):
                for i in range(HEAD_DIM // 4):
                    x = register(r, i, HEAD_DIM)
                    acc[x] = acc[x] * correction[r]
            ptx.cp_async_wait_all()
            cuda.syncthreads()  # all threads' V has arrived; protects K, which all warps are done multiplying
            if tile + 1 < end_tile:
                first_next = first_k + first_key + BLOCK_K
                copy_rows(tiles, K_AT, k, b, kv_h, first_next, first_k + seqlen_k, head_dim, BLOCK_K)
            multiply_v(acc, p, tiles, at_v)

        if CODES:
            for r in range(LANE_ROWS):
                (total,) = probe(row_sum_of(l[r]))
                if t == 0 and row + 8 * r < seqlen_q:
                    probe.row_max[b, h, row + 8 * r, tile] = m[r]
                    probe.correction[b, h, row + 8 * r, tile] = correction[r]
                    probe.row_sum[b, h, row + 8 * r, tile] = total
                for i in range(HEAD_DIM // 4):
                    x, d = register(r, i, HEAD_DIM), column(i, t)
                    if row + 8 * r < seqlen_q and d < head_dim:
                        probe.acc[b, h, row + 8 * r, tile, d] = libdevice.fmul_rn(acc[x], v_unit)
        else:
            for r in unrolled(LANE_ROWS):
                (total,) = probe(row_sum_of(l[r]))
                if row + 8 * r < seqlen_q:
                    if t == 0:
                        probe.row_max[b, h, row + 8 * r, tile] = m[r]
                        probe.correction[b, h, row + 8 * r, tile] = correction[r]
                        probe.row_sum[b, h, row + 8 * r, tile] = total
                    probe.acc[b, h, row + 8 * r, tile, 0:head_dim] = lane_row(acc, r, HEAD_DIM, t)

    for r in range(LANE_ROWS):
        l[r] = row_sum_of(l[r])
        inverse = float32(1) / l[r] if l[r] != float32(0) else float32(0)
        for i in range(HEAD_DIM // 4):
            x = register(r, i, HEAD_DIM)
            if CODES:
                acc[x] = libdevice.fmul_rn(acc[x], v_unit) * inverse
            else:
                acc[x] = acc[x] * inverse
        if t == 0 and row + 8 * r < seqlen_q:
            largest = m[r] * scale
            if SCALED:
                largest = m[r]
            lse[b, h, first_q + row + 8 * r] = largest + math.log(l[r]) if l[r] != float32(0) else NEG_INF
    store_rows(out, acc, b, h, first_q, row, seqlen_q, head_dim, t)


# ---- on the host

KERNEL = Kernel(
    name="flash_mma",
    algorithm="flash",
    file=Path(__file__),
    functions={"flash_mma_forward": Path(__file__)},
    summary="FlashAttention-2 on tensor cores: copies overlap with products",
    resolves=resolve,
    constants=Constants.of,
    launches=lambda case: [Launch("flash_mma_forward", grid(case))],
    contract=contract,
    dtypes=DTYPES,
    dims=DIMS_AT_ONCE,
    dynamic=True,
    masks=False,
)
