"""Where an attention kernel rounds, and what its contract promises there."""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from functools import cache

from workbench.case.contract import Contract
from workbench.floats import smallest_subnormal
from workbench.reference.arithmetic import FLOAT32, Arithmetic


def _cast(words: str) -> Arithmetic:
    """A site that is a cast, said in `words`."""
    return field(default=FLOAT32, metadata={"words": words})


@dataclass(frozen=True)
class Sites:
    """The arithmetic of each rounding site; float32 where nothing is lost."""

    qk: Arithmetic = FLOAT32  #: the sums of its products
    acc: Arithmetic = FLOAT32  #: the same
    scaled_q: Arithmetic = _cast("the rounding of scaled q")
    scores: Arithmetic = _cast("the rounding of scores")  #: and of qk, which may be stored alike
    probs: Arithmetic = _cast("the cast of probs")
    partials: Arithmetic = _cast("the rounding of partial_O")
    out: Arithmetic = _cast("the rounding of out")

    @property
    def sums(self) -> "Sites":
        """The same without casts."""
        return replace(self, **{one.name: FLOAT32 for one in fields(self) if "words" in one.metadata})

    def casts(self) -> Iterator[tuple[str, "Sites"]]:
        """Each cast that happens, in words, with the sites of a kernel that has the same sums and no other cast."""
        for one in fields(self):
            site: Arithmetic = getattr(self, one.name)
            if "words" in one.metadata and not site.wide:
                yield f"{one.metadata['words']} to {site.dtype}", replace(self.sums, **{one.name: site})


@cache
def sites_of(contract: Contract) -> Sites:
    """What a contract promises of each site."""
    narrow, offset, saturates = contract.accumulator_dtype, 2.0**contract.probs_offset, contract.saturates
    # codes that nobody saw decoded may meet probs in either 16-bit dtype: bfloat16 loses more, but not below 2^-24
    least = smallest_subnormal("float16") if "operands_dtype" in contract.assumed else 0.0

    def cast(dtype: str, rounding: str, factor: float = 1.0) -> Arithmetic:
        return Arithmetic(dtype, rounding, factor=factor, saturates=saturates, least=least)

    of_partials = offset if contract.partials == "unnormalised" else 1.0
    return Sites(
        qk=Arithmetic(narrow, accumulation=contract.accumulation),
        acc=Arithmetic(narrow, accumulation=contract.accumulation_of_acc),
        scaled_q=Arithmetic(contract.scaled_q_dtype),
        scores=Arithmetic(contract.scores_dtype, saturates=saturates),
        probs=cast(contract.probs_dtype, contract.probs_rounding, offset),
        partials=cast(contract.partials_dtype, contract.partials_rounding, of_partials),
        out=cast(contract.out_dtype, contract.out_rounding),
    )
