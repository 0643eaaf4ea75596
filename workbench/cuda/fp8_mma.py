"""Attention on codes of 8 bits, on tensor cores of any GPU from sm_80 on: codes are decoded to float16 on their way.

`flash_mma` (FlashAttention-2, Dao 2023, section 3.1.1) with codes in the place of numbers. Each thread copies the codes
that it decodes itself, a tile ahead, into shared memory of its own: no barrier stands between a copy and its decoding.
It decodes 16 at once in registers and stores them where ldmatrix reads them. So a code is decoded once for each block;
fragments of codes would be decoded by each of its warps, in four times as many instructions.

What codes stand for before their scale is exact in float16: of e5m2 it is the upper half of one; of e4m3, whose
exponents are 8 less, 2^-8 of the value, subnormals too; integers are themselves. The scale of a head multiplies sums,
in float32, as UNIT does, which makes up for the rest (448 / 127 of simulated codes, 2^8 of e4m3). Scales of rows, of
tokens and of blocks of 128 dims, of which a row has one, multiply what is decoded, which float16 then rounds: those of
V cannot leave a sum over keys.

Products with V of a tile are summed apart, and added in float32. Codes are often 0 where a prob is 1; what is left of a
sum then is of probs below float16's normal numbers, which tensor cores align as if they were these: together with the
tiles before it the sum would lose bits of those.

Names in capitals are bound when the kernel is built (`fp8_mma_build.Constants`), as those of `flash_mma.py` are.
CODES_K and CODES_V are where codes wait to be decoded. Of a tile of keys a thread has CHUNKS of 16 codes: four threads
have 64 dims of a row, of which a row has PANELS, and all of them ROWS_AT_ONCE. NOTHING is four codes of 0. Switches:
HEADS, whether a head has one scale, E4M3 and INTEGERS, what codes are if not e5m2, INT8, which integers, CAUSAL, SCALED
and PADDED.
"""

import math
from pathlib import Path

import numpy as np
from numba import cuda, float32, int16, int32, uint32
from numba.cuda import libdevice

from workbench.cuda import ptx
from workbench.cuda.device import FULL_WARP, round_float16, row_max_of, row_sum_of
from workbench.cuda.fp8_mma_build import DIMS, FORMATS_TAKEN, constants, contract, grid, settle
from workbench.cuda.fragments import column, dims, lane_row, register
from workbench.cuda.kernel import Kernel, Launch
from workbench.cuda.loops import unrolled

NEG_INF = np.float32(-np.inf)
LOG2_E = np.float32(math.log2(math.e))


@cuda.jit(device=True)
def place(row, c):
    """Where a row of a tile has dims 8 c, ...: chunks change places by the last bits of their row, so that ldmatrix,
    which reads one chunk of 8 neighbouring rows, finds each in other banks.
    """
    return row * HEAD_DIM + (c ^ (row & 7)) * 8


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
    first, to = place(cuda.threadIdx.x // 4, cuda.threadIdx.x % 4 * 2), (at + i // PANELS * ROWS_AT_ONCE) * HEAD_DIM
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
    for i in unrolled(CHUNKS):
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
    for i in unrolled(CHUNKS):
        codes = ptx.ld_v4_u32(tiles, (codes_at + i * THREADS + cuda.threadIdx.x) * 8)
        store(tiles, at, i, codes, units[i])


@cuda.jit(device=True)
def held(tiles, at, row, d):
    """What a tile holds, as float32."""
    return libdevice.half2float(tiles[at * HEAD_DIM + place(row, d // 8) + d % 8])


def fp8_mma_forward(codes_q, codes_k, codes_v, scale_q, scale_k, scale_v, out, lse, scale, diagonal):
    """out[b, h, q, d] = softmax(scale * q @ k^T, masked) @ v and lse[b, h, q], its log-sum-exp, of what codes stand
    for; grid (query tiles, heads, batch).

    codes_q uint8 [b, heads, seqlen_q, d], codes_k, codes_v [b, kv_heads, seqlen_k, d], d a multiple of 16 to 128;
    scale_q float32 [heads], scale_k, scale_v [kv_heads], or of rows [b, heads, row, 1]; out float16 [b, heads,
    seqlen_q, d]; lse float32 [b, heads, seqlen_q]. A causal row i sees the keys j <= i + diagonal; tiles that no row of
    a block sees are not visited. A row that sees no key gets out 0 and lse -inf.
    """
    seqlen_q, seqlen_k, head_dim = codes_q.shape[2], codes_k.shape[2], codes_q.shape[3]
    b, h = cuda.blockIdx.z, cuda.blockIdx.y
    group = uint32(codes_q.shape[1]) // uint32(codes_k.shape[1])  # of 32 bits: divisions of 64 are loops
    kv_h = uint32(h) // group
    block = cuda.blockIdx.x
    if CAUSAL:
        block = cuda.gridDim.x - 1 - block  # blocks with the most keys first: the last to end is a short one
    first_row = block * BLOCK_Q
    tiles_of_row = (seqlen_k + BLOCK_K - 1) // BLOCK_K
    end_tile = tiles_of_row
    if CAUSAL:
        end_tile = max(0, min(end_tile, (first_row + BLOCK_Q - 1 + diagonal + BLOCK_K) // BLOCK_K))
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
    # the last key that the first row of the warp sees
    high = seqlen_k - 1
    if CAUSAL:
        high = min(high, first_row + warp_row + diagonal)

    tiles = cuda.shared.array(0, int16, alignment=16)
    units_k = cuda.local.array(CHUNKS, float32)
    units_v = cuda.local.array(CHUNKS, float32)
    q_registers = cuda.local.array(Q_REGISTERS, uint32)
    s = cuda.local.array(S_REGISTERS, float32)
    p = cuda.local.array(P_REGISTERS, uint32)
    pv = cuda.local.array(PV_REGISTERS, float32)  # of a tile and PV_DIMS
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
    q_unit = k_unit = v_unit = float32(1)  # of rows they are in what is decoded
    if HEADS:
        q_unit, k_unit = libdevice.fmul_rn(scale_q[h], UNIT), libdevice.fmul_rn(scale_k[kv_h], UNIT)
        v_unit = libdevice.fmul_rn(scale_v[kv_h], UNIT)

    ask(tiles, CODES_K, units_k, codes_k, scale_k, b, kv_h, 0, head_dim)
    ask(tiles, CODES_V, units_v, codes_v, scale_v, b, kv_h, 0, head_dim)
    for i in range(BLOCK_Q // ROWS_AT_ONCE * PANELS):  # while they are under way
        this_row = first_row + i // PANELS * ROWS_AT_ONCE + cuda.threadIdx.x // 4
        d = i % PANELS * 64 + cuda.threadIdx.x % 4 * 16
        codes = (uint32(NOTHING), uint32(NOTHING), uint32(NOTHING), uint32(NOTHING))
        if this_row < seqlen_q and (not PADDED or d < head_dim):
            codes = ptx.ld_v4_u32(codes_q, (b, h, this_row, d))
        if HEADS:
            unit = float32(1)
        else:
            unit = unit_of(scale_q, b, h, this_row)
        store(tiles, Q_AT, i, codes, unit)
    cuda.syncthreads()  # Q of all threads is there
    if Q_IN_REGISTERS:
        for i in range(Q_REGISTERS // 4):
            at = i // (HEAD_DIM // 16) * 16 * HEAD_DIM
            fragment = ptx.ldmatrix_x4(tiles, at + dims(lane_q, i % (HEAD_DIM // 16)))
            for j in range(4):
                q_registers[4 * i + j] = fragment[j]
    for i in range(cuda.threadIdx.x, BLOCK_Q * HEAD_DIM, THREADS):
        r, d = i // HEAD_DIM, i % HEAD_DIM
        if first_row + r < seqlen_q and d < head_dim:
            probe.dequant_q[b, h, first_row + r, d] = libdevice.fmul_rn(held(tiles, Q_AT, r, d), q_unit)
    at_k, at_v = K_AT * HEAD_DIM + lane_k, V_AT * HEAD_DIM + lane_v

    for tile in range(end_tile):
        first_key = tile * BLOCK_K
        decode(tiles, K_AT, CODES_K, units_k)
        ask(tiles, CODES_K, units_k, codes_k, scale_k, b, kv_h, first_key + BLOCK_K, head_dim)
        cuda.syncthreads()  # K of all threads is decoded; protects V, which all warps have multiplied
        for i in range(cuda.threadIdx.x, BLOCK_K * HEAD_DIM, THREADS):
            r, d = i // HEAD_DIM, i % HEAD_DIM
            if leads and first_key + r < seqlen_k and d < head_dim:
                probe.dequant_k[b, kv_h, first_key + r, d] = libdevice.fmul_rn(held(tiles, K_AT, r, d), k_unit)

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
                    left_sums = ptx.mma_m16n8k16_f16(a, (b0, b1), (s[y], s[y + 1], s[y + 2], s[y + 3]))
                    right_sums = ptx.mma_m16n8k16_f16(a, (b2, b3), (s[y + 4], s[y + 5], s[y + 6], s[y + 7]))
                    for j in range(4):
                        s[y + j] = left_sums[j]
                        s[y + 4 + j] = right_sums[j]

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
        if first_key + BLOCK_K - 1 > high:
            cuda.syncwarp()  # protects nothing: it keeps the branch, which compilers turn into selects in every tile
            for r in range(LANE_ROWS):
                last = seqlen_k - 1
                if CAUSAL:
                    last = min(last, row + 8 * r + diagonal)
                column_of_last = int32(last - first_key - 2 * t)
                for i in range(BLOCK_K // 4):
                    if column(i, 0) > column_of_last:
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
            (s[i],) = probe(round_float16(s[i]))  # as they are packed, for which they are the same
        for r in unrolled(LANE_ROWS):
            if row + 8 * r < seqlen_q:
                probe.probs_cast[b, h, row + 8 * r, first_key:seqlen_k] = lane_row(s, r, BLOCK_K, t)
        for i in range(P_REGISTERS):
            p[i] = ptx.cvt_f16x2_f32(s[2 * i], s[2 * i + 1])

        decode(tiles, V_AT, CODES_V, units_v)
        ask(tiles, CODES_V, units_v, codes_v, scale_v, b, kv_h, first_key + BLOCK_K, head_dim)
        cuda.syncthreads()  # V of all threads is decoded; protects K, which all warps have multiplied
        for i in range(cuda.threadIdx.x, BLOCK_K * HEAD_DIM, THREADS):
            r, d = i // HEAD_DIM, i % HEAD_DIM
            if leads and first_key + r < seqlen_k and d < head_dim:
                probe.dequant_v[b, kv_h, first_key + r, d] = libdevice.fmul_rn(held(tiles, V_AT, r, d), v_unit)

        for i in unrolled(HEAD_DIM // PV_DIMS):
            for j in range(PV_REGISTERS):
                pv[j] = float32(0)
            for n in range(BLOCK_K // 16):
                for c in range(PV_DIMS // 16):
                    b0, b1, b2, b3 = ptx.ldmatrix_x4_trans(
                        tiles, 16 * n * HEAD_DIM + dims(at_v, i * (PV_DIMS // 16) + c)
                    )
                    for tall in range(WARP_ROWS // 16):
                        x = (tall * (BLOCK_K // 16) + n) * 4
                        a = (p[x], p[x + 1], p[x + 2], p[x + 3])
                        y = (tall * (PV_DIMS // 16) + c) * 8
                        left_sums = ptx.mma_m16n8k16_f16(a, (b0, b1), (pv[y], pv[y + 1], pv[y + 2], pv[y + 3]))
                        right_sums = ptx.mma_m16n8k16_f16(a, (b2, b3), (pv[y + 4], pv[y + 5], pv[y + 6], pv[y + 7]))
                        for j in range(4):
                            pv[y + j] = left_sums[j]
                            pv[y + 4 + j] = right_sums[j]
            for r in range(LANE_ROWS):
                for j in range(PV_DIMS // 4):
                    x = register(r, i * (PV_DIMS // 4) + j, HEAD_DIM)
                    acc[x] = cuda.fma(acc[x], correction[r], pv[register(r, j, PV_DIMS)])

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

    for r in range(LANE_ROWS):
        l[r] = row_sum_of(l[r])
        inverse = float32(1) / l[r] if l[r] != float32(0) else float32(0)
        for i in range(HEAD_DIM // 4):
            x = register(r, i, HEAD_DIM)
            acc[x] = libdevice.fmul_rn(acc[x], v_unit) * inverse
        if t == 0 and row + 8 * r < seqlen_q:
            largest = m[r] * scale
            if SCALED:
                largest = m[r]
            lse[b, h, row + 8 * r] = largest + math.log(l[r]) if l[r] != float32(0) else NEG_INF
    for tall in range(WARP_ROWS // 16):
        this_row = row + tall * 16 + t % 2 * 8
        for i in range(HEAD_DIM // 8):
            x, d = (tall * (HEAD_DIM // 8) + i) * 4, i * 8 + t // 2 * 4
            upper, lower = ptx.cvt_f16x2_f32(acc[x], acc[x + 1]), ptx.cvt_f16x2_f32(acc[x + 2], acc[x + 3])
            # lanes swap halves, so that each has 4 neighbours of one row: even ones of the upper, odd ones of the lower
            other = uint32(cuda.shfl_xor_sync(FULL_WARP, int32(lower if t % 2 == 0 else upper), 1))
            if this_row < seqlen_q and (not PADDED or d < head_dim):
                ptx.st_v2_u32(out, (b, h, this_row, d), (upper, other) if t % 2 == 0 else (other, lower))


# ---- on the host

KERNEL = Kernel(
    name="fp8_mma",
    algorithm="fp8",
    file=Path(__file__),
    functions={"fp8_mma_forward": Path(__file__)},
    summary="FlashAttention-2 on codes of 8 bits, decoded to float16 for tensor cores of any GPU from sm_80 on",
    settles=settle,
    constants=constants,
    launches=lambda case: [Launch("fp8_mma_forward", grid(case))],
    contract=contract,
    dtypes=("float32",),
    dims=DIMS,
    least_block=32,
    dynamic=True,
    masks=False,
    quantised=True,
    codes=FORMATS_TAKEN,
)
