"""The backward kernel on tensor cores as the host knows it: its tiles, and what a build binds capitals to."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.cuda import ptx
from workbench.cuda.backward_build import laid, largest_dim
from workbench.cuda.device import CASTS, CONVERSIONS
from workbench.cuda.flash_mma_build import DTYPES
from workbench.cuda.fragments import to_bfloat16
from workbench.cuda.fragments_build import DIMS_AT_ONCE, padded
from workbench.cuda.operation_kernel import Work
from workbench.refusal import Refusal

__all__ = ["DIMS_AT_ONCE", "DTYPES", "Constants", "work"]

#: rows of a block: 16 for each of four warps
BLOCK = 64
#: rows that are multiplied at once by padded head_dim: the most of which two tiles, with two of BLOCK, are in 48 KiB
TILES = {64: 64, 128: 16}


@dataclass(frozen=True)
class Constants:
    """The constants of a build."""

    block: int  #: keys, or queries, of a block
    tile: int  #: queries, or keys, that are multiplied at once
    head_dim: int  #: padded: one of TILES
    dtype: str  #: storage dtype

    @property
    def threads(self) -> int:
        """Threads in a block."""
        return self.block // 16 * 32

    @property
    def shared_bytes(self) -> int:
        """Static shared memory of a block, of two tiles of each kind, lse and delta."""
        return 4 * (self.block + self.tile) * (self.head_dim + DIMS_AT_ONCE) + 8 * self.tile

    def names(self) -> dict[str, Any]:
        """Capital name in the kernel's source -> its value."""
        load, store = CONVERSIONS[self.dtype]
        return {
            "BLOCK": self.block,
            "TILE": self.tile,
            "HEAD_DIM": self.head_dim,
            "CHUNKS": self.head_dim // DIMS_AT_ONCE,
            "WORDS": (self.head_dim + DIMS_AT_ONCE) // 2,
            "S_REGISTERS": self.tile // 2,
            "P_REGISTERS": self.tile // 4,
            "ACC_REGISTERS": self.head_dim // 2,
            "THREADS": self.threads,
            "MMA": ptx.mma_m16n8k16_bf16 if self.dtype == "bfloat16" else ptx.mma_m16n8k16_f16,
            "PACK": ptx.cvt_bf16x2_f32 if self.dtype == "bfloat16" else ptx.cvt_f16x2_f32,
            "LOAD": load,
            "STORE": to_bfloat16 if self.dtype == "bfloat16" else store,
            "CAST": CASTS[self.dtype],
        }


def work(inputs: Mapping[str, np.ndarray], numbers: Mapping[str, Any], wanted: Collection[str]) -> Work:
    """As of `backward_build.work`; Refusal for float32 and for dims that are no multiples of 8, too."""
    dtype, dims = inputs["q"].dtype.name, largest_dim(inputs)
    if dtype not in DTYPES:
        raise Refusal(f"kernel backward_mma takes {' or '.join(DTYPES)}; got {dtype}")
    if odd := [x.shape[3] for x in (inputs["q"], inputs["v"]) if x.shape[3] % DIMS_AT_ONCE]:
        raise Refusal(f"kernel backward_mma takes dim and dim_v in steps of {DIMS_AT_ONCE}; got {odd[0]}")
    constants = Constants(BLOCK, TILES[padded(dims)], padded(dims), dtype)
    return laid(inputs, numbers, wanted, constants, ("backward_mma_keys", "backward_mma_queries"))
