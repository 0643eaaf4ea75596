"""The kernel that multiplies float8 codes, as the host knows it: its tiles, what a build binds capitals to, its grid
and contract.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from workbench.case.case import Case
from workbench.case.contract import Contract
from workbench.case.formats import FLOAT8
from workbench.case.stages import BLOCKS as OF_ROWS
from workbench.cuda import flash_mma_build, fp8_build, hopper
from workbench.cuda.flash_mma_build import grid, padded
from workbench.cuda.flash_wgmma_build import FEW_BLOCK_Q, few_blocks
from workbench.cuda.kernel import Kernel
from workbench.refusal import Refusal

__all__ = ["DIMS", "Constants", "constants", "contract", "grid", "settle"]

#: dims of a row that a copy takes at once
DIMS = 16
BLOCKS_Q, BLOCKS_K = (64, 128), (64, 128)
#: fields of the quantiser that have one value here, which is chosen where nobody says them
FIXED = {"codes": "e4m3", "codes_of": "qkv", "scores": "mma", "decode": "direct"}
#: what may share a scale: what products with a tile of keys have in common
SCALES_OF = ("head", "tile")
PROBS_DTYPE = FLOAT8["e4m3"]
STAGES = 2
#: named barrier of the producer's threads
TURNED = 3


@dataclass(frozen=True)
class Constants:
    """The constants of a build."""

    block_q: int
    block_k: int
    head_dim: int  #: padded: one of flash_mma's
    switches: tuple[str, ...] = ()  #: those of HEADS, CAUSAL and SCALED that are on

    @property
    def consumers(self) -> int:
        """Warp groups that multiply."""
        return self.block_q // 64

    @property
    def threads(self) -> int:
        """Threads in a block: those of the producer and the consumers."""
        return 128 * (1 + self.consumers)

    @property
    def rows(self) -> dict[str, int]:
        """Rows of 128 bytes in shared memory: of Q, K, V as it comes and V as it is multiplied."""
        return {
            "Q_AT": self.block_q,
            "K_AT": STAGES * self.block_k,
            "RAW_AT": STAGES * self.block_k,
            "V_AT": STAGES * self.head_dim,
        }

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block, but for its barriers."""
        return 128 * sum(self.rows.values())

    def names(self) -> dict[str, Any]:
        """Capital name in the kernel's source -> its value."""
        # as in `flash_wgmma_build`; here the producer computes, too
        producer, consumer = {2: (56, 224)}.get(self.consumers, (0, 0))
        rows = [*self.rows.values()]
        barriers = ("K_FULL", "RAW_FULL", "V_FULL", "K_EMPTY", "V_EMPTY")
        return {
            **{name: 32 * sum(rows[:i]) for i, name in enumerate(self.rows)},
            **{name: 1 + i * STAGES for i, name in enumerate(barriers)},
            "Q_FULL": 0,
            "BARRIERS": 1 + len(barriers) * STAGES,
            "BLOCK_Q": self.block_q,
            "BLOCK_K": self.block_k,
            "HEAD_DIM": self.head_dim,
            "STAGES": STAGES,
            "THREADS": self.threads,
            "CONSUMERS": self.consumers,
            "TURNED": TURNED,
            "HANDS_ON": producer > 0,
            "PRODUCER_REGISTERS": producer,
            "CONSUMER_REGISTERS": consumer,
            "S_REGISTERS": self.block_k // 2,
            "P_REGISTERS": self.block_k // 8,
            "ACC_REGISTERS": self.head_dim // 2,
            "QK": hopper.PRODUCTS[f"wgmma_m64n{self.block_k}k32_e4m3"],
            "PV": hopper.PRODUCTS[f"wgmma_m64n{self.head_dim}k32_e4m3_rs"],
            "TURNS": self.consumers == 2,
        } | {name: name in self.switches for name in ("HEADS", "CAUSAL", "SCALED")}


def constants(case: Case, beside: Collection[str] = ()) -> Constants:
    """The constants of a settled case, whatever inputs are `beside` q, k and v: the kernel takes none."""
    assert case.block_q is not None and case.block_k is not None
    switches = {"HEADS": case.scale_of not in OF_ROWS, "CAUSAL": case.causal, "SCALED": case.scale <= 0}
    on = tuple(name for name, is_on in switches.items() if is_on)
    return Constants(case.block_q, case.block_k, padded(case.head_dim), on)


def settle(kernel: Kernel, case: Case) -> Case:
    """`case` with its tiles, format and variants as `kernel` will run it; Refusal where it cannot."""
    for name, value in FIXED.items():
        if getattr(case, name) not in (None, value):
            raise Refusal(f"kernel {kernel.name} takes {name}={value} alone; got {getattr(case, name)}")
    if case.scale_of not in (None, *SCALES_OF):
        raise Refusal(f"kernel {kernel.name} takes scale_of={' or '.join(SCALES_OF)}; got {case.scale_of}")
    if case.probs_dtype is not None:
        raise Refusal(f"kernel {kernel.name} casts probs to {PROBS_DTYPE}; got probs_dtype={case.probs_dtype}")
    block_q = FEW_BLOCK_Q if few_blocks(case) else BLOCKS_Q[-1]
    tiles = {"block_q": case.block_q or block_q, "block_k": case.block_k or BLOCKS_K[-1]}
    for name, sizes in (("block_q", BLOCKS_Q), ("block_k", BLOCKS_K)):
        if tiles[name] not in sizes:
            raise Refusal(f"{name} of kernel {kernel.name} is {' or '.join(map(str, sizes))}; got {tiles[name]}")
    case = fp8_build.settle(kernel, case.but(block_q=None, block_k=None, **FIXED))
    return case.but(**tiles, probs_dtype=None)


def contract(case: Case) -> Contract:
    """The contract of a settled case: float8 is multiplied, and sums keep 13 bits of fraction."""
    return replace(
        flash_mma_build.contract(case),
        probs_dtype=PROBS_DTYPE,
        out_dtype="float16",
        tensor_core="hopper",
        mma_block=32,
        mma_extra_bits=-10,
    )
