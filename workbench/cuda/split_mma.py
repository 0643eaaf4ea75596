"""Split-K attention on tensor cores, for decoding: few queries over long keys, where the bytes of K and V are the time.

The splits are those of `split_k.py` (Flash-Decoding, Dao et al. 2023), the arithmetic that of `flash_mma.py`. Rows of a
tile of queries are the queries of all heads that share a kv head, (query, head of the group): a block reads K and V
once for all of them. Its warps have keys of their own of each tile while Q meets K, and dims of their own while probs
meet V: the maximum of a row, its sum and its probs go through shared memory, so that the state of a row is one and the
same in all warps. Copies are asynchronous, STAGES tiles of K and V ahead of what is multiplied: a slot is asked for
anew as soon as the barrier is passed behind which no warp reads it.

Names in capitals are bound when the kernel is built (`split_mma_build.Constants`): BLOCK_Q, BLOCK_K; HEAD_DIM, head_dim
rounded up to CHUNKS of 8 dims; STAGES, and groups of copies that may be PENDING when K or V is needed; WARPS, THREADS;
keys, dims and rows of a warp and of a lane; ROWS_AT_ONCE, which all threads copy together; sizes of shared memory, and
rows of it at which Q, K and V begin; MMA, PACK and CAST of the dtype. Switches are those of `flash_mma.py`.
"""

import math
from pathlib import Path

import numpy as np
from numba import cuda, float32, int16, int32, uint32
from numba.cuda import libdevice

from workbench.cuda import ptx
from workbench.cuda.device import row_max_of, row_sum_of
from workbench.cuda.fragments import chunk, column, lane_row, register
from workbench.cuda.kernel import Kernel
from workbench.cuda.loops import unrolled
from workbench.cuda.split_mma_build import DIMS_AT_ONCE, DTYPES, Constants, contract, fills, launches, resolve

NEG_INF = np.float32(-np.inf)
LOG2_E = np.float32(math.log2(math.e))


@cuda.jit(device=True)
def copy_tile(tiles, at, x, b, h, first_row, rows, head_dim):
    """Ask for rows first_row, ... of x[b, h], a tile of keys, from row `at` of shared memory on; those from `rows` on,
    and dims that there are not, are 0: a product with what lies there may be NaN.
    """
    # a thread has the same dims of every row that it copies
    first, c = cuda.threadIdx.x // CHUNKS, cuda.threadIdx.x % CHUNKS
    if first_row + BLOCK_K <= rows and not PADDED:
        for step in range(BLOCK_K // ROWS_AT_ONCE):
            r = at + first + step * ROWS_AT_ONCE
            place = (r * CHUNKS + (c ^ (r & 7))) * 8
            ptx.cp_async_16(tiles, place, x, (b, h, first_row + first + step * ROWS_AT_ONCE, c * 8))
    else:
        for step in range(BLOCK_K // ROWS_AT_ONCE):
            r = at + first + step * ROWS_AT_ONCE
            place = (r * CHUNKS + (c ^ (r & 7))) * 8
            row = first_row + first + step * ROWS_AT_ONCE
            if row < rows and (not PADDED or c * 8 < head_dim):
                ptx.cp_async_16(tiles, place, x, (b, h, row, c * 8))
            else:
                ptx.st_v4_u32(tiles, place, (uint32(0), uint32(0), uint32(0), uint32(0)))


@cuda.jit(device=True)
def copy_queries(tiles, q, b, first_head, group, first_q, first_row, seqlen_q, head_dim):
    """Ask for a tile of packed rows: row r is of query r // group and head first_head + r % group."""
    for step in range((BLOCK_Q + ROWS_AT_ONCE - 1) // ROWS_AT_ONCE):
        r, c = cuda.threadIdx.x // CHUNKS + step * ROWS_AT_ONCE, cuda.threadIdx.x % CHUNKS
        place = ((Q_AT + r) * CHUNKS + (c ^ (r & 7))) * 8
        query, head = (first_row + r) // group, first_head + (first_row + r) % group
        if r < BLOCK_Q and query < seqlen_q and (not PADDED or c * 8 < head_dim):
            ptx.cp_async_16(tiles, place, q, (b, head, first_q + query, c * 8))
        elif r < BLOCK_Q:
            ptx.st_v4_u32(tiles, place, (uint32(0), uint32(0), uint32(0), uint32(0)))


def split_mma_forward(
    q, k, v, partial_O, partial_max, partial_sum, cu_seqlens_q, cu_seqlens_k, cache_seqlens, scale, softcap, diagonal,
    left, right, bottom_right, max_seqlen_k
):  # fmt: skip
    """The unnormalised partial_O float32 [b, heads, splits, seqlen_q, d], partial_max and partial_sum float32 [b,
    heads, splits, seqlen_q] of each split of the keys; grid (splits, kv_heads * query tiles, batch).

    q [b, heads, seqlen_q, d], k, v [b, kv_heads, seqlen_k, d], of 16 bits, d a multiple of 8 and of stride 1, rows that
    begin at multiples of 16 bytes. Masks, and sequences of lengths of their own, are those of `flash.flash_forward`, as
    are the tiles of a split; tiles that no row of a block sees are not visited. partial_max is not scaled, but where
    SCALED. A split in which a row sees no key leaves (0, -inf, 0).
    """
    seqlen_q, seqlen_k, head_dim = q.shape[2], k.shape[2], q.shape[3]
    b, split, splits = cuda.blockIdx.z, cuda.blockIdx.x, partial_O.shape[2]
    group = q.shape[1] // k.shape[1]
    kv_h, first_row = cuda.blockIdx.y % k.shape[1], cuda.blockIdx.y // k.shape[1] * BLOCK_Q
    first_q, first_k = 0, 0
    if PACKED_Q:
        first_q, seqlen_q = cu_seqlens_q[b], cu_seqlens_q[b + 1] - cu_seqlens_q[b]
    if PACKED_K:
        first_k, seqlen_k = cu_seqlens_k[b], cu_seqlens_k[b + 1] - cu_seqlens_k[b]
    if LENGTHS:
        seqlen_k = cache_seqlens[b]
    if RAGGED:
        diagonal = seqlen_k - seqlen_q if bottom_right else 0
    if PACKED_Q:
        if first_row >= seqlen_q * group:
            return  # behind the end of the sequence

    end_tile = (seqlen_k + BLOCK_K - 1) // BLOCK_K
    most_tiles = end_tile
    if RAGGED:
        most_tiles = (max_seqlen_k + BLOCK_K - 1) // BLOCK_K
    tiles_per_split = (most_tiles + splits - 1) // splits
    first_tile, end_tile = split * tiles_per_split, min((split + 1) * tiles_per_split, end_tile)
    first_query, last_query = first_row // group, min((first_row + BLOCK_Q - 1) // group, seqlen_q - 1)
    # tiles of which all rows of the block see every key begin with first_whole, and end before end_whole
    end_whole = seqlen_k // BLOCK_K
    if CAUSAL:
        end_whole = min(end_whole, (first_query + diagonal + 1) // BLOCK_K)
        end_tile = min(end_tile, (last_query + diagonal + BLOCK_K) // BLOCK_K)
    if WINDOW:
        end_whole = min(end_whole, (first_query + diagonal + right + 1) // BLOCK_K)
        first_whole = (last_query + diagonal - left + BLOCK_K - 1) // BLOCK_K
        end_tile = min(end_tile, (last_query + diagonal + right + BLOCK_K) // BLOCK_K)
        first_tile = max(first_tile, (first_query + diagonal - left) // BLOCK_K)

    warp, lane = cuda.threadIdx.x >> 5, cuda.laneid
    g, t = lane >> 2, lane & 3
    query = cuda.local.array(LANE_ROWS, int32)  # of the lane's rows, which are g and every 8th from there
    head = cuda.local.array(LANE_ROWS, int32)
    for r in range(LANE_ROWS):
        query[r] = (first_row + g + 8 * r) // group
        head[r] = kv_h * group + (first_row + g + 8 * r) % group

    tiles = cuda.shared.array(0, int16, alignment=16)
    s_probs = cuda.shared.array(PROBS_SIZE, uint32, alignment=16)  # of a tile: pairs, cast
    s_max = cuda.shared.array(STATES_SIZE, float32)  # of a tile: [warp, row]
    s_sum = cuda.shared.array(STATES_SIZE, float32)
    s = cuda.local.array(S_REGISTERS, float32)
    v_registers = cuda.local.array(V_REGISTERS, uint32)
    acc = cuda.local.array(ACC_REGISTERS, float32)
    m = cuda.local.array(LANE_ROWS, float32)
    l = cuda.local.array(LANE_ROWS, float32)
    correction = cuda.local.array(LANE_ROWS, float32)
    for i in range(ACC_REGISTERS):
        acc[i] = float32(0)
    for r in range(LANE_ROWS):
        m[r] = NEG_INF
        l[r] = float32(0)
    exp2_scale = libdevice.fmul_rn(scale, LOG2_E)
    if SCALED:
        exp2_scale = LOG2_E

    # groups of copies: K and V by turns, empty ones where there is no tile; that of the first K has Q
    if first_tile < end_tile:
        copy_queries(tiles, q, b, kv_h * group, group, first_q, first_row, seqlen_q, head_dim)
    for ahead in range(STAGES):
        first_next = (first_tile + ahead) * BLOCK_K
        if first_tile + ahead < end_tile:
            copy_tile(tiles, K_AT + ahead * BLOCK_K, k, b, kv_h, first_k + first_next, first_k + seqlen_k, head_dim)
        ptx.cp_async_commit()
        if ahead < STAGES - 1:
            if first_tile + ahead < end_tile:
                copy_tile(tiles, V_AT + ahead * BLOCK_K, v, b, kv_h, first_k + first_next, first_k + seqlen_k, head_dim)
            ptx.cp_async_commit()

    stage = 0
    for tile in range(first_tile, end_tile):
        first_key = tile * BLOCK_K
        ptx.cp_async_wait_group(K_PENDING)
        cuda.syncthreads()  # all threads' K has arrived; protects V, s_probs and s_sum, which all warps have read
        if tile + STAGES - 1 < end_tile:
            first_next = first_k + first_key + (STAGES - 1) * BLOCK_K
            free = stage - 1 if stage > 0 else STAGES - 1
            copy_tile(tiles, V_AT + free * BLOCK_K, v, b, kv_h, first_next, first_k + seqlen_k, head_dim)
        ptx.cp_async_commit()

        for i in range(S_REGISTERS):
            s[i] = float32(0)
        for first in range(0, HEAD_DIM // 16, DIM_STEPS):
            for step in unrolled(DIM_STEPS):
                i = first + step
                for n in range(WARP_KEYS // 16):
                    # matrices of keys 0 to 7 and dims 0 to 7, dims 8 to 15; keys 8 to 15 likewise
                    key_row = K_AT + stage * BLOCK_K + warp * WARP_KEYS + 16 * n + (lane >> 4) * 8 + (lane & 7)
                    b0, b1, b2, b3 = ptx.ldmatrix_x4(tiles, key_row * HEAD_DIM + chunk(i, lane >> 3 & 1, lane))
                    for tall in range(BLOCK_Q // 16):
                        # matrices of rows 0 to 7 and dims 0 to 7, rows 8 to 15; dims 8 to 15 likewise
                        q_row = Q_AT + tall * 16 + (lane & 15)
                        a = ptx.ldmatrix_x4(tiles, q_row * HEAD_DIM + chunk(i, lane >> 4, lane))
                        y = (tall * (WARP_KEYS // 16) + n) * 8
                        left_sums = MMA(a, (b0, b1), (s[y], s[y + 1], s[y + 2], s[y + 3]))
                        right_sums = MMA(a, (b2, b3), (s[y + 4], s[y + 5], s[y + 6], s[y + 7]))
                        for j in range(4):
                            s[y + j] = left_sums[j]
                            s[y + 4 + j] = right_sums[j]

        first_own = first_key + warp * WARP_KEYS
        for r in unrolled(LANE_ROWS):
            if query[r] < seqlen_q:
                probe.qk[b, head[r], query[r], first_own:seqlen_k] = lane_row(s, r, WARP_KEYS, t)
        if SCALED:
            for i in range(S_REGISTERS):
                s[i] = libdevice.fmul_rn(s[i], scale)
        if SOFTCAP:
            for i in range(S_REGISTERS):
                s[i] = libdevice.fmul_rn(softcap, ptx.tanh_approx(s[i] / softcap))
            for r in unrolled(LANE_ROWS):
                if query[r] < seqlen_q:
                    probe.capped[b, head[r], query[r], first_own:seqlen_k] = lane_row(s, r, WARP_KEYS, t)
        if tile >= end_whole:
            for r in range(LANE_ROWS):
                last = seqlen_k - 1
                if CAUSAL:
                    last = min(last, query[r] + diagonal)
                if WINDOW:
                    last = min(last, query[r] + diagonal + right)
                for i in range(WARP_KEYS // 4):
                    if first_own + column(i, t) > last:
                        s[register(r, i, WARP_KEYS)] = NEG_INF
        if WINDOW:
            if tile < first_whole:
                for r in range(LANE_ROWS):
                    for i in range(WARP_KEYS // 4):
                        if first_own + column(i, t) < query[r] + diagonal - left:
                            s[register(r, i, WARP_KEYS)] = NEG_INF

        for r in unrolled(LANE_ROWS):
            if query[r] < seqlen_q:
                probe.scores[b, head[r], query[r], first_own:seqlen_k] = lane_row(s, r, WARP_KEYS, t)

        for r in range(LANE_ROWS):
            largest = NEG_INF
            for i in range(WARP_KEYS // 4):
                largest = max(largest, s[register(r, i, WARP_KEYS)])
            largest = row_max_of(largest)
            if t == 0:
                s_max[warp * BLOCK_Q + g + 8 * r] = largest
        cuda.syncthreads()  # s_max is complete; protects K, which all warps are done multiplying
        if tile + STAGES < end_tile:
            first_next = first_k + first_key + STAGES * BLOCK_K
            copy_tile(tiles, K_AT + stage * BLOCK_K, k, b, kv_h, first_next, first_k + seqlen_k, head_dim)
        ptx.cp_async_commit()

        for r in range(LANE_ROWS):
            largest = m[r]
            for w in range(WARPS):
                largest = max(largest, s_max[w * BLOCK_Q + g + 8 * r])
            # no key seen yet: exp(-inf - 0) is 0, exp(-inf + inf) is NaN
            safe = largest if largest > NEG_INF else float32(0)
            correction[r] = ptx.ex2_approx((m[r] - safe) * exp2_scale)
            m[r] = largest
            scaled_max = libdevice.fmul_rn(safe, exp2_scale)
            total = float32(0)
            for i in range(WARP_KEYS // 4):
                x = register(r, i, WARP_KEYS)
                s[x] = ptx.ex2_approx(cuda.fma(s[x], exp2_scale, -scaled_max))
                total += s[x]
            total = row_sum_of(total)
            if t == 0:
                s_sum[warp * BLOCK_Q + g + 8 * r] = total
            for i in range(WARP_DIMS // 4):
                x = register(r, i, WARP_DIMS)
                acc[x] = acc[x] * correction[r]
        for r in unrolled(LANE_ROWS):
            if query[r] < seqlen_q:
                probe.probs[b, head[r], query[r], first_own:seqlen_k] = lane_row(s, r, WARP_KEYS, t)
        for i in range(S_REGISTERS):
            (s[i],) = probe(CAST(s[i]))  # as they are packed, for which they are the same
        for r in unrolled(LANE_ROWS):
            if query[r] < seqlen_q:
                probe.probs_cast[b, head[r], query[r], first_own:seqlen_k] = lane_row(s, r, WARP_KEYS, t)
        for r in range(LANE_ROWS):
            for i in range(WARP_KEYS // 8):  # a pair of every 8 keys, chunks of which change places as those of tiles
                x, c = register(r, 2 * i, WARP_KEYS), warp * (WARP_KEYS // 8) + i
                s_probs[(g + 8 * r) * (BLOCK_K // 2) + (c ^ PROBS_SWIZZLE & g) * 4 + t] = PACK(s[x], s[x + 1])

        ptx.cp_async_wait_group(V_PENDING)
        cuda.syncthreads()  # all threads' V has arrived; s_probs and s_sum are complete; protects s_max
        for r in range(LANE_ROWS):
            l[r] = l[r] * correction[r]
            for w in range(WARPS):
                l[r] += s_sum[w * BLOCK_Q + g + 8 * r]
        for n in unrolled(BLOCK_K // 16):
            for i in range(WARP_DIMS // 16):
                # matrices of keys 0 to 7 and dims 0 to 7, keys 8 to 15; dims 8 to 15 likewise; each transposed
                key_row, x = V_AT + stage * BLOCK_K + 16 * n + (lane & 15), warp * (WARP_DIMS // 16) + i
                fragment = ptx.ldmatrix_x4_trans(tiles, key_row * HEAD_DIM + chunk(x, lane >> 4, lane))
                for j in range(4):
                    v_registers[4 * i + j] = fragment[j]
            for tall in range(BLOCK_Q // 16):
                p_row, c = tall * 16 + (lane & 15), (2 * n | lane >> 4) ^ PROBS_SWIZZLE & lane
                a = ptx.ldmatrix_x4(s_probs, p_row * (BLOCK_K // 2) + c * 4)
                for i in range(WARP_DIMS // 16):
                    x, y = 4 * i, (tall * (WARP_DIMS // 16) + i) * 8
                    b0, b1, b2, b3 = v_registers[x], v_registers[x + 1], v_registers[x + 2], v_registers[x + 3]
                    left_sums = MMA(a, (b0, b1), (acc[y], acc[y + 1], acc[y + 2], acc[y + 3]))
                    right_sums = MMA(a, (b2, b3), (acc[y + 4], acc[y + 5], acc[y + 6], acc[y + 7]))
                    for j in range(4):
                        acc[y + j] = left_sums[j]
                        acc[y + 4 + j] = right_sums[j]
        stage = stage + 1 if stage < STAGES - 1 else 0

        for r in unrolled(LANE_ROWS):
            if query[r] < seqlen_q:
                if warp == 0 and t == 0:
                    probe.row_max[b, head[r], query[r], tile] = m[r]
                    probe.correction[b, head[r], query[r], tile] = correction[r]
                    probe.row_sum[b, head[r], query[r], tile] = l[r]
                probe.acc[b, head[r], query[r], tile, warp * WARP_DIMS : head_dim] = lane_row(acc, r, WARP_DIMS, t)

    for r in range(LANE_ROWS):
        if query[r] < seqlen_q:
            if warp == 0 and t == 0:
                partial_max[b, head[r], split, query[r]] = m[r]
                partial_sum[b, head[r], split, query[r]] = l[r]
            for i in range(WARP_DIMS // 8):
                x, d = register(r, 2 * i, WARP_DIMS), warp * WARP_DIMS + column(2 * i, t)
                if not PADDED or d < head_dim:
                    ptx.st_v2_f32(partial_O, (b, head[r], split, query[r], d), (acc[x], acc[x + 1]))


# ---- on the host

KERNEL = Kernel(
    name="split_mma",
    algorithm="split_k",
    file=Path(__file__),
    functions={
        "split_mma_forward": Path(__file__),
        "split_mma_reduce": Path(__file__).with_name("split_mma_reduce.py"),
    },
    summary="Split-K attention on tensor cores for few queries over long keys; heads of a group share a tile",
    resolves=resolve,
    constants=Constants.of,
    launches=launches,
    contract=contract,
    dtypes=DTYPES,
    dims=DIMS_AT_ONCE,
    dynamic=True,
    static=("split_mma_reduce",),
    masks=False,
    splits=True,
    fills=fills,
)
