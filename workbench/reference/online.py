"""Online-softmax attention in float64, stage by stage, in the kernel's own tile order: what kernels are held against.

The running maximum and its rescale factor are Milakov & Gimelshein, "Online normalizer calculation for softmax" (2018,
arXiv 1805.02867), algorithm 3; with the accumulator carried along they are FlashAttention-2 (Dao 2023, arXiv
2307.08691), section 3.1, algorithm 1.

All of it takes NumPy arrays, or float64 tensors of torch on any device.

Special values, the same in every stage: a NaN that is read comes out as NaN, before any other rule; then the rule that
the stage names; else what IEEE arithmetic gives (inf - inf and 0 * inf are NaN). Nothing warns.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
from array_api_compat import array_namespace, device

from workbench.case import stages as vocabulary
from workbench.case.stages import ALGORITHMS, shape
from workbench.case.tiling import Tiling, tiling
from workbench.floats import to_float64
from workbench.refusal import Refusal

Arrays = Mapping[str, np.ndarray]
Cast = Callable[[np.ndarray], np.ndarray]
NOTHING: Arrays = MappingProxyType({})

TILE_STAGES = ("qk", "scores", "row_max", "correction", "probs", "probs_cast", "row_sum", "acc")


@np.errstate(all="ignore")
def qk(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    """Dot products before scale and mask, [b, heads, q, k], of q [b, heads, q, d] and k [b, kv_heads, k, d].

    Query head h reads kv head h // (heads // kv_heads).
    """
    return q @ by_query_head(k, q.shape[1]).swapaxes(-1, -2)


@np.errstate(all="ignore")
def scores(qk: np.ndarray, scale: float, mask: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
    """Scaled dot products plus bias, [..., q, k], -inf where mask is False: there qk is not read, not even a NaN.

    mask and bias [q, k] or [..., q, k].
    """
    product = qk * scale
    return array_namespace(qk).where(mask, product if bias is None else product + bias, -np.inf)


def row_max(previous: np.ndarray | float, scores_tile: np.ndarray) -> np.ndarray:
    """Running maximum after a tile, [..., q], of the previous one [..., q] and scores [..., q, keys of the tile].

    -inf as long as no key was visible. (np.maximum keeps a NaN; np.fmax would lose it.)
    """
    xp = array_namespace(scores_tile)
    return xp.maximum(previous, xp.max(scores_tile, axis=-1))


@np.errstate(all="ignore")
def correction(previous_max: np.ndarray | float, row_max: np.ndarray) -> np.ndarray:
    """Factor that rebases row_sum and acc on the new maximum, exp(previous_max - row_max), [..., q].

    0 where previous_max is -inf, row_max being -inf too or not: there is nothing to rebase (-inf - -inf would be NaN).
    """
    xp = array_namespace(row_max)
    nothing_yet = (previous_max == -np.inf) & ~xp.isnan(row_max)
    return xp.where(nothing_yet, 0.0, xp.exp(previous_max - row_max))


@np.errstate(all="ignore")
def probs(scores_tile: np.ndarray, row_max_column: np.ndarray) -> np.ndarray:
    """Unnormalised weights exp(scores - row_max) of a tile, [..., q, keys]; scores [..., q, keys], row_max [..., q].

    Exactly 0 where scores is -inf, also in a row that has seen no key (row_max is -inf as well).
    """
    column = row_max_column[..., None]
    xp = array_namespace(scores_tile)
    hidden = (scores_tile == -np.inf) & ~xp.isnan(column)
    return xp.where(hidden, 0.0, xp.exp(scores_tile - column))


@np.errstate(all="ignore")
def row_sum(correction: np.ndarray, previous: np.ndarray | float, probs_tile: np.ndarray) -> np.ndarray:
    """Running denominator after a tile, [..., q]: correction * previous + sum of probs [..., q, keys of the tile]."""
    return correction * previous + array_namespace(probs_tile).sum(probs_tile, axis=-1)


@np.errstate(all="ignore")
def acc(correction: np.ndarray, previous: np.ndarray | float, probs_tile: np.ndarray, v_tile: np.ndarray) -> np.ndarray:
    """Running numerator after a tile, [b, heads, q, d]: correction * previous + probs @ v.

    correction [b, heads, q], previous [b, heads, q, d], probs [b, heads, q, keys], v [b, kv_heads, keys, d]. A
    probability of 0 does not hide an inf or NaN in v: 0 * inf is NaN here as in a kernel.
    """
    return correction[..., None] * previous + probs_tile @ by_query_head(v_tile, probs_tile.shape[1])


@np.errstate(all="ignore")
def out(acc: np.ndarray, row_sum: np.ndarray) -> np.ndarray:
    """Attention output acc / row_sum, [..., q, d], not yet cast to the output dtype; 0 where row_sum [..., q] is 0."""
    column = row_sum[..., None]
    xp = array_namespace(acc)
    no_keys = (column == 0) & ~xp.isnan(acc)
    return xp.where(no_keys, 0.0, acc / column)


@np.errstate(all="ignore")
def lse(row_max: np.ndarray, row_sum: np.ndarray) -> np.ndarray:
    """Natural log of the sum of exp(scores), row_max + log(row_sum), [..., q]; -inf where row_sum is 0."""
    xp = array_namespace(row_sum)
    no_keys = (row_sum == 0) & ~xp.isnan(row_max)
    return xp.where(no_keys, -np.inf, row_max + xp.log(row_sum))


def tile_stages(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *,
    scale: float,
    mask: np.ndarray,
    bias: np.ndarray | None = None,
    tiles: Tiling,
    given: Arrays = NOTHING,
    cast: Cast | None = None,
    row_sum_of_cast: bool = False,
    free_maxima: bool = False,
) -> dict[str, np.ndarray]:
    """The stages from qk to acc, as in `forward`; the running state starts anew at the first tile of every split."""
    q, k, v = to_float64(q), to_float64(k), to_float64(v)
    xp = array_namespace(q)
    sizes, stages = axis_sizes(q, k, v, tiles), ALGORITHMS["flash"]
    computed = {name: xp.empty(shape(stages[name], sizes), dtype=xp.float64, device=device(q)) for name in TILE_STAGES}
    seen = computed | as_given(given, "flash", sizes)  # what later stages read: the same arrays, except the given ones

    computed["qk"][:] = qk(q, k)
    computed["scores"][:] = scores(seen["qk"], scale, mask, bias)
    for t, before in tiles.order:
        keys = tiles.keys[t]
        previous_max = -np.inf if before is None else seen["row_max"][..., before]
        previous_sum = 0.0 if before is None else seen["row_sum"][..., before]
        previous_acc = 0.0 if before is None else seen["acc"][..., before, :]
        below = computed["row_max"][..., before] if free_maxima and before is not None else previous_max
        computed["row_max"][..., t] = row_max(below, seen["scores"][..., keys])
        computed["correction"][..., t] = correction(previous_max, seen["row_max"][..., t])
        computed["probs"][..., keys] = probs(seen["scores"][..., keys], seen["row_max"][..., t])
        p = seen["probs"][..., keys]
        computed["probs_cast"][..., keys] = p if cast is None else cast(p)
        p_cast = seen["probs_cast"][..., keys]
        rescale = seen["correction"][..., t]
        computed["row_sum"][..., t] = row_sum(rescale, previous_sum, p_cast if row_sum_of_cast else p)
        computed["acc"][..., t, :] = acc(rescale, previous_acc, p_cast, v[:, :, keys])
    return computed


def forward(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *,
    scale: float,
    mask: np.ndarray,
    bias: np.ndarray | None = None,
    block_k: int,
    splits: int = 1,
    split_bounds: Sequence[int] | None = None,
    tile_order: str | Sequence[int] = "ascending",
    given: Arrays = NOTHING,
    cast: Cast | None = None,
    row_sum_of_cast: bool = False,
    free_maxima: bool = False,
) -> dict[str, np.ndarray]:
    """Every stage of the flash algorithm in float64, name -> array with the axes of `stages.py`, in data-flow order.

    q [b, heads, q, d], k [b, kv_heads, k, d], v [b, kv_heads, k, any d]; mask (True: visible) and bias, added to
    scaled scores, [q, k] or [b, heads, q, k]; tiles, splits and their order as of `tiling.tiling`; `cast` rounds probs
    to what acc reads, and row_sum too with `row_sum_of_cast`; with `free_maxima` row_max is that of the
    scores even where others were given. With splits > 1 no running state covers the whole row: out and lse are then
    left out, and `split_k.forward` merges.

    A stage in `given` is read in place of the computed one by every later stage and by the next tile's state. What is
    returned is still computed, from the given or computed inputs: with a kernel's whole trace as `given`, each stage is
    what the kernel should have made of its own inputs; with nothing given, of q, k and v.
    """
    tiles = tiling(k.shape[2], block_k, splits, split_bounds=split_bounds, tile_order=tile_order)
    substitutes = as_given(given, "flash", axis_sizes(q, k, v, tiles))
    computed = tile_stages(
        q, k, v, scale=scale, mask=mask, bias=bias, tiles=tiles,
        given=substitutes, cast=cast, row_sum_of_cast=row_sum_of_cast, free_maxima=free_maxima,
    )  # fmt: skip
    if len(tiles.splits) > 1:
        return computed
    seen, last = computed | substitutes, tiles.last
    computed["out"] = out(seen["acc"][..., last, :], seen["row_sum"][..., last])
    computed["lse"] = lse(seen["row_max"][..., last], seen["row_sum"][..., last])
    return computed


def axis_sizes(q: np.ndarray, k: np.ndarray, v: np.ndarray, tiles: Tiling) -> dict[str, int]:
    """Size of every stage axis; d is the head_dim of v, since only acc, partial_O and out have it."""
    return vocabulary.axis_sizes(q.shape, k.shape) | {"d": v.shape[3], "t": len(tiles.keys), "s": len(tiles.splits)}


def as_given(given: Arrays, algorithm: str, sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    """`given` in float64; raises Refusal for a name that is no stage of `algorithm`, and for a shape not its own.

    Without the check an array of size 1 on some axis would broadcast, and a misspelt stage would be computed instead.
    """
    stages = ALGORITHMS[algorithm]
    for name, array in given.items():
        if name not in stages:
            raise Refusal(f"given holds stages of {algorithm}: {', '.join(stages)}; got {name!r}")
        wanted = shape(stages[name], sizes)
        if np.shape(array) != wanted:
            axes = ", ".join(f"{axis}={size}" for axis, size in zip(stages[name].axes, wanted, strict=True))
            raise Refusal(f"given {name} must have shape {wanted} ({axes}); got {np.shape(array)}")
    return {name: to_float64(array) for name, array in given.items()}


def by_query_head(x: np.ndarray, heads: int) -> np.ndarray:
    """Keys or values [b, kv_heads, k, d] repeated for every query head of their group, [b, heads, k, d]."""
    return array_namespace(x).repeat(x, heads // x.shape[1], axis=1)
