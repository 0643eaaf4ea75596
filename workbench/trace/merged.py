"""Partial results of ranks, and what a merge makes of them, as stages of a trace.

A rank leaves (out, lse), normalised by itself. That is a split whose partial_O is out, whose partial_max is lse, which
is no smaller than its largest score (row_max="upper_bound"), and whose partial_sum is 1: the merge of Milakov &
Gimelshein 2018 (arXiv 1805.02867), section 3.1, follows unchanged, and so do its stages, budgets and causes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.case.contract import Contract
from workbench.case.promises import BY_LSE
from workbench.case.ranks import Rank, bounds_of
from workbench.case.stages import LSE, MERGED, PARTIALS, RESULTS
from workbench.refusal import Refusal

#: what a merge may give of its own
OF_MERGE = (*MERGED, *RESULTS)
_WEIGHT = next(name for name, stage in MERGED.items() if "s" in stage.axes)
#: how far from 1 weights add up that were divided by their sum and rounded, in bfloat16 at worst
_OFF = 2.0**-7


def contract_of(ranks: Sequence[Rank]) -> dict[str, Any]:
    """What a contract says of results of ranks. A merge knows nothing of tiles."""
    bounds = bounds_of(ranks)
    return {"splits": len(ranks), "split_bounds": bounds, "row_max": "upper_bound", "block_k": None}


@dataclass(frozen=True)
class Partials:
    """What the ranks gave, by rank."""

    outs: np.ndarray  #: [ranks, batch, heads, seqlen_q, head_dim_v], normalised; 0 where a row sees no key
    lses: np.ndarray  #: [ranks, batch, heads, seqlen_q]; -inf where a row sees no key; in base 2 where the contract is
    promise: Contract

    @property
    def stages(self) -> dict[str, np.ndarray]:
        """The same as stages, with the axes of these."""
        outs, lses = (np.ascontiguousarray(np.moveaxis(x, 0, 2)) for x in (self.outs, self.lses))
        ones = np.where(lses == -np.inf, 0, 1).astype(np.float32)
        return dict(zip(PARTIALS, (lses, ones, outs), strict=True))

    def merged(self, found: Mapping[str, np.ndarray], order: Sequence[int], name: str) -> dict[str, np.ndarray]:
        """What a merge gave, as stages, in natural units where these are: merge_weight [ranks, batch, heads, seqlen_q]
        in the `order` of ranks in which the merge was given them. Refusal for what is no result of a merge.
        """
        stages = dict(found)
        if unknown := [stage for stage in stages if stage not in OF_MERGE]:
            raise Refusal(f"{name}: a merge returns {', '.join(OF_MERGE)}; got {', '.join(unknown)}")
        if (weight := stages.get(_WEIGHT)) is not None:
            if weight.shape != self.lses.shape:
                wanted = f"[{', '.join(map(str, self.lses.shape))}]"
                raise Refusal(f"{name}: {_WEIGHT} must have the shape of lses, {wanted}; got {[*weight.shape]}")
            stages[_WEIGHT] = np.ascontiguousarray(np.moveaxis(weight[np.argsort(order)], 0, 2))
        if (lse := stages.get(LSE)) is not None:
            # either infinity says that there is no key: FlashAttention-2's is +inf, and merges make -inf of it
            none = (self.lses == -np.inf).all(0)
            if math.isinf(empty := self.promise.lse_of_nothing) and lse.shape == none.shape:
                lse = np.where(none & np.isinf(lse), lse.dtype.type(empty), lse)
            stages[LSE] = lse.astype(np.float64) * math.log(2) if self.promise.base2 else lse
        return stages

    def normalisation(self, stages: Mapping[str, np.ndarray]) -> str:
        """That of a merge that does not say it: a division where it gave weights that do not add up to 1 in most rows
        in which unnormalised ones do not; else by lse.
        """
        if _WEIGHT not in stages:
            return BY_LSE
        lses = self.lses.astype(np.float64) * (math.log(2) if self.promise.base2 else 1)
        top = lses.max(0)
        total = np.exp(lses - np.where(np.isfinite(top), top, 0)).sum(0)
        off = abs(stages[_WEIGHT].astype(np.float64).sum(2) - 1)[total > 1 + 2 * _OFF]
        return BY_LSE if off.size and float(np.mean(off <= _OFF)) > 1 / 2 else "division"
