"""Merging of ranks by their lse: of another base, of ranks without keys, one after the other."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from workbench.judge.explain.hypothesis import Change, Edit, Hypothesis, altered, read_as
from workbench.judge.explain.library.arithmetic import LN2, LOG2E, over
from workbench.judge.explain.library.merge import of, sum_of

#: ranks of which one alone may be wrong
RANKS = 8
#: which base is taken for the other, and the power of a weight that this makes
_BASES = (
    ("natural-as-base2", "base-e", "as base 2", LN2),
    ("base2-as-natural", "base-2", "as base e", LOG2E),
)


def hypotheses() -> Iterator[Hypothesis]:
    """All of them, the plainest first."""
    yield from _bases()
    yield from _means()
    yield from _without_keys()
    yield from _in_turn()


def _bases() -> Iterator[Hypothesis]:
    for name, base, other, power in _BASES:
        words = f"the {base} lse of each split is read {other}"
        raised: Change = lambda at, w, power=power: w**power  # noqa: E731
        lse: Change = lambda at, x, power=power: at("merge_max") + np.log(at("merge_sum")) / power  # noqa: E731
        both = altered("merge_weight", raised), sum_of(raised)
        yield of(name, words, *both, altered("lse", lse, "merge_max", "merge_sum"))
        yield of(f"{name}-shares", f"{words}; the weights sum to 1", altered("merge_weight", _shares(raised)))
        for rank in range(RANKS):
            yield of(f"{name}-{rank}", f"the {base} lse of split {rank} is read {other}", *_lse_of(rank, 1 / power))
    ones: Change = lambda at, w: np.where(w > 0, 1.0, 0.0)  # noqa: E731
    yield of("equal-shares", "weights are 1 / (number of non-empty splits)", altered("merge_weight", _shares(ones)))


def _shares(change: Change) -> Change:
    """Weights that are changed before they are divided by their sum."""

    def changed(at: Any, w: np.ndarray) -> np.ndarray:
        y = change(at, w)
        return over(y, y.sum(2, keepdims=True))

    return changed


def _lse_of(rank: int, factor: float) -> tuple[Edit, ...]:
    """The lse of one rank times a factor, wherever the merge reads it."""

    def scaled(at: Any, m: np.ndarray) -> np.ndarray:
        y = m.copy()
        y[:, :, rank : rank + 1] *= factor
        return y

    stages = ("merge_max", "merge_weight", "merge_sum")
    return tuple(read_as(stage, "partial_max", scaled) for stage in stages)


def _results(at: Any) -> np.ndarray:
    """The normalised result of each split, [b, h, s, q, d]."""
    return over(at("partial_O"), at("partial_sum")[..., None])


def _means() -> Iterator[Hypothesis]:
    mean: Change = lambda at, x: _results(at).mean(2)  # noqa: E731
    yield of("mean", "out is the plain mean of the splits' results", altered("out", mean, "partial_O", "partial_sum"))

    def with_keys(at: Any, x: np.ndarray) -> np.ndarray:
        return over(_results(at).sum(2), (at("partial_sum") > 0).sum(2)[..., None])

    text = "out is the plain mean of the non-empty splits' results"
    yield of("mean-with-keys", text, altered("out", with_keys, "partial_O", "partial_sum"))
    total: Change = lambda at, x: _results(at).sum(2)  # noqa: E731
    yield of(
        "plain-sum", "out is the plain sum of the splits' results", altered("out", total, "partial_O", "partial_sum")
    )


def _without_keys() -> Iterator[Hypothesis]:
    """FlashAttention-2 gives +inf as the lse of a row without keys."""

    def infinite(at: Any, m: np.ndarray) -> np.ndarray:
        return np.where((at("partial_max") == -np.inf).any(2), np.inf, m)

    def weight(at: Any, w: np.ndarray) -> np.ndarray:
        empty = at("partial_max") == -np.inf
        return np.where(empty, np.nan, np.where(empty.any(2, keepdims=True), 0.0, w))

    top = altered("merge_max", infinite, "partial_max")
    text = "the +inf lse of an empty split (no visible key) becomes the maximum"
    yield of("empty-inf-max", text, top)
    yield of("empty-inf", text, top, altered("merge_weight", weight, "partial_max"), sum_of(weight))


def _in_turn() -> Iterator[Hypothesis]:
    """Merges one after the other, as rings have them."""
    for name, words, ahead in (("", "", slice(None)), ("-back", ", in reverse order", slice(None, None, -1))):

        def unscaled(at: Any, w: np.ndarray, ahead: slice = ahead) -> np.ndarray:
            m = at("partial_max")
            so_far = np.maximum.accumulate(m[:, :, ahead], axis=2)[:, :, ahead]
            return np.where(m == -np.inf, 0.0, np.exp(m - so_far))

        of_out, of_sum = altered("merge_weight", unscaled, "partial_max"), sum_of(unscaled)
        text = f"does not rescale earlier splits when the maximum grows{words}"
        yield of(f"not-rescaled{name}", f"the merge {text}", of_out, of_sum)
        yield of(f"not-rescaled{name}-in-out", f"the sum of partial_O {text}", of_out)
        yield of(f"not-rescaled{name}-in-sum", f"merge_sum {text}", of_sum)

        def exchanged(at: Any, x: np.ndarray, ahead: slice = ahead) -> np.ndarray:
            return _folded(_results(at)[:, :, ahead], at("partial_max")[:, :, ahead])

        edit = altered("out", exchanged, "partial_O", "partial_sum", "partial_max")
        yield of(f"exchanged{name}", f"two results are merged with swapped weights{words}", edit)


def _folded(results: np.ndarray, lses: np.ndarray) -> np.ndarray:
    """The results merged one after the other, each with the weight of the other one of its pair."""
    out, lse = results[:, :, 0], lses[:, :, 0]
    for s in range(1, lses.shape[2]):
        both = np.logaddexp(lse, lses[:, :, s])
        own = np.exp(lse - np.where(both == -np.inf, 0.0, both))
        out = (1 - own)[..., None] * out + own[..., None] * results[:, :, s]
        lse = both
    return out
