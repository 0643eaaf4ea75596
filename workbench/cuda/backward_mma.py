"""The backward pass of attention on tensor cores, in one pass over tiles of keys: algorithm 2 of FlashAttention-2 (Dao
2023, section 3.1.2), with mma.sync, fragments by ldmatrix, and tiles of Q and dout that are copied while those before
them are multiplied.

P and dS are made once, for which five products do in the place of the seven of `backward.py`, whose two kernels make
them twice. So blocks of keys add their parts of dQ to one sum in float32 by atomics, in any order: its last bits differ
from run to run, and `backward` is the kernel of which they do not.

A warp has 16 keys, lane 4 g + t of it two of these, g and g + 8 (`fragments`), and makes the transposed tiles of P and
dS: these, cast and packed, are the left factors of the products with dout and Q as they lie in registers, as P is of
that with V in `flash_mma.py`. For dQ, a sum over the keys of all warps, dS goes through shared memory, of which
ldmatrix reads it transposed once more; a warp has 32 queries there. Sums of dQ lie as registers do, four of a lane side
by side: an instruction of a warp adds 512 bytes in a row, and 8 do where 32 that add one element for each lane take 270
instructions more, of addresses, and registers for which there is no room (256 bytes of them in memory).

Names in capitals are bound when the kernel is built (`backward_mma_build.Constants`): BLOCK, keys of a block; TILE,
queries that are multiplied at once; HEAD_DIM, the larger head_dim rounded up to CHUNKS of 8 dims; ROWS_AT_ONCE, which
all threads copy together; the rows of shared memory at which K, V, Q and dout begin, of these last two tiles each;
sizes of what stands beside them; THREADS; dims of a warp in the product of dQ, and registers of a lane; MMA, PACK and
CAST of the dtype. Probes as in `backward.py`.
"""

import math
from pathlib import Path

import numpy as np
from numba import cuda, float32, int16, int32, uint32, uint64
from numba.cuda import libdevice

from workbench.cuda import backward, ptx
from workbench.cuda.backward import dscore, scaled
from workbench.cuda.backward_build import CONTRACT, NUMBERS, STAGES
from workbench.cuda.backward_mma_build import DIMS_AT_ONCE, DTYPES, work
from workbench.cuda.cubin import HOPPER
from workbench.cuda.device import FULL_WARP
from workbench.cuda.fragments import column, dims, register
from workbench.cuda.loops import unrolled
from workbench.cuda.operation_kernel import OperationKernel

LOG2_E = np.float32(math.log2(math.e))


@cuda.jit(device=True)
def copy_tile(tiles, at, x, b, h, first_row, count, head_dim):
    """Ask for rows first_row, ... of x[b, h], `count` of them, from row `at` of shared memory on, where chunks of 8
    dims change places by the last bits of their row; rows and dims that there are not are 0.
    """
    first, c = cuda.threadIdx.x // CHUNKS, cuda.threadIdx.x % CHUNKS
    row, place = first_row + first, (at + first) * HEAD_DIM + (c ^ (first & 7)) * 8
    if first_row + count <= x.shape[2] and head_dim == HEAD_DIM:
        for step in range(count // ROWS_AT_ONCE):  # without tests, which cost more instructions than copies
            more = step * ROWS_AT_ONCE
            ptx.cp_async_16(tiles, place + more * HEAD_DIM, x, (b, h, row + more, c * 8))
    else:
        for step in range(count // ROWS_AT_ONCE):
            more = step * ROWS_AT_ONCE
            if row + more < x.shape[2] and c * 8 < head_dim:
                ptx.cp_async_16(tiles, place + more * HEAD_DIM, x, (b, h, row + more, c * 8))
            else:
                ptx.st_v4_u32(tiles, place + more * HEAD_DIM, (uint32(0), uint32(0), uint32(0), uint32(0)))


@cuda.jit(device=True)
def copy_rows(part, at, x, b, h, first_row):
    """Ask for TILE numbers x[b, h, first_row], ... to part[at], ..., 0 where there is no such row."""
    r = cuda.threadIdx.x
    if r < TILE:
        if first_row + r < x.shape[2]:
            ptx.cp_async_4(part, at + r, x, (b, h, first_row + r))
        else:
            part[at + r] = float32(0)


@cuda.jit(device=True, inline="always")
def products(sums, tiles, at_x, at_y):
    """Put the products of a warp's 16 rows of one tile with all rows of another into the registers of a lane."""
    for i in range(S_REGISTERS):
        sums[i] = float32(0)
    for i in unrolled(HEAD_DIM // 16):
        a = ptx.ldmatrix_x4(tiles, dims(at_x, i))
        for n in range(TILE // 16):
            b0, b1, b2, b3 = ptx.ldmatrix_x4(tiles, 16 * n * HEAD_DIM + dims(at_y, i))
            y = n * 8
            left_sums = MMA(a, (b0, b1), (sums[y], sums[y + 1], sums[y + 2], sums[y + 3]))
            right_sums = MMA(a, (b2, b3), (sums[y + 4], sums[y + 5], sums[y + 6], sums[y + 7]))
            for j in range(4):
                sums[y + j] = left_sums[j]
                sums[y + 4 + j] = right_sums[j]


@cuda.jit(device=True, inline="always")
def add_products(acc, x, tiles, at_y):
    """Add the products of the packed rows x, of TILE numbers, with a tile to the registers of a lane."""
    for n in unrolled(TILE // 16):
        a = (x[4 * n], x[4 * n + 1], x[4 * n + 2], x[4 * n + 3])
        for i in range(HEAD_DIM // 16):
            b0, b1, b2, b3 = ptx.ldmatrix_x4_trans(tiles, 16 * n * HEAD_DIM + dims(at_y, i))
            y = i * 8
            left_sums = MMA(a, (b0, b1), (acc[y], acc[y + 1], acc[y + 2], acc[y + 3]))
            right_sums = MMA(a, (b2, b3), (acc[y + 4], acc[y + 5], acc[y + 6], acc[y + 7]))
            for j in range(4):
                acc[y + j] = left_sums[j]
                acc[y + 4 + j] = right_sums[j]


@cuda.jit(device=True)
def store(out, b, h, row, i, x, scale):
    """Store what lanes have of dims 8 i, ... of 16 rows, those from `row` on, times `scale`, where there are such.

    x: numbers of rows g and g + 8, two neighbours of each. Lanes swap two, so that each has four of one row: even ones
    of row g, odd ones of g + 8.
    """
    lane = cuda.laneid
    upper, lower = PACK(x[0] * scale, x[1] * scale), PACK(x[2] * scale, x[3] * scale)
    other = uint32(cuda.shfl_xor_sync(FULL_WARP, int32(lower if lane % 2 == 0 else upper), 1))
    own, d = row + (lane >> 2) + lane % 2 * 8, 8 * i + (lane & 2) * 2
    if own < out.shape[2] and d < out.shape[3]:
        ptx.st_v2_u32(out, (b, h, own, d), (upper, other) if lane % 2 == 0 else (other, lower))


def backward_mma_keys(q, k, v, lse, dout, delta, dq_sum, dk, dv, scale, causal, diagonal):
    """dk and dv, and dQ / scale added to dq_sum; grid (tiles of BLOCK keys, kv_heads, batch).

    Arguments as of `backward.backward_keys`, of 16 bits; dims are multiples of 8, and rows begin at multiples of 16
    bytes.
    """
    seqlen_q, seqlen_k, head_dim, head_dim_v = q.shape[2], k.shape[2], q.shape[3], v.shape[3]
    b, kv_h, group = cuda.blockIdx.z, cuda.blockIdx.y, q.shape[1] // k.shape[1]
    warp, lane = cuda.threadIdx.x >> 5, cuda.laneid
    g, t = lane >> 2, lane & 3
    first_key = cuda.blockIdx.x * BLOCK
    first_own = first_key + warp * 16  # the first key of the warp
    q_row, first_dim = warp % (TILE // 32) * 32, warp // (TILE // 32) * DQ_DIMS  # of dQ, the first that the warp has

    tiles = cuda.shared.array(0, int16, alignment=16)
    s_ds = cuda.shared.array(DS_WORDS, uint32, alignment=16)  # [key, query], pairs
    s_lse = cuda.shared.array(TWO_TILES, float32)
    s_delta = cuda.shared.array(TWO_TILES, float32)
    s = cuda.local.array(S_REGISTERS, float32)
    dp = cuda.local.array(S_REGISTERS, float32)
    left = cuda.local.array(P_REGISTERS, uint32)
    dq_part = cuda.local.array(DQ_REGISTERS, float32)
    dk_acc = cuda.local.array(ACC_REGISTERS, float32)
    dv_acc = cuda.local.array(ACC_REGISTERS, float32)
    for i in range(ACC_REGISTERS):
        dk_acc[i] = float32(0)
        dv_acc[i] = float32(0)

    # where a lane's row of the four 8x8 matrices is that ldmatrix reads, each given by 8 lanes: of rows 0 to 7 and 8 to
    # 15 dims 0 to 7, then dims 8 to 15; and of rows 0 to 7 dims 0 to 7 and 8 to 15, then of rows 8 to 15
    by_rows = (lane & 15) * HEAD_DIM + (lane >> 4 ^ lane & 7) * 8
    by_dims = (lane >> 1 & 8 | lane & 7) * HEAD_DIM + (lane >> 3 & 1 ^ lane & 7) * 8
    own_k, own_v = (K_AT + warp * 16) * HEAD_DIM + by_rows, (V_AT + warp * 16) * HEAD_DIM + by_rows
    of_k = (K_AT + (lane & 15)) * HEAD_DIM + (first_dim // 8 + (lane >> 4) ^ lane & 7) * 8
    # likewise, by dims, of keys and queries of dS; and where a lane stores those of its first key
    of_ds = (lane >> 1 & 8 | lane & 7) * (TILE // 2) + (q_row // 8 + (lane >> 3 & 1) ^ lane & 7) * 4
    own_ds = (warp * 16 + g) * (TILE // 2) + t

    tiles_q = (seqlen_q + TILE - 1) // TILE
    first_tile = max(0, first_key - diagonal) // TILE if causal else 0  # the first query that sees the first key
    if first_tile < tiles_q:
        copy_tile(tiles, K_AT, k, b, kv_h, first_key, BLOCK, head_dim)
        copy_tile(tiles, V_AT, v, b, kv_h, first_key, BLOCK, head_dim_v)
        copy_tile(tiles, Q_AT, q, b, kv_h * group, first_tile * TILE, TILE, head_dim)
        copy_tile(tiles, DOUT_AT, dout, b, kv_h * group, first_tile * TILE, TILE, head_dim_v)
        copy_rows(s_lse, 0, lse, b, kv_h * group, first_tile * TILE)
        copy_rows(s_delta, 0, delta, b, kv_h * group, first_tile * TILE)
    slot = 0  # TILE where the tile is the second of its two
    for h in range(kv_h * group, (kv_h + 1) * group):
        for tile in range(first_tile, tiles_q):
            first_row = tile * TILE
            ptx.cp_async_wait_all()
            cuda.syncthreads()  # all threads' tile has arrived; protects the tile before, and dS, of all warps
            next_h, next_tile = (h, tile + 1) if tile + 1 < tiles_q else (h + 1, first_tile)
            if next_h < (kv_h + 1) * group:
                copy_tile(tiles, Q_AT + (TILE - slot), q, b, next_h, next_tile * TILE, TILE, head_dim)
                copy_tile(tiles, DOUT_AT + (TILE - slot), dout, b, next_h, next_tile * TILE, TILE, head_dim_v)
                copy_rows(s_lse, TILE - slot, lse, b, next_h, next_tile * TILE)
                copy_rows(s_delta, TILE - slot, delta, b, next_h, next_tile * TILE)

            at_q, at_dout = (Q_AT + slot) * HEAD_DIM, (DOUT_AT + slot) * HEAD_DIM
            products(s, tiles, own_k, at_q + by_dims)
            for r in unrolled(2):
                key = first_own + g + 8 * r
                for i in range(TILE // 4):
                    x, c = register(r, i, TILE), column(i, t)
                    score = scaled(s[x], scale)
                    if first_row + c < seqlen_q and key < seqlen_k:
                        probe.qk[b, h, first_row + c, key] = s[x]
                        probe.scores[b, h, first_row + c, key] = score
                    s[x] = libdevice.exp2f((score - s_lse[uint64(slot + c)]) * LOG2_E)
            last = min(seqlen_k - 1, first_row + diagonal) if causal else seqlen_k - 1
            if first_own + 15 > last:  # a key is hidden from the first query, or does not exist
                for r in range(2):
                    key = first_own + g + 8 * r
                    seen = max(0, key - diagonal - first_row) if causal else 0  # the first column that sees it
                    seen_from = int32(min(TILE, seen) if key < seqlen_k else TILE) - int32(2 * t)
                    for i in range(TILE // 4):
                        if column(i, 0) < seen_from:
                            s[register(r, i, TILE)] = float32(0)
            for i in range(P_REGISTERS):
                left[i] = PACK(s[2 * i], s[2 * i + 1])
            add_products(dv_acc, left, tiles, at_dout + by_rows)

            products(dp, tiles, own_v, at_dout + by_dims)
            for r in unrolled(2):
                key = first_own + g + 8 * r
                for i in range(TILE // 4):
                    x, c = register(r, i, TILE), column(i, t)
                    ds = dscore(s[x], dp[x], s_delta[uint64(slot + c)])
                    if first_row + c < seqlen_q and key < seqlen_k:
                        probe.probs[b, h, first_row + c, key] = s[x]
                        probe.probs_cast[b, h, first_row + c, key] = CAST(s[x])
                        probe.dprobs[b, h, first_row + c, key] = dp[x]
                        probe.dscores[b, h, first_row + c, key] = ds
                        probe.dscores_cast[b, h, first_row + c, key] = CAST(ds)
                    dp[x] = ds
            for i in range(P_REGISTERS):
                left[i] = PACK(dp[2 * i], dp[2 * i + 1])
                s_ds[uint64(own_ds + i % 2 * 8 * (TILE // 2) + (i // 2 ^ g) * 4)] = left[i]
            cuda.syncthreads()  # dS of all warps is complete
            add_products(dk_acc, left, tiles, at_q + by_rows)

            for i in range(DQ_REGISTERS):
                dq_part[i] = float32(0)
            for n in unrolled(BLOCK // 16):
                for tall in range(2):
                    fragment = ptx.ldmatrix_x4_trans(s_ds, 16 * n * (TILE // 2) + (of_ds ^ 8 * tall))
                    for j in range(4):
                        left[4 * tall + j] = fragment[j]
                for i in range(DQ_DIMS // 16):
                    b0, b1, b2, b3 = ptx.ldmatrix_x4_trans(tiles, 16 * n * HEAD_DIM + dims(of_k, i))
                    for tall in range(2):
                        x, y = 4 * tall, (tall * (DQ_DIMS // 16) + i) * 8
                        a = (left[x], left[x + 1], left[x + 2], left[x + 3])
                        left_sums = MMA(a, (b0, b1), (dq_part[y], dq_part[y + 1], dq_part[y + 2], dq_part[y + 3]))
                        right_sums = MMA(a, (b2, b3), (dq_part[y + 4], dq_part[y + 5], dq_part[y + 6], dq_part[y + 7]))
                        for j in range(4):
                            dq_part[y + j] = left_sums[j]
                            dq_part[y + 4 + j] = right_sums[j]
            for tall in range(2):
                strip = (first_row + q_row) // 16 + tall
                for i in range(DQ_DIMS // 8):
                    y = (tall * (DQ_DIMS // 8) + i) * 4
                    four = (dq_part[y], dq_part[y + 1], dq_part[y + 2], dq_part[y + 3])
                    ptx.red_add_v4_f32(dq_sum, (b, h, strip, (first_dim // 8 + i) * 128 + 4 * lane), four)
            slot = TILE - slot

    for i in range(HEAD_DIM // 8):
        x = 4 * i
        store(dk, b, kv_h, first_own, i, (dk_acc[x], dk_acc[x + 1], dk_acc[x + 2], dk_acc[x + 3]), scale)
        store(dv, b, kv_h, first_own, i, (dv_acc[x], dv_acc[x + 1], dv_acc[x + 2], dv_acc[x + 3]), float32(1))


def backward_mma_queries(dq_sum, dq, scale):
    """dq[b, h, q, d] = scale * dq_sum, to which all tiles of keys have added; grid (16 queries for each warp, heads,
    batch).
    """
    b, h, lane = cuda.blockIdx.z, cuda.blockIdx.y, cuda.laneid
    strip = cuda.blockIdx.x * (THREADS // 32) + (cuda.threadIdx.x >> 5)
    sums = cuda.local.array(ACC_REGISTERS, float32)
    if strip < dq_sum.shape[2]:
        for i in range(HEAD_DIM // 8):  # all at once: a load behind a store waits, as it may be of what is stored
            four = ptx.ld_v4_f32(dq_sum, (b, h, strip, 128 * i + 4 * lane))
            for j in range(4):
                sums[4 * i + j] = four[j]
        for i in range(HEAD_DIM // 8):
            x = 4 * i
            store(dq, b, h, 16 * strip, i, (sums[x], sums[x + 1], sums[x + 2], sums[x + 3]), scale)


# ---- on the host

KERNEL = OperationKernel(
    name="backward_mma",
    operation="attention_backward",
    file=Path(__file__),
    functions={
        "backward_delta": backward.KERNEL.file,
        "backward_mma_keys": Path(__file__),
        "backward_mma_queries": Path(__file__),
    },
    summary="Attention backward on tensor cores: delta; then one loop over key tiles, dQ by float32 atomics",
    stages=STAGES,
    work=work,
    contract=CONTRACT,
    numbers=NUMBERS,
    dtypes=DTYPES,
    dims=DIMS_AT_ONCE,
    least=HOPPER,
    dynamic=("backward_mma_keys",),
)
