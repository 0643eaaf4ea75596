"""Cases in which the absence of any one key shows in out, against attention in float64 without it."""

import numpy as np
import pytest

from workbench.case.case import Case
from workbench.case.distributions import DISTRIBUTIONS, MANY_KEYS, combs, needles
from workbench.case.exposing_lost_keys import NEEDLES, exposing_lost_keys

ROUNDING = {"float32": 2.0**-22, "float16": 2.0**-9, "bfloat16": 2.0**-6.5}
SHAPES = [
    Case(seqlen_q=9, seqlen_k=9, head_dim=8),
    Case(seqlen_q=9, seqlen_k=9, head_dim=8, causal=True),
    Case(seqlen_q=5, seqlen_k=17, head_dim=8, causal=True, heads=2),
    Case(seqlen_q=5, seqlen_k=17, head_dim=8, causal=True, causal_alignment="top-left"),
    Case(seqlen_q=17, seqlen_k=5, head_dim=8, causal=True),
    Case(seqlen_q=12, seqlen_k=20, head_dim=5, window=(3, 2)),
    Case(seqlen_q=20, seqlen_k=12, head_dim=8, window=(0, 0), causal_alignment="top-left"),
    Case(seqlens_q=(5, 3), seqlens_k=(9, 4), head_dim=8, causal=True),
    Case(seqlen_q=7, seqlen_k=7, head_dim=8, scale=-0.5, kv_heads=1, heads=3, head_dim_v=3),
    Case(seqlen_q=1, seqlen_k=5, head_dim=4),
]


def weights(case: Case) -> np.ndarray:
    """What each key weighs, [b, h, q, k]; 0 in rows that see none."""
    q, k, _ = (x.astype(np.float64) for x in case.inputs())
    scores = q @ k.repeat(case.heads // case.kv_heads, axis=1).swapaxes(-1, -2) * case.scale
    probs = np.where(case.mask(), np.exp(scores - scores.max(-1, keepdims=True)), 0.0)
    total = probs.sum(-1, keepdims=True)
    return probs / np.where(total == 0, 1.0, total)


def of(case: Case, distribution: str, count: int) -> list[Case]:
    return [case.but(distribution=distribution, seed=seed) for seed in range(count)]


@pytest.mark.parametrize("case", SHAPES, ids=str)
def test_each_key_that_a_row_sees_is_a_needle(case):
    found = np.maximum.reduce([weights(one).max(axis=2) for one in of(case, "needle", needles(case))])
    seen = np.broadcast_to(case.mask(), (case.batch, 1, case.seqlen_q, case.seqlen_k)).any(axis=2)
    assert found.shape[1] == case.heads
    assert np.all(found[np.broadcast_to(seen, found.shape)] > 0.5)


@pytest.mark.parametrize("case", SHAPES, ids=str)
def test_each_key_is_in_a_comb(case):
    held = sum(one.inputs()[2].astype(np.float64).sum(axis=(1, 3)) for one in of(case, "comb", combs(case)))
    there = np.arange(case.seqlen_k) < case.lengths_k[:, None]
    assert np.array_equal(held, there * float(case.kv_heads))
    assert all(not one.inputs()[0].any() for one in of(case, "comb", 1))


def test_a_column_of_a_comb_has_few_keys_and_the_first_has_the_last():
    assert [combs(Case(seqlen_k=n, head_dim=64)) for n in (256, 257, 1024, 16384, 16385)] == [1, 2, 4, 4, 5]
    case = Case(seqlen_q=2, seqlen_k=600, head_dim=2, distribution="comb")
    values = [case.but(seed=seed).inputs()[2] for seed in range(combs(case))]
    assert len(values) == 5 and all(0 < x.sum(axis=2).max() <= MANY_KEYS for x in values)
    assert values[0][0, 0, -1].any() and not values[0][0, 0, 0].any()
    assert np.array_equal(case.but(seed=5).inputs()[2], values[0])


def test_the_first_needle_of_few_queries_is_the_last_key():
    case = Case(seqlen_q=1, seqlen_k=64, head_dim=8, distribution="needle")
    assert weights(case).argmax() == 63 and weights(case.but(seed=1)).argmax() == 62


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("change", [0.0, 2.0], ids=["lost", "doubled"])
def test_a_key_that_is_lost_or_doubled_shows(dtype, change):
    """Whichever it is, by more than any rounding, in one of the cases."""
    case = Case(seqlen_q=40, seqlen_k=300, head_dim=16, dtype=dtype)
    moved = np.zeros(case.seqlen_k)
    for one in exposing_lost_keys(case):
        whole, v = weights(one)[0, 0], one.inputs()[2][0, 0].astype(np.float64)
        out = whole @ v
        for key in range(case.seqlen_k):
            other = whole * np.where(np.arange(case.seqlen_k) == key, change, 1.0)
            off = abs(other @ v / other.sum(-1, keepdims=True) - out).max()
            moved[key] = max(moved[key], off / abs(out).max())
    assert moved.min() > ROUNDING[dtype]


def test_cases_are_those_that_fit():
    assert [(x.distribution, x.seed) for x in exposing_lost_keys(Case(seqlen=8, seed=5, input_std=2.0))] == [
        ("comb", 0), ("needle", 0),
    ]  # fmt: skip
    assert [x.distribution for x in exposing_lost_keys(Case(seqlen=8, head_dim=2))] == ["comb"]
    assert len([x for x in exposing_lost_keys(Case(seqlen_q=1, seqlen_k=100)) if x.distribution == "needle"]) == NEEDLES
    asked = Case(seqlen=8, distribution="comb")
    assert asked not in [*exposing_lost_keys(asked)] and {"comb", "needle"} <= {*DISTRIBUTIONS}
