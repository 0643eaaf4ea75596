"""What the kernel on codes is built with: the constants that its capitals are bound to, and the cases that it takes."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from numba import float32, int16
from numba.cuda import libdevice

from workbench.case.case import Case
from workbench.case.contract import Contract
from workbench.case.fields import GIVEN, QUANTISED
from workbench.case.formats import FORMATS
from workbench.case.stages import BLOCKS as OF_BLOCKS
from workbench.case.stages import CODES
from workbench.cuda import flash_build
from workbench.cuda.device import CASTS, CONVERSIONS, LANES
from workbench.cuda.kernel import LARGEST_BLOCK, Kernel, padded
from workbench.refusal import Refusal

HEAD_DIMS = range(16, 129, 16)
BLOCKS = range(16, LARGEST_BLOCK + 1, 16)  # a tensor-core tile is 16x16
#: fields of a case that the kernels on floats alone take
NOT_TAKEN = (
    *("seqlens_q", "seqlens_k", "shared_kv", "softcap", "window", "alibi_slopes", "sinks", "dropout_p"),
    *("score_mod", "mask_mod", "page_size", "pack_gqa"),
)
#: fields that are their first value where nobody says them, whatever the others are
_USUAL = ("codes", "codes_of", "quantiser_scale", "scale_of")
#: default tiles (block_q, block_k) for head_dim up to 64 and beyond, as large as shared memory allows
DEFAULT_BLOCKS = {64: (64, 32), 128: (32, 32)}


@dataclass(frozen=True)
class Constants:
    """What a build binds the capitals to."""

    block_q: int
    block_k: int
    head_dim: int  #: padded: one of HEAD_DIMS
    codes: str  #: format of the codes
    scores: str  #: mma or scalar
    decode: str  #: table or direct
    probs_dtype: str  #: to which probs are cast before they meet V
    dims: int = 0  #: dims that share a scale; 0: those of a head in all batches
    q_dtype: str = ""  #: of q where it has no codes

    @property
    def threads(self) -> int:
        """Threads in a block: LANES for each query row."""
        return self.block_q * LANES

    @property
    def leading_dimension(self) -> int:
        """Elements from one row of a tile to the next: 16 bytes more than a row, so that 8 rows lie in other banks."""
        return self.head_dim + 8

    @property
    def shared_bytes(self) -> int:
        """Static shared memory of a block: tiles of Q and of K or V in float16, of a Q without codes in float32, as
        scores, the accumulator, max and sum of each row, and two tables.
        """
        halves = self.leading_dimension * (self.block_q * (2 if self.q_dtype else 1) + self.block_k)
        tables = 2 * CODES if self.decode == "table" else 0
        return 2 * halves + 4 * (self.block_q * (self.block_k + self.head_dim + 2) + tables)

    def names(self) -> dict[str, Any]:
        """Capital name in the kernel's source -> its value."""
        return {
            "BLOCK_Q": self.block_q,
            "BLOCK_K": self.block_k,
            "HEAD_DIM": self.head_dim,
            "DIMS": self.head_dim // LANES,
            "LD": self.leading_dimension,
            "Q_SIZE": self.block_q * self.leading_dimension,
            "KV_SIZE": self.block_k * self.leading_dimension,
            "S_SIZE": self.block_q * self.block_k,
            "THREADS": self.threads,
            "WARPS": self.threads // 32,
            "SIMULATED": self.codes == "simulated",
            "INT8": self.codes == "int8",
            "FOUR_BITS": FORMATS[self.codes].four_bits,
            "FRACTION_BITS": 3 if self.codes.endswith("e4m3") else 2,
            "HEADS": self.dims == 0,
            "BLOCK": self.dims,
            "E8M0": FORMATS[self.codes].scale_dtype == "float8_e8m0fnu",
            "E4M3": FORMATS[self.codes].scale_dtype == "float8_e4m3fn",
            "ZEROS": FORMATS[self.codes].zero,
            "TENSOR_SCALE": FORMATS[self.codes].tensor_scale,
            "CODED_Q": not self.q_dtype,
            "Q_TYPE": float32 if self.q_dtype else int16,
            "WIDEN": float32 if self.q_dtype else libdevice.half2float,
            "LOAD": CONVERSIONS[self.q_dtype or "float32"][0],
            "TABLE": self.decode == "table",
            "MMA": self.scores == "mma",
            "CAST": CASTS[self.probs_dtype],
        }


def constants(case: Case, beside: Collection[str] = ()) -> Constants:
    """The constants of a resolved case, whatever inputs are `beside` q, k and v: the kernel takes none."""
    assert case.block_q and case.block_k and case.codes and case.scores and case.decode and case.probs_dtype
    tiles = (case.block_q, case.block_k, padded(case.head_dim))
    dims = 0 if case.scale_of not in OF_BLOCKS else FORMATS[case.codes].block
    dims = padded(case.head_dim) if case.scale_of in ("token", "tile") else dims
    q_dtype = "" if "q" in case.coded else case.dtype
    return Constants(*tiles, case.codes, case.scores, case.decode, case.probs_dtype, dims, q_dtype)


def fixed(kernel: Kernel, case: Case, values: Mapping[str, str]) -> Case:
    """`case` with fields of the quantiser that have one value of a kernel; Refusal where it has another."""
    for name, value in values.items():
        if getattr(case, name) not in (None, value):
            raise Refusal(f"kernel {kernel.name} takes only {name}={value}; got {getattr(case, name)}")
    return case.but(**values)


def taken(kernel: Kernel, case: Case) -> Case:
    """`case` with its format and variants; Refusal where kernels on codes cannot run it, whatever its tiles."""
    coded_q = "q" in case.coded
    if case.distribution == GIVEN and coded_q:
        case = case.but(dtype="float32")  # which holds what other dtypes hold
    if case.dtype != "float32" and coded_q:
        raise Refusal(
            f"kernel {kernel.name} quantises float32 inputs; another dtype needs codes_of=kv; got dtype={case.dtype}"
        )
    if case.scores == "mma" and not coded_q:
        raise Refusal(f"kernel {kernel.name} needs scores=scalar if q is not quantised; got scores=mma")
    for name in NOT_TAKEN:
        if (value := getattr(case, name)) != getattr(Case, name):
            raise Refusal(f"kernel {kernel.name} takes no {name}; got {value}")
    if case.head_dim_v != case.head_dim:
        raise Refusal(
            f"kernel {kernel.name} needs head_dim_v equal to head_dim ({case.head_dim}); got {case.head_dim_v}"
        )
    if case.head_dim not in HEAD_DIMS:
        raise Refusal(f"kernel {kernel.name} takes head_dim 16 to 128 in multiples of 16; got {case.head_dim}")
    if case.probs_dtype not in (None, "float16", "float32"):
        raise Refusal(
            f"kernel {kernel.name} casts probs to float16 or keeps them in float32; got probs_dtype={case.probs_dtype}"
        )
    case = case.but(
        probs_dtype=case.probs_dtype or "float16",
        scores=case.scores or ("mma" if coded_q else "scalar"),
        **{name: getattr(case, name) or values[0] for name, values in QUANTISED.items() if name in _USUAL},
    )
    # a table holds the scale of a head
    if case.decode == "table" and case.scale_of in OF_BLOCKS:
        raise Refusal(
            f"kernel {kernel.name} supports decode=table only with a scale per head; got scale_of={case.scale_of}"
        )
    # beside a tile of Q in float32 tables have no room
    return case.but(decode=case.decode or ("table" if coded_q and case.scale_of not in OF_BLOCKS else "direct"))


def resolve(kernel: Kernel, case: Case) -> Case:
    """`case` with its tiles, format and variants as `kernel` will run it; Refusal where it cannot."""
    case = taken(kernel, case)
    block_q, block_k = next(blocks for dim, blocks in DEFAULT_BLOCKS.items() if dim >= case.head_dim)
    case = case.but(block_q=case.block_q or block_q, block_k=case.block_k or block_k)
    for name in ("block_q", "block_k"):
        if getattr(case, name) not in BLOCKS:
            raise Refusal(
                f"{name} of kernel {kernel.name} must be a multiple of 16 from 16 to 128; got {getattr(case, name)}"
            )
    return case


def contract(case: Case) -> Contract:
    """The contract of a resolved case: out is float16, whatever was quantised, and qk comes from tensor cores or not,
    acc never.
    """
    return replace(
        flash_build.contract(case),
        operands_dtype="float16",
        out_dtype="float16",
        accumulation="tensor-core" if case.scores == "mma" else "nearest",
        acc_accumulation="nearest",
    )
