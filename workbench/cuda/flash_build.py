"""The kernels on floats as the host knows them: their tiles, what a build binds capitals to, grids and contract."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from workbench.case.case import Case
from workbench.case.contract import Contract
from workbench.case.fields import QUANTISED, name_of
from workbench.cuda.device import CASTS, CONVERSIONS, LANES
from workbench.cuda.kernel import HEAD_DIMS, LARGEST_BLOCK, Kernel, padded
from workbench.refusal import Refusal

BLOCKS = (16, 32, 64, LARGEST_BLOCK)
#: default tiles by padded head_dim: the largest square ones within shared memory, of rows in chunks above 128
DEFAULT_BLOCKS = {32: 64, 64: 64, 128: 32, 192: 64, 256: 64, 576: 64}
#: dims of a row that are in shared memory at a time where all of them are too many: a divisor of all larger HEAD_DIMS
CHUNK = 64
#: the largest padded head_dim of which whole rows are in shared memory
LARGEST_WHOLE = 128

#: switch of the source -> whether it is on for a case, and the names of the inputs beside q, k and v
SWITCHES: Mapping[str, Callable[[Case, Collection[str]], bool]] = {
    "SPLIT": lambda case, beside: case.splits is not None,
    "SOFTCAP": lambda case, beside: case.softcap is not None,
    "WINDOW": lambda case, beside: case.window is not None,
    "MASK": lambda case, beside: "mask" in beside or case.mask_mod is not None,
    "BIAS": lambda case, beside: "bias" in beside,
    "DROPOUT": lambda case, beside: case.dropout_p is not None,
    "ALIBI": lambda case, beside: case.alibi_slopes is not None,
    "COLUMN": lambda case, beside: case.alibi_slopes is not None and case.alibi_form == "column",
    "SINKS": lambda case, beside: case.sinks is not None,
    "DIM_V": lambda case, beside: case.head_dim_v != case.head_dim,
    "RAGGED": lambda case, beside: case.ragged,
    "PACKED_Q": lambda case, beside: case.seqlens_q is not None,
    "PACKED_K": lambda case, beside: packs_keys(case),
    "LENGTHS": lambda case, beside: case.page_size is not None or (case.seqlens_k is not None and not packs_keys(case)),
    "PAGED": lambda case, beside: case.page_size is not None,
    "PACK_GQA": lambda case, beside: case.pack_gqa,
    "WHOLE": lambda case, beside: padded_dim(case) <= LARGEST_WHOLE,
}


def packs_keys(case: Case) -> bool:
    """Whether the keys of sequences lie behind each other: those of queries that do, but for pages."""
    return case.seqlens_q is not None and case.seqlens_k is not None and case.page_size is None


def padded_dim(case: Case) -> int:
    """What a row of q, k and v has room for."""
    return padded(max(case.head_dim, case.head_dim_v))


@dataclass(frozen=True)
class Constants:
    """The constants of a build."""

    block_q: int
    block_k: int
    head_dim: int  #: padded: one of HEAD_DIMS
    dtype: str  #: storage dtype
    probs_dtype: str = "float32"  #: to which probs are cast before they meet V
    switches: tuple[str, ...] = ("WHOLE",)  #: those of SWITCHES that are on

    @property
    def threads(self) -> int:
        """Threads in a block: LANES for each query row."""
        return self.block_q * LANES

    @property
    def chunk(self) -> int:
        """Dims of a row that are in shared memory at a time."""
        return self.head_dim if "WHOLE" in self.switches else CHUNK

    @property
    def shared_bytes(self) -> int:
        """Static shared memory of a block: tiles of Q, of K or V, and of scores, in float32."""
        return 4 * ((self.block_q + self.block_k) * self.chunk + self.block_q * self.block_k)

    def names(self) -> dict[str, Any]:
        """Capital name in the kernel's source -> its value."""
        load, store = CONVERSIONS[self.dtype]
        return {
            "BLOCK_Q": self.block_q,
            "BLOCK_K": self.block_k,
            "HEAD_DIM": self.head_dim,
            "DIMS": self.head_dim // LANES,
            "CHUNK": self.chunk,
            "THREADS": self.threads,
            "LOAD": load,
            "STORE": store,
            "CAST": CASTS[self.probs_dtype],
        } | {name: name in self.switches for name in SWITCHES}


def constants(case: Case, beside: Collection[str] = ()) -> Constants:
    """The constants of a resolved case; `beside`: names of the inputs beside q, k and v."""
    switches = tuple(name for name, is_on in SWITCHES.items() if is_on(case, beside))
    assert case.block_q is not None and case.block_k is not None
    dtypes = case.dtype, case.probs_dtype or "float32"
    return Constants(case.block_q, case.block_k, padded_dim(case), *dtypes, switches)


def resolve(kernel: Kernel, case: Case) -> Case:
    """`case` with its tiles; Refusal where a kernel on floats cannot run it."""
    for name in QUANTISED:
        if getattr(case, name) is not None:
            raise Refusal(
                f"kernel {kernel.name} reads no quantised codes and takes no {name}; got {getattr(case, name)}"
            )
    if case.score_mod is not None:
        raise Refusal(
            f"kernel {kernel.name} takes no score_mod; got {name_of(case.score_mod)}: pass it as bias if it only "
            "adds to scores"
        )
    for name in ("head_dim", "head_dim_v"):
        if getattr(case, name) > HEAD_DIMS[-1]:
            raise Refusal(f"kernel {kernel.name} takes {name} 1 to {HEAD_DIMS[-1]}; got {getattr(case, name)}")
    if case.probs_dtype not in (None, "float32", case.dtype):
        raise Refusal(
            f"kernel {kernel.name} casts probs to float32 or its input dtype, {case.dtype}; "
            f"got probs_dtype={case.probs_dtype}"
        )
    default = DEFAULT_BLOCKS[padded_dim(case)]
    case = case.but(block_q=case.block_q or default, block_k=case.block_k or default)
    for name in ("block_q", "block_k"):
        if getattr(case, name) not in BLOCKS:
            raise Refusal(f"{name} must be one of {', '.join(map(str, BLOCKS))}; got {getattr(case, name)}")
    return case


def grid(case: Case) -> tuple[int, int, int]:
    """A block for each query tile, head and batch."""
    assert case.block_q is not None
    return -(-case.seqlen_q // case.block_q), case.heads, case.batch


def forward_grid(case: Case) -> tuple[int, int, int]:
    """That of `flash_forward`: a block for each split besides; tiles of a group's queries where `pack_gqa`."""
    assert case.block_q is not None
    heads = case.kv_heads if case.pack_gqa else case.heads
    rows = case.seqlen_q * (case.heads // heads)
    return -(-rows // case.block_q), heads * (case.splits or 1), case.batch


def contract(case: Case) -> Contract:
    """The contract of a resolved case: float32 throughout, but for the cast of probs and for out, which is in the
    storage dtype.
    """
    return Contract(
        block_k=case.block_k,
        splits=case.splits,
        scores_dtype="float32",
        probs_dtype=case.probs_dtype or "float32",
        partials_dtype="float32",
        out_dtype=case.dtype,
        row_sum_of_cast=False,
        tanh="exact",
        sinks="first",
    )
