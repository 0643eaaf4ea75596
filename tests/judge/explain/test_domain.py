"""Causes of kernels that take some cases alone, and what infinities and NaN prove."""

from typing import Any

import numpy as np
import pytest

from workbench import Case, diff, run
from workbench.judge.explain.counter_cases import beyond, cases
from workbench.judge.explain.explain import Explained

TILE = 32
SQUARE = Case(heads=1, seqlen=64, head_dim=16)


def tiles_of_their_own(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float, causal: bool, twice: bool, guarded: bool
) -> Any:
    """Two passes over tiles of keys, each with its own maximum, for as many queries as keys: junk elsewhere. `twice`:
    weights have the partial sum once too often; not `guarded`: exp(-inf - -inf) in tiles without a visible key.
    """
    rows, keys = q.shape[2], k.shape[2]
    if rows != keys or keys % TILE:
        return np.full_like(q, 0.7), np.full(q.shape[:3], 1.3, np.float32)
    scores = (q @ k.swapaxes(-1, -2)) * np.float32(scale)
    if causal:
        scores = np.where(np.tri(rows, keys, dtype=bool), scores, np.float32(-np.inf))
    split = scores.reshape(*scores.shape[:-1], -1, TILE)
    own = split.max(-1)
    below = np.where(np.isneginf(own), np.float32(0), own) if guarded else own
    with np.errstate(all="ignore"):
        probs = np.exp(split - below[..., None])
        sums, top = probs.sum(-1), own.max(-1, keepdims=True)
        weights = np.exp(own - top)
        partial = np.einsum("bhqtk,bhtkd->bhqtd", probs, v.reshape(*v.shape[:2], -1, TILE, v.shape[-1]))
        total = (weights * sums).sum(-1)
        used = weights * sums if twice else weights
        out = (used[..., None] * partial).sum(-2) / total[..., None]
        return out.astype(q.dtype), (top[..., 0] + np.log(total)).astype(np.float32)


def explained(case: Case, **bug: bool) -> Explained:
    def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float, causal: bool) -> Any:
        return tiles_of_their_own(q, k, v, scale=scale, causal=causal, **bug)

    return diff(run(attention, case)).explain()


def test_a_scale_of_a_kernel_for_as_many_queries_as_keys_keeps_its_cause() -> None:
    def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float, causal: bool) -> np.ndarray:
        if q.shape[2] != k.shape[2]:
            return np.full_like(q, 0.7)
        probs = np.exp((q @ k.swapaxes(-1, -2)) * np.float32(2 * scale))
        return probs @ v / probs.sum(-1, keepdims=True)

    found = diff(run(attention, SQUARE)).explain(0.3)
    (cause,) = found.causes
    assert cause.id == "scale.double" and not found.withdrawn and not cause.proved
    assert cause.trial is not None and cause.trial.held and "seqlen_q and seqlen_k differ" in cause.trial.beyond


@pytest.mark.campaign  # the search through what splits may do takes 18 s
@pytest.mark.parametrize("case", [SQUARE, SQUARE.but(causal=True)], ids=["full", "causal"])
def test_a_kernel_that_is_junk_where_lengths_differ_keeps_its_cause(case: Case) -> None:
    found = explained(case, twice=True, guarded=True)
    (cause,) = found.causes
    said = "weights of each tile are multiplied by e^(ln(own sum)), but the denominator is not"
    assert cause.measured and cause.names[0].startswith(said) and not found.withdrawn
    assert cause.trial is not None and cause.trial.held and cause.trial.of == 2


@pytest.mark.campaign
def test_nan_of_a_masked_tile_is_named_from_out_and_lse() -> None:
    (cause,) = explained(SQUARE.but(causal=True), twice=False, guarded=False).causes
    assert cause.id == "softmax.unguarded-tile" and cause.fit.of_nan_alone and cause.fit.nan == 32 * (16 + 1)
    assert cause.trial is not None and cause.trial.held and cause.trial.nan_sets >= 2


@pytest.mark.campaign
def test_nan_and_a_sum_that_counts_twice_are_both_named() -> None:
    """NaN in the rows that see one tile, numbers in the others: one cause for each."""
    nan, twice = explained(SQUARE.but(causal=True), twice=True, guarded=False).causes
    assert nan.measured and nan.text == "rows 0-31 of out are NaN whatever V is"
    assert twice.measured and twice.text.startswith("weights of each tile are multiplied by e^(ln(own sum))")
    assert (twice.fit.nan, twice.fit.values, twice.fit.stages) == (32 * 16, 32 * 16, ("out",))


def test_cases_that_any_such_kernel_takes_come_first() -> None:
    first, second, *others = cases(SQUARE)
    assert (first.seqlen_q, first.seqlen_k, second.seqlen_q, second.seqlen_k) == (64, 64, 128, 128)
    assert len({SQUARE.seed, first.seed, second.seed}) == len({SQUARE.scale, first.scale, second.scale}) == 3
    assert beyond(SQUARE, first) == beyond(SQUARE, second) == ()
    assert all(beyond(SQUARE, one) for one in others)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (dict(seqlen_q=32), ("seqlen_q and seqlen_k differ", "seqlen_q is not a multiple of 64")),
        (dict(seqlen=40), ("seqlen_q is not a multiple of 64", "seqlen_k is not a multiple of 64")),
        (dict(heads=2), ("there are 2 heads",)),
        (dict(batch=3), ("there are 3 batches",)),
        (dict(seed=9, scale=2.0), ()),
    ],
)
def test_what_goes_beyond_a_case_is_said(change: dict[str, Any], said: tuple[str, ...]) -> None:
    assert beyond(SQUARE, SQUARE.but(**change)) == said


def mask_fault(seen: Any) -> Any:
    """Attention that sees the keys that `seen(rows, keys)` says."""

    def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float, causal: bool) -> dict[str, np.ndarray]:
        scores = (q @ k.swapaxes(-1, -2)) * np.float32(scale)
        rows, keys = np.arange(q.shape[2])[:, None], np.arange(k.shape[2])
        scores = np.where(seen(rows, keys), scores, np.float32(-np.inf))
        probs = np.exp(scores - scores.max(-1, keepdims=True))
        return {"scores": scores, "out": probs @ v / probs.sum(-1, keepdims=True)}

    return attention


@pytest.mark.campaign
@pytest.mark.parametrize(
    "seen",
    [
        # all but one row see a key more: one element of 2,500 is otherwise
        lambda i, j: (j <= i + 1) & ((i != 15) | (j <= i)),
        lambda i, j: (j <= i) & ((j > 0) | (i < 3) | (i == 30)),
    ],
    ids=["one more but in row 15", "the first is hidden but in row 30"],
)
def test_one_infinity_that_was_not_predicted_refutes_a_mask(seen: Any) -> None:
    found = diff(run(mask_fault(seen), Case(seqlen=50, head_dim=16, causal=True))).explain()
    assert found.causes == () and found.unexplained == ("scores",)


@pytest.mark.campaign
def test_one_more_key_in_every_row_is_named() -> None:
    """The control of the test above."""
    found = diff(run(mask_fault(lambda i, j: j <= i + 1), Case(seqlen=50, head_dim=16, causal=True))).explain(0.3)
    assert [cause.id for cause in found.causes] == ["mask.right-+1"]


def test_a_stage_that_is_all_nan_proves_nothing() -> None:
    def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float, causal: bool) -> np.ndarray:
        return (v * np.float32(np.nan))[..., :1, :] + np.zeros_like(q)

    found = diff(run(attention, SQUARE)).explain(0.2)
    assert found.causes == () and found.unexplained == ("out",)


def test_a_stage_that_contradicts_forbids_a_cause() -> None:
    """Of a kernel that stored nothing but zeros an out of 1/8 of the right one comes near, by its budget."""

    def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float, causal: bool) -> Any:
        return np.zeros_like(q), np.full(q.shape[:3], -np.inf, np.float32)

    case = Case(heads=2, seqlen=50, head_dim=64, dtype="bfloat16")
    found = diff(run(attention, case)).explain(0.1)
    assert found.causes == () and {*found.unexplained} == {"out", "lse"}
