"""FlashAttention-3's forward pass on Hopper: products of four warps at once, tiles that one warp has copied for all.
One source of two kernels: `flash_wgmma` on floats and, where CODES is on, `fp8_wgmma` on float8 codes (`fp8_wgmma.py`).

Section 3 of FlashAttention-3 (Shah et al. 2024, arXiv 2407.08608): a warp group of a block is its producer, a thread of
which asks for tiles of Q, K and V (TMA) as stages of a ring of buffers become free; the others, its consumers, have 64
query rows each. While a consumer takes exp of its scores, its product with the V before is under way (section 3.2), and
two consumers take turns at the tensor cores: while scores of one are multiplied, the other takes exp (section 3.1).
Fragments, scale and exp2 are those of `flash_mma`. The last of four steps (docs/trust/speed.md), with 409 TFLOP/s on an
H100 where the third has 314.

Names in capitals are bound when the kernel is built (`flash_wgmma_build.Constants`): BLOCK_Q, BLOCK_K; HEAD_DIM, of
which tiles in shared memory hold 64 dims each, DIM_TILES; STAGES buffers of K and V each; where in shared memory Q, K
and V begin; THREADS, CONSUMERS; barriers of Q, and the first of each stage's for K and V, full and empty; registers;
QK and PV, the products; PACK and CAST of the dtype. Switches, whose `if` is absent where they are off: CAUSAL, WINDOW,
SOFTCAP, SCALED as in `flash_mma.py`, and TURNS. Shared memory is ELEMENTs, ROW of them in a row: words of four codes.

Of codes alone (`fp8_wgmma.Constants`): RAW_AT is where V begins as it comes, V_AT where it is multiplied, TURNED the
named barrier of those who turn it, HEADS whether a head has one scale.

What is inlined is a part of the kernel: numba puts it there, and the code is the same as if it stood there.
"""

import math
from pathlib import Path

import numpy as np
from numba import cuda, float32, int32, uint32, uint64
from numba.cuda import libdevice

from workbench.cuda import hopper, ptx
from workbench.cuda.device import FULL_WARP, row_max_of, row_sum_of
from workbench.cuda.flash_wgmma_build import DTYPES, Constants, contract, grid, resolve
from workbench.cuda.fragments import column, lane_row, register
from workbench.cuda.kernel import Kernel, Launch
from workbench.cuda.loops import peeled, unrolled

NEG_INF = np.float32(-np.inf)
LOG2_E = np.float32(math.log2(math.e))
GROUP = 128  # threads of a warp group


@cuda.jit(device=True)
def place_of(row, word):
    """Where a word of a row is: chunks of 4 words change places by the last bits of the row."""
    return row * ROW + ((word >> 2) ^ (row & 7)) * 4 + (word & 3)


@cuda.jit(device=True)
def transpose(tiles, raw, turned):
    """Write V, BLOCK_K rows of keys, as HEAD_DIM rows of dims, each thread squares of 4 keys and 4 dims.

    Of 16 neighbouring keys a product takes bytes 4 t, ... of a row of probs from lane t, which has those of keys 2 t,
    2 t + 1, 2 t + 8 and 2 t + 9 ("PTX ISA 9.0", fragments of wgmma): so keys stand in that order.
    """
    warp, t, c = cuda.threadIdx.x >> 5, cuda.laneid & 3, cuda.laneid >> 2
    word = (warp & (HEAD_DIM // 32 - 1)) * 8 + c  # of a row of keys: dims 4 word, ...
    # of rows 2 t, 2 t + 1 of every 8
    even, odd = raw + place_of(2 * t, word), raw + place_of(2 * t + 1, word)
    first = c >> 1  # lanes begin at different dims of the four, for which all banks are written at once
    for n in range(BLOCK_K // 16 * (HEAD_DIM // 32) // (GROUP // 32)):
        part = n * (GROUP // HEAD_DIM) + warp // (HEAD_DIM // 32)
        at = part * 16 * ROW
        k0, k1, k2, k3 = tiles[at + even], tiles[at + odd], tiles[at + even + 8 * ROW], tiles[at + odd + 8 * ROW]
        # bytes 0 and 1 of both, and bytes 2 and 3 of both
        low, low_2 = libdevice.byte_perm(k0, k1, 0x5140), libdevice.byte_perm(k0, k1, 0x7362)
        high, high_2 = libdevice.byte_perm(k2, k3, 0x5140), libdevice.byte_perm(k2, k3, 0x7362)
        d0, d1 = libdevice.byte_perm(low, high, 0x5410), libdevice.byte_perm(low, high, 0x7632)
        d2, d3 = libdevice.byte_perm(low_2, high_2, 0x5410), libdevice.byte_perm(low_2, high_2, 0x7632)
        if first & 1:
            d0, d1, d2, d3 = d1, d2, d3, d0
        if first & 2:
            d0, d1, d2, d3 = d2, d3, d0, d1
        x = part * 4 + t
        tiles[turned + place_of(4 * word + (first & 3), x)] = d0
        tiles[turned + place_of(4 * word + (first + 1 & 3), x)] = d1
        tiles[turned + place_of(4 * word + (first + 2 & 3), x)] = d2
        tiles[turned + place_of(4 * word + (first + 3 & 3), x)] = d3


@cuda.jit(device=True)
def ask(tiles, bars, codes_k, codes_v, b, kv_h, tile):
    """Ask for K and V of a tile, when consumers have multiplied the K that was there; V as it came is turned before."""
    stage, turn = tile % STAGES, tile // STAGES
    at, source = stage * BLOCK_K * ROW, (b, kv_h, tile * BLOCK_K, 0)
    hopper.mbarrier_expect_tx(bars, RAW_FULL + stage, BLOCK_K * ROW * 4)
    hopper.cp_async_bulk_tensor(tiles, RAW_AT + at, codes_v, 2, source, BLOCK_K, bars, RAW_FULL + stage)
    # of a barrier that no phase of is complete, the phase before the first is
    hopper.mbarrier_wait(bars, K_EMPTY + stage, (turn & 1) ^ 1)
    hopper.mbarrier_expect_tx(bars, K_FULL + stage, BLOCK_K * ROW * 4)
    hopper.cp_async_bulk_tensor(tiles, K_AT + at, codes_k, 1, source, BLOCK_K, bars, K_FULL + stage)


@cuda.jit(device=True)
def with_tile(acc, pv, unit):
    """The accumulator with a product of a tile, whose codes of V stand for `unit` each where tiles have scales."""
    return acc + pv if HEADS else cuda.fma(pv, unit, acc)


@cuda.jit(device=True, inline="always")
def take_exp(s, m, l, correction, exp2_scale):
    """Put probs of a tile into the place of its scores; bring maxima and the lane's own sums up to date, and tell the
    correction of what was before.
    """
    for r in range(2):
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


@cuda.jit(device=True, inline="always")
def store_rows(out, acc, b, h, row, rows, head_dim, t):
    """Store the accumulator, its rows `row` and the 8th from there, as far as there are so many rows."""
    this_row = row + t % 2 * 8
    for i in range(HEAD_DIM // 8):
        d = i * 8 + t // 2 * 4
        upper, lower = PACK(acc[4 * i], acc[4 * i + 1]), PACK(acc[4 * i + 2], acc[4 * i + 3])
        # lanes swap halves, so that each has 4 neighbours of one row: even ones of the upper, odd ones of the lower
        other = uint32(cuda.shfl_xor_sync(FULL_WARP, int32(lower if t % 2 == 0 else upper), 1))
        if this_row < rows and d < head_dim:
            ptx.st_v2_u32(out, (b, h, this_row, d), (upper, other) if t % 2 == 0 else (other, lower))


@cuda.jit(device=True, inline="always")
def init_barriers(bars):
    """Initialise all barriers; one thread does."""
    hopper.mbarrier_init(bars, Q_FULL, 1)
    for stage in range(STAGES):
        hopper.mbarrier_init(bars, K_FULL + stage, 1)
        if CODES:
            hopper.mbarrier_init(bars, RAW_FULL + stage, 1)
            hopper.mbarrier_init(bars, V_FULL + stage, GROUP)  # each thread of the producer has turned its part
        else:
            hopper.mbarrier_init(bars, V_FULL + stage, 1)
        hopper.mbarrier_init(bars, K_EMPTY + stage, 4 * CONSUMERS)  # a lane of every warp arrives
        hopper.mbarrier_init(bars, V_EMPTY + stage, 4 * CONSUMERS)
    hopper.fence_barrier_init()


@cuda.jit(device=True, inline="always")
def pack_codes(p, s):
    """Pack probs as codes, in the order in which products take keys."""
    for i in range(P_REGISTERS):
        # keys 2 t, 2 t + 1 of 8, then of the next 8; rows g and g + 8 in turns, then the other 16 keys
        x = i // 4 * 16 + i % 4 // 2 * 8 + i % 2 * 2
        low = uint32(ptx.cvt_e4m3x2_f32(s[x], s[x + 1]))
        p[i] = low | uint32(ptx.cvt_e4m3x2_f32(s[x + 4], s[x + 5])) << uint32(16)


@cuda.jit(device=True, inline="always")
def copy(tiles, bars, q, k, v, b, h, kv_h, first_row, first_tile, end_tile):
    """Ask for Q, and for K and V of each tile as consumers give their buffers back; one thread of a producer does."""
    hopper.mbarrier_expect_tx(bars, Q_FULL, BLOCK_Q * HEAD_DIM * 2)
    for i in range(DIM_TILES):
        place = Q_AT + i * BLOCK_Q * 64
        hopper.cp_async_bulk_tensor(tiles, place, q, 0, (b, h, first_row, i * 64), BLOCK_Q, bars, Q_FULL)
    for tile in range(first_tile, end_tile):
        stage, turn = (tile - first_tile) % STAGES, (tile - first_tile) // STAGES
        first_key, at = tile * BLOCK_K, stage * BLOCK_K * HEAD_DIM
        # of a barrier that no phase of is complete, the phase before the first is
        hopper.mbarrier_wait(bars, K_EMPTY + stage, (turn & 1) ^ 1)
        hopper.mbarrier_expect_tx(bars, K_FULL + stage, BLOCK_K * HEAD_DIM * 2)
        for i in range(DIM_TILES):
            place = K_AT + at + i * BLOCK_K * 64
            source = (b, kv_h, first_key, i * 64)
            hopper.cp_async_bulk_tensor(tiles, place, k, 1, source, BLOCK_K, bars, K_FULL + stage)
        hopper.mbarrier_wait(bars, V_EMPTY + stage, (turn & 1) ^ 1)
        hopper.mbarrier_expect_tx(bars, V_FULL + stage, BLOCK_K * HEAD_DIM * 2)
        for i in range(DIM_TILES):
            place = V_AT + at + i * BLOCK_K * 64
            source = (b, kv_h, first_key, i * 64)
            hopper.cp_async_bulk_tensor(tiles, place, v, 2, source, BLOCK_K, bars, V_FULL + stage)


@cuda.jit(device=True, inline="always")
def copy_codes(tiles, bars, codes_q, codes_k, codes_v, b, h, kv_h, first_row, end_tile):
    """The same of codes, of which all threads of the producer turn V."""
    if cuda.threadIdx.x == 0 and end_tile > 0:
        hopper.mbarrier_expect_tx(bars, Q_FULL, BLOCK_Q * ROW * 4)
        hopper.cp_async_bulk_tensor(tiles, Q_AT, codes_q, 0, (b, h, first_row, 0), BLOCK_Q, bars, Q_FULL)
        ask(tiles, bars, codes_k, codes_v, b, kv_h, 0)
    for tile in range(end_tile):
        stage, turn = tile % STAGES, tile // STAGES
        if cuda.threadIdx.x == 0 and tile + 1 < end_tile:
            ask(tiles, bars, codes_k, codes_v, b, kv_h, tile + 1)
        hopper.mbarrier_wait(bars, RAW_FULL + stage, turn & 1)
        hopper.mbarrier_wait(bars, V_EMPTY + stage, (turn & 1) ^ 1)
        transpose(tiles, RAW_AT + stage * BLOCK_K * ROW, V_AT + stage * HEAD_DIM * ROW)
        hopper.fence_async_shared()
        hopper.mbarrier_arrive(bars, V_FULL + stage)
        hopper.named_barrier(TURNED, GROUP)  # protects V as it came, which all threads have read


def flash_wgmma_forward(
    q, k, v, codes_q, codes_k, codes_v, scale_q, scale_k, scale_v, out, lse, scale, softcap, diagonal, left, right
):  # fmt: skip
    """out[b, h, q, d] = softmax(scale * q @ k^T, masked) @ v and lse[b, h, q], its log-sum-exp; grid (query tiles,
    heads, batch).

    q, out [b, heads, seqlen_q, d], k, v [b, kv_heads, seqlen_k, d], of 16 bits, d a multiple of 8 and of stride 1, rows
    that begin at multiples of 16 bytes; lse float32 [b, heads, seqlen_q]. Masks are those of `flash.flash_forward`;
    tiles that no row of a block sees are not visited. A row that sees no key gets out 0 and lse -inf.

    Of CODES q, k and v are what codes_q, codes_k, codes_v of 8 bits (e4m3) stand for, d a multiple of 16 to 128;
    scale_q float32 [heads], scale_k, scale_v [kv_heads], or of rows [b, heads, row, 1], alike for every 128; out
    float16.
    """
    b, h = cuda.blockIdx.z, cuda.blockIdx.y
    if CODES:
        seqlen_q, seqlen_k, head_dim = codes_q.shape[2], codes_k.shape[2], codes_q.shape[3]
        kv_h = h // (codes_q.shape[1] // codes_k.shape[1])
    else:
        seqlen_q, seqlen_k, head_dim = q.shape[2], k.shape[2], q.shape[3]
        kv_h = h // (q.shape[1] // k.shape[1])
    block = cuda.blockIdx.x
    if CAUSAL:
        block = cuda.gridDim.x - 1 - block  # blocks with the most keys first: the last to end is a short one
    first_row = block * BLOCK_Q
    first_tile, end_tile = 0, (seqlen_k + BLOCK_K - 1) // BLOCK_K
    if CAUSAL:
        end_tile = max(0, min(end_tile, (first_row + BLOCK_Q - 1 + diagonal + BLOCK_K) // BLOCK_K))
    if WINDOW:
        end_tile = max(0, min(end_tile, (first_row + BLOCK_Q - 1 + diagonal + right + BLOCK_K) // BLOCK_K))
        first_tile = max(0, first_row + diagonal - left) // BLOCK_K

    tiles = cuda.shared.array(0, ELEMENT, alignment=1024)
    bars = cuda.shared.array(BARRIERS, uint64)
    if cuda.threadIdx.x == 0:
        init_barriers(bars)
    cuda.syncthreads()  # the barriers are there

    # the same in all lanes, and the compiler sees it: products in a branch that warps may part at are made one by one
    group = cuda.shfl_sync(FULL_WARP, cuda.threadIdx.x // GROUP, 0)
    if group == 0:
        if HANDS_ON:
            hopper.set_max_registers_dec(PRODUCER_REGISTERS)
        if CODES:
            copy_codes(tiles, bars, codes_q, codes_k, codes_v, b, h, kv_h, first_row, end_tile)
        else:
            if cuda.threadIdx.x == 0 and first_tile < end_tile:
                copy(tiles, bars, q, k, v, b, h, kv_h, first_row, first_tile, end_tile)
    else:
        if HANDS_ON:
            hopper.set_max_registers_inc(CONSUMER_REGISTERS)
        consumer = group - 1
        warp_row, lane = (cuda.threadIdx.x >> 5) * 16 - 64, cuda.laneid
        g, t = lane >> 2, lane & 3
        row = first_row + warp_row + g  # and the 8th from there
        # the last key that the first row of the warp sees, and the first key that its last row sees
        high = seqlen_k - 1
        if CAUSAL:
            high = min(high, first_row + warp_row + diagonal)
        if WINDOW:
            high = min(high, first_row + warp_row + diagonal + right)
            low = first_row + warp_row + 15 + diagonal - left

        s = cuda.local.array(S_REGISTERS, float32)
        p = cuda.local.array(P_REGISTERS, uint32)
        if CODES:
            pv = cuda.local.array(ACC_REGISTERS, float32)  # of one tile
        acc = cuda.local.array(ACC_REGISTERS, float32)
        m = cuda.local.array(2, float32)
        l = cuda.local.array(2, float32)  # of the lane's own keys, until the end
        correction = cuda.local.array(2, float32)
        for i in range(ACC_REGISTERS):
            if CODES:
                pv[i] = float32(0)
            acc[i] = float32(0)
        for i in range(S_REGISTERS):
            s[i] = float32(0)
        for r in range(2):
            m[r] = NEG_INF
            l[r] = float32(0)
        exp2_scale = libdevice.fmul_rn(scale, LOG2_E)
        if SCALED:
            exp2_scale = LOG2_E
        if CODES:
            v_unit = pv_unit = float32(1)
            if HEADS:
                qk_unit, v_unit = libdevice.fmul_rn(scale_q[h], scale_k[kv_h]), scale_v[kv_h]
            else:
                q_unit = scale_q[b, h, first_row, 0]
        if TURNS:
            if consumer == 1:
                hopper.named_barrier_arrive(1, 256)
        q_at = Q_AT + consumer * 64 * ROW

        if first_tile < end_tile:
            hopper.mbarrier_wait(bars, Q_FULL, 0)
        for tile in peeled(first_tile, end_tile):
            first_key = tile * BLOCK_K
            stage, turn = (tile - first_tile) % STAGES, (tile - first_tile) // STAGES
            before, turn_before = (tile - 1 - first_tile) % STAGES, (tile - 1 - first_tile) // STAGES
            if CODES:
                if not HEADS:
                    qk_unit = libdevice.fmul_rn(q_unit, scale_k[b, kv_h, first_key, 0])
                    pv_unit = scale_v[b, kv_h, max(0, first_key - BLOCK_K), 0]  # of the tile before
            hopper.mbarrier_wait(bars, K_FULL + stage, turn & 1)
            if TURNS:
                hopper.named_barrier(1 + consumer, 256)  # the other has asked for its products
            hopper.wgmma_fence(s, S_REGISTERS)
            if CODES:
                for i in range(HEAD_DIM // 32):
                    QK(s, tiles, q_at + i * 8, tiles, K_AT + stage * BLOCK_K * ROW + i * 8, i)
            else:
                for i in range(HEAD_DIM // 16):
                    q_place = q_at + i // 4 * BLOCK_Q * 64 + i % 4 * 16
                    k_place = K_AT + stage * BLOCK_K * HEAD_DIM + i // 4 * BLOCK_K * 64 + i % 4 * 16
                    QK(s, tiles, q_place, tiles, k_place, i)
            hopper.wgmma_commit()
            if tile > first_tile:
                hopper.mbarrier_wait(bars, V_FULL + before, turn_before & 1)
                if CODES:
                    hopper.wgmma_fence(pv, ACC_REGISTERS)
                    for i in range(BLOCK_K // 32):
                        PV(pv, p, 4 * i, tiles, V_AT + before * HEAD_DIM * ROW + i * 8, i)
                else:
                    hopper.wgmma_fence(acc, ACC_REGISTERS)
                    for i in range(BLOCK_K // 16):
                        place = V_AT + before * BLOCK_K * HEAD_DIM + i * 16 * 64
                        PV(acc, p, 4 * i, tiles, place, V_TILE_BYTES, 1)
                hopper.wgmma_commit()
                if TURNS:
                    hopper.named_barrier_arrive(2 - consumer, 256)
                hopper.wgmma_wait(1, s, S_REGISTERS)
            else:
                if TURNS:
                    hopper.named_barrier_arrive(2 - consumer, 256)
                hopper.wgmma_wait(0, s, S_REGISTERS)
            if lane == 0:
                hopper.mbarrier_arrive(bars, K_EMPTY + stage)

            if CODES:
                for i in range(S_REGISTERS):
                    s[i] = libdevice.fmul_rn(s[i], qk_unit)
            for r in unrolled(2):
                if row + 8 * r < seqlen_q:
                    probe.qk[b, h, row + 8 * r, first_key:seqlen_k] = lane_row(s, r, BLOCK_K, t)
            if SCALED:
                for i in range(S_REGISTERS):
                    s[i] = libdevice.fmul_rn(s[i], scale)
            if SOFTCAP:
                for i in range(S_REGISTERS):
                    s[i] = libdevice.fmul_rn(softcap, ptx.tanh_approx(s[i] / softcap))
                for r in unrolled(2):
                    if row + 8 * r < seqlen_q:
                        probe.capped[b, h, row + 8 * r, first_key:seqlen_k] = lane_row(s, r, BLOCK_K, t)
            if first_key + BLOCK_K - 1 > high:
                cuda.syncwarp()  # protects nothing: it keeps the branch, which compilers turn into selects
                for r in range(2):
                    last = seqlen_k - 1
                    if CAUSAL:
                        last = min(last, row + 8 * r + diagonal)
                    if WINDOW:
                        last = min(last, row + 8 * r + diagonal + right)
                    for i in range(BLOCK_K // 4):
                        if first_key + column(i, t) > last:
                            s[register(r, i, BLOCK_K)] = NEG_INF
            if WINDOW:
                if first_key < low:
                    cuda.syncwarp()  # likewise
                    for r in range(2):
                        for i in range(BLOCK_K // 4):
                            if first_key + column(i, t) < row + 8 * r + diagonal - left:
                                s[register(r, i, BLOCK_K)] = NEG_INF

            for r in unrolled(2):
                if row + 8 * r < seqlen_q:
                    probe.scores[b, h, row + 8 * r, first_key:seqlen_k] = lane_row(s, r, BLOCK_K, t)
            take_exp(s, m, l, correction, exp2_scale)
            for r in unrolled(2):
                if row + 8 * r < seqlen_q:
                    probe.probs[b, h, row + 8 * r, first_key:seqlen_k] = lane_row(s, r, BLOCK_K, t)
            for i in range(S_REGISTERS):
                (s[i],) = probe(CAST(s[i]))  # as they are packed, for which they are the same
            for r in unrolled(2):
                if row + 8 * r < seqlen_q:
                    probe.probs_cast[b, h, row + 8 * r, first_key:seqlen_k] = lane_row(s, r, BLOCK_K, t)

            if tile > first_tile:
                if CODES:
                    hopper.wgmma_wait(0, pv, ACC_REGISTERS)
                    for i in range(ACC_REGISTERS):
                        acc[i] = with_tile(acc[i], pv[i], pv_unit)
                    if lane == 0:
                        hopper.mbarrier_arrive(bars, V_EMPTY + before)
                    for r in range(2):
                        for i in range(HEAD_DIM // 4):
                            x, d = register(r, i, HEAD_DIM), column(i, t)
                            if row + 8 * r < seqlen_q and d < head_dim:
                                probe.acc[b, h, row + 8 * r, tile - 1, d] = libdevice.fmul_rn(acc[x], v_unit)
                else:
                    hopper.wgmma_wait(0, acc, ACC_REGISTERS)
                    if lane == 0:
                        hopper.mbarrier_arrive(bars, V_EMPTY + before)
                    for r in unrolled(2):
                        if row + 8 * r < seqlen_q:
                            probe.acc[b, h, row + 8 * r, tile - 1, 0:head_dim] = lane_row(acc, r, HEAD_DIM, t)
            for r in range(2):
                (total,) = probe(row_sum_of(l[r]))
                if t == 0 and row + 8 * r < seqlen_q:
                    probe.row_max[b, h, row + 8 * r, tile] = m[r]
                    probe.correction[b, h, row + 8 * r, tile] = correction[r]
                    probe.row_sum[b, h, row + 8 * r, tile] = total
                for i in range(HEAD_DIM // 4):
                    x = register(r, i, HEAD_DIM)
                    acc[x] = acc[x] * correction[r]
            if CODES:
                pack_codes(p, s)
            else:
                for i in range(P_REGISTERS):
                    p[i] = PACK(s[2 * i], s[2 * i + 1])

        if first_tile < end_tile:
            last, turn = (end_tile - 1 - first_tile) % STAGES, (end_tile - 1 - first_tile) // STAGES
            hopper.mbarrier_wait(bars, V_FULL + last, turn & 1)
            if CODES:
                hopper.wgmma_fence(pv, ACC_REGISTERS)
                for i in range(BLOCK_K // 32):
                    PV(pv, p, 4 * i, tiles, V_AT + last * HEAD_DIM * ROW + i * 8, i)
                hopper.wgmma_commit()
                hopper.wgmma_wait(0, pv, ACC_REGISTERS)
                if not HEADS:
                    pv_unit = scale_v[b, kv_h, (end_tile - 1) * BLOCK_K, 0]
                for i in range(ACC_REGISTERS):
                    acc[i] = with_tile(acc[i], pv[i], pv_unit)
            else:
                hopper.wgmma_fence(acc, ACC_REGISTERS)
                for i in range(BLOCK_K // 16):
                    place = V_AT + last * BLOCK_K * HEAD_DIM + i * 16 * 64
                    PV(acc, p, 4 * i, tiles, place, V_TILE_BYTES, 1)
                hopper.wgmma_commit()
                hopper.wgmma_wait(0, acc, ACC_REGISTERS)
        if CODES:
            for r in range(2):
                for i in range(HEAD_DIM // 4):
                    x, d = register(r, i, HEAD_DIM), column(i, t)
                    if row + 8 * r < seqlen_q and d < head_dim and end_tile > 0:
                        probe.acc[b, h, row + 8 * r, end_tile - 1, d] = libdevice.fmul_rn(acc[x], v_unit)
        else:
            for r in unrolled(2):
                if row + 8 * r < seqlen_q and first_tile < end_tile:
                    probe.acc[b, h, row + 8 * r, end_tile - 1, 0:head_dim] = lane_row(acc, r, HEAD_DIM, t)
        for r in range(2):
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
                lse[b, h, row + 8 * r] = largest + math.log(l[r]) if l[r] != float32(0) else NEG_INF
        store_rows(out, acc, b, h, row, seqlen_q, head_dim, t)


# ---- on the host

KERNEL = Kernel(
    name="flash_wgmma",
    algorithm="flash",
    file=Path(__file__),
    functions={"flash_wgmma_forward": Path(__file__)},
    summary="FlashAttention-3 on Hopper: asynchronous copies and products, warp-specialised",
    resolves=resolve,
    constants=Constants.of,
    launches=lambda case: [Launch("flash_wgmma_forward", grid(case))],
    contract=contract,
    dtypes=DTYPES,
    dims=8,
    least_block=64,
    dynamic=True,
    masks=False,
)
