"""The kernel on tensor cores as the host knows it: its tiles, what a build binds capitals to, its grid and contract."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from workbench.case.case import Case
from workbench.case.contract import EX2_ULPS, Contract
from workbench.case.fields import QUANTISED
from workbench.cuda import ptx
from workbench.cuda.device import CASTS, LANES
from workbench.cuda.flash_build import packs_keys
from workbench.cuda.kernel import Kernel
from workbench.refusal import Refusal

DTYPES = ("float16", "bfloat16")
#: dims for which there is room in a row; a copy takes 8 of them
HEAD_DIMS, DIMS_AT_ONCE = (64, 128), 8
#: 16 rows for each warp; a step of a product takes 16 keys
BLOCKS_Q, BLOCKS_K = (16, 32, 64, 128), (16, 32, 64, 128)
#: tiles (block_q, block_k), and those of head_dim 64 where there are blocks enough for all multiprocessors, two for
#: each of an H100's 132, and no mask leaves them unequal work: 10 % faster there, 4 % slower elsewhere
DEFAULT_BLOCKS, MANY_BLOCKS, MANY = (64, 64), (128, 64), 264
#: fields of a case that the kernel does not take
NOT_TAKEN = (
    *("head_dim_v", "shared_kv", "alibi_slopes", "sinks", "dropout_p", "score_mod", "mask_mod", "page_size"),
    "pack_gqa",
)

#: switch of the source -> whether it is on for a case
SWITCHES: Mapping[str, Callable[[Case], bool]] = {
    "CAUSAL": lambda case: case.causal,
    "WINDOW": lambda case: case.window is not None,
    "SOFTCAP": lambda case: case.softcap is not None,
    "SCALED": lambda case: scores_scaled(case),
    "RAGGED": lambda case: case.ragged,
    "PACKED_Q": lambda case: case.seqlens_q is not None,
    "PACKED_K": lambda case: packs_keys(case),
    "LENGTHS": lambda case: case.seqlens_k is not None and not packs_keys(case),
    "PADDED": lambda case: case.head_dim not in HEAD_DIMS,
}


def scores_scaled(case: Case) -> bool:
    """Whether scores are scaled before their maximum is sought: where a cap changes them, and where the maximum of what
    is not scaled is another one.
    """
    return case.softcap is not None or case.scale <= 0


@dataclass(frozen=True)
class Constants:
    """The constants of a build."""

    block_q: int
    block_k: int
    head_dim: int  #: padded: one of HEAD_DIMS
    dtype: str
    switches: tuple[str, ...] = ()  #: those of SWITCHES that are on

    @property
    def warp_rows(self) -> int:
        """Query rows of a warp: 32 where there are enough of them, since each fragment of K and V that is read from
        shared memory, whose bandwidth is the limit at 16, then meets twice as many.
        """
        return 32 if self.block_q > 64 else 16

    @property
    def threads(self) -> int:
        """Threads in a block."""
        return self.block_q // self.warp_rows * 32

    @property
    def q_in_registers(self) -> bool:
        """Whether Q stays in registers, as it does where the accumulator leaves room for it."""
        return self.head_dim * self.warp_rows <= 64 * 32

    @property
    def rows(self) -> int:
        """Rows of shared memory, of tiles of Q, K and V."""
        return self.block_q + 2 * self.block_k

    @property
    def shared_bytes(self) -> int:
        """Static shared memory of a block."""
        return 2 * self.rows * self.head_dim

    def names(self) -> dict[str, Any]:
        """Capital name in the kernel's source -> its value."""
        half = self.dtype == "float16"
        return {
            "BLOCK_Q": self.block_q,
            "BLOCK_K": self.block_k,
            "HEAD_DIM": self.head_dim,
            "CHUNKS": self.head_dim // DIMS_AT_ONCE,
            "ROWS_AT_ONCE": self.threads * DIMS_AT_ONCE // self.head_dim,
            "SHARED_SIZE": self.rows * self.head_dim,
            "Q_AT": 0,
            "K_AT": self.block_q,
            "V_AT": self.block_q + self.block_k,
            "THREADS": self.threads,
            "WARP_ROWS": self.warp_rows,
            "LANE_ROWS": self.warp_rows // 8,
            "Q_IN_REGISTERS": self.q_in_registers,
            "Q_REGISTERS": self.warp_rows // 4 * (self.head_dim // 16 if self.q_in_registers else 1),
            "S_REGISTERS": self.warp_rows * self.block_k // 32,
            "P_REGISTERS": self.warp_rows * self.block_k // 64,
            "ACC_REGISTERS": self.warp_rows * self.head_dim // 32,
            "MMA": ptx.mma_m16n8k16_f16 if half else ptx.mma_m16n8k16_bf16,
            "PACK": ptx.cvt_f16x2_f32 if half else ptx.cvt_bf16x2_f32,
            "CAST": CASTS[self.dtype],
        } | {name: name in self.switches for name in SWITCHES}


def constants(case: Case, beside: Collection[str] = ()) -> Constants:
    """The constants of a settled case; nothing is `beside` q, k and v."""
    assert case.block_q is not None and case.block_k is not None
    switches = tuple(name for name, is_on in SWITCHES.items() if is_on(case))
    return Constants(case.block_q, case.block_k, padded(case.head_dim), case.dtype, switches)


def padded(head_dim: int) -> int:
    """The least of HEAD_DIMS that holds head_dim, which is at most the largest of them."""
    return next(size for size in HEAD_DIMS if size >= head_dim)


def settle(kernel: Kernel, case: Case) -> Case:
    """`case` with its tiles; Refusal where the kernel cannot run it."""
    for name in (*QUANTISED, *NOT_TAKEN):
        if name in case.unusual:
            raise Refusal(f"kernel {kernel.name} takes no {name}; got {getattr(case, name)}")
    if case.dtype not in DTYPES:
        raise Refusal(f"kernel {kernel.name} multiplies {' or '.join(DTYPES)} on tensor cores; got {case.dtype}")
    if case.probs_dtype not in (None, case.dtype):
        raise Refusal(
            f"kernel {kernel.name} casts probs to the dtype of its inputs, {case.dtype}; got "
            f"probs_dtype={case.probs_dtype}"
        )
    if case.head_dim % DIMS_AT_ONCE or case.head_dim > HEAD_DIMS[-1]:
        raise Refusal(
            f"kernel {kernel.name} copies {DIMS_AT_ONCE} dims at once and takes head_dim {DIMS_AT_ONCE} to "
            f"{HEAD_DIMS[-1]} in steps of as many; got {case.head_dim}"
        )
    many = case.batch * case.heads * -(-case.seqlen_q // MANY_BLOCKS[0]) >= MANY
    unmasked = not case.causal and case.window is None
    block_q, block_k = MANY_BLOCKS if many and unmasked and padded(case.head_dim) == 64 else DEFAULT_BLOCKS
    case = case.but(block_q=case.block_q or block_q, block_k=case.block_k or block_k, probs_dtype=case.dtype)
    for name, sizes in (("block_q", BLOCKS_Q), ("block_k", BLOCKS_K)):
        if getattr(case, name) not in sizes:
            raise Refusal(
                f"{name} of kernel {kernel.name} is one of {', '.join(map(str, sizes))}; got {getattr(case, name)}"
            )
    return case


def grid(case: Case) -> tuple[int, int, int]:
    """A block for each query tile, head and batch."""
    assert case.block_q is not None
    return -(-case.seqlen_q // case.block_q), case.heads, case.batch


def contract(case: Case) -> Contract:
    """The contract of a settled case: FlashAttention-2's arithmetic."""
    return Contract(
        block_k=case.block_k,
        splits=None,
        scores_dtype="float32",
        probs_dtype=case.dtype,
        partials_dtype="float32",
        out_dtype=case.dtype,
        row_sum_of_cast=False,
        row_sum_lanes=LANES,
        accumulation="tensor-core",
        scores_scaled=scores_scaled(case),
        exp_argument="fma",
        exp_ulps=EX2_ULPS,
        tanh="approx",
        fast_math=True,  # out is acc times 1 / row_sum, both rounded
        skips_masked_tiles=True,
    )
