"""Dropout of probs: those that are kept are divided by the share that is (Srivastava et al. 2014, JMLR 15)."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.floats import array_namespace
from workbench.reference.bound import EXACT, Bound
from workbench.reference.stage import Bounded, Ref


@dataclass(frozen=True)
class Dropped:
    """of / (1 - p) where it is kept, 0 elsewhere; [b, h, q, k]."""

    of: Ref
    kept: Ref
    p: Ref

    def value(self, at: Any) -> np.ndarray:
        x = at(self.of)
        return array_namespace(x).where(at(self.kept), x / (1 - at(self.p)), 0.0 * x)

    def bound(self, at: Any) -> Bounded:
        """That of what it reads, as many times larger; 1 - p, its reciprocal and the product round."""
        value = self.value(at)  # nobody dumps it: what is visited is what reads it
        of, factor, xp = at.error(self.of), 1 / (1 - at(self.p)), array_namespace(value)
        own = 3 * at.losses.products * abs(value) + xp.where(value != 0, at.losses.floor, 0.0)
        if of is EXACT:
            return Bounded(Bound(own, own, 0.0 * own))
        kept = xp.where(at(self.kept), xp.ones_like(value), xp.zeros_like(value)) * factor
        grown = kept * (1 + 4 * at.losses.products)
        random = ((grown * of.random) ** 2 + own**2) ** 0.5
        return Bounded(Bound(grown * of.worst + own, random, grown * of.common))

    words = "{of} / (1 - {p}) where kept, else 0"
