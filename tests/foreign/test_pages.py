"""Functions of users that read caches: by lengths, by pages; and what stands where nobody may look."""

import numpy as np
import pytest

from tests.attend import attend
from tests.foreign.sequences import RAGGED, RIGHT, joined, rows, stacked, verdict
from tests.refusals import refusal
from workbench import Case, run

CACHE = Case(batch=3, seqlen_q=2, seqlens_k=(9, 1, 12), heads=2, kv_heads=1, head_dim=16, seqlen_k=14)


def cached(q, k, v, lengths, *, scale, causal=False, more=0):
    """Attention to the first keys of each sequence of a cache [b, h, s, d]."""
    found = []
    for b, n in enumerate(lengths):
        found.append(attend(rows(q[b]), rows(k[b])[: n + more], rows(v[b])[: n + more], scale=scale, causal=causal))
    return stacked(found)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("keyword", ["seqlens_k", "cache_seqlens"])
def test_lengths_of_a_cache_and_poison_behind_them(keyword: str, seed: int) -> None:
    poison = {0: np.isnan, 1: np.isinf, 2: lambda x: abs(x) > 4}[seed]

    def right(q, k, v, *, scale, causal, seqlens_k, more=0):
        assert seqlens_k.dtype == np.int32 and np.any(poison(k[1, :, 1:])) and np.any(poison(v[0, :, 9:]))
        return cached(q, k, v, seqlens_k, scale=scale, more=more)

    def renamed(q, k, v, *, scale, causal, cache_seqlens):
        return right(q, k, v, scale=scale, causal=causal, seqlens_k=cache_seqlens)

    def wrong(q, k, v, *, scale, causal, seqlens_k):
        with np.errstate(all="ignore"):
            return right(q, k, v, scale=scale, causal=causal, seqlens_k=seqlens_k, more=1)

    case = CACHE.but(seed=seed)
    assert verdict(right if keyword == "seqlens_k" else renamed, case) in RIGHT
    assert verdict(wrong, case) == "bug"


def in_pages(cache: np.ndarray, pages: np.ndarray, n: int) -> np.ndarray:
    """The first n keys of a sequence, [n, h, d]."""
    return np.concatenate([cache[page] for page in pages] or [cache[0, :0]])[:n]


@pytest.mark.parametrize("seed", range(3))
def test_block_tables(seed: int) -> None:
    def kernel(q, k, v, *, scale, causal, block_table, seqlens_k, page_size, more=0):
        assert k.shape[1:] == (4, 1, 16) and page_size == 4 and block_table.dtype == np.int32
        found = []
        for b, n in enumerate(seqlens_k):
            pages = block_table[b, : -(-n // page_size)]
            of_k, of_v = (in_pages(x, pages, n + more) for x in (k, v))
            found.append(attend(rows(q[b]), of_k, of_v, scale=scale, causal=causal))
        return stacked(found)

    def wrong(q, k, v, *, scale, causal, block_table, seqlens_k, page_size):
        with np.errstate(all="ignore"):
            given = {"block_table": block_table, "seqlens_k": seqlens_k, "page_size": page_size}
            return kernel(q, k, v, scale=scale, causal=causal, **given, more=1)

    case = CACHE.but(seed=seed, page_size=4)
    assert verdict(kernel, case) in RIGHT and verdict(wrong, case) == "bug"


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_lists_of_pages(layout: str) -> None:
    def kernel(q, k, v, *, scale, causal, kv_indptr, kv_indices, kv_last_page_len, kv_layout="NHD"):
        assert kv_layout == layout and k.shape[1:] == ((4, 1, 16) if layout == "NHD" else (1, 4, 16))
        k, v = (x if layout == "NHD" else x.swapaxes(1, 2) for x in (k, v))
        found = []
        for b, last in enumerate(kv_last_page_len):
            pages = kv_indices[kv_indptr[b] : kv_indptr[b + 1]]
            n = 4 * max(len(pages) - 1, 0) + last
            found.append(attend(rows(q[b]), in_pages(k, pages, n), in_pages(v, pages, n), scale=scale))
        return stacked(found)

    assert verdict(kernel, CACHE.but(page_size=4, kv_layout=layout)) in RIGHT


def test_packed_queries_of_a_paged_cache() -> None:
    def kernel(q, k, v, *, scale, causal, cu_seqlens_q, seqlens_k, block_table):
        found = []
        for b, n in enumerate(seqlens_k):
            pages = block_table[b, : -(-n // 4)]
            of_q = q[cu_seqlens_q[b] : cu_seqlens_q[b + 1]]
            found.append(attend(of_q, in_pages(k, pages, n), in_pages(v, pages, n), scale=scale, causal=causal))
        return joined(found)

    assert verdict(kernel, RAGGED.but(page_size=4)) in RIGHT


@pytest.mark.parametrize("page_size", [None, 4])
@pytest.mark.parametrize("arrays", ["numpy", "torch"])
def test_where_v_is_the_first_dims_of_k_it_is_the_same_memory(page_size: int | None, arrays: str) -> None:
    def kernel(q, k, v, *, scale, causal, seqlens_k=None, block_table=None):
        assert v.shape[-1] == 8 and v.data_ptr() == k.data_ptr() if arrays == "torch" else np.shares_memory(k, v)
        q, k, v = (np.asarray(x) for x in (q, k, v))
        found = []
        for b, one in enumerate(q):
            keys = [rows(k[b]), rows(v[b])]
            if block_table is not None:
                keys = [in_pages(x, block_table[b], int(seqlens_k[b])) for x in (k, v)]
            found.append(attend(rows(one), *keys, scale=scale))
        return stacked(found)[0]

    case = Case(seqlen_q=3, seqlen_k=12, heads=2, kv_heads=1, head_dim=16, head_dim_v=8, shared_kv=True, scale=0.2)
    assert verdict(kernel, case.but(page_size=page_size), arrays=arrays) in RIGHT


@pytest.mark.parametrize("layout", ["bshd", "strided"])
def test_a_layout_is_of_boxes(layout: str) -> None:
    def kernel(q, k, v, *, scale, causal, cu_seqlens_q, cu_seqlens_k): ...

    assert refusal(run, kernel, RAGGED, layout=layout) == (
        f"kernel: layout= is for padded arrays; q, k and v are packed or paged; got layout={layout!r}"
    )

    def cache(q, k, v, *, scale, causal, seqlens_k):
        of_k, of_v = (x.swapaxes(1, 2) if layout == "bshd" else x for x in (k, v))
        assert of_k.shape == (3, 1, 14, 16)
        out, lse = cached(q.swapaxes(1, 2) if layout == "bshd" else q, of_k, of_v, seqlens_k, scale=scale)
        return (out.swapaxes(1, 2) if layout == "bshd" else out), lse

    assert verdict(cache, CACHE, layout=layout) in RIGHT
