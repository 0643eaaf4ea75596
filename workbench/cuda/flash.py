"""FlashAttention forward: one block for each query tile, online softmax over the key tiles, all of them or those of one
split.

Algorithm 1 of FlashAttention-2 (Dao 2023, section 3.1.1) with float32 arithmetic. Four threads (LANES) share a query
row: thread `lane` of row `r` holds the scores of keys lane, lane + 4, ... of a tile and the dims lane, lane + 4, ... of
the accumulator.

Names in capitals are bound when the kernel is built (`Constants`): BLOCK_Q, BLOCK_K; HEAD_DIM, head_dim rounded up to
32, 64 or 128; DIMS = HEAD_DIM / LANES; THREADS = BLOCK_Q * LANES; LOAD and STORE, conversions between the storage dtype
and float32; CAST, which rounds probs to the dtype in which they meet V; SPLIT, whether a block takes one split of the
keys (Flash-Decoding) and leaves what `split_k.py` merges; SOFTCAP and WINDOW, whether scores are capped and keys far
from the diagonal hidden. An `if` of a switch is absent where it is off, with the parameters that only it reads. A line
`probe.<stage>[...] = value` dumps a stage in builds that ask for it and is absent from all others.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numba import cuda, float32
from numba.cuda import libdevice

from workbench.case.case import Case
from workbench.case.contract import Contract
from workbench.case.fields import QUANTISED
from workbench.cuda.device import CASTS, CONVERSIONS, LANES, row_max_of, row_sum_of
from workbench.cuda.kernel import HEAD_DIMS, LARGEST_BLOCK, Kernel, Launch, padded
from workbench.refusal import Refusal

NEG_INF = np.float32(-np.inf)


@cuda.jit(device=True)
def load_tile(tile, x, b, h, first_row, rows, head_dim):
    """Fill tile[r, d] with x[b, h, first_row + r, d] as float32, and with 0 where the row or the dim does not exist."""
    for i in range(cuda.threadIdx.x, tile.shape[0] * HEAD_DIM, THREADS):
        r, d = i // HEAD_DIM, i % HEAD_DIM
        row = first_row + r
        if row < rows and d < head_dim:
            tile[r, d] = LOAD(x[b, h, row, d])
        else:
            tile[r, d] = float32(0)


def flash_forward(
    q, k, v, out, lse, partial_O, partial_max, partial_sum, scale, softcap, causal, diagonal, left, right
):
    """out[b, h, q, d] = softmax(scale * q @ k^T, masked) @ v and lse[b, h, q], its log-sum-exp; grid (query tiles,
    heads, batch).

    q, out [b, heads, seqlen_q, d]; k, v [b, kv_heads, seqlen_k, d]; lse float32 [b, heads, seqlen_q]. A causal row i
    sees the keys j <= i + diagonal. A row that sees no key gets out 0 and lse -inf.

    SOFTCAP: softmax of softcap * tanh(scale * q @ k^T / softcap), masked. WINDOW: row i sees at most the keys from i +
    diagonal - left to i + diagonal + right; tiles without one are visited all the same, as they are where causal.

    SPLIT: no out and no lse, but the unnormalised partial_O float32 [b, heads, splits, seqlen_q, d], partial_max and
    partial_sum float32 [b, heads, splits, seqlen_q]; grid (query tiles, heads * splits, batch). Split s holds the tiles
    from s * tiles_per_split on; without tiles it stores (-inf, 0, 0).
    """
    seqlen_q, seqlen_k, head_dim = q.shape[2], k.shape[2], q.shape[3]
    b, h = cuda.blockIdx.z, cuda.blockIdx.y
    first_tile, tiles = 0, (seqlen_k + BLOCK_K - 1) // BLOCK_K
    if SPLIT:
        splits = partial_O.shape[2]
        h, split = cuda.blockIdx.y // splits, cuda.blockIdx.y % splits
        tiles_per_split = (tiles + splits - 1) // splits
        first_tile, tiles = split * tiles_per_split, min((split + 1) * tiles_per_split, tiles)
    kv_h = h // (q.shape[1] // k.shape[1])
    r, lane = cuda.threadIdx.x // LANES, cuda.threadIdx.x % LANES
    row = cuda.blockIdx.x * BLOCK_Q + r

    s_q = cuda.shared.array((BLOCK_Q, HEAD_DIM), float32)
    s_kv = cuda.shared.array((BLOCK_K, HEAD_DIM), float32)  # K of a tile, then V of the same tile
    s_p = cuda.shared.array((BLOCK_Q, BLOCK_K), float32)  # scores of a tile, then their probs
    acc = cuda.local.array(DIMS, float32)

    load_tile(s_q, q, b, h, cuda.blockIdx.x * BLOCK_Q, seqlen_q, head_dim)
    m = NEG_INF
    l = float32(0)
    for i in range(DIMS):
        acc[i] = float32(0)

    for tile in range(first_tile, tiles):
        first_key = tile * BLOCK_K
        cuda.syncthreads()  # protects V of the previous tile in s_kv, still read by other threads
        load_tile(s_kv, k, b, kv_h, first_key, seqlen_k, head_dim)
        cuda.syncthreads()  # s_q and K are complete before any thread reads them

        tile_max = NEG_INF
        for c in range(lane, BLOCK_K, LANES):
            key = first_key + c
            dot = float32(0)
            for d in range(head_dim):
                dot += s_q[r, d] * s_kv[c, d]
            s = libdevice.fmul_rn(dot, scale)  # rounded here: a fused s - m below would differ from the probed s
            if SOFTCAP:
                s = libdevice.fmul_rn(softcap, math.tanh(s / softcap))
                if row < seqlen_q and key < seqlen_k:
                    probe.capped[b, h, row, key] = s
            if key >= seqlen_k or (causal and key > row + diagonal):
                s = NEG_INF
            if WINDOW:
                if key < row + diagonal - left or key > row + diagonal + right:
                    s = NEG_INF
            s_p[r, c] = s
            tile_max = max(tile_max, s)
            if row < seqlen_q and key < seqlen_k:
                probe.qk[b, h, row, key] = dot
                probe.scores[b, h, row, key] = s

        m_prev = m
        m = max(m_prev, row_max_of(tile_max))
        m_safe = m if m > NEG_INF else float32(0)  # no key seen yet: exp(-inf - 0) is 0, exp(-inf + inf) is NaN
        correction = math.exp(m_prev - m_safe)

        tile_sum = float32(0)
        for c in range(lane, BLOCK_K, LANES):
            p = math.exp(s_p[r, c] - m_safe)
            p_cast = CAST(p)
            s_p[r, c] = p_cast
            tile_sum += p
            if row < seqlen_q and first_key + c < seqlen_k:
                probe.probs[b, h, row, first_key + c] = p
                probe.probs_cast[b, h, row, first_key + c] = p_cast
        l = l * correction + row_sum_of(tile_sum)

        cuda.syncthreads()  # protects K in s_kv, still read by other threads; the row's probs are complete
        load_tile(s_kv, v, b, kv_h, first_key, seqlen_k, head_dim)
        cuda.syncthreads()  # V is complete before any thread reads it
        for i in range(DIMS):
            acc[i] = acc[i] * correction
        for c in range(BLOCK_K):
            p = s_p[r, c]
            for i in range(DIMS):
                acc[i] += p * s_kv[c, lane + i * LANES]

        if row < seqlen_q:
            if lane == 0:
                probe.row_max[b, h, row, tile] = m
                probe.correction[b, h, row, tile] = correction
                probe.row_sum[b, h, row, tile] = l
            for i in range(DIMS):
                if lane + i * LANES < head_dim:
                    probe.acc[b, h, row, tile, lane + i * LANES] = acc[i]

    if row < seqlen_q:
        for i in range(DIMS):
            d = lane + i * LANES
            if d < head_dim:
                if SPLIT:
                    partial_O[b, h, split, row, d] = acc[i]
                else:
                    out[b, h, row, d] = STORE(acc[i] / l if l != float32(0) else float32(0))
        if lane == 0:
            if SPLIT:
                partial_max[b, h, split, row] = m
                partial_sum[b, h, split, row] = l
            else:
                lse[b, h, row] = m + math.log(l) if l != float32(0) else NEG_INF


# ---- on the host

BLOCKS = (16, 32, 64, LARGEST_BLOCK)
#: default tiles by padded head_dim: the largest square ones within shared memory
DEFAULT_BLOCKS = {32: 64, 64: 64, 128: 32}


@dataclass(frozen=True)
class Constants:
    """What a build binds the capitals to."""

    block_q: int
    block_k: int
    head_dim: int  #: padded: one of HEAD_DIMS
    dtype: str  #: storage dtype
    probs_dtype: str = "float32"  #: to which probs are cast before they meet V
    split: bool = False  #: whether a block takes one split of the keys
    softcap: bool = False  #: whether there is one; how high, the kernel is told
    window: bool = False  #: likewise

    @property
    def threads(self) -> int:
        """Threads in a block: LANES for each query row."""
        return self.block_q * LANES

    @property
    def shared_bytes(self) -> int:
        """Static shared memory of a block: tiles of Q, of K or V, and of scores, in float32."""
        return 4 * (self.block_q * self.head_dim + self.block_k * self.head_dim + self.block_q * self.block_k)

    def names(self) -> dict[str, Any]:
        """Capital name in the kernel's source -> its value."""
        load, store = CONVERSIONS[self.dtype]
        return {
            "BLOCK_Q": self.block_q,
            "BLOCK_K": self.block_k,
            "HEAD_DIM": self.head_dim,
            "DIMS": self.head_dim // LANES,
            "THREADS": self.threads,
            "LOAD": load,
            "STORE": store,
            "CAST": CASTS[self.probs_dtype],
            "SPLIT": self.split,
            "SOFTCAP": self.softcap,
            "WINDOW": self.window,
        }


def constants(case: Case) -> Constants:
    """The constants of a settled case."""
    tiles = (case.block_q, case.block_k, padded(case.head_dim))
    switches = (case.splits is not None, case.softcap is not None, case.window is not None)
    return Constants(*tiles, case.dtype, case.probs_dtype or "float32", *switches)


def settle(kernel: Kernel, case: Case) -> Case:
    """`case` with its tiles; Refusal where a kernel on floats cannot run it."""
    for name in QUANTISED:
        if getattr(case, name) is not None:
            raise Refusal(f"kernel {kernel.name} reads no 8-bit codes and takes no {name}; got {getattr(case, name)}")
    if case.head_dim > HEAD_DIMS[-1]:
        raise Refusal(f"kernel {kernel.name} takes head_dim 1 to {HEAD_DIMS[-1]}; got {case.head_dim}")
    if case.probs_dtype not in (None, "float32", case.dtype):
        raise Refusal(
            f"kernel {kernel.name} casts probs to float32 or to the dtype of its inputs, {case.dtype}; "
            f"got probs_dtype={case.probs_dtype}"
        )
    default = DEFAULT_BLOCKS[padded(case.head_dim)]
    case = case.but(block_q=case.block_q or default, block_k=case.block_k or default)
    for name in ("block_q", "block_k"):
        if getattr(case, name) not in BLOCKS:
            raise Refusal(f"{name} is one of {', '.join(map(str, BLOCKS))}; got {getattr(case, name)}")
    return case


def grid(case: Case) -> tuple[int, int, int]:
    """A block for each query tile, head and batch."""
    return -(-case.seqlen_q // case.block_q), case.heads, case.batch


def contract(case: Case) -> Contract:
    """The contract of a settled case: float32 throughout, but for the cast of probs and for out, which is in the
    storage dtype.
    """
    return Contract(
        block_k=case.block_k,
        splits=case.splits,
        scores_dtype="float32",
        probs_dtype=case.probs_dtype or "float32",
        partials_dtype="float32",
        out_dtype=case.dtype,
        row_sum_of_cast=False,
        tanh="exact",
    )


KERNEL = Kernel(
    name="flash",
    algorithm="flash",
    file=Path(__file__),
    functions={"flash_forward": Path(__file__)},
    summary="FlashAttention forward: one block for each query tile, online softmax over key tiles",
    settles=settle,
    constants=constants,
    launches=lambda case: [Launch("flash_forward", grid(case))],
    contract=contract,
)
