"""How a case's arrays lie in memory at a call: packed sequences, pages, and what stands where no kernel may look.

A trace holds a box [b, h, rows, d] for each sequence; kernels take sequences packed behind each other with the sums of
their lengths (cu_seqlens, flash-attn's varlen), and a KV cache in pages that lie in any order: by block_table (Kwon et
al. 2023, vLLM, arXiv 2309.06180, section 4.1), or by FlashInfer's indptr, indices and last_page_len (Ye et al. 2025,
arXiv 2501.01005, section 3.1.1).
"""

from typing import NamedTuple

import numpy as np

from workbench.case.case import Case

#: what stands where a kernel may not look: what spreads from any use, and what a cache may hold of an earlier request,
#: which no number tells apart from a key's own: so large that it has all of a row's weight, or as large as a key is, so
#: that it weighs as much
POISONS = ("nan", "inf", "stale", "benign")
#: kind -> standard deviation
_STALE = {"stale": 8.0, "benign": 1.0}
#: pages of no sequence, beside those that are needed
UNUSED_PAGES = 3


class Paged(NamedTuple):
    """A KV cache in pages. NHD: [page, key, head, dim]; HND: [page, head, key, dim]."""

    k: np.ndarray
    v: np.ndarray
    block_table: np.ndarray  #: int32 [b, most pages]: the page of each stretch of keys; unused ones -1
    indptr: np.ndarray  #: int32 [b + 1]: where the pages of a sequence begin in `indices`
    indices: np.ndarray  #: int32 [pages of all sequences]
    last_page_len: np.ndarray  #: int32 [b]: keys in the last page of each; 0 of a sequence without keys


def poison_of(case: Case) -> str:
    """Which poison a case has: each in turn, by its seed."""
    return POISONS[case.seed % len(POISONS)]


def poison(kind: str, shape: tuple[int, ...], dtype: np.dtype, seed: int) -> np.ndarray:
    """An array of NaN; of infinities of either sign; or of stale values, N(0, 8^2) or N(0, 1), which look like any
    other.
    """
    if kind == "nan":
        return np.full(shape, np.nan, dtype)
    rng = np.random.default_rng((seed, 3))
    if kind == "inf":
        return np.where(rng.random(shape) < 0.5, np.array(-np.inf, dtype), np.array(np.inf, dtype))
    return (np.float32(_STALE[kind]) * rng.standard_normal(shape, np.float32)).astype(dtype)


def cu_seqlens(lengths: np.ndarray) -> np.ndarray:
    """Where each sequence begins, and where the last one ends, int32 [b + 1]."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


def packed(x: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """[total, h, d] of an array [b, h, rows, d]: the first rows of each sequence behind each other; [total, h] of
    [b, h, rows]. Contiguous, as kernels take it that know no strides.
    """
    rows = np.concatenate([np.moveaxis(one[:, :n], 1, 0) for one, n in zip(x, lengths, strict=True)])
    return np.ascontiguousarray(rows)  # concatenate keeps the order in which its parts lie


def unpacked(x: np.ndarray, lengths: np.ndarray, rows: int, fill: float = 0.0) -> np.ndarray:
    """What `packed` packed, with `fill` behind the end of each sequence."""
    found = np.full((len(lengths), x.shape[1], rows, *x.shape[2:]), fill, x.dtype)
    starts = cu_seqlens(lengths)
    for one, start, n in zip(found, starts, lengths, strict=False):
        one[:, :n] = np.moveaxis(x[start : start + n], 0, 1)
    return found


def padded(x: np.ndarray, lengths: np.ndarray, kind: str, seed: int) -> np.ndarray:
    """[b, h, rows, d] with poison behind the end of each sequence."""
    there = (np.arange(x.shape[2]) < lengths[:, None])[:, None, :, None]
    return np.where(there, x, poison(kind, x.shape, x.dtype, seed))


def paged(case: Case, k: np.ndarray, v: np.ndarray, kind: str) -> Paged:
    """k and v [b, kv_heads, rows, d] in pages of the case, at random places among some that belong to nobody; what no
    sequence holds is poison. Where v is the first dims of k, it is a view of its pages.
    """
    size, lengths = int(case.page_size or 1), case.lengths_k
    needed = -(-lengths // size)
    rng = np.random.default_rng((case.seed, 4))
    places = rng.permutation(int(needed.sum()) + UNUSED_PAGES).astype(np.int32)
    indptr = cu_seqlens(needed)
    indices = places[: indptr[-1]]
    table = np.full((case.batch, max(1, int(needed.max()))), -1, np.int32)
    caches = [poison(kind, (len(places), size, x.shape[1], x.shape[3]), x.dtype, case.seed) for x in (k, v)]
    for b, pages in enumerate(needed):
        own = indices[indptr[b] : indptr[b + 1]]
        table[b, :pages] = own
        for cache, x in zip(caches, (k, v), strict=True):
            for n, place in enumerate(own):
                rows = np.moveaxis(x[b, :, n * size : min((n + 1) * size, lengths[b])], 1, 0)
                cache[place, : len(rows)] = rows
    if case.kv_layout == "HND":
        caches = [np.ascontiguousarray(cache.swapaxes(1, 2)) for cache in caches]
    if case.shared_kv:
        caches[1] = caches[0][..., : case.head_dim_v]
    last = np.where(lengths > 0, (lengths - 1) % size + 1, 0).astype(np.int32)
    return Paged(caches[0], caches[1], table, indptr, indices, last)
