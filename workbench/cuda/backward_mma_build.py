"""The backward kernel on tensor cores as the host knows it: its tiles, and what a build binds capitals to."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.cuda import ptx
from workbench.cuda.backward_build import laid, largest_dim
from workbench.cuda.device import CASTS, CONVERSIONS
from workbench.cuda.flash_mma_build import DTYPES
from workbench.cuda.fragments_build import DIMS_AT_ONCE, padded
from workbench.cuda.operation_kernel import Work
from workbench.refusal import Refusal

__all__ = ["DIMS_AT_ONCE", "DTYPES", "Constants", "work"]

#: keys of a block: 16 for each of eight warps
BLOCK = 128
#: queries that are multiplied at once by padded head_dim: what 255 registers have room for, of P, dP, dK and dV
TILES = {64: 128, 128: 64}


@dataclass(frozen=True)
class Constants:
    """The constants of a build."""

    block: int  #: keys of a block
    tile: int  #: queries that are multiplied at once
    head_dim: int  #: padded: one of TILES
    dtype: str  #: storage dtype

    @property
    def threads(self) -> int:
        """Threads in a block."""
        return self.block // 16 * 32

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block: tiles of K and V, two of Q and of dout."""
        return 2 * (2 * self.block + 4 * self.tile) * self.head_dim

    @property
    def static_bytes(self) -> int:
        """Static shared memory beside it: a tile of dS, two of lse and of delta."""
        return 2 * self.block * self.tile + 16 * self.tile

    @property
    def dq_dims(self) -> int:
        """Dims of dQ that a warp computes, of 32 queries each."""
        return self.tile * self.head_dim // self.threads

    def names(self) -> dict[str, Any]:
        """Capital name in the kernel's source -> its value."""
        load, _ = CONVERSIONS[self.dtype]
        return {
            "BLOCK": self.block,
            "TILE": self.tile,
            "TWO_TILES": 2 * self.tile,
            "HEAD_DIM": self.head_dim,
            "CHUNKS": self.head_dim // DIMS_AT_ONCE,
            "ROWS_AT_ONCE": self.threads * DIMS_AT_ONCE // self.head_dim,
            "K_AT": 0,
            "V_AT": self.block,
            "Q_AT": 2 * self.block,
            "DOUT_AT": 2 * self.block + 2 * self.tile,
            "DS_WORDS": self.block * self.tile // 2,
            "S_REGISTERS": self.tile // 2,
            "P_REGISTERS": self.tile // 4,
            "ACC_REGISTERS": self.head_dim // 2,
            "DQ_DIMS": self.dq_dims,
            "DQ_REGISTERS": self.dq_dims,
            "THREADS": self.threads,
            "MMA": ptx.mma_m16n8k16_bf16 if self.dtype == "bfloat16" else ptx.mma_m16n8k16_f16,
            "PACK": ptx.cvt_bf16x2_f32 if self.dtype == "bfloat16" else ptx.cvt_f16x2_f32,
            "LOAD": load,
            "CAST": CASTS[self.dtype],
        }


def work(inputs: Mapping[str, np.ndarray], numbers: Mapping[str, Any], wanted: Collection[str]) -> Work:
    """As of `backward_build.work`; Refusal for float32 and for dims that are no multiples of 8, too."""
    dtype, dims = inputs["q"].dtype.name, largest_dim(inputs)
    if dtype not in DTYPES:
        raise Refusal(f"kernel backward_mma takes {' or '.join(DTYPES)}; got {dtype}")
    if odd := [x.shape[3] for x in (inputs["q"], inputs["v"]) if x.shape[3] % DIMS_AT_ONCE]:
        raise Refusal(f"kernel backward_mma takes dim and dim_v in multiples of {DIMS_AT_ONCE}; got {odd[0]}")
    constants = Constants(BLOCK, TILES[padded(dims)], padded(dims), dtype)
    batch, heads, rows, _ = inputs["q"].shape
    # of [.., 16 queries, 8 dims, lane, 4 registers]: what the lanes of a warp add at once is side by side
    strips = -(-rows // constants.tile) * constants.tile // 16
    sums = batch, heads, strips, constants.head_dim * 16
    return laid(inputs, numbers, wanted, constants, ("backward_mma_keys", "backward_mma_queries"), sums=sums)
