"""FlashAttention-2 on tensor cores with plain loads and stores: the second of four steps (docs/trust/speed.md), with
108 TFLOP/s on an H100 where the first has 2.2.

`flash.py` with mma.sync in the place of its two loops of products, and its threads where the instruction wants them: a
warp has 16 query rows, lane 4 g + t of it two of these, g and g + 8, and of every 8 columns 2 t and 2 t + 1 ("PTX ISA
9.0", matrix fragments for mma.m16n8k16). Scores and accumulator so stay in registers, and the probs of 16 keys, cast
and packed, are the left factor of the product with V as they lie. A register of the other factors is two numbers: of Q
and K neighbours in a row, a word of shared memory; of V a dim of two keys, halves of two words. Rows in shared memory
are 8 dims longer than HEAD_DIM, so that what a warp reads at once lies in different banks. K and V have one buffer
each: while a tile is loaded, nothing is multiplied.

Names in capitals are bound when the kernel is built (`flash_tensor_build.Constants`): BLOCK_Q, BLOCK_K; HEAD_DIM,
head_dim rounded up to CHUNKS of 8 dims; WORDS and HALVES, what a row of shared memory holds of 4 and 2 bytes; THREADS;
registers of a lane; MMA, PACK, CAST and STORE of the dtype. Switches, whose `if` is absent where they are off: CAUSAL,
WINDOW and SOFTCAP.
"""

import math
from pathlib import Path

import numpy as np
from numba import cuda, float32, uint16, uint32
from numba.cuda import libdevice

from workbench.cuda import ptx
from workbench.cuda.device import row_max_of, row_sum_of
from workbench.cuda.flash_tensor_build import DIMS_AT_ONCE, DTYPES, Constants, contract, grid, resolve
from workbench.cuda.fragments import column, lane_row, register
from workbench.cuda.kernel import Kernel, Launch
from workbench.cuda.loops import unrolled

NEG_INF = np.float32(-np.inf)
LOG2_E = np.float32(math.log2(math.e))


@cuda.jit(device=True)
def load_tile(tile, x, b, h, first_row, rows, head_dim):
    """Fill the tile with rows first_row, ... of x[b, h], and with 0 where row or dims do not exist: 8 dims at once, and
    four times as many in the registers of a thread, since a load waits for the stores before it.
    """
    held = cuda.local.array(16, uint32)
    for first in range(cuda.threadIdx.x, tile.shape[0] * CHUNKS, 4 * THREADS):
        for j in range(4):
            r, c = (first + j * THREADS) // CHUNKS, (first + j * THREADS) % CHUNKS
            dims = (uint32(0), uint32(0), uint32(0), uint32(0))
            if r < tile.shape[0] and first_row + r < rows and c * 8 < head_dim:
                dims = ptx.ld_v4_u32(x, (b, h, first_row + r, c * 8))
            for i in range(4):
                held[4 * j + i] = dims[i]
        for j in range(4):
            r, c = (first + j * THREADS) // CHUNKS, (first + j * THREADS) % CHUNKS
            if r < tile.shape[0]:
                dims = (held[4 * j], held[4 * j + 1], held[4 * j + 2], held[4 * j + 3])
                ptx.st_v4_u32(tile, (r, c * (tile.shape[1] // (CHUNKS + 1))), dims)


@cuda.jit(device=True)
def pair(tile, key, d):
    """A dim of two neighbouring keys of V, the first in the lower half."""
    return uint32(tile[key, d] | tile[key + 1, d] << 16)


def flash_tensor_forward(q, k, v, out, lse, scale, softcap, diagonal, left, right):
    """out[b, h, q, d] = softmax(scale * q @ k^T, masked) @ v and lse[b, h, q], its log-sum-exp; grid (query tiles,
    heads, batch).

    q, out [b, heads, seqlen_q, d], k, v [b, kv_heads, seqlen_k, d], of 16 bits, d a multiple of 8 and of stride 1, rows
    that begin at multiples of 16 bytes; lse float32 [b, heads, seqlen_q]. Masks are those of `flash.flash_forward`;
    tiles that no row of a block sees are not visited. A row that sees no key gets out 0 and lse -inf.
    """
    seqlen_q, seqlen_k, head_dim = q.shape[2], k.shape[2], q.shape[3]
    b, h = cuda.blockIdx.z, cuda.blockIdx.y
    kv_h = h // (q.shape[1] // k.shape[1])
    first_row = cuda.blockIdx.x * BLOCK_Q
    first_tile, end_tile = 0, (seqlen_k + BLOCK_K - 1) // BLOCK_K
    if CAUSAL:
        end_tile = max(0, min(end_tile, (first_row + BLOCK_Q - 1 + diagonal + BLOCK_K) // BLOCK_K))
    if WINDOW:
        end_tile = max(0, min(end_tile, (first_row + BLOCK_Q - 1 + diagonal + right + BLOCK_K) // BLOCK_K))
        first_tile = max(0, first_row + diagonal - left) // BLOCK_K
    warp_row, g, t = (cuda.threadIdx.x >> 5) * 16, cuda.laneid >> 2, cuda.laneid & 3
    row = first_row + warp_row + g  # and the 8th from there

    s_q = cuda.shared.array((BLOCK_Q, WORDS), uint32, alignment=16)
    s_k = cuda.shared.array((BLOCK_K, WORDS), uint32, alignment=16)
    s_v = cuda.shared.array((BLOCK_K, HALVES), uint16, alignment=16)
    s = cuda.local.array(S_REGISTERS, float32)
    p = cuda.local.array(P_REGISTERS, uint32)
    acc = cuda.local.array(ACC_REGISTERS, float32)
    m = cuda.local.array(2, float32)
    l = cuda.local.array(2, float32)
    correction = cuda.local.array(2, float32)
    for i in range(ACC_REGISTERS):
        acc[i] = float32(0)
    for r in range(2):
        m[r] = NEG_INF
        l[r] = float32(0)

    load_tile(s_q, q, b, h, first_row, seqlen_q, head_dim)
    for tile in range(first_tile, end_tile):
        first_key = tile * BLOCK_K
        cuda.syncthreads()  # protects K and V of the tile before, which other warps still multiply
        load_tile(s_k, k, b, kv_h, first_key, seqlen_k, head_dim)
        load_tile(s_v, v, b, kv_h, first_key, seqlen_k, head_dim)
        cuda.syncthreads()  # Q, K and V are complete before any warp multiplies them

        for i in range(S_REGISTERS):
            s[i] = float32(0)
        for i in range(HEAD_DIM // 16):
            x, y = warp_row + g, 8 * i + t  # word y holds dims 16 i + 2 t and the next, word y + 4 those 8 further
            a = (s_q[x, y], s_q[x + 8, y], s_q[x, y + 4], s_q[x + 8, y + 4])
            for n in range(BLOCK_K // 8):
                of_k = (s_k[8 * n + g, y], s_k[8 * n + g, y + 4])
                sums = MMA(a, of_k, (s[4 * n], s[4 * n + 1], s[4 * n + 2], s[4 * n + 3]))
                for j in range(4):
                    s[4 * n + j] = sums[j]

        for r in unrolled(2):
            if row + 8 * r < seqlen_q:
                probe.qk[b, h, row + 8 * r, first_key:seqlen_k] = lane_row(s, r, BLOCK_K, t)
        for i in range(S_REGISTERS):
            s[i] = libdevice.fmul_rn(s[i], scale)
        if SOFTCAP:
            for i in range(S_REGISTERS):
                s[i] = libdevice.fmul_rn(softcap, ptx.tanh_approx(s[i] / softcap))
            for r in unrolled(2):
                if row + 8 * r < seqlen_q:
                    probe.capped[b, h, row + 8 * r, first_key:seqlen_k] = lane_row(s, r, BLOCK_K, t)
        for r in range(2):
            this_row, last = row + 8 * r, seqlen_k - 1
            if CAUSAL:
                last = min(last, this_row + diagonal)
            if WINDOW:
                last = min(last, this_row + diagonal + right)
            for i in range(BLOCK_K // 4):
                x, key = register(r, i, BLOCK_K), first_key + column(i, t)
                if key > last:
                    s[x] = NEG_INF
                if WINDOW:
                    if key < this_row + diagonal - left:
                        s[x] = NEG_INF
        for r in unrolled(2):
            if row + 8 * r < seqlen_q:
                probe.scores[b, h, row + 8 * r, first_key:seqlen_k] = lane_row(s, r, BLOCK_K, t)
        for r in range(2):
            largest = m[r]
            for i in range(BLOCK_K // 4):
                largest = max(largest, s[register(r, i, BLOCK_K)])
            largest = row_max_of(largest)
            # no key seen yet: exp(-inf - 0) is 0, exp(-inf + inf) is NaN
            safe = largest if largest > NEG_INF else float32(0)
            correction[r] = ptx.ex2_approx((m[r] - safe) * LOG2_E)
            m[r] = largest
            scaled_max = libdevice.fmul_rn(safe, LOG2_E)
            total = float32(0)
            for i in range(BLOCK_K // 4):
                x = register(r, i, BLOCK_K)
                s[x] = ptx.ex2_approx(cuda.fma(s[x], LOG2_E, -scaled_max))
                total += s[x]
            l[r] = l[r] * correction[r] + row_sum_of(total)
            for i in range(HEAD_DIM // 4):
                x = register(r, i, HEAD_DIM)
                acc[x] = acc[x] * correction[r]
        for r in unrolled(2):
            if row + 8 * r < seqlen_q:
                probe.probs[b, h, row + 8 * r, first_key:seqlen_k] = lane_row(s, r, BLOCK_K, t)
        for i in range(S_REGISTERS):
            (s[i],) = probe(CAST(s[i]))  # as they are packed, for which they are the same
        for r in unrolled(2):
            if row + 8 * r < seqlen_q:
                probe.probs_cast[b, h, row + 8 * r, first_key:seqlen_k] = lane_row(s, r, BLOCK_K, t)

        for i in range(P_REGISTERS):
            p[i] = PACK(s[2 * i], s[2 * i + 1])
        for n in range(BLOCK_K // 16):
            a, key = (p[4 * n], p[4 * n + 1], p[4 * n + 2], p[4 * n + 3]), 16 * n + 2 * t
            for i in range(HEAD_DIM // 8):
                of_v = (pair(s_v, key, 8 * i + g), pair(s_v, key + 8, 8 * i + g))
                sums = MMA(a, of_v, (acc[4 * i], acc[4 * i + 1], acc[4 * i + 2], acc[4 * i + 3]))
                for j in range(4):
                    acc[4 * i + j] = sums[j]

        for r in unrolled(2):
            if row + 8 * r < seqlen_q:
                if t == 0:
                    probe.row_max[b, h, row + 8 * r, tile] = m[r]
                    probe.correction[b, h, row + 8 * r, tile] = correction[r]
                    probe.row_sum[b, h, row + 8 * r, tile] = l[r]
                probe.acc[b, h, row + 8 * r, tile, 0:head_dim] = lane_row(acc, r, HEAD_DIM, t)

    for r in range(2):
        this_row, inverse = row + 8 * r, float32(1) / l[r] if l[r] != float32(0) else float32(0)
        for i in range(HEAD_DIM // 4):
            x, d = register(r, i, HEAD_DIM), column(i, t)
            if this_row < seqlen_q and d < head_dim:
                out[b, h, this_row, d] = STORE(acc[x] * inverse)
        if t == 0 and this_row < seqlen_q:
            lse[b, h, this_row] = m[r] + math.log(l[r]) if l[r] != float32(0) else NEG_INF


# ---- on the host

KERNEL = Kernel(
    name="flash_tensor",
    algorithm="flash",
    file=Path(__file__),
    functions={"flash_tensor_forward": Path(__file__)},
    summary="FlashAttention-2 on tensor cores: plain loads and stores copy the tiles",
    resolves=resolve,
    constants=Constants.of,
    launches=lambda case: [Launch("flash_tensor_forward", grid(case))],
    contract=contract,
    dtypes=DTYPES,
    dims=DIMS_AT_ONCE,
    masks=False,
)
