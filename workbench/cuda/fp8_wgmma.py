"""FlashAttention on float8 codes on Hopper: codes are multiplied as they are, by products of four warps at once.

The kernel is that of `flash_wgmma.py` with codes in the place of numbers (section 3.3 of FlashAttention-3, Shah et al.
2024, arXiv 2407.08608). Products of float8 take both factors with neighbours along what is summed: warps of the
producer turn V, of which a row is a key, so that a row is a dim, and put its keys into the order in which a lane has
its probs. Sums of float8 products keep 13 bits of fraction: those with V of a tile are added up in float32 (DeepSeek-AI
2024, arXiv 2412.19437, section 3.3.2). A head has one scale, or a tile of 128 rows (HEADS): what codes of a product of
tiles have in common.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from numba import uint32

from workbench.case.case import Case
from workbench.case.contract import Contract
from workbench.case.formats import FLOAT8
from workbench.case.stages import BLOCKS as OF_ROWS
from workbench.cuda import flash_mma_build, flash_wgmma_build, hopper
from workbench.cuda.flash_mma_build import grid
from workbench.cuda.flash_wgmma_build import FEW_BLOCK_Q, STAGES, few_blocks
from workbench.cuda.fp8_build import fixed, taken
from workbench.cuda.fragments_build import tiled
from workbench.cuda.kernel import Kernel, Launch
from workbench.refusal import Refusal

#: dims of a row that a copy takes at once
DIMS = 16
BLOCKS_Q, BLOCKS_K = (64, 128), (64, 128)
#: fields of the quantiser that have one value here, which is chosen where nobody says them
FIXED = {"codes": "e4m3", "codes_of": "qkv", "scores": "mma", "decode": "direct"}
#: what may share a scale: what products with a tile of keys have in common
SCALES_OF = ("head", "tile")
PROBS_DTYPE = FLOAT8["e4m3"]
#: named barrier of the producer's threads
TURNED = 3


@dataclass(frozen=True)
class Constants(flash_wgmma_build.Constants):
    """The constants of a build, of PROBS_DTYPE; HEADS is a switch besides, whether a head has one scale."""

    @classmethod
    def of(cls, case: Case, beside: Collection[str] = ()) -> Self:
        """As of any kernel on tensor cores, with HEADS among the switches."""
        made, heads = super().of(case), ("HEADS",) if case.scale_of not in OF_ROWS else ()
        return replace(made, dtype=PROBS_DTYPE, switches=heads + made.switches)

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

    @property
    def handed_on(self) -> tuple[int, int]:
        """As of the kernel on floats; here the producer computes, too."""
        return {2: (56, 224)}.get(self.consumers, (0, 0))

    def names(self) -> dict[str, Any]:
        """Capital name in the kernel's source -> its value."""
        rows = [*self.rows.values()]
        barriers = ("K_FULL", "RAW_FULL", "V_FULL", "K_EMPTY", "V_EMPTY")
        return super().names() | {
            **{name: 32 * sum(rows[:i]) for i, name in enumerate(self.rows)},
            **{name: 1 + i * STAGES for i, name in enumerate(barriers)},
            "BARRIERS": 1 + len(barriers) * STAGES,
            "CODES": True,
            "HEADS": "HEADS" in self.switches,
            "ELEMENT": uint32,
            "ROW": 32,
            "TURNED": TURNED,
            "P_REGISTERS": self.block_k // 8,
            "QK": hopper.PRODUCTS[f"wgmma_m64n{self.block_k}k32_e4m3"],
            "PV": hopper.PRODUCTS[f"wgmma_m64n{self.head_dim}k32_e4m3_rs"],
        }


def resolve(kernel: Kernel, case: Case) -> Case:
    """`case` with its tiles, format and variants as `kernel` will run it; Refusal where it cannot."""
    case = fixed(kernel, case, FIXED)
    if case.scale_of not in (None, *SCALES_OF):
        raise Refusal(f"kernel {kernel.name} takes scale_of={' or '.join(SCALES_OF)}; got {case.scale_of}")
    if case.probs_dtype is not None:
        raise Refusal(f"kernel {kernel.name} casts probs to {PROBS_DTYPE}; got probs_dtype={case.probs_dtype}")
    default = FEW_BLOCK_Q if few_blocks(case) else BLOCKS_Q[-1], BLOCKS_K[-1]
    return tiled(kernel, taken(kernel, case).but(probs_dtype=None), default, BLOCKS_Q, BLOCKS_K)


def contract(case: Case) -> Contract:
    """The contract of a resolved case: float8 is multiplied, and sums keep 13 bits of fraction."""
    return replace(
        flash_mma_build.contract(case),
        probs_dtype=PROBS_DTYPE,
        out_dtype="float16",
        tensor_core="hopper",
        mma_block=32,
        mma_extra_bits=-10,
    )


#: of both kernels
SOURCE = Path(__file__).with_name("flash_wgmma.py")
KERNEL = Kernel(
    name="fp8_wgmma",
    algorithm="fp8",
    file=SOURCE,
    functions={"flash_wgmma_forward": SOURCE},
    summary="Quantised FlashAttention-3 on Hopper: tensor cores multiply float8 codes directly",
    resolves=resolve,
    constants=Constants.of,
    launches=lambda case: [Launch("flash_wgmma_forward", grid(case))],
    contract=contract,
    dtypes=("float32",),
    dims=DIMS,
    without=("dequant_q", "dequant_k", "dequant_v"),
    least_block=64,
    dynamic=True,
    masks=False,
    quantised=True,
    codes=("e4m3",),
)
