"""Faults of fragments and swizzled tiles, put into a kernel in NumPy that copies element by element."""

from collections.abc import Callable, Iterator

import ml_dtypes
import numpy as np
import pytest

from tests.judge.explain.fields import fitting
from workbench import Case, diff
from workbench.foreign.run import run
from workbench.judge.explain.library.indices import permutations

#: neither the keys nor the dims are whole blocks of 16 or 64
CASE = Case(heads=2, seqlen_q=37, seqlen_k=51, head_dim=40, dtype="float16", seed=3)
#: where probs change places instead of rows of v, which is the same
SAME = {"layout.rows-pairs-swapped-high-8-v": {"layout.probs_cast-columns-pairs-swapped-high-8"}}
Change = Callable[[np.ndarray], np.ndarray]


def same(x: np.ndarray) -> np.ndarray:
    return x


def kernel(*, k: Change = same, v: Change = same, qk: Change = same, p: Change = same) -> Callable:
    """Attention with changes of what is read as K and V, of the dot products, and of the probs that meet V."""

    def attention(q, key, value, *, scale, causal):  # noqa: ANN001, ANN202
        q, rows, values = (x.astype(np.float32) for x in (q, k(key), v(value)))
        products = qk(q @ rows.swapaxes(-1, -2))
        scores = products * np.float32(scale)
        top = scores.max(-1)
        probs = np.exp(scores - top[..., None])
        sums, cast = probs.sum(-1), probs.astype(np.float16)
        out = p(cast).astype(np.float32) @ values / sums[..., None]
        lse = top + np.log(sums)
        return {
            "qk": products,
            "row_sum": sums[..., None],
            "probs_cast": cast,
            "out": out.astype(np.float16),
            "lse": lse,
        }

    return attention


def chunked(x: np.ndarray, size: int, by: Callable[[int], int]) -> np.ndarray:
    """Chunk c ^ by(row) in the place of chunk c; behind the dims lie zeros."""
    found = np.zeros_like(x)
    for row in range(x.shape[-2]):
        for d in range(x.shape[-1]):
            there = (d // size ^ by(row)) * size + d % size
            if there < x.shape[-1]:
                found[..., row, d] = x[..., row, there]
    return found


def gathered(x: np.ndarray, place: Callable[[int], int], axis: int) -> np.ndarray:
    """What lies at place(i) at each i of an axis; zeros behind its end."""
    found, n = np.zeros_like(np.moveaxis(x, axis, 0)), x.shape[axis]
    for i in range(n):
        if place(i) < n:
            found[i] = np.moveaxis(x, axis, 0)[place(i)]
    return np.moveaxis(found, 0, axis)


def quadrants(p: np.ndarray) -> np.ndarray:
    """Registers 1 and 2 of each 16 by 16 fragment for each other; behind the ends lie zeros."""
    padded = np.zeros((*p.shape[:-2], 64, 64), p.dtype)
    padded[..., : p.shape[-2], : p.shape[-1]] = p
    found = padded.copy()
    for i in range(0, 64, 16):
        for j in range(0, 64, 16):
            found[..., i : i + 8, j + 8 : j + 16] = padded[..., i + 8 : i + 16, j : j + 8]
            found[..., i + 8 : i + 16, j : j + 8] = padded[..., i : i + 8, j + 8 : j + 16]
    return found[..., : p.shape[-2], : p.shape[-1]]


def lost(x: np.ndarray) -> np.ndarray:
    return np.where(np.arange(x.shape[-1]) % 16 < 8, x, np.float32(0))


def faults() -> Iterator[tuple[str, Callable]]:
    yield "layout.swizzle-8-r & 7-k", kernel(k=lambda x: chunked(x, 8, lambda r: r & 7))
    yield "layout.swizzle-8-(r ^ r // 2) & 7-v", kernel(v=lambda x: chunked(x, 8, lambda r: (r ^ r >> 1) & 7))
    yield "layout.swizzle-16-r // 2 & 3-k", kernel(k=lambda x: chunked(x, 16, lambda r: r >> 1 & 3))
    yield "layout.swizzle-4-(r ^ r + 1) & 7-v", kernel(v=lambda x: chunked(x, 4, lambda r: (r ^ r + 1) & 7))
    yield "layout.rows-xor-1-filled-v", kernel(v=lambda x: gathered(x, lambda i: i ^ 1, -2))
    yield (
        "layout.rows-pairs-swapped-high-8-v",
        kernel(v=lambda x: gathered(x, lambda i: i ^ 1 if i % 16 > 7 else i, -2)),
    )
    yield "layout.dims-slid-8-2-16-k", kernel(k=lambda x: gathered(x, lambda i: i - 6 if i % 16 > 7 else i, -1))
    yield "layout.dims-slid-16-8-64-k", kernel(k=lambda x: gathered(x, lambda i: i // 16 * 8 + i % 16, -1))
    yield "layout.probs-float16-as-bfloat16", kernel(p=lambda p: p.view(ml_dtypes.bfloat16))
    yield "layout.probs-quadrants-8", kernel(p=quadrants)
    yield "layout.lost-high-8", kernel(qk=lost)


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize(("name", "function"), [pytest.param(*one, id=one[0]) for one in faults()])
def test_a_fault_is_named_and_nothing_else_fits(name: str, function: Callable) -> None:
    assert fitting(diff(run(function, CASE)), ["layout"]) == {name, *SAME.get(name, ())}


def test_a_right_kernel_is_right() -> None:
    assert diff(run(kernel(), CASE)).verdict in ("rounding", "suspicious")


def test_no_two_index_maps_have_one_name() -> None:
    ids = [one.id for one in permutations()]
    assert len(ids) > 100 and len({*ids}) == len(ids)
