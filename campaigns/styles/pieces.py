"""What kernels of every style are made of, in float32; arrays are [batch, head, query, key] unless said otherwise."""

from collections.abc import Callable, Sequence

import numpy as np

from campaigns.styles.style import Array, Stages

F32 = np.float32
INF = F32(np.inf)
LOG2E = F32(1.4426950408889634)
LN2 = F32(0.6931471805599453)
Weigh = Callable[[Array, Array], Array]
Tiles = Sequence[tuple[int, int, int]]  # number of the tile, its first key, its last key + 1


def widened(q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
    """q, k and v in float32, each kv head repeated for the query heads that share it."""
    group = q.shape[1] // k.shape[1]
    wide_k, wide_v = (np.repeat(x.astype(F32), group, axis=1) for x in (k, v))
    return q.astype(F32), wide_k, wide_v


def visible(q: Array, k: Array, causal: bool) -> Array:
    """Which keys each query sees, [query, key]: causal masks are aligned at the last query and key."""
    m, n = q.shape[2], k.shape[2]
    return np.tri(m, n, n - m, dtype=bool) if causal else np.ones((m, n), bool)


def product(q: Array, k: Array) -> Array:
    """The dot products of all queries and keys."""
    return np.matmul(q, np.swapaxes(k, -1, -2))


def masked(scores: Array, seen: Array, value: float = -np.inf) -> Array:
    """The scores with `value` where a key is not seen."""
    return np.where(seen, scores, F32(value))


def masked_scores(
    q: Array, k: Array, v: Array, causal: bool, factor: Array | np.floating | float = 1.0
) -> tuple[Array, Array]:
    """The dot products times `factor`, -inf where a key is not seen, and v in float32 as of `widened`."""
    q32, k32, v32 = widened(q, k, v)
    return masked(product(q32, k32) * factor, visible(q, k, causal)), v32


def nearest(x: Array, dtype: object) -> Array:
    """x rounded to nearest even in `dtype`, in float32."""
    return x.astype(dtype).astype(F32)  # type: ignore[call-overload]


def fma(x: Array, a: Array | np.floating, y: Array) -> Array:
    """x * a + y, rounded to float32 once: the product is exact in float64."""
    return (x.astype(np.float64) * np.float64(a) + y).astype(F32)


def finite(m: Array) -> Array:
    """The maxima with 0 for -inf, so that -inf minus them is -inf."""
    return np.where(m == -INF, F32(0), m)


def by_exp(x: Array, m: Array) -> Array:
    """exp(x - m), 0 where x is -inf."""
    return np.exp(x - finite(m))


def by_exp2(x: Array, m: Array) -> Array:
    """exp2(x - m), 0 where x is -inf."""
    return np.exp2(x - finite(m))


def log(x: Array) -> Array:
    """The correctly rounded natural logarithm; -inf of 0."""
    with np.errstate(divide="ignore"):
        return np.log(x.astype(np.float64)).astype(F32)


def log2(x: Array) -> Array:
    """The correctly rounded logarithm of base 2; -inf of 0."""
    with np.errstate(divide="ignore"):
        return np.log2(x.astype(np.float64)).astype(F32)


def quotient(acc: Array, total: Array) -> Array:
    """acc [..., dim] by its row's total [...]; 0 where that is 0."""
    return acc / np.where(total == 0, F32(1), total)[..., None]


def lse_of(m: Array, l: Array) -> Array:
    """m + log(l); -inf where l is 0, whatever m is."""
    return np.where(l == 0, -INF, m) + log(l)


def lse_of_base2(m: Array, l: Array) -> Array:
    """The natural lse of a maximum in units of log2; -inf where l is 0."""
    return (np.where(l == 0, -INF, m) + log2(l)) * LN2


def tiles(n: int, block: int) -> list[tuple[int, int, int]]:
    """The tiles of n keys in ascending order."""
    return [(t, at, min(at + block, n)) for t, at in enumerate(range(0, n, block))]


def in_splits(n: int, block: int, splits: int) -> list[Tiles]:
    """The tiles of each split: whole tiles, ceil(tiles / splits) of them in each, so that the last may have none."""
    all_tiles = tiles(n, block)
    each = -(-len(all_tiles) // splits)
    return [all_tiles[s * each : (s + 1) * each] for s in range(splits)]


def slots(scores: Array, dim: int, count: int, fill: float = 0.0) -> Stages:
    """Arrays for the stages of a run over `count` tiles."""
    b, h, m, n = scores.shape
    shapes: dict[str, tuple[int, ...]] = {name: (b, h, m, count) for name in ("row_max", "correction", "row_sum")}
    shapes |= {"probs": (b, h, m, n), "probs_cast": (b, h, m, n), "acc": (b, h, m, count, dim)}
    return {name: np.full(shape, fill, F32) for name, shape in shapes.items()}


def online(
    scores: Array,
    v: Array,
    visits: Tiles,
    dumps: Stages,
    *,
    weigh: Weigh = by_exp,
    correct: Weigh | None = None,
    cast: object = None,
    sum_of_cast: bool = False,
    start: float = -np.inf,
    bound: Callable[[Array, Array, int], Array] | None = None,
) -> tuple[Array, Array, Array]:
    """The last maximum, sum and accumulator of an online softmax over the tiles in the order of `visits`.

    `weigh(x, m)` is the exponential of scores, `correct` that of maxima if it is another one, `cast` the dtype of probs
    before they meet v; `bound(m, x, t)` makes the new maximum of the old one and the tile's scores. Fills in `dumps`.
    """
    m = np.full(scores.shape[:-1], start, F32)
    l = np.zeros_like(m)
    o = np.zeros((*m.shape, v.shape[-1]), F32)
    for t, lo, hi in visits:
        x = scores[..., lo:hi]
        above = np.maximum(m, x.max(-1)) if bound is None else bound(m, x, t)
        scaled = (correct or weigh)(m, above)
        p = weigh(x, above[..., None])
        p_cast = p if cast is None else nearest(p, cast)
        l = l * scaled + (p_cast if sum_of_cast else p).sum(-1)
        o = o * scaled[..., None] + p_cast @ v[..., lo:hi, :]
        m = above
        for name, value in (("row_max", m), ("correction", scaled), ("row_sum", l), ("acc", o)):
            dumps[name][:, :, :, t] = value
        dumps["probs"][..., lo:hi] = p
        dumps["probs_cast"][..., lo:hi] = p_cast
    return m, l, o


def partials(states: Sequence[tuple[Array, Array, Array]]) -> Stages:
    """The last states of all splits as the stages partial_max, partial_sum and partial_O."""
    names = ("partial_max", "partial_sum", "partial_O")
    return {name: np.stack(x, axis=2) for name, x in zip(names, zip(*states, strict=True), strict=True)}


def merged(parts: Stages, weigh: Weigh = by_exp) -> tuple[Stages, Array, Array]:
    """merge_max, merge_weight and merge_sum of partials; the merged output before its division, and its total."""
    top = parts["partial_max"].max(2)
    weight = weigh(parts["partial_max"], top[:, :, None])
    total = (weight * parts["partial_sum"]).sum(2)
    o = (weight[..., None] * parts["partial_O"].astype(F32)).sum(2)
    return {"merge_max": top, "merge_weight": weight, "merge_sum": total}, o, total
