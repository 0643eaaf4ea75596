"""Causes in ALiBi."""

import numpy as np
import pytest

from tests.judge.explain.fields import judged, named
from workbench import Case

SLOPES = (0.5, 0.11, 0.3, 0.07)
CASE = Case(
    heads=4, kv_heads=2, seqlen_q=20, seqlen_k=37, head_dim=8, scale=0.4, causal=True, alibi_slopes=SLOPES
)  # fmt: skip
SIX = Case(heads=6, kv_heads=3, seqlen_q=20, seqlen_k=37, head_dim=8, alibi_slopes="geometric")


def off(case, diagonal=None):
    """Keys behind the diagonal of a query."""
    diagonal = case.diagonals[:, None, None, None] if diagonal is None else diagonal
    return np.arange(case.seqlen_k) - np.arange(case.seqlen_q)[:, None] - diagonal


def slopes(case):
    return case.slopes.astype(np.float64)[None, :, None, None]


def geometric(case, n):
    return 2.0 ** (-8 * np.arange(1, case.heads + 1) / n)[None, :, None, None]


#: hypothesis -> the case, and what is added in place of ALiBi
WRONG = {
    "none": (CASE, lambda c, r, own: 0 * own),
    "negative": (CASE, lambda c, r, own: -own),
    "scaled": (CASE, lambda c, r, own: own * c.scale),
    "head-next": (CASE, lambda c, r, own: np.roll(own, -1, 1)),
    "head-reversed": (CASE, lambda c, r, own: own[:, ::-1]),
    "kv-head": (CASE, lambda c, r, own: own[:, np.arange(c.heads) // (c.heads // c.kv_heads)]),
    "squared": (CASE, lambda c, r, own: -slopes(c) * off(c) ** 2.0),
    "top-left": (CASE, lambda c, r, own: -slopes(c) * abs(off(c, 0))),
    "bottom-right": (
        CASE.but(causal_alignment="top-left"),
        lambda c, r, own: -slopes(c) * abs(off(c, c.seqlen_k - c.seqlen_q)),
    ),
    "column": (CASE, lambda c, r, own: slopes(c) * np.arange(c.seqlen_k) + 0 * own),
    "distance": (CASE.but(alibi_form="column"), lambda c, r, own: -slopes(c) * abs(off(c))),
    "geometric": (CASE, lambda c, r, own: -geometric(c, c.heads) * abs(off(c))),
    "geometric-up": (SIX, lambda c, r, own: -geometric(c, 1 << (c.heads - 1).bit_length()) * abs(off(c))),
}


@pytest.mark.campaign(but=4)
@pytest.mark.parametrize("wrong", WRONG)
def test_another_bias_is_named(wrong):
    case, alibi = WRONG[wrong]
    assert f"alibi.{wrong}" in named(case, {"alibi": alibi})


@pytest.mark.parametrize("wrong", ["none", "head-next", "squared", "geometric"])
def test_another_bias_is_named_from_out_and_lse(wrong):
    assert f"alibi.{wrong}" in named(CASE, {"alibi": WRONG[wrong][1]}, dump=False)


def test_the_column_in_place_of_the_distance_shows_in_lse_alone_where_rows_are_causal():
    d = judged(CASE, {"alibi": WRONG["column"][1]}, dump=False)
    assert d.origins == ("lse",) and d["out"].role == "clean"
    assert "alibi.column" in named(CASE, {"alibi": WRONG["column"][1]}, dump=False)


def test_added_before_the_cap():
    capped = CASE.but(softcap=3.0)

    def before(case, read, right):
        k = np.repeat(read["k"], case.heads // case.kv_heads, 1)
        own = -slopes(case) * abs(off(case))
        scaled = read["q"] @ k.swapaxes(-1, -2) * np.float32(case.scale) + own
        return np.where(case.mask(), case.softcap * np.tanh(scaled / case.softcap), -np.inf).astype(np.float32)

    assert "alibi.before-cap" in named(capped, {"scores": before})


def test_the_cause_is_proved_on_fresh_cases():
    (cause,) = judged(CASE, {"alibi": WRONG["head-next"][1]}).explain().causes
    assert cause.id == "alibi.head-next" and cause.proved and cause.trial.held
