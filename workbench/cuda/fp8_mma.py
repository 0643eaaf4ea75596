"""Attention on codes of 8 bits, on tensor cores of any GPU from sm_80 on: codes are decoded to float16 on their way.

The kernel is that of `flash_mma.py` (FlashAttention-2, Dao 2023, section 3.1.1) with codes in the place of numbers.
Each thread copies the codes that it decodes itself, a tile ahead, into shared memory of its own: no barrier stands
between a copy and its decoding. It decodes 16 at once in registers and stores them where ldmatrix reads them. So a code
is decoded once for each block; fragments of codes would be decoded by each of its warps, in four times as many
instructions.

What codes stand for before their scale is exact in float16: of e5m2 it is the upper half of one; of e4m3, whose
exponents are 8 less, 2^-8 of the value, subnormals too; integers are themselves. The scale of a head multiplies sums,
in float32, as UNIT does, which makes up for the rest (448 / 127 of simulated codes, 2^8 of e4m3). Scales of rows, of
tokens and of blocks of 128 dims, of which a row has one, multiply what is decoded, which float16 then rounds: those of
V cannot leave a sum over keys.

Products with V of a tile are summed apart, and added in float32. Codes are often 0 where a prob is 1; what is left of a
sum then is of probs below float16's normal numbers, which tensor cores align as if they were these: together with the
tiles before it the sum would lose bits of those.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from workbench.case.case import Case
from workbench.case.contract import Contract
from workbench.case.stages import BLOCKS as OF_ROWS
from workbench.cuda import flash_mma_build
from workbench.cuda.flash_mma_build import BLOCKS_Q, TWO_EACH, grid
from workbench.cuda.fp8_build import fixed, taken
from workbench.cuda.fragments_build import padded, tiled
from workbench.cuda.kernel import Kernel, Launch
from workbench.refusal import Refusal

#: codes that a copy takes at once
DIMS = 16
#: format -> what its codes are multiplied with, beside their scale, after what is exact in float16
UNITS: Mapping[str, np.float32] = {
    "simulated": np.float32(448 / 127),
    "e4m3": np.float32(2**8),
    "e5m2": np.float32(1),
    "int8": np.float32(1),
}
FORMATS_TAKEN = (*UNITS,)
BLOCKS_K = (32, 64, 128)
#: padded head_dim -> default tiles where there are many blocks, whose warps have 32 rows: at 128 dims sums of as many
#: take more than the 255 registers of a thread (ptxas of CUDA 13 spills 3 to 32 of them)
TALL: Mapping[int, tuple[int, int]] = {64: (128, 64)}
#: rows of tiles elsewhere, and their keys by padded head_dim
LOW_ROWS, LOW_KEYS = BLOCKS_Q[:-1], {64: 128, 128: 64}
#: fields of the quantiser that have one value here, which is chosen where nobody says them
FIXED = {"codes_of": "qkv", "scores": "mma", "decode": "direct"}
PROBS_DTYPE = "float16"
#: sums of products with V that a thread makes at once: enough not to wait for one another, and few beside all others
PV_REGISTERS = 16
#: dims of a row that lie in all banks of shared memory, once
PANEL = 64


@dataclass(frozen=True)
class Constants(flash_mma_build.Constants):
    """The constants of a build, of PROBS_DTYPE; HEADS is a switch besides, whether a head has one scale."""

    codes: str = "e4m3"  #: one of FORMATS_TAKEN

    @classmethod
    def of(cls, case: Case, beside: Collection[str] = ()) -> Self:
        """As of any kernel on tensor cores, with HEADS among the switches."""
        made, heads = super().of(case), ("HEADS",) if case.scale_of not in OF_ROWS else ()
        return replace(made, dtype=PROBS_DTYPE, switches=heads + made.switches, codes=str(case.codes))

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block: what is multiplied, and codes of K and V."""
        return super().shared_bytes + 2 * self.block_k * self.head_dim

    @property
    def q_in_registers(self) -> bool:
        """Whether Q stays in registers; at 128 dims those of a tile's sums, and of codes, leave no room for it."""
        return super().q_in_registers and self.head_dim <= PANEL

    def names(self) -> dict[str, Any]:
        """Capital name in the kernel's source -> its value."""
        chunks = self.block_k * self.head_dim // DIMS
        # in chunks, which are 16 bytes, where rows are 2 * head_dim
        codes_at = super().shared_bytes // DIMS
        return super().names() | {
            "CODES": True,
            "HEADS": "HEADS" in self.switches,
            "PV_DIMS": PV_REGISTERS * 32 // self.warp_rows,
            "PV_REGISTERS": PV_REGISTERS,
            "CODES_K": codes_at,
            "CODES_V": codes_at + chunks,
            "CODE_CHUNKS": chunks // self.threads,
            "PANELS": self.head_dim // PANEL,
            "ROWS_AT_ONCE": self.threads * DIMS // PANEL,
            "NOTHING": 0x80808080 if self.codes == "simulated" else 0,
            "UNIT": UNITS[self.codes],
            "E4M3": self.codes == "e4m3",
            "INTEGERS": self.codes in ("simulated", "int8"),
            "INT8": self.codes == "int8",
        }


def resolve(kernel: Kernel, case: Case) -> Case:
    """`case` with its tiles, format and variants as `kernel` will run it; Refusal where it cannot."""
    if case.codes not in (None, *FORMATS_TAKEN):
        raise Refusal(f"kernel {kernel.name} decodes codes of {', '.join(FORMATS_TAKEN)}; got codes={case.codes}")
    case = fixed(kernel, case, FIXED)
    if case.probs_dtype not in (None, PROBS_DTYPE):
        raise Refusal(f"kernel {kernel.name} casts probs to {PROBS_DTYPE}; got probs_dtype={case.probs_dtype}")
    case = taken(kernel, case)
    return tiled(kernel, case.but(probs_dtype=PROBS_DTYPE), default_tiles(case), BLOCKS_Q, BLOCKS_K)


def default_tiles(case: Case) -> tuple[int, int]:
    """Rows and keys of tiles: many rows, since each block decodes all keys, as long as all multiprocessors have work
    and threads have registers.
    """
    head_dim = padded(case.head_dim)
    if head_dim in TALL and case.batch * case.heads * -(-case.seqlen_q // TALL[head_dim][0]) >= TWO_EACH:
        return TALL[head_dim]
    return next((rows for rows in LOW_ROWS if rows >= case.seqlen_q), LOW_ROWS[-1]), LOW_KEYS[head_dim]


def contract(case: Case) -> Contract:
    """The contract of a resolved case: FlashAttention-2's arithmetic, of what codes stand for.

    Of the tensor cores that run it Ampere's lose most, 5.5 ulps of every 8 products (`tensor_cores.GENERATIONS`). The
    scale of a head rounds twice where it multiplies their sum, and twice where it multiplies what is dumped as decoded:
    two ulps, for which there are 4.5 more where a bit less is kept.
    """
    of_rows = case.scale_of in OF_ROWS
    return replace(
        flash_mma_build.contract(case),
        operands_dtype="float16" if of_rows else "float32",
        out_dtype="float16",
        probs_dtype=PROBS_DTYPE,
        mma_block=8,
        mma_extra_bits=1 if of_rows else 0,
    )


#: of both kernels
SOURCE = Path(__file__).with_name("flash_mma.py")
KERNEL = Kernel(
    name="fp8_mma",
    algorithm="fp8",
    file=SOURCE,
    functions={"flash_mma_forward": SOURCE},
    summary="Quantised FlashAttention-2: 8-bit codes are decoded to float16 for tensor cores, sm_80 and newer",
    resolves=resolve,
    constants=Constants.of,
    launches=lambda case: [Launch("flash_mma_forward", grid(case))],
    contract=contract,
    dtypes=("float32",),
    dims=DIMS,
    least_block=32,
    dynamic=True,
    masks=False,
    quantised=True,
    codes=FORMATS_TAKEN,
)
