"""The backward pass of attention on tensor cores, with plain loads and stores: `backward.py` with mma.sync in the place
of its loops of products.

A warp has 16 keys, or 16 queries where dQ is made, lane 4 g + t of it two of these, g and g + 8 (`fragments`). For dK
and dV it makes the transposed tiles of P and dS: these, cast and packed, are the left factors of the products with dout
and Q as they lie in registers, as P is of that with V in `flash_tensor.py`. Rows in shared memory are words of two
dims; of the right factors of these last products a register is a dim of two neighbouring rows, halves of two words.

Names in capitals are bound when the kernel is built (`backward_mma_build.Constants`): BLOCK, rows of a block, keys or
queries; TILE, those of the other kind that are multiplied at once; HEAD_DIM, the larger head_dim rounded up to CHUNKS
of 8 dims; WORDS, what a row of shared memory holds, with 8 dims more, so that what a warp reads at once lies in
different banks; THREADS; registers of a lane; MMA, PACK, CAST and STORE of the dtype. Probes as in `backward.py`.
"""

from pathlib import Path

from numba import cuda, float32, uint32

from workbench.cuda import backward, ptx
from workbench.cuda.backward import dscore, scaled, visible, weight
from workbench.cuda.backward_build import CONTRACT, NUMBERS, STAGES
from workbench.cuda.backward_mma_build import DIMS_AT_ONCE, DTYPES, work
from workbench.cuda.fragments import column, register
from workbench.cuda.operation_kernel import OperationKernel


@cuda.jit(device=True)
def load_tile(tile, x, b, h, first_row, dims):
    """Fill the tile with rows first_row, ... of x[b, h], 8 dims at once, and with 0 where row or dims do not exist."""
    for i in range(cuda.threadIdx.x, tile.shape[0] * CHUNKS, THREADS):
        r, c = i // CHUNKS, i % CHUNKS
        eight = (uint32(0), uint32(0), uint32(0), uint32(0))
        if first_row + r < x.shape[2] and c * 8 < dims:
            eight = ptx.ld_v4_u32(x, (b, h, first_row + r, c * 8))
        ptx.st_v4_u32(tile, (r, c * 4), eight)


@cuda.jit(device=True)
def load_rows(part, x, b, h, first_row):
    """Fill part[r] with x[b, h, first_row + r], with 0 where the row does not exist."""
    for r in range(cuda.threadIdx.x, TILE, THREADS):
        part[r] = x[b, h, first_row + r] if first_row + r < x.shape[2] else float32(0)


@cuda.jit(device=True)
def products(sums, x, row, y, g, t):
    """Put the products of rows `row` and row + 8 of x with all of y into the registers of a lane."""
    for i in range(TILE // 2):
        sums[i] = float32(0)
    for i in range(HEAD_DIM // 16):
        w = 8 * i + t  # the word of dims 16 i + 2 t and the next; word w + 4 holds those 8 further
        a = (x[row, w], x[row + 8, w], x[row, w + 4], x[row + 8, w + 4])
        for n in range(TILE // 8):
            of_y = (y[8 * n + g, w], y[8 * n + g, w + 4])
            made = MMA(a, of_y, (sums[4 * n], sums[4 * n + 1], sums[4 * n + 2], sums[4 * n + 3]))
            for j in range(4):
                sums[4 * n + j] = made[j]


@cuda.jit(device=True)
def pair(tile, row, word, half):
    """A dim of two neighbouring rows, the first in the lower half: of a word the upper half where `half` is 16."""
    return uint32(tile[row, word] >> half & 0xFFFF | (tile[row + 1, word] >> half & 0xFFFF) << 16)


@cuda.jit(device=True)
def add_products(acc, x, y, g, t):
    """Add the products of the packed rows x, of TILE numbers, with the tile y to the registers of a lane."""
    half = uint32(16 * (g & 1))
    for n in range(TILE // 16):
        a, row = (x[4 * n], x[4 * n + 1], x[4 * n + 2], x[4 * n + 3]), 16 * n + 2 * t
        for i in range(HEAD_DIM // 8):
            word = 4 * i + (g >> 1)  # of dim 8 i + g
            of_y = (pair(y, row, word, half), pair(y, row + 8, word, half))
            made = MMA(a, of_y, (acc[4 * i], acc[4 * i + 1], acc[4 * i + 2], acc[4 * i + 3]))
            for j in range(4):
                acc[4 * i + j] = made[j]


@cuda.jit(device=True)
def packed(to, x):
    """Cast what a lane has of a tile, and pack neighbours."""
    for i in range(TILE // 4):
        to[i] = PACK(x[2 * i], x[2 * i + 1])


def backward_mma_keys(q, k, v, lse, dout, delta, dk, dv, scale, causal, diagonal):
    """dk and dv; grid (tiles of BLOCK keys, kv_heads, batch).

    Arguments as of `backward.backward_keys`, of 16 bits; dims are multiples of 8, and rows begin at multiples of 16
    bytes.
    """
    seqlen_q, seqlen_k, head_dim, head_dim_v = q.shape[2], k.shape[2], q.shape[3], v.shape[3]
    b, kv_h, group = cuda.blockIdx.z, cuda.blockIdx.y, q.shape[1] // k.shape[1]
    warp_row, g, t = (cuda.threadIdx.x >> 5) * 16, cuda.laneid >> 2, cuda.laneid & 3
    first_key = cuda.blockIdx.x * BLOCK

    s_k = cuda.shared.array((BLOCK, WORDS), uint32, alignment=16)
    s_v = cuda.shared.array((BLOCK, WORDS), uint32, alignment=16)
    s_q = cuda.shared.array((TILE, WORDS), uint32, alignment=16)
    s_dout = cuda.shared.array((TILE, WORDS), uint32, alignment=16)
    s_lse = cuda.shared.array(TILE, float32)
    s_delta = cuda.shared.array(TILE, float32)
    s = cuda.local.array(S_REGISTERS, float32)
    dp = cuda.local.array(S_REGISTERS, float32)
    left = cuda.local.array(P_REGISTERS, uint32)
    dk_acc = cuda.local.array(ACC_REGISTERS, float32)
    dv_acc = cuda.local.array(ACC_REGISTERS, float32)
    for i in range(ACC_REGISTERS):
        dk_acc[i] = float32(0)
        dv_acc[i] = float32(0)

    load_tile(s_k, k, b, kv_h, first_key, head_dim)
    load_tile(s_v, v, b, kv_h, first_key, head_dim_v)
    first_tile = max(0, first_key - diagonal) // TILE if causal else 0  # the first query that sees the first key
    for h in range(kv_h * group, (kv_h + 1) * group):
        for tile in range(first_tile, (seqlen_q + TILE - 1) // TILE):
            first_row = tile * TILE
            cuda.syncthreads()  # protects Q, dout, lse and delta of the tile before, which other warps still read
            load_tile(s_q, q, b, h, first_row, head_dim)
            load_tile(s_dout, dout, b, h, first_row, head_dim_v)
            load_rows(s_lse, lse, b, h, first_row)
            load_rows(s_delta, delta, b, h, first_row)
            cuda.syncthreads()  # K, V, Q, dout, lse and delta are complete before any warp reads them

            products(s, s_k, warp_row + g, s_q, g, t)
            products(dp, s_v, warp_row + g, s_dout, g, t)
            for r in range(2):
                key = first_key + warp_row + g + 8 * r
                for i in range(TILE // 4):
                    x, c = register(r, i, TILE), column(i, t)
                    row = first_row + c
                    score = scaled(s[x], scale)
                    p = weight(score, s_lse[c], visible(row, key, seqlen_q, seqlen_k, causal, diagonal))
                    ds = dscore(p, dp[x], s_delta[c])
                    if row < seqlen_q and key < seqlen_k:
                        probe.qk[b, h, row, key] = s[x]
                        probe.scores[b, h, row, key] = score
                        probe.probs[b, h, row, key] = p
                        probe.probs_cast[b, h, row, key] = CAST(p)
                        probe.dprobs[b, h, row, key] = dp[x]
                        probe.dscores[b, h, row, key] = ds
                        probe.dscores_cast[b, h, row, key] = CAST(ds)
                    s[x] = p
                    dp[x] = ds
            packed(left, s)
            add_products(dv_acc, left, s_dout, g, t)
            packed(left, dp)
            add_products(dk_acc, left, s_q, g, t)

    for r in range(2):
        key = first_key + warp_row + g + 8 * r
        if key < seqlen_k:
            for i in range(HEAD_DIM // 4):
                x, d = register(r, i, HEAD_DIM), column(i, t)
                if d < head_dim:
                    dk[b, kv_h, key, d] = STORE(dk_acc[x] * scale)
                if d < head_dim_v:
                    dv[b, kv_h, key, d] = STORE(dv_acc[x])


def backward_mma_queries(q, k, v, lse, dout, delta, dq, scale, causal, diagonal):
    """dq; grid (tiles of BLOCK queries, heads, batch). Arguments as of `backward_mma_keys`."""
    seqlen_q, seqlen_k, head_dim, head_dim_v = q.shape[2], k.shape[2], q.shape[3], v.shape[3]
    b, h, kv_h = cuda.blockIdx.z, cuda.blockIdx.y, cuda.blockIdx.y // (q.shape[1] // k.shape[1])
    warp_row, g, t = (cuda.threadIdx.x >> 5) * 16, cuda.laneid >> 2, cuda.laneid & 3
    first_row = cuda.blockIdx.x * BLOCK

    s_q = cuda.shared.array((BLOCK, WORDS), uint32, alignment=16)
    s_dout = cuda.shared.array((BLOCK, WORDS), uint32, alignment=16)
    s_k = cuda.shared.array((TILE, WORDS), uint32, alignment=16)
    s_v = cuda.shared.array((TILE, WORDS), uint32, alignment=16)
    s = cuda.local.array(S_REGISTERS, float32)
    dp = cuda.local.array(S_REGISTERS, float32)
    left = cuda.local.array(P_REGISTERS, uint32)
    row_lse = cuda.local.array(2, float32)
    row_delta = cuda.local.array(2, float32)
    dq_acc = cuda.local.array(ACC_REGISTERS, float32)
    for i in range(ACC_REGISTERS):
        dq_acc[i] = float32(0)
    for r in range(2):
        row = first_row + warp_row + g + 8 * r
        row_lse[r] = lse[b, h, row] if row < seqlen_q else float32(0)
        row_delta[r] = delta[b, h, row] if row < seqlen_q else float32(0)

    load_tile(s_q, q, b, h, first_row, head_dim)
    load_tile(s_dout, dout, b, h, first_row, head_dim_v)
    end = min(seqlen_k, max(0, first_row + BLOCK + diagonal)) if causal else seqlen_k  # behind the last key seen
    for tile in range((end + TILE - 1) // TILE):
        first_key = tile * TILE
        cuda.syncthreads()  # protects K and V of the tile before, which other warps still multiply
        load_tile(s_k, k, b, kv_h, first_key, head_dim)
        load_tile(s_v, v, b, kv_h, first_key, head_dim_v)
        cuda.syncthreads()  # Q, dout, K and V are complete before any warp multiplies them

        products(s, s_q, warp_row + g, s_k, g, t)
        products(dp, s_dout, warp_row + g, s_v, g, t)
        for r in range(2):
            row = first_row + warp_row + g + 8 * r
            for i in range(TILE // 4):
                x, key = register(r, i, TILE), first_key + column(i, t)
                sees = visible(row, key, seqlen_q, seqlen_k, causal, diagonal)
                dp[x] = dscore(weight(scaled(s[x], scale), row_lse[r], sees), dp[x], row_delta[r])
        packed(left, dp)
        add_products(dq_acc, left, s_k, g, t)

    for r in range(2):
        row = first_row + warp_row + g + 8 * r
        if row < seqlen_q:
            for i in range(HEAD_DIM // 4):
                x, d = register(r, i, HEAD_DIM), column(i, t)
                if d < head_dim:
                    dq[b, h, row, d] = STORE(dq_acc[x] * scale)


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
    summary="Attention backward on tensor cores: delta, dK and dV by tiles of keys, dQ by tiles of queries",
    stages=STAGES,
    work=work,
    contract=CONTRACT,
    numbers=NUMBERS,
    dtypes=DTYPES,
    dims=DIMS_AT_ONCE,
)
