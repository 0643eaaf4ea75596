"""The kernel on tensor cores with plain loads as the host knows it: its tiles, what a build binds capitals to, its
contract.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from workbench.case.case import Case
from workbench.case.contract import Contract
from workbench.cuda import flash_mma_build, ptx
from workbench.cuda.device import CASTS, CONVERSIONS
from workbench.cuda.flash_mma_build import DIMS_AT_ONCE, DTYPES, grid, padded
from workbench.cuda.kernel import Kernel
from workbench.refusal import Refusal

__all__ = ["DIMS_AT_ONCE", "DTYPES", "Constants", "constants", "contract", "grid", "settle"]

#: 16 rows for each warp; a step of the product with V takes 16 keys
BLOCKS_Q, BLOCKS_K = (16, 32, 64, 128), (16, 32, 64)
#: tiles (block_q, block_k) by padded head_dim: the largest that 48 KiB have room for
DEFAULT_BLOCKS = {64: (64, 64), 128: (64, 32)}
SWITCHES = ("CAUSAL", "WINDOW", "SOFTCAP")


@dataclass(frozen=True)
class Constants:
    """The constants of a build."""

    block_q: int
    block_k: int
    head_dim: int  #: padded: one of flash_mma_build.HEAD_DIMS
    dtype: str
    switches: tuple[str, ...] = ()  #: those of SWITCHES that are on

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
        half = self.dtype == "float16"
        return {
            "BLOCK_Q": self.block_q,
            "BLOCK_K": self.block_k,
            "HEAD_DIM": self.head_dim,
            "CHUNKS": self.head_dim // DIMS_AT_ONCE,
            "WORDS": (self.head_dim + DIMS_AT_ONCE) // 2,
            "HALVES": self.head_dim + DIMS_AT_ONCE,
            "THREADS": self.threads,
            "S_REGISTERS": self.block_k // 2,
            "P_REGISTERS": self.block_k // 4,
            "ACC_REGISTERS": self.head_dim // 2,
            "MMA": ptx.mma_m16n8k16_f16 if half else ptx.mma_m16n8k16_bf16,
            "PACK": ptx.cvt_f16x2_f32 if half else ptx.cvt_bf16x2_f32,
            "CAST": CASTS[self.dtype],
            "STORE": CONVERSIONS[self.dtype][1],
        } | {name: name in self.switches for name in SWITCHES}


def constants(case: Case, beside: Collection[str] = ()) -> Constants:
    """The constants of a settled case; nothing is `beside` q, k and v."""
    assert case.block_q is not None and case.block_k is not None
    switches = tuple(name for name in SWITCHES if flash_mma_build.SWITCHES[name](case))
    return Constants(case.block_q, case.block_k, padded(case.head_dim), case.dtype, switches)


def settle(kernel: Kernel, case: Case) -> Case:
    """`case` with its tiles; Refusal where the kernel cannot run it."""
    for name in ("seqlens_q", "seqlens_k"):
        if name in case.unusual:
            raise Refusal(f"kernel {kernel.name} takes no {name}; got {getattr(case, name)}")
    given = case.block_q, case.block_k
    # tiles of one kernel are not those of the other
    case = flash_mma_build.settle(kernel, case.but(block_q=None, block_k=None))
    block_q, block_k = DEFAULT_BLOCKS[padded(case.head_dim)]
    case = case.but(block_q=given[0] or block_q, block_k=given[1] or block_k)
    for name, sizes in (("block_q", BLOCKS_Q), ("block_k", BLOCKS_K)):
        if getattr(case, name) not in sizes:
            raise Refusal(
                f"{name} of kernel {kernel.name} is one of {', '.join(map(str, sizes))}; got {getattr(case, name)}"
            )
    return case


def contract(case: Case) -> Contract:
    """The contract of a settled case: the arithmetic of `flash_mma`, but that scores are scaled at once, and that lanes
    add up their sums at each tile.
    """
    return replace(flash_mma_build.contract(case), scores_scaled=True, row_sum_lanes=1)
