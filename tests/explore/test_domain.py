"""`workbench accept`, hypothesis, sweeps and laws draw the same cases of a function, and it is told what they are."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.explore.test_strategies import OF_FEATURES
from tests.refusals import refusal
from workbench import Case, diff, run
from workbench.explore.acceptance.spec import Spec
from workbench.explore.draw import Among, Between
from workbench.explore.features import FEATURES, RAGGED
from workbench.explore.ranges import has_empty_rows
from workbench.explore.sample import sample
from workbench.explore.strategies import cases

SOME = settings(max_examples=40, deadline=None, phases=[Phase.generate], suppress_health_check=[HealthCheck.too_slow])
SMALL: dict[str, Any] = {"batch": 1, "kv_heads": 1, "head_dim": 4}


def by_each(empty_rows: bool | None = None, **fields: Any) -> Iterator[Case]:
    """Cases of each of those that draw."""
    random = np.random.default_rng(1)
    rows = {} if empty_rows is None else {"empty_rows": empty_rows}
    spec = Spec({**SMALL, **fields}, **rows)
    yield from (spec.draw(random) for _ in range(20))
    yield from (sample(random, **rows, **SMALL, **fields) for _ in range(20))
    found: list[Case] = []
    strategies = {name: st.sampled_from(x.values) if isinstance(x, Among) else x for name, x in fields.items()}

    @SOME
    @given(cases(**rows, **SMALL, **strategies))
    def collect(case: Case) -> None:
        found.append(case)

    collect()
    yield from found


@pytest.mark.parametrize(
    ("feature", "field", "value"),
    [
        ("alibi", "alibi_form", "distance"),
        ("mixed", "alibi_form", "distance"),
        ("paged", "kv_layout", "NHD"),
        ("mixed", "kv_layout", "NHD"),
        ("window", "causal_alignment", "bottom-right"),
    ],
)
def test_what_a_function_is_not_told_is_as_usual(feature: str, field: str, value: str) -> None:
    drawn = [*by_each(feature=feature)]
    usual = {value, None} if field == "kv_layout" else {value}
    assert len(drawn) >= 60 and {getattr(case, field) for case in drawn} <= usual


def test_it_varies_where_it_is_asked_for() -> None:
    forms = Among(("distance", "column"))
    assert {case.alibi_form for case in by_each(feature="alibi", alibi_form=forms)} == {*forms.values}
    random = np.random.default_rng(0)  # and of kernels of ours, which take either
    assert {sample(random, "flash", feature="alibi").alibi_form for _ in range(20)} == {*forms.values}


@pytest.mark.parametrize("feature", [None, "window", *RAGGED])
def test_rows_without_keys_are_left_out_unless_they_are_asked_for(feature: str | None) -> None:
    drawn = [*by_each(feature=feature, causal=True)]
    assert len(drawn) >= 60 and not any(map(has_empty_rows, drawn))
    assert any(map(has_empty_rows, by_each(True, feature=feature, causal=True)))


def test_kernels_of_ours_have_rows_without_keys() -> None:
    random = np.random.default_rng(0)
    assert any(has_empty_rows(sample(random, "flash", causal=True)) for _ in range(30))
    assert not any(has_empty_rows(sample(random, "flash", causal=True, empty_rows=False)) for _ in range(30))


def test_lengths_are_those_of_the_ranges() -> None:
    found = [case for case in by_each(feature="packed", seqlen_k=200, seqlen_q=100, causal=False)]
    assert max(max(case.seqlens_k or ()) for case in found) > 150
    assert all(max(case.seqlens_k or ()) <= 200 and max(case.seqlens_q or ()) <= 100 for case in found)


def test_ranges_of_which_each_case_has_such_rows_are_refused() -> None:
    said = "all 50 cases drawn have empty rows (no visible key): set empty_rows = true"
    given_ = {"seqlen_q": Between(60, 64), "seqlen_k": Between(3, 5), "causal": True}
    assert refusal(sample, np.random.default_rng(0), **given_) == said
    assert refusal(Spec(given_).draw, np.random.default_rng(0)) == said


def test_every_feature_is_drawn_of_a_function() -> None:
    random = np.random.default_rng(0)
    for feature in FEATURES:
        case = Spec({"feature": feature}).draw(random)
        assert feature == "mixed" or case.unusual.keys() & OF_FEATURES or case.head_dim_v == case.head_dim


told: list[Any] = []


def attention(
    q: Any, k: Any, v: Any, *, scale: float, causal: bool, alibi_slopes: Any = None, alibi_form: str = "",
    causal_alignment: str = "",
) -> Any:  # fmt: skip
    """A right kernel of either form of ALiBi and of either diagonal."""
    told.append((alibi_form, causal_alignment))
    scores = q @ k.swapaxes(-1, -2) * np.float32(scale)
    rows, keys = scores.shape[-2:]
    diagonal = keys - rows if causal_alignment == "bottom-right" else 0
    beyond = np.arange(keys) - np.arange(rows)[:, None] - diagonal
    if alibi_slopes is not None:
        by = np.arange(keys) if alibi_form == "column" else -abs(beyond)
        scores = scores + alibi_slopes[:, None, None] * by
    if causal:
        scores = np.where(beyond <= 0, scores, -np.inf)
    probs = np.exp(scores - scores.max(-1, keepdims=True))
    return (probs @ v / probs.sum(-1, keepdims=True)).astype(q.dtype)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"alibi_slopes": "geometric"},
        {"alibi_slopes": "geometric", "alibi_form": "column"},
        {"causal": True, "causal_alignment": "top-left"},
    ],
    ids=str,
)
def test_a_function_is_told_the_form_of_alibi_and_the_diagonal(fields: dict[str, Any]) -> None:
    case = Case(seqlen_q=9, seqlen_k=12, head_dim=8, heads=2, **fields)
    told.clear()
    trace = run(attention, case)
    assert told == [(case.alibi_form, case.causal_alignment)]
    assert diff(trace).verdict == "rounding"
