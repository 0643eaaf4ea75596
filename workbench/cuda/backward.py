"""The backward pass of attention: delta, then dK and dV by tiles of keys, then dQ by tiles of queries.

Algorithm 2 of FlashAttention-2 (Dao 2023, section 3.1.2) with float32 arithmetic, in the two kernels that avoid atomics
(as Triton's tutorial has it); with ATOMIC in the one kernel of the paper, where each tile of keys adds its part of dQ
to that of the others by float32 atomics, in any order. P and dS meet the next product in the dtype of the inputs.

Four threads (LANES) share a key, or a query where dQ is made: thread `lane` of key `c` holds the queries lane, lane +
4, ... of a tile of P and dS, and the dims lane, lane + 4, ... of the accumulators. Query heads of a group are a loop in
the block of their kv head, so that their sum has one order.

Names in capitals are bound when the kernel is built (`backward_build.Constants`): BLOCK, queries and keys of a tile;
HEAD_DIM, the larger head_dim rounded up; PITCH = HEAD_DIM + 1 and WIDTH = BLOCK + 1, which spread the rows of a tile
over the banks of shared memory; DIMS = HEAD_DIM / LANES; THREADS = BLOCK * LANES; LOAD, STORE and CAST as in
`flash.py`. An `if` of a switch is absent where it is off, and so is a line `probe.<stage>[...] = value` in builds that
do not ask for it. Stages of each query and key are those that dK and dV are made of; `backward_queries` computes them
again.
"""

import math
from pathlib import Path

from numba import cuda, float32
from numba.cuda import libdevice

from workbench.cuda.backward_build import CONTRACT, NUMBERS, STAGES, work
from workbench.cuda.device import LANES, row_sum_of
from workbench.cuda.operation_kernel import OperationKernel


@cuda.jit(device=True)
def load_tile(tile, x, b, h, first_row, dims):
    """Fill tile[r, d] with x[b, h, first_row + r, d] as float32, with 0 where row or dim do not exist."""
    for i in range(cuda.threadIdx.x, BLOCK * HEAD_DIM, THREADS):
        r, d = i // HEAD_DIM, i % HEAD_DIM
        row = first_row + r
        tile[r, d] = LOAD(x[b, h, row, d]) if row < x.shape[2] and d < dims else float32(0)


@cuda.jit(device=True)
def load_rows(part, x, b, h, first_row):
    """Fill part[r] with x[b, h, first_row + r], with 0 where the row does not exist."""
    for r in range(cuda.threadIdx.x, BLOCK, THREADS):
        part[r] = x[b, h, first_row + r] if first_row + r < x.shape[2] else float32(0)


@cuda.jit(device=True)
def dot(x, i, y, j, dims):
    """The product of rows x[i] and y[j] of two tiles."""
    total = float32(0)
    for d in range(dims):
        total += x[i, d] * y[j, d]
    return total


@cuda.jit(device=True)
def visible(row, key, seqlen_q, seqlen_k, causal, diagonal):
    """Whether a query and a key exist, and the one sees the other."""
    return row < seqlen_q and key < seqlen_k and not (causal and key > row + diagonal)


@cuda.jit(device=True)
def scaled(qk, scale):
    """The score of a product, rounded here: a fused s - lse would differ from the probed s."""
    return libdevice.fmul_rn(qk, scale)


@cuda.jit(device=True)
def weight(s, row_lse, sees):
    """P of a score, again: 0 where the key is hidden, which is why a row without keys may have any lse."""
    return math.exp(s - row_lse) if sees else float32(0)


@cuda.jit(device=True)
def dscore(p, dp, row_delta):
    """dS of P and dP."""
    return p * (dp - row_delta)


def backward_delta(out, dout, delta):
    """delta[b, h, q], float32, the sum over d of dout * out; grid (tiles of THREADS / LANES queries, heads, batch)."""
    b, h, lane = cuda.blockIdx.z, cuda.blockIdx.y, cuda.threadIdx.x % LANES
    row = (cuda.blockIdx.x * THREADS + cuda.threadIdx.x) // LANES
    part = float32(0)
    if row < out.shape[2]:
        for d in range(lane, out.shape[3], LANES):
            part += LOAD(dout[b, h, row, d]) * LOAD(out[b, h, row, d])
    total = row_sum_of(part)
    if row < out.shape[2] and lane == 0:
        delta[b, h, row] = total


def backward_keys(q, k, v, lse, dout, delta, dq_sum, dk, dv, scale, causal, diagonal):
    """dk[b, kv_h, k, d] and dv[b, kv_h, k, e]; grid (key tiles, kv_heads, batch).

    q [b, heads, seqlen_q, d], k [b, kv_heads, seqlen_k, d], v [.., e], dout [b, heads, seqlen_q, e]; lse and delta
    float32 [b, heads, seqlen_q]. A causal row i sees the keys j <= i + diagonal; a row that sees none has lse -inf.
    ATOMIC: dq_sum, float32 like q and 0 before, has dQ / scale added.
    """
    seqlen_q, seqlen_k, head_dim, head_dim_v = q.shape[2], k.shape[2], q.shape[3], v.shape[3]
    b, kv_h, group = cuda.blockIdx.z, cuda.blockIdx.y, q.shape[1] // k.shape[1]
    c, lane = cuda.threadIdx.x // LANES, cuda.threadIdx.x % LANES
    first_key = cuda.blockIdx.x * BLOCK
    key = first_key + c

    s_k = cuda.shared.array((BLOCK, PITCH), float32)
    s_v = cuda.shared.array((BLOCK, PITCH), float32)
    s_q = cuda.shared.array((BLOCK, PITCH), float32)
    s_dout = cuda.shared.array((BLOCK, PITCH), float32)
    s_p = cuda.shared.array((BLOCK, WIDTH), float32)  # [query, key]
    s_ds = cuda.shared.array((BLOCK, WIDTH), float32)
    s_lse = cuda.shared.array(BLOCK, float32)
    s_delta = cuda.shared.array(BLOCK, float32)
    dk_acc = cuda.local.array(DIMS, float32)
    dv_acc = cuda.local.array(DIMS, float32)

    load_tile(s_k, k, b, kv_h, first_key, head_dim)
    load_tile(s_v, v, b, kv_h, first_key, head_dim_v)
    for i in range(DIMS):
        dk_acc[i] = float32(0)
        dv_acc[i] = float32(0)
    first_tile = max(0, first_key - diagonal) // BLOCK if causal else 0  # the first query that sees the first key
    for h in range(kv_h * group, (kv_h + 1) * group):
        for tile in range(first_tile, (seqlen_q + BLOCK - 1) // BLOCK):
            first_row = tile * BLOCK
            cuda.syncthreads()  # protects Q, dout, P and dS of the tile before, still read by other threads
            load_tile(s_q, q, b, h, first_row, head_dim)
            load_tile(s_dout, dout, b, h, first_row, head_dim_v)
            load_rows(s_lse, lse, b, h, first_row)
            load_rows(s_delta, delta, b, h, first_row)
            cuda.syncthreads()  # K, V, Q, dout, lse and delta are complete before any thread reads them

            for r in range(lane, BLOCK, LANES):
                row = first_row + r
                qk = dot(s_q, r, s_k, c, head_dim)
                s = scaled(qk, scale)
                dp = dot(s_dout, r, s_v, c, head_dim_v)
                sees = visible(row, key, seqlen_q, seqlen_k, causal, diagonal)
                p = weight(s, s_lse[r], sees)
                ds = dscore(p, dp, s_delta[r])
                p_cast, ds_cast = CAST(p), CAST(ds)
                s_p[r, c] = p_cast
                s_ds[r, c] = ds_cast
                if row < seqlen_q and key < seqlen_k:
                    probe.qk[b, h, row, key] = qk
                    probe.scores[b, h, row, key] = s
                    probe.probs[b, h, row, key] = p
                    probe.probs_cast[b, h, row, key] = p_cast
                    probe.dprobs[b, h, row, key] = dp
                    probe.dscores[b, h, row, key] = ds
                    probe.dscores_cast[b, h, row, key] = ds_cast
            cuda.syncthreads()  # P and dS are complete before any thread reads them

            for r in range(BLOCK):
                p, ds = s_p[r, c], s_ds[r, c]
                for i in range(DIMS):
                    dv_acc[i] += p * s_dout[r, lane + i * LANES]
                    dk_acc[i] += ds * s_q[r, lane + i * LANES]
            if ATOMIC:
                # from here on a thread's c is a query
                if first_row + c < seqlen_q:
                    for d in range(lane, head_dim, LANES):
                        part = float32(0)
                        for j in range(BLOCK):
                            part += s_ds[c, j] * s_k[j, d]
                        cuda.atomic.add(dq_sum, (b, h, first_row + c, d), part)

    if key < seqlen_k:
        for i in range(DIMS):
            d = lane + i * LANES
            if d < head_dim:
                dk[b, kv_h, key, d] = STORE(dk_acc[i] * scale)
            if d < head_dim_v:
                dv[b, kv_h, key, d] = STORE(dv_acc[i])


def backward_queries(q, k, v, lse, dout, delta, dq, scale, causal, diagonal):
    """dq[b, h, q, d]; grid (query tiles, heads, batch). Arguments as of `backward_keys`."""
    seqlen_q, seqlen_k, head_dim, head_dim_v = q.shape[2], k.shape[2], q.shape[3], v.shape[3]
    b, h, kv_h = cuda.blockIdx.z, cuda.blockIdx.y, cuda.blockIdx.y // (q.shape[1] // k.shape[1])
    r, lane = cuda.threadIdx.x // LANES, cuda.threadIdx.x % LANES
    first_row = cuda.blockIdx.x * BLOCK
    row = first_row + r

    s_k = cuda.shared.array((BLOCK, PITCH), float32)
    s_v = cuda.shared.array((BLOCK, PITCH), float32)
    s_q = cuda.shared.array((BLOCK, PITCH), float32)
    s_dout = cuda.shared.array((BLOCK, PITCH), float32)
    s_ds = cuda.shared.array((BLOCK, WIDTH), float32)  # [query, key]
    dq_acc = cuda.local.array(DIMS, float32)

    load_tile(s_q, q, b, h, first_row, head_dim)
    load_tile(s_dout, dout, b, h, first_row, head_dim_v)
    row_lse = lse[b, h, row] if row < seqlen_q else float32(0)
    row_delta = delta[b, h, row] if row < seqlen_q else float32(0)
    for i in range(DIMS):
        dq_acc[i] = float32(0)
    end = min(seqlen_k, max(0, first_row + BLOCK + diagonal)) if causal else seqlen_k  # behind the last key seen
    for tile in range((end + BLOCK - 1) // BLOCK):
        first_key = tile * BLOCK
        cuda.syncthreads()  # protects K and V of the tile before, still read by other threads
        load_tile(s_k, k, b, kv_h, first_key, head_dim)
        load_tile(s_v, v, b, kv_h, first_key, head_dim_v)
        cuda.syncthreads()  # Q, dout, K and V are complete before any thread reads them

        for c in range(lane, BLOCK, LANES):
            s = scaled(dot(s_q, r, s_k, c, head_dim), scale)
            dp = dot(s_dout, r, s_v, c, head_dim_v)
            sees = visible(row, first_key + c, seqlen_q, seqlen_k, causal, diagonal)
            s_ds[r, c] = CAST(dscore(weight(s, row_lse, sees), dp, row_delta))
        cuda.syncthreads()  # dS is complete before any thread reads it

        for c in range(BLOCK):
            ds = s_ds[r, c]
            for i in range(DIMS):
                dq_acc[i] += ds * s_k[c, lane + i * LANES]

    if row < seqlen_q:
        for i in range(DIMS):
            d = lane + i * LANES
            if d < head_dim:
                dq[b, h, row, d] = STORE(dq_acc[i] * scale)


def backward_scale(dq_sum, dq, scale):
    """dq[b, h, q, d] = scale * dq_sum, which all tiles of keys have added to; grid (query tiles, heads, batch)."""
    b, h, lane = cuda.blockIdx.z, cuda.blockIdx.y, cuda.threadIdx.x % LANES
    row = cuda.blockIdx.x * BLOCK + cuda.threadIdx.x // LANES
    if row < dq.shape[2]:
        for d in range(lane, dq.shape[3], LANES):
            dq[b, h, row, d] = STORE(dq_sum[b, h, row, d] * scale)


# ---- on the host

KERNEL = OperationKernel(
    name="backward",
    operation="attention_backward",
    file=Path(__file__),
    functions=dict.fromkeys(("backward_delta", "backward_keys", "backward_queries"), Path(__file__)),
    summary="Attention backward: delta; dK and dV in a loop over key tiles; dQ in a loop over query tiles",
    stages=STAGES,
    work=work,
    contract=CONTRACT,
    numbers=NUMBERS,
)
