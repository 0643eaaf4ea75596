"""Laws of chunks, of decoding and of graphs: kernels that choose tiles and splits by the shape, and what moved the order."""

from typing import Any

import numpy as np
import pytest

from workbench import Case
from workbench.explore.laws.every import LAWS, held_to, laws, subject
from workbench.explore.laws.order import order
from workbench.explore.laws.run import Rows
from workbench.floats import round_to

F32 = np.float32
CASE = Case(seqlen_q=24, seqlen_k=128, head_dim=64, causal=True)
NEW = ("chunks-are-one-shot", "decode-is-prefill", "graph-replay-is-eager")


def weighed(scores: Any, v: Any) -> tuple[Any, Any, Any]:
    """Probs in bfloat16 times V, their sum, and the maximum, all of some keys; added row by row and key by key."""
    top = scores.max(-1, keepdims=True)
    probs = np.exp(scores - np.where(np.isinf(top), F32(0), top))
    acc = np.zeros((*scores.shape[:-1], v.shape[-1]), F32)
    for i in range(v.shape[2]):
        acc += round_to(probs[..., i : i + 1], "bfloat16").astype(F32) * v[:, :, i : i + 1]
    return acc, np.add.accumulate(probs, -1, dtype=F32)[..., -1:], top


def attention(q: Any, k: Any, v: Any, *, scale: float, causal: bool, tile: int, splits: int = 0) -> Any:
    """Tiles of keys one after the other, or splits of them merged; no product of matrices, whose order is a BLAS's."""
    scores = np.zeros((*q.shape[:3], k.shape[2]), F32)
    for d in range(q.shape[3]):
        scores += q[..., d : d + 1] * k[:, :, None, :, d]
    scores = scores * F32(scale)
    if causal:
        rows = np.arange(q.shape[2])[:, None] + k.shape[2] - q.shape[2]
        scores = np.where(np.arange(k.shape[2]) <= rows, scores, F32(-np.inf))
    size = -(-k.shape[2] // splits) if splits else tile
    parts = [slice(i, i + size) for i in range(0, k.shape[2], size)]
    if splits:
        found = [weighed(scores[..., p], v[:, :, p]) for p in parts]
        top = np.max([m for _, _, m in found], 0)
        weights = [np.exp(m - top) for _, _, m in found]
        return sum(w * o for w, (o, _, _) in zip(weights, found, strict=True)) / sum(
            w * n for w, (_, n, _) in zip(weights, found, strict=True)
        )
    top, total, acc = np.full((*scores.shape[:-1], 1), -np.inf, F32), F32(0), F32(0)
    for p in parts:
        new = np.maximum(top, scores[..., p].max(-1, keepdims=True))
        safe = np.where(np.isinf(new), F32(0), new)
        probs = np.exp(scores[..., p] - safe)
        before = np.exp(top - safe)
        own = np.zeros((*scores.shape[:-1], v.shape[-1]), F32)
        for i in range(probs.shape[-1]):
            own += round_to(probs[..., i : i + 1], "bfloat16").astype(F32) * v[:, :, p][:, :, i : i + 1]
        acc = acc * before + own
        total = total * before + np.add.accumulate(probs, -1, dtype=F32)[..., -1:]
        top = new
    return acc / total


def by_shape(tile_of: Any, splits_of: Any = lambda q, k: 0) -> Any:
    """A kernel that chooses its tile, or its splits, by the numbers of queries and keys."""

    def kernel(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> dict[str, Any]:
        sizes = q.shape[2], k.shape[2]
        out = attention(q, k, v, scale=scale, causal=causal, tile=tile_of(*sizes), splits=splits_of(*sizes))
        return {"out": out, "contract": {"probs_dtype": "bfloat16", "out_dtype": "float32"}}

    return kernel


FIXED = by_shape(lambda q, k: 16)


def test_a_kernel_of_one_tile_keeps_them_bit_for_bit() -> None:
    s = subject(FIXED, CASE, invariant=True)
    assert [held_to(LAWS[name], s).held for name in NEW] == [True, True, None]
    assert "on a GPU" in held_to(LAWS["graph-replay-is-eager"], s).lacking


def test_they_are_asked_where_they_are_claimed_alone() -> None:
    s = subject(by_shape(lambda q, k: 16 if q > 1 else 64), CASE)
    assert [held_to(LAWS[name], s).held for name in NEW] == [None] * 3
    assert "only with --invariant" in held_to(LAWS["decode-is-prefill"], s).lacking


@pytest.mark.parametrize(
    ("kernel", "law", "said"),
    [
        (by_shape(lambda q, k: 16 if q > 1 else 64), "decode-is-prefill", "tiles of 16 keys; errors of the other"),
        (by_shape(lambda q, k: 16 if q > 1 else 64), "decode-is-prefill", "or tiles of 64 keys"),
        (by_shape(lambda q, k: 32 if k == 128 else 16), "chunks-are-one-shot", "tiles of 32 keys; errors of the"),
        (by_shape(lambda q, k: 16, lambda q, k: 4 * (q == 1)), "decode-is-prefill", "the keys split in 4"),
    ],
)
def test_a_kernel_that_chooses_by_the_shape_breaks_them_and_the_choice_is_named(
    kernel: Any, law: str, said: str
) -> None:
    found = held_to(LAWS[law], subject(kernel, CASE, invariant=True))
    assert found.held is False and found.broke is not None and found.broke.stage == "out"
    assert said in found.broke.words, found.broke.words


def test_within_budgets_it_is_right_all_the_same() -> None:
    found = laws(by_shape(lambda q, k: 16 if q > 1 else 64), CASE)
    assert not found.broken


@pytest.mark.parametrize("tile", [16, 32, 64])
def test_the_order_of_a_run_is_read_off_its_errors(tile: int) -> None:
    case = CASE.but(causal=False)
    first = subject(by_shape(lambda q, k: tile), case).first
    assert order(first, Rows.all(case)) == (f"tiles of {tile} keys",)


def test_an_order_that_errors_do_not_tell_is_not_named() -> None:
    def exact(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
        scores = q.astype(np.float64) @ np.swapaxes(k, -1, -2).astype(np.float64) * scale
        probs = np.exp(scores - scores.max(-1, keepdims=True))
        return (probs @ v / probs.sum(-1, keepdims=True)).astype(F32)

    case = CASE.but(causal=False)
    assert order(subject(exact, case).first, Rows.all(case)) == ()
