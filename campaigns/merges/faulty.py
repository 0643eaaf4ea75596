"""Faulty merges of ranks: what fix commits of attention code bases mended in theirs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from campaigns.merges.correct import (
    BASES,
    F32,
    INF,
    Array,
    Merge,
    Stages,
    by_division,
    finite,
    made,
    over,
    without_keys,
)


@dataclass(frozen=True)
class Fault:
    """A merge with a fault."""

    merge: Merge
    origin: str  #: the first wrong stage
    cause: str  #: a part of the words of its cause
    contract: Mapping[str, Any] = field(default_factory=dict)  #: what it is given
    no_keys: bool = False  #: whether it shows in rows alone of which no rank has a key

    @property
    def name(self) -> str:
        """That of its function."""
        return str(getattr(self.merge, "__name__", ""))


def takes_natural_for_base2(outs: Array, lses: Array) -> Stages:
    """exp2 and log2 of natural lses."""
    return by_division(outs, lses, BASES[True])


def takes_base2_for_natural(outs: Array, lses: Array) -> Stages:
    """exp and log of lses of base 2."""
    return by_division(outs, lses)


def one_rank_of_base2(outs: Array, lses: Array) -> Stages:
    """The lse of rank 1 alone is of base 2."""
    lses = without_keys(lses)
    lses[1] /= F32(np.log(2))
    return by_division(outs, lses)


def averages(outs: Array, lses: Array) -> Stages:
    """The mean of the results: lses are not looked at."""
    return dict(by_division(outs, lses)) | {"out": outs.astype(F32).mean(0).astype(outs.dtype)}


def weighs_alike(outs: Array, lses: Array) -> Stages:
    """Each rank with keys has the weight 1."""
    lses = without_keys(lses)
    return made(outs, lses.max(0), np.where(lses > -INF, F32(1), F32(0)))


def forgets_to_rescale(outs: Array, lses: Array) -> tuple[Array, Array]:
    """What came before is not rescaled when the maximum grows."""
    lses = without_keys(lses)
    top, total, out = np.full_like(lses[0], -INF), np.zeros_like(lses[0]), np.zeros(outs.shape[1:], F32)
    for part, lse in zip(outs.astype(F32), lses, strict=True):
        top = np.maximum(top, lse)
        weight = np.exp(lse - finite(top))
        total, out = total + weight, out + weight[..., None] * part
    return over(out, total[..., None]).astype(outs.dtype), (top + np.log(total)).astype(F32)


def divides_twice(outs: Array, lses: Array) -> Stages:
    """out is divided by the sum of weights that add up to 1 by then."""
    found = dict(by_division(outs, lses))
    return found | {"out": over(found["out"].astype(F32), found["merge_sum"][..., None]).astype(outs.dtype)}


def nan_of_two_empty(outs: Array, lses: Array) -> Stages:
    """-inf - -inf where no rank has a key."""
    lses = without_keys(lses)
    top = lses.max(0)
    return made(outs, top, np.exp(lses - top))


def takes_inf_for_maximum(outs: Array, lses: Array) -> Stages:
    """FlashAttention-2's +inf of a row without keys is the largest lse."""
    top = lses.max(0)
    return made(outs, top, np.exp(lses - top))


def leaves_out_the_last(outs: Array, lses: Array) -> Stages:
    """The loop over ranks ends one too early."""
    lses = without_keys(lses)
    top = lses.max(0)
    weight = np.exp(lses - finite(top))
    weight[-1] = 0
    return made(outs, top, weight)


def lse_of_the_first(outs: Array, lses: Array) -> Stages:
    """lse is not merged."""
    return dict(by_division(outs, lses)) | {"lse": without_keys(lses)[0]}


def exchanges_weights(outs: Array, lses: Array) -> tuple[Array, Array]:
    """The sigmoid of a ring's update is that of the other side."""
    lses = without_keys(lses)
    out, lse = outs[0].astype(F32), lses[0]
    for part, own in zip(outs[1:].astype(F32), lses[1:], strict=True):
        both = np.logaddexp(lse, own).astype(F32)
        old = np.exp(lse - finite(both))[..., None]
        out, lse = (1 - old) * out + old * part, both
    return out.astype(outs.dtype), lse


FAULTS = (
    Fault(takes_natural_for_base2, "merge_weight", "base-e lse of each rank is read as base 2"),
    Fault(takes_base2_for_natural, "merge_weight", "base-2 lse of each rank is read as base e", {"base2": True}),
    Fault(one_rank_of_base2, "merge_max", "base-e lse of rank 1 is read as base 2"),
    Fault(averages, "out", "plain mean of the"),
    Fault(weighs_alike, "merge_weight", "weights are 1 for each rank"),
    Fault(forgets_to_rescale, "out", "does not rescale earlier ranks"),
    Fault(divides_twice, "out", "divided by the row sum twice"),
    Fault(nan_of_two_empty, "merge_weight", "-inf - (-inf) is unguarded", no_keys=True),
    Fault(takes_inf_for_maximum, "merge_max", "+inf lse of an empty rank", {"empty_lse": float("inf")}),
    Fault(leaves_out_the_last, "merge_weight", "last rank"),
    Fault(lse_of_the_first, "lse", "that of the first rank"),
    Fault(exchanges_weights, "out", "swapped weights"),
)
