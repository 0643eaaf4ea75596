"""The kernel on tensor cores as the host knows it: its tiles, what a build binds capitals to, its grid and contract."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from workbench.case.case import Case
from workbench.case.contract import EX2_ULPS, Contract
from workbench.case.fields import QUANTISED
from workbench.cuda.device import LANES
from workbench.cuda.flash_build import grid
from workbench.cuda.fragments_build import DIMS_AT_ONCE, HEAD_DIMS, TensorCores, padded, scores_scaled, tiled, without
from workbench.cuda.kernel import Kernel
from workbench.refusal import Refusal

__all__ = ["DTYPES", "Constants", "contract", "grid", "resolve"]

DTYPES = ("float16", "bfloat16")
#: 16 rows for each warp; a step of a product takes 16 keys
BLOCKS_Q, BLOCKS_K = (16, 32, 64, 128), (16, 32, 64, 128)

#: fields of a case that the kernel does not take
NOT_TAKEN = (
    *("head_dim_v", "shared_kv", "alibi_slopes", "sinks", "dropout_p", "score_mod", "mask_mod", "page_size"),
    "pack_gqa",
)


class Tiles(NamedTuple):
    """Tiles, and where they are worth their while."""

    block_q: int
    block_k: int
    blocks: int  #: so many of them at least
    #: a mask cuts through tiles, which are multiplied whole: rows see so many keys at least, that few of all are cut
    keys: float


#: blocks: two for each of an H100's 132 multiprocessors, which is what registers of 128 rows leave room for; nearly one
TWO_EACH, ONE_EACH = 264, 128
#: padded head_dim -> tiles, of which the first that are worth their while are the default. On an H100 they are within
#: 2 % of the fastest that were timed, at 128, 512, 1024 and 4096 keys with a causal mask and without. One warp alone,
#: as blocks of 16 rows are, takes 1.2 to 1.7 times as long at head_dim 128
TILES: Mapping[int, tuple[Tiles, ...]] = {
    64: (
        Tiles(128, 128, TWO_EACH, math.inf),
        Tiles(64, 128, ONE_EACH, 0),
        Tiles(32, 128, ONE_EACH, 0),
        Tiles(16, 128, 0, 0),
    ),
    128: (
        Tiles(128, 64, TWO_EACH, 2048),
        Tiles(64, 128, ONE_EACH, 2048),
        Tiles(64, 64, ONE_EACH, 0),
        Tiles(32, 128, 0, 0),
    ),
}


@dataclass(frozen=True)
class Constants(TensorCores):
    """The constants of a build."""

    @property
    def warp_rows(self) -> int:
        """Query rows of a warp: 32 where there are enough of them, since each fragment of K and V that is read from
        shared memory, whose bandwidth is the limit at 16, then meets twice as many.
        """
        return 32 if self.block_q > 64 else 16

    @property
    def threads(self) -> int:
        """Threads in a block."""
        return self.block_q // self.warp_rows * 32

    @property
    def q_in_registers(self) -> bool:
        """Whether Q stays in registers, as it does where accumulator and scores leave room for it."""
        return self.warp_rows * max(self.head_dim, self.block_k) <= 64 * 32

    @property
    def rows(self) -> int:
        """Rows of shared memory, of tiles of Q, K and V."""
        return self.block_q + 2 * self.block_k

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        return 2 * self.rows * self.head_dim

    def names(self) -> dict[str, Any]:
        """Capital name in the kernel's source -> its value."""
        return super().names() | {
            "CODES": False,
            "ROWS_AT_ONCE": self.threads * DIMS_AT_ONCE // self.head_dim,
            "Q_AT": 0,
            "K_AT": self.block_q,
            "V_AT": self.block_q + self.block_k,
            "WARP_ROWS": self.warp_rows,
            "LANE_ROWS": self.warp_rows // 8,
            "Q_IN_REGISTERS": self.q_in_registers,
            "Q_REGISTERS": self.warp_rows // 4 * (self.head_dim // 16 if self.q_in_registers else 1),
            "S_REGISTERS": self.warp_rows * self.block_k // 32,
            "P_REGISTERS": self.warp_rows * self.block_k // 64,
            "ACC_REGISTERS": self.warp_rows * self.head_dim // 32,
        }


def resolve(kernel: Kernel, case: Case) -> Case:
    """`case` with its tiles; Refusal where the kernel cannot run it."""
    tiles = default_tiles(case := taken(kernel, case))
    return tiled(kernel, case, (tiles.block_q, tiles.block_k), BLOCKS_Q, BLOCKS_K)


def taken(kernel: Kernel, case: Case) -> Case:
    """`case` with its probs_dtype; Refusal where kernels on tensor cores cannot run it, whatever its tiles."""
    without(kernel, case, (*QUANTISED, *NOT_TAKEN))
    if case.dtype not in DTYPES:
        raise Refusal(f"kernel {kernel.name} takes {' or '.join(DTYPES)}; got {case.dtype}")
    if case.probs_dtype not in (None, case.dtype):
        raise Refusal(
            f"kernel {kernel.name} casts probs to its input dtype, {case.dtype}; got probs_dtype={case.probs_dtype}"
        )
    if case.head_dim % DIMS_AT_ONCE or case.head_dim > HEAD_DIMS[-1]:
        raise Refusal(
            f"kernel {kernel.name} copies {DIMS_AT_ONCE} dims at once and takes head_dim {DIMS_AT_ONCE} to "
            f"{HEAD_DIMS[-1]} in steps of as many; got {case.head_dim}"
        )
    return case.but(probs_dtype=case.dtype)


def default_tiles(case: Case) -> Tiles:
    """The first of TILES that are worth their while for a case."""
    left, right = case.sides
    keys: float = math.inf  # nothing is cut
    if (left, right) != (-1, -1):
        keys = case.seqlen_k if min(left, right) < 0 else min(case.seqlen_k, left + 1 + right)
    return next(
        tiles
        for tiles in TILES[padded(case.head_dim)]
        if case.batch * case.heads * -(-case.seqlen_q // tiles.block_q) >= tiles.blocks and keys >= tiles.keys
    )


def contract(case: Case) -> Contract:
    """The contract of a resolved case: FlashAttention-2's arithmetic."""
    return Contract(
        block_k=case.block_k,
        splits=None,
        scores_dtype="float32",
        probs_dtype=case.dtype,
        partials_dtype="float32",
        out_dtype=case.dtype,
        row_sum_of_cast=False,
        row_sum_lanes=LANES,
        accumulation="tensor-core",
        scores_scaled=scores_scaled(case),
        exp_argument="fma",
        exp_ulps=EX2_ULPS,
        tanh="approx",
        fast_math=True,  # out is acc times 1 / row_sum, both rounded
        skips_masked_tiles=True,
    )
