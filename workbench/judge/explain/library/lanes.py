"""What lies in several lanes and is not put together over all of them: maxima and sums of rows, dot products."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise, product
from typing import Any

import numpy as np

from workbench.judge.explain.hypothesis import Hypothesis, altered
from workbench.judge.explain.library.arithmetic import attended

#: lanes that share what they have of a row -> as words, the group of a lane, how many groups there are
GROUPS: tuple[tuple[str, str, Callable[[np.ndarray], np.ndarray], int], ...] = (
    ("lane", "each of four lanes", lambda lane: lane, 4),
    ("pair", "each pair of four lanes (0 and 1, 2 and 3)", lambda lane: lane // 2, 2),
    ("other-pair", "each pair of four lanes (0 and 2, 1 and 3)", lambda lane: lane % 2, 2),
)

#: lanes that hold the dims of a row, and which each of n has: of d dims, in words
DIMS: tuple[tuple[str, str, Callable[[np.ndarray, int, int], np.ndarray]], ...] = (
    ("run", "contiguous", lambda dim, d, n: dim * n // d),
    ("pair", "in pairs", lambda dim, d, n: dim // 2 % n),
    ("apart", "{n} apart", lambda dim, d, n: dim % n),
)
#: the lane whose part of a dot product is taken for all of it, in words, of row or key i
TAKEN: tuple[tuple[str, str, str, Callable[[np.ndarray, int], np.ndarray]], ...] = (
    ("first", "q", "lane 0", lambda i, n: 0 * i),
    ("row", "q", "lane i % {n}, for row i of q", lambda i, n: i % n),
    ("key", "k", "lane j % {n}, for key j", lambda i, n: i % n),
    ("last", "q", "the last lane", lambda i, n: 0 * i + n - 1),
)


def hypotheses() -> Iterator[Hypothesis]:
    """All of them, the plainest first."""
    yield from _sums()
    yield from _maxima()
    yield from _dots()


def _lane(columns: int) -> np.ndarray:
    """The lane of each column of a fragment, of scores and of out: lane t has 2 t and 2 t + 1 of every eight."""
    return np.arange(columns) % 8 // 2


def _weights(scores: np.ndarray, top: np.ndarray) -> np.ndarray:
    """exp(scores - top) as exp2 of a GPU (ex2.approx.ftz) makes it, without subnormal numbers."""
    weights = np.where(scores == -np.inf, 0.0, np.exp(scores - top))
    return np.where(weights < np.finfo(np.float32).tiny, 0.0, weights)


def _of_groups(x: np.ndarray, of: np.ndarray, count: int, put: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """What `put` makes of the columns of each group, [..., group]; `of`: the group of each column."""
    return np.stack([put(x[..., of == g]) for g in range(count)], axis=-1)


def _sum(x: np.ndarray) -> np.ndarray:
    return x.sum(-1)


def _largest(x: np.ndarray) -> np.ndarray:
    return x.max(-1, initial=-np.inf)


def _sums() -> Iterator[Hypothesis]:
    for id_, words, group, count in GROUPS:

        def own(at: Any, group: Any = group, count: int = count) -> np.ndarray:
            weights = _weights(at("scores"), at("row_max")[..., None])
            return _of_groups(weights, group(_lane(weights.shape[-1])), count, _sum)

        def divided(at: Any, x: np.ndarray, own: Any = own, group: Any = group) -> np.ndarray:
            sums = own(at)[..., group(_lane(x.shape[-1]))]
            return np.where(sums > 0, x * at("row_sum")[..., None] / sums, 0.0)

        def logged(at: Any, x: np.ndarray, own: Any = own) -> np.ndarray:
            return at("row_max") + np.log(own(at)[..., 0])

        edits = altered("out", divided, "row_sum", "scores", "row_max"), altered("lse", logged, "scores", "row_max")
        yield Hypothesis(
            f"layout.sum-of-{id_}", f"row_sum is not reduced across lanes: {words} divides by its own part", edits
        )
        text = f"for lse, row_sum is not reduced across lanes: {words} keeps its own part, and lse uses the first"
        yield Hypothesis(f"layout.sum-of-first-{id_}", text, edits[1:])


def _maxima() -> Iterator[Hypothesis]:
    for id_, words, group, count in GROUPS:

        def tops(at: Any, group: Any = group, count: int = count) -> list[tuple[slice, np.ndarray]]:
            """The keys of this split's tiles until this one, with the maximum of each group so far, [..., q, group]."""
            scores, before, tiles = at.whole("scores"), dict(at.tiling.order), [at.tile[0]]
            while before[tiles[-1]] is not None:
                tiles.append(before[tiles[-1]])
            of, found, top = group(_lane(scores.shape[-1])), [], -np.inf
            for keys in (at.tiling.keys[tile] for tile in reversed(tiles)):
                top = np.maximum(top, _of_groups(scores[..., keys], of[keys], count, _largest))
                found.append((keys, top))
            return found

        def of_first(at: Any, x: np.ndarray, tops: Any = tops) -> np.ndarray:
            return tops(at)[-1][1][..., 0]

        def weighed(at: Any, x: np.ndarray, tops: Any = tops, group: Any = group) -> np.ndarray:
            return _weights(at("scores"), tops(at)[-1][1][..., group(_lane(x.shape[-1]))])

        def summed(at: Any, x: np.ndarray, tops: Any = tops, group: Any = group, count: int = count) -> np.ndarray:
            probs, seen = at.whole("probs"), tops(at)
            of, sums = group(_lane(probs.shape[-1])), np.zeros((*x.shape, count))
            for (keys, top), (_, then) in pairwise(seen):
                sums = (sums + _of_groups(probs[..., keys], of[keys], count, _sum)) * _weights(top, then)
            return x - at("correction") * at("-row_sum") + sums.sum(-1)

        def rescaled(at: Any, x: np.ndarray, tops: Any = tops, group: Any = group) -> np.ndarray:
            *earlier, (_, now) = tops(at)
            before = earlier[-1][1] if earlier else np.full_like(now, -np.inf)
            correction = _weights(before, now)[..., group(_lane(x.shape[-1]))]
            return x + (correction - at("correction")[..., None]) * at("-acc")

        edits = (
            altered("row_max", of_first, "scores"),
            altered("probs", weighed, "scores"),
            altered("row_sum", summed, "scores", "probs", "correction", "-row_sum"),
            altered("acc", rescaled, "scores", "correction", "-acc"),
        )
        yield Hypothesis(
            f"layout.max-of-{id_}", f"the running max is not reduced across lanes: {words} keeps its own", edits
        )


def _dots() -> Iterator[Hypothesis]:
    """Dot products whose dims lie in lanes, and that are not added up over these."""
    for n, (held, words, lane) in product((32, 16, 8, 4), DIMS):
        dims = f"the {n} lanes that share the dims of q ({words.format(n=n)})"
        for id_, operand, said, of in TAKEN:

            def kept(at: Any, x: np.ndarray, n: int = n, lane: Any = lane, of: Any = of) -> np.ndarray:
                rows, d = x.shape[-2:]
                return np.where(lane(np.arange(d), d, n) == of(np.arange(rows), n)[:, None], x, 0.0)

            text = f"dot products are not reduced across {dims}: only {said.format(n=n)} is used"
            yield Hypothesis(f"layout.dot-of-{id_}-{held}-{n}", text, (altered(f"{operand}_rows", kept),))
        text = f"dot products are not reduced across {dims}: each lane computes its own softmax for its own dims of out"
        own = partial(_of_own_dims, n, lane)
        edits = altered("out", own, "qk", "v_rows"), altered("lse", partial(_lse_of_first, n, lane), "qk")
        yield Hypothesis(f"layout.dot-of-own-{held}-{n}", text, edits)


def _of_own_dims(n: int, lane: Any, at: Any, x: np.ndarray) -> np.ndarray:
    v, found = at.whole("v_rows"), np.zeros_like(x)
    of_q, of_v = (lane(np.arange(y.shape[-1]), y.shape[-1], n) for y in (at.whole("q_rows"), v))
    for i in np.unique(of_v):
        found[..., of_v == i] = attended(_scores_of(at, of_q == i), v[..., of_v == i])
    return found


def _lse_of_first(n: int, lane: Any, at: Any, x: np.ndarray) -> np.ndarray:
    d = at.whole("q_rows").shape[-1]
    found: np.ndarray = np.logaddexp.reduce(_scores_of(at, lane(np.arange(d), d, n) == 0), -1)
    return found


def _scores_of(at: Any, dims: np.ndarray) -> np.ndarray:
    q, k = (at.whole(f"{x}_rows")[..., dims] for x in "qk")
    return np.where(at.whole("visible"), q @ k.swapaxes(-1, -2) * at("scale"), -np.inf)
