"""Values and tensors on which kernels break."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from tests.refusals import refusal
from workbench.case.case import Case
from workbench.explore.features import FEATURES
from workbench.explore.strategies import awkward_values, cases, tensors
from workbench.floats import DTYPES, round_to

#: what a feature makes unlike other cases
OF_FEATURES = {
    "sinks", "alibi_slopes", "dropout_p", "head_dim_v", "shared_kv", "seqlens_q", "seqlens_k", "page_size", "pack_gqa",
    "window", "softcap", "mask_mod", "score_mod",
}  # fmt: skip
SOME = settings(max_examples=60, deadline=None)


@pytest.mark.parametrize("dtype", DTYPES)
def test_awkward_values_are_finite_numbers_of_the_dtype(dtype):
    @SOME
    @given(awkward_values(dtype))
    def holds(value):
        assert np.isfinite(value) and float(round_to(value, DTYPES[dtype])) == value

    holds()


@pytest.mark.campaign
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_kind_of_awkward_value_is_drawn(dtype):
    info = ml_dtypes.finfo(DTYPES[dtype])
    for wanted in (
        lambda x: x == float(info.max),
        lambda x: 0 < x < float(info.tiny),
        lambda x: x == 0 and np.signbit(x),
        lambda x: x == 2.0**-5,
        lambda x: 100 < x < 2000,
    ):
        assert wanted(
            find(awkward_values(dtype), wanted, settings=settings(max_examples=3000, phases=[Phase.generate]))
        )
    assert find(awkward_values(dtype), lambda x: True) == 0


def test_an_unknown_dtype_is_refused():
    assert refusal(awkward_values, "float64") == "dtype must be one of float32, float16, bfloat16; got 'float64'"


@SOME
@given(st.data())
def test_tensors_fit_their_case(data):
    case = data.draw(cases())
    found = data.draw(tensors(case))
    assert [*found] == ["q", "k", "v"]
    for name, like in zip(found, case.inputs(), strict=True):
        assert found[name].shape == like.shape and found[name].dtype == like.dtype
        assert np.all(np.isfinite(found[name].astype(np.float64)))


@pytest.mark.campaign
def test_tensors_shrink_to_zeros_and_have_every_structure():
    case = Case(seqlen=4, head_dim=2)
    zeros = find(tensors(case), lambda found: True)
    assert not any(np.any(x) for x in zeros.values())

    def cancels(found):
        v = found["v"].astype(np.float64)
        return abs(v.sum()) < 1e-3 < abs(v).sum()

    drawn = settings(max_examples=2000, phases=[Phase.generate])  # any: to find the smallest takes 18 s
    equal = find(
        tensors(case, st.just(3.0)), lambda found: len(np.unique(found["q"].sum(-1))) == 1 and found["q"].any(),
        settings=drawn,
    )  # fmt: skip
    assert np.all(equal["q"] == 3)
    cancelling = find(tensors(case), cancels, settings=drawn)
    assert np.any(cancelling["v"] < 0)
    hot = find(
        tensors(case), lambda found: np.count_nonzero(found["q"][0, 0], axis=-1).tolist() == [1] * 4, settings=drawn
    )
    assert np.all(np.count_nonzero(hot["q"], axis=-1) == 1)


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize("feature", FEATURES)
def test_cases_of_every_feature_are_drawn_and_shrink_to_the_plainest(feature):
    @settings(max_examples=5, deadline=None)
    @given(cases(feature=feature), st.data())
    def holds(case, data):
        same_width = feature in ("head_dim_v", "shared_kv") and case.head_dim_v == case.head_dim
        assert same_width or feature == "mixed" or case.unusual.keys() & OF_FEATURES
        assert Case(**case.as_dict()) == case
        found = data.draw(tensors(case))
        if case.shared_kv:
            assert np.array_equal(found["v"], found["k"][..., : case.head_dim_v])

    holds()
    plain = find(cases(feature=feature), lambda case: True)
    assert (plain.heads, plain.seqlen_q, plain.causal, plain.softcap) == (
        1,
        1,
        False,
        50.0 if feature == "softcap" else None,
    )


@pytest.mark.campaign
def test_a_strategy_chooses_among_features():
    asked = cases(feature=st.sampled_from((None, "sinks", "packed")))
    assert find(asked, lambda case: True).unusual.keys().isdisjoint(OF_FEATURES)
    assert find(asked, lambda case: case.sinks is not None).seqlens_q is None
    assert find(asked, lambda case: case.ragged and max(case.seqlens_k) > 2).seqlens_k in ((1, 3), (3, 1))
