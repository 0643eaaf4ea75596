"""The kernel on tensor cores with plain loads as the host knows it: its tiles, what a build binds capitals to, its
contract.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from workbench.case.case import Case
from workbench.case.contract import Contract
from workbench.cuda import flash_mma_build
from workbench.cuda.device import CONVERSIONS
from workbench.cuda.flash_mma_build import DTYPES, grid
from workbench.cuda.fragments_build import DIMS_AT_ONCE, TensorCores, padded, tiled, without
from workbench.cuda.kernel import Kernel

__all__ = ["DIMS_AT_ONCE", "DTYPES", "Constants", "contract", "grid", "resolve"]

#: 16 rows for each warp; a step of the product with V takes 16 keys
BLOCKS_Q, BLOCKS_K = (16, 32, 64, 128), (16, 32, 64)
#: tiles (block_q, block_k) by padded head_dim: the largest that 48 KiB have room for
DEFAULT_BLOCKS = {64: (64, 64), 128: (64, 32)}


@dataclass(frozen=True)
class Constants(TensorCores):
    """The constants of a build."""

    SWITCHED: ClassVar[tuple[str, ...]] = ("CAUSAL", "WINDOW", "SOFTCAP")

    @property
    def threads(self) -> int:
        """Threads in a block."""
        return self.block_q // 16 * 32

    @property
    def shared_bytes(self) -> int:
        """Static shared memory of a block, of tiles of Q, K and V."""
        return 2 * (self.block_q + 2 * self.block_k) * (self.head_dim + DIMS_AT_ONCE)

    def names(self) -> dict[str, Any]:
        """Capital name in the kernel's source -> its value."""
        return super().names() | {
            "WORDS": (self.head_dim + DIMS_AT_ONCE) // 2,
            "HALVES": self.head_dim + DIMS_AT_ONCE,
            "S_REGISTERS": self.block_k // 2,
            "P_REGISTERS": self.block_k // 4,
            "ACC_REGISTERS": self.head_dim // 2,
            "STORE": CONVERSIONS[self.dtype][1],
        }


def resolve(kernel: Kernel, case: Case) -> Case:
    """`case` with its tiles; Refusal where the kernel cannot run it."""
    without(kernel, case, ("seqlens_q", "seqlens_k"))
    case = flash_mma_build.taken(kernel, case)
    return tiled(kernel, case, DEFAULT_BLOCKS[padded(case.head_dim)], BLOCKS_Q, BLOCKS_K)


def contract(case: Case) -> Contract:
    """The contract of a resolved case: the arithmetic of `flash_mma`, but that scores are scaled at once, and that
    lanes add up their sums at each tile.
    """
    return replace(flash_mma_build.contract(case), scores_scaled=True, row_sum_lanes=1)
