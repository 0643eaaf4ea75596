"""From dot products to what softmax takes: scale, softcap, bias and mask."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.floats import array_namespace
from workbench.reference.bound import EXACT, NEGLIGIBLE, Bound, root_of_squares, where
from workbench.reference.stage import Bounded, Ref
from workbench.reference.steps.dot import between, maybe_stored

#: roundings of slope * distance: of a slope that was divided by the scale or multiplied by log2(e), as FlashAttention-2
#: does, of that scale, and of the product
COMPUTED_BIAS = 3


@dataclass(frozen=True)
class Scores:
    """of * scale + bias, -inf where a key is not seen: there `of` is not read, not even a NaN. [b, h, q, k]."""

    of: Ref
    scale: Ref  #: none where `of` is scaled already
    mask: Ref
    k: str = "k_rows"  #: by whose size a query rounded after its scaling moves a score

    def value(self, at: Any) -> np.ndarray:
        product = at(self.of) * at(self.scale) if self.scale else at(self.of)
        product = product if at.p.attn_bias is None else product + at.p.attn_bias
        return array_namespace(product).where(at(self.mask), product, -np.inf)

    def control(self, at: Any) -> np.ndarray:
        """The product rounded, then the sum."""
        return at.cast_control(self.value(at), at.sites.scores)

    def bound(self, at: Any) -> Bounded:
        """|scale| times the bound of `of`, one rounding of the scale and one of the product (in base 2 one more, of
        scale * log2(e)), none in raw scores, which hold no scale; with a bias one of the sum (in base 2 two more, of
        bias * log2(e), in raw scores of bias / scale), two with ALiBi beside it; the mask is exact.
        """
        p, losses, of = at.p, at.losses, at.error(self.of)
        scale = at(self.scale) if self.scale else 1.0
        xp = array_namespace(at.own)
        product = at(self.of) * scale
        # capped scores are converted by a rounded log2(e) alone
        roundings = _roundings(at) if self.scale else 2 * p.contract.base2
        own = roundings * losses.products * abs(product)
        if self.scale and (of_scale := at.error(self.scale)) is not EXACT:  # of a kernel with another
            own = own + of_scale.worst * abs(at(self.of))
        if p.attn_bias is not None:
            if self.scale:  # a tensor of its own before the sum
                own = own + between(at, product, own)
            own = own * (1 + losses.sums) + losses.sums * abs(product + p.attn_bias)
            # log2(e) and the product, the scale and the quotient
            converted = p.contract.base2 or not p.contract.scores_scaled
            own = own + (2 * losses.products if converted else 0.0) * abs(p.attn_bias)
            if (made := p.bias_computed) is not None:
                own = own + COMPUTED_BIAS * losses.products * abs(made)
                put_in = p.attn_bias - made  # two sums, in whichever order
                halfway = xp.maximum(abs(product + put_in), abs(product + made))
                halfway = losses.sums * (own + xp.maximum(halfway, abs(p.attn_bias)))
                own = own + xp.where(put_in != 0, halfway, 0.0)
            product = product + p.attn_bias
        own = own + xp.where(((product != 0) & (roundings > 0)) | (own > 0), losses.floor, 0.0)
        factor = abs(scale) * (1 + 3 * losses.products)
        of_q: np.ndarray | float = 0.0
        if self.scale and not losses.sites.scaled_q.wide:
            of_q = of_scaled_q(at, self.of, scale, at(self.k))
        random = root_of_squares(factor * of.random, own) if at.statistics else 0.0
        visible = at.own != -np.inf
        bound = maybe_stored(at, Bound(factor * of.worst + own + of_q, random, factor * of.common + of_q), product)
        size = abs(scale) * (at.magnitude(self.of) + abs(at(self.of)))
        size = size if p.attn_bias is None else size + abs(p.attn_bias)
        return Bounded(where(visible, bound), xp.where(visible, xp.maximum(size, NEGLIGIBLE), np.inf))

    @property
    def words(self) -> str:
        return f"{{of}}{' * {scale}' if self.scale else ''}, -inf where masked"


@dataclass(frozen=True)
class SoftCap:
    """cap tanh(of scale / cap), which no score exceeds (Gemma 2, arXiv 2408.00118, section 2)."""

    of: Ref
    scale: Ref
    cap: Ref
    k: str = "k_rows"

    def value(self, at: Any) -> np.ndarray:
        cap = at(self.cap)
        return cap * array_namespace(at(self.of)).tanh(at(self.of) * at(self.scale) / cap)

    def control(self, at: Any) -> np.ndarray:
        """Product, quotient, tanh and product, each rounded; tanh off by all that it may lose, to either side by the
        last bit of its argument: what all scores of a row have too much softmax forgives.
        """
        cap = at(self.cap)
        x = at(self.of) * at(self.scale) / cap
        side = 1 - 2 * (x.view(np.uint32) & 1).astype(np.float32)
        capped = cap * (np.tanh(x) * (1 + at.losses.functions.get("tanh", 0.0) * side))
        return at.cast_control(capped, at.sites.scores)

    def magnitude(self, at: Any) -> np.ndarray:
        """Of the scaled dot product, which is what cancels, but no more than the cap."""
        size = abs(at(self.scale)) * at.magnitude(self.of)
        return array_namespace(size).clip(size, max=at(self.cap))

    def bound(self, at: Any) -> Bounded:
        """tanh is monotone, and nowhere steeper than where its argument is smallest: an argument off by d moves the
        result by d / cosh^2 there, at most. Scale, product and quotient round; tanh loses what the contract says,
        alike where arguments are alike; and the product with cap rounds. Each of them may be stored as scores are.
        """
        losses, of, scale, cap = at.losses, at.error(self.of), at(self.scale), at(self.cap)
        tanh = losses.functions.get("tanh", 0.0)
        xp = array_namespace(at.own)
        x = at(self.of) * scale
        argument = _roundings(at) * losses.products * abs(x) + losses.products * abs(x) + losses.floor
        argument = argument + 2 * between(at, x, argument)
        if not losses.sites.scaled_q.wide:
            argument = argument + of_scaled_q(at, self.of, scale, at(self.k))
        factor = abs(scale) * (1 + 4 * losses.products)
        if (of_scale := at.error(self.scale)) is not EXACT:
            argument = argument + of_scale.worst * abs(at(self.of))
        moved = factor * of.worst + argument
        steepest = 1 / xp.cosh(xp.maximum(abs(x) - moved, 0.0) / cap) ** 2
        own = abs(at.own) * (tanh + losses.products * (1 + tanh)) + losses.floor
        own = own + (1 + tanh) * between(at, at.own / cap) * cap
        worst = xp.minimum(steepest * moved, cap + abs(at.own)) + own
        size = xp.maximum(at.magnitude(at.name) + abs(at.own), NEGLIGIBLE)
        if not at.statistics:
            return Bounded(maybe_stored(at, Bound(worst, 0.0, 0.0), at.own), size)
        random = steepest * root_of_squares(factor * of.random, argument)
        bound = Bound(worst, random, steepest * factor * of.common + own)
        return Bounded(maybe_stored(at, bound, at.own), size)

    words = "{cap} * tanh({of} * {scale} / {cap})"


@dataclass(frozen=True)
class Modified:
    """What FlexAttention's score_mod makes of scaled or capped scores, [b, h, q, k]."""

    of: Ref
    scale: Ref  #: none where `of` is scaled already

    def value(self, at: Any) -> np.ndarray:
        return at.p.score_mod(self._read(at))

    def _read(self, at: Any) -> np.ndarray:
        return at(self.of) * at(self.scale) if self.scale else at(self.of)

    def control(self, at: Any) -> np.ndarray:
        return at.cast_control(self.value(at).astype(np.float32), at.sites.scores)

    def magnitude(self, at: Any) -> np.ndarray:
        """Of what it reads and of what it makes, whichever is larger: what cancels in the function nobody knows."""
        size = at.magnitude(self.of) * (abs(at(self.scale)) if self.scale else 1.0)
        made = self.value(at)
        xp = array_namespace(made)
        return xp.maximum(size, xp.where(xp.isfinite(made), abs(made), 0.0))

    def bound(self, at: Any) -> Bounded:
        """As far as the function is off where its score is, at the ends of that interval and at their quarters, and
        what it loses itself, `score_mod_ulps` of result and score: of a function that is monotone between these.
        """
        x, of, losses, own = self._read(at), at.error(self.of), at.losses, at.own
        xp = array_namespace(x)
        scale = abs(at(self.scale)) if self.scale else 1.0
        rounded = (_roundings(at) if self.scale else 0) * losses.products * abs(x) + losses.floor
        off = scale * (1 + 3 * losses.products) * of.worst + rounded
        if self.scale and not losses.sites.scaled_q.wide:
            off = off + of_scaled_q(at, self.of, at(self.scale), at("k_rows"))
        moved = xp.zeros_like(own)
        for part in (-1.0, -0.5, 0.5, 1.0):
            there = abs(at.p.score_mod(x + part * off) - own)
            moved = xp.maximum(moved, xp.where(xp.isfinite(there), there, 0.0))
        finite = xp.where(xp.isfinite(own), abs(own), 0.0)
        worst = moved + 2 * at.contract.score_mod_ulps * losses.products * xp.maximum(finite, abs(x)) + losses.floor
        worst = xp.where(xp.isfinite(own), worst, 0.0)
        return Bounded(maybe_stored(at, Bound(worst, 0.0 * worst, worst), own))

    @property
    def words(self) -> str:
        return f"score_mod({{of}}{' * {scale}' if self.scale else ''})"


def _roundings(at: Any) -> int:
    """How often a scaled score is rounded; once more where the scale is two roots, each rounded."""
    roots = at.contract.scale_in in ("both", "any")
    return 0 if not at.contract.scores_scaled else (3 if at.contract.base2 else 2) + roots


def of_scaled_q(at: Any, qk: str, scale: float, k: np.ndarray) -> np.ndarray:
    """What scores lose where q times scale is rounded to fewer bits before the product, and the scale too, as where all
    of an expression has the dtype of its tensor: scale [v sum|q k| + v |q k| + eta/2 sum|k|], v its unit roundoff, eta
    its smallest subnormal. All scores of a row lose it alike.
    """
    v, eta = (site := at.losses.sites.scaled_q).unit, 2 * site.floor
    size = at.magnitude(qk)
    xp = array_namespace(size)
    keys = xp.sum(abs(k), axis=-1)[..., None, :]
    relative = v * (1 + v) + at.losses.products
    found: np.ndarray = abs(scale) * (relative * size + v * abs(at(qk))) + eta / 2 * keys
    return xp.where(size > 0, found, 0.0)
