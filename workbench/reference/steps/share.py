"""Weights of a merge that are normalised themselves: of FlashAttention's combine kernel, vLLM's merge_attn_states."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.floats import array_namespace
from workbench.reference.bound import EXACT, Bound, part
from workbench.reference.losses import U
from workbench.reference.stage import Bounded, Ref
from workbench.reference.steps.weight import Weight

_SPREAD = (..., None, slice(None))


@dataclass(frozen=True)
class Share:
    """exp(of - top) / total, or exp(of - lse), [b, h, s, q]; 0 where `of` is -inf."""

    of: Ref
    top: Ref
    total: Ref

    def value(self, at: Any) -> np.ndarray:
        w, total = self._weight.value(at), at(self.total)[_SPREAD]
        xp = array_namespace(w)
        return xp.where((w == 0) & ~xp.isnan(total), 0.0, w / total)

    def control(self, at: Any) -> np.ndarray:
        """Larger by all that may be lost in a biased mode."""
        w, total = self._weight.control(at), at(self.total)[_SPREAD]
        made = np.where(w == 0, w, w / total) * (1 + at.losses.division)
        return made.astype(np.float32)

    def bound(self, at: Any) -> Bounded:
        """The errors of the weight and of the total, and a division; or those of lse = top + log(total): the sum and
        its change of base rounded, the log, and exp of an argument that is longer by log(total).
        """
        losses, total, of_total = at.losses, at(self.total)[_SPREAD], part(at.error(self.total), _SPREAD)
        made = self._weight.bound(at).bound
        value = self.value(at)
        xp = array_namespace(value)
        log, top = abs(xp.log(total)), at(self.top)[_SPREAD]
        lse = xp.where(abs(top) < np.inf, abs(top), 0.0) + log
        own = losses.division + 2 * (losses.sums + losses.products) * lse + losses.log_absolute
        own = own + 2 * U * losses.log_ulps * log + losses.argument * log + losses.exp(log)
        rest = xp.maximum(abs(total) - of_total.worst, 0.0)
        moved = (made.worst + value * of_total.worst) / rest
        worst = xp.where(value == 0, moved, moved * (1 + own) + own * value + losses.floor)
        size = xp.maximum(value, 1 - value)
        worst = xp.minimum(worst, size)
        return Bounded(EXACT if not worst.any() else Bound(worst, 0.0, worst), size)

    @property
    def _weight(self) -> Weight:
        return Weight(self.of, self.top, axis=-2)

    words = "exp({of} - {top}) / {total}; 0 where {of} is -inf"


@dataclass(frozen=True)
class One:
    """What shares add up to, [b, h, q]: 1, or 0 where the `total` that they are of is."""

    total: Ref

    def value(self, at: Any) -> np.ndarray:
        total = at(self.total)
        xp = array_namespace(total)
        return xp.where((total == 0) | xp.isnan(total), total, 1.0)

    words = "1"
