"""What builds of kernels on tensor cores have in common: what capitals are bound to, switches, sizes of tiles."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from workbench.case.case import Case
from workbench.cuda import ptx
from workbench.cuda.device import CASTS
from workbench.cuda.flash_build import packs_keys
from workbench.cuda.kernel import Kernel
from workbench.refusal import Refusal

#: dims for which there is room in a row; a copy takes 8 of them
HEAD_DIMS, DIMS_AT_ONCE = (64, 128), 8

#: switch of the sources -> whether it is on for a case
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
class TensorCores:
    """The constants of a build."""

    block_q: int
    block_k: int
    head_dim: int  #: padded: one of HEAD_DIMS
    dtype: str  #: of probs as they are multiplied
    switches: tuple[str, ...] = ()  #: those of its kernel that are on

    SWITCHED: ClassVar[tuple[str, ...]] = (*SWITCHES,)  #: switches that the kernel's source has

    @classmethod
    def of(cls, case: Case, beside: Collection[str] = ()) -> Self:
        """The constants of a resolved case, whatever inputs are `beside` q, k and v: these kernels take none."""
        assert case.block_q is not None and case.block_k is not None
        on = tuple(name for name in cls.SWITCHED if SWITCHES[name](case))
        return cls(case.block_q, case.block_k, padded(case.head_dim), case.dtype, on)

    @property
    def threads(self) -> int:
        """Threads in a block."""
        raise NotImplementedError

    def names(self) -> dict[str, Any]:
        """Capital name in the kernel's source -> its value."""
        packs = ptx.cvt_bf16x2_f32 if self.dtype == "bfloat16" else ptx.cvt_f16x2_f32
        return {
            "BLOCK_Q": self.block_q,
            "BLOCK_K": self.block_k,
            "HEAD_DIM": self.head_dim,
            "CHUNKS": self.head_dim // DIMS_AT_ONCE,
            "THREADS": self.threads,
            "MMA": ptx.mma_m16n8k16_bf16 if self.dtype == "bfloat16" else ptx.mma_m16n8k16_f16,
            "PACK": packs,
            "CAST": CASTS[self.dtype],
        } | {name: name in self.switches for name in SWITCHES}


def padded(head_dim: int) -> int:
    """The least of HEAD_DIMS that holds head_dim, which is at most the largest of them."""
    return next(size for size in HEAD_DIMS if size >= head_dim)


def tiled(
    kernel: Kernel, case: Case, default: tuple[int, int], blocks_q: Sequence[int], blocks_k: Sequence[int]
) -> Case:
    """`case` with its own block_q and block_k, else the default; Refusal for sizes that the kernel does not have."""
    case = case.but(block_q=case.block_q or default[0], block_k=case.block_k or default[1])
    for name, sizes in (("block_q", blocks_q), ("block_k", blocks_k)):
        if getattr(case, name) not in sizes:
            raise Refusal(
                f"{name} of kernel {kernel.name} must be one of {', '.join(map(str, sizes))}; got {getattr(case, name)}"
            )
    return case


def without(kernel: Kernel, case: Case, names: Sequence[str]) -> None:
    """Refusal where a case has a field that the kernel does not take."""
    for name in names:
        if name in case.unusual:
            raise Refusal(f"kernel {kernel.name} takes no {name}; got {getattr(case, name)}")
