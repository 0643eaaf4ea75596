"""What a kernel returns: the quotient, and the logarithm of the row's sum."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.floats import array_namespace
from workbench.reference.bound import Bound, part, root_of_squares, statistical, where
from workbench.reference.losses import U
from workbench.reference.normaliser import normaliser
from workbench.reference.stage import Bounded, Ref


@dataclass(frozen=True)
class Quotient:
    """of / over, [b, h, q, d], not yet cast to the dtype of out; 0 where `over` [b, h, q] is 0."""

    of: Ref
    over: Ref
    scores: str  #: which lse may normalise, in place of a division
    lse: str
    values: str = "v_rows"  #: of which it is a mean
    by_tile: bool = False  #: whether what it reads is a state of each tile

    def value(self, at: Any) -> np.ndarray:
        return quotient(at(self.of), at(self.over))

    def control(self, at: Any) -> np.ndarray:
        """What a division gives, or exp(score - lse) in place of it, which is off by what lse is."""
        by_lse = at.mode.biased and at.contract.normalisation != "division"
        lse = at(self.lse) if by_lse else np.zeros((), np.float32)
        lse = np.where(np.isfinite(lse), abs(lse), 0.0)[..., None]
        made = (self.value(at) * (1 + at.losses.division + U * by_lse * lse)).astype(np.float32)
        return at.cast_control(made, at.sites.out)

    def bound(self, at: Any) -> Bounded:
        """(error of the numerator + |out| error of the denominator) / (denominator - its error), division and cast
        rounded. A row without keys is 0 exactly.
        """
        value, largest_v = at.own, largest_value(at, self.values)
        own: np.ndarray | float = 0.0
        if (by_lse := normaliser(at.p, at(self.scores), at.computed[self.lse])) is not None:
            l = at(self.over)[..., None]
            own = by_lse.weight[..., None] * at.terms(self.of) / l + by_lse.largest * largest_v
        bound = self.divided(at, value, own)
        return Bounded(
            stored_out(at.p, at.name, value, bound), array_namespace(value).broadcast_to(largest_v, value.shape)
        )

    def divided(self, at: Any, value: np.ndarray, own: np.ndarray | float) -> Bound:
        """The bound of the quotient `value` before it is stored; `own`: what it may lose beside the division."""
        losses, l = at.losses, at(self.over)[..., None]
        of, of_l = at.error(self.of), part(at.error(self.over), (..., None))
        xp = array_namespace(value)
        rest = xp.maximum(abs(l) - of_l.worst, 0.0)
        own = losses.division * abs(value) + own
        moved = (of.worst + abs(value) * of_l.worst) / rest
        floor = xp.where((value != 0) | (moved > 0), losses.floor, 0.0)
        worst = moved * (1 + losses.division) + own + floor
        random = root_of_squares(of.random, value * of_l.random) / rest
        common = (of.common + abs(value) * of_l.common) / rest + own + floor
        return where(l != 0, Bound(worst, random + 0.0 * own, common))

    @property
    def words(self) -> str:
        last = " after the last tile" if self.by_tile else ""
        return f"{{of}} / {{over}}{last}, cast to the output dtype; 0 where {{over}} is 0"


@dataclass(frozen=True)
class LogSum:
    """Natural log of the row's sum of exp(scores), top + log(total), [b, h, q]; -inf where `total` is 0."""

    top: Ref
    total: Ref
    scores: str  #: which it may have been merged of
    by_tile: bool = False  #: whether what it reads is a state of each tile

    def value(self, at: Any) -> np.ndarray:
        top, total = at(self.top), at(self.total)
        xp = array_namespace(total)
        return xp.where((total == 0) & ~xp.isnan(top), -np.inf, top + xp.log(total))

    def control(self, at: Any) -> np.ndarray:
        """Larger by all that log may lose in a biased mode."""
        losses, total = at.losses, at(self.total)
        log = np.where(total > 0, abs(np.log(total)) + losses.offset_of_row_sum, 0.0)
        return (self.value(at) + 2 * U * losses.log_ulps * log + losses.log_absolute).astype(np.float32)

    def bound(self, at: Any) -> Bounded:
        """The errors of both (of the log -log1p(-e / total)), log's own, the sum rounded; in base 2 the product with
        log(2) and that constant.
        """
        total, value = at(self.total), at.own
        of_top, of_total, xp = at.error(self.top), at.error(self.total), array_namespace(total)
        own = lse_own(at.p, value, at(self.top), total) + self.merged(at, value)

        def end(top: np.ndarray | float, bound: np.ndarray | float) -> np.ndarray:
            of_log = -xp.log1p(-xp.minimum(bound / total, 1.0))
            return xp.where(value == -np.inf, 0.0, top + of_log + own)

        likely = end(at.likely(of_top), at.likely(of_total)) if at.statistics else 0.0
        return Bounded(Bound(end(of_top.worst, of_total.worst), 0.0, likely))

    def merged(self, at: Any, lse: np.ndarray) -> np.ndarray | float:
        """What it loses where it was merged of other lses."""
        by_lse = normaliser(at.p, at(self.scores), lse)
        return 0.0 if by_lse is None else by_lse.lse

    @property
    def words(self) -> str:
        last = " after the last tile" if self.by_tile else ""
        return f"{{top}} + log({{total}}){last}; -inf where {{total}} is 0"


def quotient(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """x [..., d] / y [...]; 0 where y is 0, but for NaN."""
    column, xp = y[..., None], array_namespace(x)
    return xp.where((column == 0) & ~xp.isnan(x), 0.0, x / column)


def stored_out(p: Any, name: str, value: np.ndarray, bound: Bound) -> Bound:
    """The bound of out after its cast, which is certain and not predicted."""
    if (site := p.losses.sites.out).wide:
        return bound
    ends = [bound.worst, *([statistical(bound, p.elements_of(name))] if p.statistics else [])]
    ends = [site.reach(value, end) for end in ends]
    return Bound(ends[0], 0.0, ends[1] if p.statistics else 0.0)


def largest_value(at: Any, values: str) -> np.ndarray:
    """The largest |value| of each dim, [b, h, 1, d]: no mean of values is larger."""
    v = abs(at(values))
    return array_namespace(v).max(v, axis=-2, keepdims=True)


def lse_own(p: Any, lse: np.ndarray, maximum: np.ndarray, total: np.ndarray) -> np.ndarray:
    """What lse loses itself: log, and 2u |lse| for the sum; 2u |max| for the change of base, or
    for the scale and its product with the maximum, where there may be one.
    """
    losses, xp = p.losses, array_namespace(total)
    # a row_sum that is 2^n times as large has a longer log, from which n log(2) is taken again
    log = abs(xp.log(total)) + losses.offset_of_row_sum
    own = 2 * U * losses.log_ulps * log + 2 * losses.sums * (abs(lse) + losses.offset_of_row_sum)
    return own + losses.log_absolute + losses.floor + losses.units * abs(maximum)
