"""Causes in a KV cache in pages."""

import numpy as np
import pytest

from tests.judge.explain.fields import BLOCK, judged, named
from workbench import Case, diff, run
from workbench.case.memory import paged, poison_of

CASE = Case(seed=2, heads=2, seqlens_q=(5, 24, 1, 17), seqlens_k=(9, 37, 20, 30), head_dim=8, page_size=8)


def gathered(case, read, x, table=lambda t: t, layout=False):
    """Keys as a kernel finds them by another table or in another layout; -1 is the last page."""
    pages = paged(case, read["k"], read["v"], poison_of(case))
    cache = getattr(pages, x)
    if layout:
        n, size, heads, d = cache.shape
        cache = cache.reshape(n, heads, size, d).swapaxes(1, 2)
    rows = cache[table(pages.block_table)]
    rows = rows.reshape(case.batch, -1, *rows.shape[3:])[:, : case.seqlen_k]
    behind = case.seqlen_k - rows.shape[1]
    return np.moveaxis(np.pad(rows, ((0, 0), (0, behind), (0, 0), (0, 0))), 2, 1).astype(np.float32)


def listed(table):
    return {x: lambda c, r, own, x=x: gathered(c, r, x, table) for x in "kv"}


def until(lengths):
    """Of a kernel that reads so many keys of each sequence."""

    def rows(x):
        def read(case, inputs, own):
            there = np.arange(case.seqlen_k) < lengths(case)[:, None]
            return np.where(there[:, None, :, None], gathered(case, inputs, x), own)

        return read

    def visible(case, inputs, right):
        rows = np.arange(case.seqlen_q)[:, None] < case.lengths_q[:, None, None, None]
        return rows & (np.arange(case.seqlen_k) < lengths(case)[:, None, None, None])

    return {"k": rows("k"), "v": rows("v"), "visible": visible}


def a_tile_apart(x):
    def read(case, inputs, own):
        pages = paged(case, inputs["k"], inputs["v"], poison_of(case))
        rows = getattr(pages, x).reshape(-1, *own.shape[1::2])
        keys = np.arange(case.seqlen_k)
        place = pages.block_table[:, keys // case.page_size] * BLOCK + keys % case.page_size
        return np.moveaxis(rows[place % len(rows)], 2, 1)

    return read


def to_the_end(case, inputs, own):
    """V, with what its last page holds."""
    there = np.arange(case.seqlen_k) < -(-case.lengths_k[:, None] // case.page_size) * case.page_size
    return np.where(there[:, None, :, None], gathered(case, inputs, "v"), own)


FAULTS = {
    "tile-apart-around": {x: a_tile_apart(x) for x in "kv"},
    "table+1-kv": listed(lambda t: np.roll(t, -1, 0)),
    "page+1-kv": listed(lambda t: np.roll(t, -1, 1)),
    "logical-kv": listed(lambda t: np.arange(t.shape[1]) + 0 * t),
    "modulo-8-kv": listed(lambda t: t % 8),
    "layout": {x: lambda c, r, own, x=x: gathered(c, r, x, layout=True) for x in "kv"},
    "last-whole": until(lambda c: -(-c.lengths_k // c.page_size) * c.page_size),
    "last-lost": until(lambda c: c.lengths_k // c.page_size * c.page_size),
}


@pytest.mark.campaign(but=2)
@pytest.mark.parametrize("wrong", FAULTS)
def test_a_fault_is_named(wrong):
    assert f"pages.{wrong}" in named(CASE, FAULTS[wrong])


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize("wrong", ["logical-kv", "last-whole"])
def test_a_fault_is_named_from_out_and_lse(wrong):
    assert f"pages.{wrong}" in named(CASE, FAULTS[wrong], dump=False)


@pytest.mark.campaign
def test_the_cause_is_proved_on_fresh_cases():
    (cause,) = judged(CASE, FAULTS["table+1-kv"]).explain().causes
    assert cause.id == "pages.table+1-kv" and cause.proved and cause.trial.held


def test_what_a_page_holds_behind_the_last_key_is_nan_times_0():
    whole = CASE.but(seed=4, seqlens_k=(9, 40, 20, 30), seqlen_k=40)  # NaN, and none behind the box
    assert "pages.uncut-v" in named(whole, {"v": to_the_end})


@pytest.mark.campaign
def test_an_unmasked_tail_of_the_last_page_is_no_reversed_table() -> None:
    """Stale scores of N(0, 8^2) make rows one-hot on what no key is: by them alone any order of pages fits."""

    def attention(q, k_cache, v_cache, block_table, cache_seqlens, *, scale, causal):
        out, size = np.zeros_like(q), k_cache.shape[1]
        for b, n in enumerate(cache_seqlens):
            pages = block_table[b, : -(-n // size)]
            k, v = (x[pages].reshape(-1, *x.shape[2:]).astype(np.float32) for x in (k_cache, v_cache))
            scores = np.einsum("hqd,khd->hqk", q[b].astype(np.float32), k) * scale
            probs = np.exp(scores - scores.max(-1, keepdims=True))
            found = np.einsum("hqk,khd->hqd", probs / probs.sum(-1, keepdims=True), v)
            out[b] = found.astype(q.dtype)
        return out

    case = Case(heads=2, seqlen_q=1, seqlens_k=(64, 33, 100), head_dim=64, page_size=16, dtype="bfloat16", seed=2)
    causes = diff(run(attention, case)).explain().causes
    assert [cause.id for cause in causes] in ([], ["pages.last-whole"])
