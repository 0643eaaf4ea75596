"""The share of each call of a model in the final difference of its logits, where both attentions can be put into it.

With f(calls) the logits of the model whose calls are made by the sides of these letters, D = f(A...A) - f(B...B), to
which is added what is around the calls, the share of a call is <d, D> / <D, D> of

    alone   d = f(A...A) - f(A..B..A)     this call alone is made by B
    front   d = f(B..A..A) - f(B..B..A)   the calls before it are made by B already
    back    d = f(A..A..B) - f(A..B..B)   the calls behind it are

Both orders add up to what all calls make, without a rest; single replacements do not, since a model is not linear, and
what is left of them is the interaction of calls.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from workbench.arrays import as_numpy
from workbench.progress import step
from workbench.refusal import Refusal

#: (calls, rest) -> the logits, an array of any library
Model = Callable[[str, str], Any]


@dataclass(frozen=True)
class CallShare:
    """Of the squared final difference what one call makes, 1 for all; may be negative, and above 1."""

    alone: float
    front: float
    back: float


@dataclass(frozen=True)
class Logits:
    """Where the final difference of logits comes from."""

    largest: float  #: |A - B|
    difference: float  #: its root mean square
    calls: tuple[CallShare, ...]
    rest: float  #: the share of what is around the calls, which is no attention
    repeats: float  #: the largest difference of the model from itself, the same calls made twice

    @property
    def attention(self) -> float:
        """The share of all calls together."""
        return sum(one.front for one in self.calls)

    @property
    def interaction(self) -> float:
        """What of it no single replacement has."""
        return self.attention - sum(one.alone for one in self.calls)

    @property
    def orders(self) -> float:
        """What of it goes to another call where the calls are replaced in the other order."""
        return sum(abs(one.front - one.back) for one in self.calls) / 2

    def as_dict(self) -> dict[str, Any]:
        """As plain Python values."""
        return asdict(self) | {name: getattr(self, name) for name in ("attention", "interaction", "orders")}


def shares_in_logits(model: Model, count: int) -> Logits:
    """The shares of a model's `count` calls, of 3 `count` runs of it.

    Where the logits of both sides are the same all shares are 0. Refusal for logits that are not finite, or of several
    shapes.
    """
    a, b = "A" * count, "B" * count
    with step("run the model with calls replaced") as tick:
        first = _logits(model, a, "A")
        again, last, end = (_logits(model, *asked, first) for asked in ((a, "A"), (b, "A"), (b, "B")))
        whole = first - end
        square = float((whole**2).sum())

        def share(difference: np.ndarray) -> float:
            return float((difference * whole).sum()) / square if square else 0.0

        def one_after_the_other(order: Sequence[int]) -> dict[int, float]:
            found, replaced, before = {}, set(), first
            for i in order:
                replaced.add(i)
                after = last if len(replaced) == count else _logits(model, _replaced(a, replaced), "A", first)
                found[i], before = share(before - after), after
                tick(f"call {i} of {count}, those before it replaced")
            return found

        front, back = one_after_the_other(range(count)), one_after_the_other(range(count)[::-1])
        alone = {0: front[0], count - 1: back[count - 1]}  # which begin with these
        for i in range(1, count - 1):
            alone[i] = share(first - _logits(model, _replaced(a, {i}), "A", first))
            tick(f"call {i} of {count} alone")
        return Logits(
            float(abs(whole).max()),
            float(np.sqrt(np.mean(whole**2))),
            tuple(CallShare(alone[i], front[i], back[i]) for i in range(count)),
            share(last - end),
            float(abs(first - again).max()),
        )


def _replaced(calls: str, places: Collection[int]) -> str:
    return "".join("B" if i in places else side for i, side in enumerate(calls))


def _logits(model: Model, calls: str, rest: str, like: np.ndarray | None = None) -> np.ndarray:
    """Logits in float64."""
    asked = f'model("{calls}", "{rest}")'
    found = as_numpy(model(calls, rest), asked).astype(np.float64)
    finite = int(np.isfinite(found).sum())
    if not (found.size and finite == found.size):
        raise Refusal(
            f"{asked} returned {finite} finite logits of {found.size}: of what is not finite no call has a share"
        )
    if like is not None and found.shape != like.shape:
        raise Refusal(f"{asked} returned logits of shape {list(found.shape)}, and of other calls {list(like.shape)}")
    return found
