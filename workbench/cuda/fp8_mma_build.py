"""The kernel that decodes codes for tensor cores, as the host knows it: its tiles, what a build binds capitals to, its
grid and contract.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from workbench.case.case import Case
from workbench.case.contract import Contract
from workbench.case.stages import BLOCKS as OF_ROWS
from workbench.cuda import flash_mma_build, fp8_build
from workbench.cuda.flash_mma_build import BLOCKS_Q, TWO_EACH, grid, padded
from workbench.cuda.kernel import Kernel
from workbench.refusal import Refusal

__all__ = ["DIMS", "FORMATS_TAKEN", "Constants", "constants", "contract", "grid", "settle"]

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
class Constants:
    """The constants of a build."""

    block_q: int
    block_k: int
    head_dim: int  #: padded: one of flash_mma's
    codes: str  #: one of FORMATS_TAKEN
    switches: tuple[str, ...] = ()  #: those of HEADS, CAUSAL, SCALED and PADDED that are on

    @property
    def threads(self) -> int:
        """Threads in a block."""
        return self._of_floats.threads

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block: what is multiplied, and codes of K and V."""
        return self._of_floats.shared_bytes + 2 * self.block_k * self.head_dim

    @property
    def warp_rows(self) -> int:
        """Query rows of a warp."""
        return self._of_floats.warp_rows

    @property
    def q_in_registers(self) -> bool:
        """Whether Q stays in registers; at 128 dims those of a tile's sums, and of codes, leave no room for it."""
        return self._of_floats.q_in_registers and self.head_dim <= PANEL

    @property
    def _of_floats(self) -> flash_mma_build.Constants:
        """Those of the kernel on floats, whose tiles the same threads multiply."""
        return flash_mma_build.Constants(self.block_q, self.block_k, self.head_dim, PROBS_DTYPE)

    def names(self) -> dict[str, Any]:
        """Capital name in the kernel's source -> its value."""
        floats = self._of_floats.names()
        shared = ("BLOCK_Q", "BLOCK_K", "HEAD_DIM", "Q_AT", "K_AT", "V_AT", "THREADS", "WARP_ROWS", "LANE_ROWS")
        registers = ("S_REGISTERS", "P_REGISTERS", "ACC_REGISTERS")
        chunks = self.block_k * self.head_dim // DIMS
        # in chunks, which are 16 bytes, where rows are 2 * head_dim
        codes_at = self._of_floats.shared_bytes // DIMS
        rows_at_once = self.threads * DIMS // PANEL
        return {
            **{name: floats[name] for name in (*shared, *registers)},
            "PV_DIMS": PV_REGISTERS * 32 // self.warp_rows,
            "PV_REGISTERS": PV_REGISTERS,
            "Q_IN_REGISTERS": self.q_in_registers,
            "Q_REGISTERS": self.warp_rows // 4 * (self.head_dim // 16 if self.q_in_registers else 1),
            "CODES_K": codes_at,
            "CODES_V": codes_at + chunks,
            "CHUNKS": chunks // self.threads,
            "PANELS": self.head_dim // PANEL,
            "ROWS_AT_ONCE": rows_at_once,
            "NOTHING": 0x80808080 if self.codes == "simulated" else 0,
            "UNIT": UNITS[self.codes],
            "E4M3": self.codes == "e4m3",
            "INTEGERS": self.codes in ("simulated", "int8"),
            "INT8": self.codes == "int8",
        } | {name: name in self.switches for name in ("HEADS", "CAUSAL", "SCALED", "PADDED")}


def constants(case: Case, beside: Collection[str] = ()) -> Constants:
    """The constants of a settled case, whatever inputs are `beside` q, k and v: the kernel takes none."""
    assert case.block_q is not None and case.block_k is not None and case.codes is not None
    head_dim = padded(case.head_dim)
    switches = {
        "HEADS": case.scale_of not in OF_ROWS,
        "CAUSAL": case.causal,
        "SCALED": flash_mma_build.scores_scaled(case),
        "PADDED": case.head_dim != head_dim,
    }
    on = tuple(name for name, is_on in switches.items() if is_on)
    return Constants(case.block_q, case.block_k, head_dim, case.codes, on)


def settle(kernel: Kernel, case: Case) -> Case:
    """`case` with its tiles, format and variants as `kernel` will run it; Refusal where it cannot."""
    if case.codes not in (None, *FORMATS_TAKEN):
        raise Refusal(f"kernel {kernel.name} decodes codes of {', '.join(FORMATS_TAKEN)}; got codes={case.codes}")
    for name, value in FIXED.items():
        if getattr(case, name) not in (None, value):
            raise Refusal(f"kernel {kernel.name} takes {name}={value} alone; got {getattr(case, name)}")
    if case.probs_dtype not in (None, PROBS_DTYPE):
        raise Refusal(f"kernel {kernel.name} casts probs to {PROBS_DTYPE}; got probs_dtype={case.probs_dtype}")
    # without tiles, whose sizes are other ones than those of `fp8`
    taken = fp8_build.settle(kernel, case.but(block_q=None, block_k=None, **FIXED))
    rows, keys = default_tiles(case)
    tiles = {"block_q": case.block_q or rows, "block_k": case.block_k or keys}
    for name, sizes in (("block_q", BLOCKS_Q), ("block_k", BLOCKS_K)):
        if tiles[name] not in sizes:
            raise Refusal(f"{name} of kernel {kernel.name} is one of {', '.join(map(str, sizes))}; got {tiles[name]}")
    return taken.but(**tiles, probs_dtype=PROBS_DTYPE)


def default_tiles(case: Case) -> tuple[int, int]:
    """Rows and keys of tiles: many rows, since each block decodes all keys, as long as all multiprocessors have work
    and threads have registers.
    """
    head_dim = padded(case.head_dim)
    if head_dim in TALL and case.batch * case.heads * -(-case.seqlen_q // TALL[head_dim][0]) >= TWO_EACH:
        return TALL[head_dim]
    return next((rows for rows in LOW_ROWS if rows >= case.seqlen_q), LOW_ROWS[-1]), LOW_KEYS[head_dim]


def contract(case: Case) -> Contract:
    """The contract of a settled case: FlashAttention-2's arithmetic, of what codes stand for.

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
