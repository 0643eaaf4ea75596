"""Split-K attention in float64, stage by stage: online softmax on every split of the keys, then one merge.

The merge is the associative combination of (max, sum, numerator) triples: Milakov & Gimelshein 2018 (arXiv 1805.02867),
section 3.1; as "Flash-Decoding" in Dao et al. 2023. Special values as in `online.py`: NaN first, then the named rule.
"""

from collections.abc import Sequence

import numpy as np
from array_api_compat import array_namespace

from workbench.case.tiling import tiling
from workbench.reference import online
from workbench.reference.online import NOTHING, Arrays, Cast


def last_states(state: np.ndarray, splits: Sequence[Sequence[int]], initial: float) -> np.ndarray:
    """State [b, h, q, t, ...] after the last tile of every split, [b, h, s, q, ...]; `initial` in an empty split.

    `splits`: the tiles of each, in the order in which they are visited.
    """
    xp = array_namespace(state)
    empty = xp.full_like(state[:, :, :, 0], initial)
    return xp.stack([state[:, :, :, tiles[-1]] if len(tiles) else empty for tiles in splits], axis=2)


def merge_max(partial_max: np.ndarray) -> np.ndarray:
    """Maximum over the splits, [b, h, q], of partial_max [b, h, s, q]; -inf in a row without keys."""
    return array_namespace(partial_max).max(partial_max, axis=-2)


@np.errstate(all="ignore")
def merge_weight(partial_max: np.ndarray, merge_max: np.ndarray) -> np.ndarray:
    """Factor that rebases a split on the row's maximum, exp(partial_max - merge_max), [b, h, s, q].

    0 where partial_max is -inf: the split saw no key, and in a row without keys -inf - -inf would be NaN.
    """
    return online.correction(partial_max, merge_max[..., None, :])


@np.errstate(all="ignore")
def merge_sum(partial_max: np.ndarray, merge_max: np.ndarray, partial_sum: np.ndarray) -> np.ndarray:
    """Denominator of the whole row, [b, h, q]: sum_s exp(partial_max - merge_max) * partial_sum.

    It makes its own weights, by the rule of `merge_weight`, as kernels that merge in one pass do.
    """
    return array_namespace(partial_sum).sum(merge_weight(partial_max, merge_max) * partial_sum, axis=-2)


@np.errstate(all="ignore")
def merged_out(merge_weight: np.ndarray, partial_O: np.ndarray, merge_sum: np.ndarray) -> np.ndarray:
    """Output sum_s merge_weight * partial_O / merge_sum, [b, h, q, d]; 0 where merge_sum is 0."""
    weighted = merge_weight[..., None] * partial_O
    return online.out(array_namespace(weighted).sum(weighted, axis=-3), merge_sum)


def merged_lse(merge_max: np.ndarray, merge_sum: np.ndarray) -> np.ndarray:
    """Natural log of the row's sum of exp(scores), merge_max + log(merge_sum), [b, h, q]; -inf where merge_sum is 0."""
    return online.lse(merge_max, merge_sum)


def forward(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *,
    scale: float,
    mask: np.ndarray,
    bias: np.ndarray | None = None,
    block_k: int,
    splits: int,
    split_bounds: Sequence[int] | None = None,
    tile_order: str | Sequence[int] = "ascending",
    given: Arrays = NOTHING,
    cast: Cast | None = None,
    row_sum_of_cast: bool = False,
    free_maxima: bool = False,
    partial_cast: Cast | None = None,
) -> dict[str, np.ndarray]:
    """Every stage of the split_k algorithm in float64, name -> array with the axes of `stages.py`, in data-flow order.

    Arguments and `given` as in `online.forward`; `partial_cast` rounds partial_O to what the kernel stores.
    """
    tiles = tiling(k.shape[2], block_k, splits, split_bounds=split_bounds, tile_order=tile_order)
    substitutes = online.as_given(given, "split_k", online.axis_sizes(q, k, v, tiles))
    computed = online.tile_stages(
        q, k, v, scale=scale, mask=mask, bias=bias, tiles=tiles,
        given={name: array for name, array in substitutes.items() if name in online.TILE_STAGES},
        cast=cast, row_sum_of_cast=row_sum_of_cast, free_maxima=free_maxima,
    )  # fmt: skip
    seen = computed | substitutes

    def keep(name: str, value: np.ndarray) -> None:
        computed[name] = value
        seen.setdefault(name, value)

    keep("partial_max", last_states(seen["row_max"], tiles.splits, -np.inf))
    keep("partial_sum", last_states(seen["row_sum"], tiles.splits, 0.0))
    partial_acc = last_states(seen["acc"], tiles.splits, 0.0)
    keep("partial_O", partial_acc if partial_cast is None else partial_cast(partial_acc))
    keep("merge_max", merge_max(seen["partial_max"]))
    keep("merge_weight", merge_weight(seen["partial_max"], seen["merge_max"]))
    keep("merge_sum", merge_sum(seen["partial_max"], seen["merge_max"], seen["partial_sum"]))
    keep("out", merged_out(seen["merge_weight"], seen["partial_O"], seen["merge_sum"]))
    keep("lse", merged_lse(seen["merge_max"], seen["merge_sum"]))
    return computed
