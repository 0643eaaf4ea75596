"""The kernel for Hopper as the host knows it: its tiles, what a build binds capitals to, its grid and contract."""

from dataclasses import dataclass
from typing import Any, ClassVar

from numba import int16

from workbench.case.case import Case
from workbench.cuda import flash_mma_build, hopper
from workbench.cuda.flash_mma_build import DTYPES, contract, grid
from workbench.cuda.fragments_build import TensorCores, tiled, without
from workbench.cuda.kernel import Kernel

__all__ = ["DTYPES", "Constants", "contract", "grid", "resolve"]

#: a warp group has 64 query rows
BLOCKS_Q, BLOCKS_K = (64, 128, 192), (64, 128)
BLOCK_Q, BLOCK_K = 128, 128
#: query rows of a tile where tiles of BLOCK_Q are fewer than the multiprocessors of an H100: at 8 heads of 512 queries
#: 8.0 us, not 10.3
FEW_BLOCK_Q, MULTIPROCESSORS = 64, 132
#: buffers of K, and of V
STAGES = 2


@dataclass(frozen=True)
class Constants(TensorCores):
    """The constants of a build."""

    SWITCHED: ClassVar[tuple[str, ...]] = ("CAUSAL", "WINDOW", "SOFTCAP", "SCALED")

    @property
    def consumers(self) -> int:
        """Warp groups that multiply."""
        return self.block_q // 64

    @property
    def threads(self) -> int:
        """Threads in a block: those of the producer and the consumers."""
        return 128 * (1 + self.consumers)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block, but for its barriers."""
        return 2 * self.head_dim * (self.block_q + 2 * STAGES * self.block_k)

    @property
    def handed_on(self) -> tuple[int, int]:
        """Registers of a thread of the producer, and of a consumer: a multiprocessor has 65536, a thread at most 255.
        Where a block has more than 256 threads the producer hands on what it does not need; (0, 0) elsewhere.
        """
        return {2: (24, 240), 3: (32, 160)}.get(self.consumers, (0, 0))

    def names(self) -> dict[str, Any]:
        """Capital name in the kernel's source -> its value."""
        kind = "f16" if self.dtype == "float16" else "bf16"
        of_tiles = self.block_k * self.head_dim * STAGES
        producer, consumer = self.handed_on
        return super().names() | {
            "CODES": False,
            "ELEMENT": int16,
            "ROW": 64,
            "DIM_TILES": self.head_dim // 64,
            "STAGES": STAGES,
            "Q_AT": 0,
            "K_AT": self.block_q * self.head_dim,
            "V_AT": self.block_q * self.head_dim + of_tiles,
            "CONSUMERS": self.consumers,
            "V_TILE_BYTES": self.block_k * 128,
            "BARRIERS": 1 + 4 * STAGES,
            "Q_FULL": 0,
            "K_FULL": 1,
            "V_FULL": 1 + STAGES,
            "K_EMPTY": 1 + 2 * STAGES,
            "V_EMPTY": 1 + 3 * STAGES,
            "HANDS_ON": producer > 0,
            "PRODUCER_REGISTERS": producer,
            "CONSUMER_REGISTERS": consumer,
            "S_REGISTERS": self.block_k // 2,
            "P_REGISTERS": self.block_k // 4,
            "ACC_REGISTERS": self.head_dim // 2,
            "QK": hopper.PRODUCTS[f"wgmma_m64n{self.block_k}k16_{kind}"],
            "PV": hopper.PRODUCTS[f"wgmma_m64n{self.head_dim}k16_{kind}_rs_trans"],
            "TURNS": self.consumers == 2,
        }


def resolve(kernel: Kernel, case: Case) -> Case:
    """`case` with its tiles; Refusal where the kernel cannot run it."""
    without(kernel, case, ("seqlens_q", "seqlens_k"))  # a copy of a box knows one end of all sequences
    default = FEW_BLOCK_Q if few_blocks(case) else BLOCK_Q, BLOCK_K
    return tiled(kernel, flash_mma_build.taken(kernel, case), default, BLOCKS_Q, BLOCKS_K)


def few_blocks(case: Case) -> bool:
    """Whether tiles of BLOCK_Q rows leave multiprocessors without work."""
    return case.batch * case.heads * -(-case.seqlen_q // BLOCK_Q) < MULTIPROCESSORS
