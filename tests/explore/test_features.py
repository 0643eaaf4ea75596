"""What kernels take beyond dense attention is drawn where it is asked for, and nowhere else."""

import numpy as np
import pytest

from tests.refusals import refusal
from workbench import Case
from workbench.cuda.kernels import KERNELS
from workbench.cuda.plan import resolve
from workbench.explore.features import FEATURES
from workbench.explore.sample import sample

#: feature -> the field that tells of it
TOLD = {
    **{"sinks": "sinks", "alibi": "alibi_slopes", "dropout": "dropout_p", "head_dim_v": "head_dim_v"},
    **{"shared_kv": "shared_kv", "mla": "head_dim", "packed": "seqlens_q", "padded": "seqlens_k"},
    **{"paged": "page_size", "pack_gqa": "pack_gqa", "window": "window", "softcap": "softcap"},
    **{"mask_mod": "mask_mod", "score_mod": "score_mod"},
}
#: what kernels of ours refuse
FOREIGN = ("score_mod",)


@pytest.mark.parametrize("kernel", ["flash", "split_k"])
@pytest.mark.parametrize("feature", [name for name in FEATURES if name not in (*FOREIGN, "mixed")])
def test_cases_of_a_feature_are_taken(feature, kernel):
    random = np.random.default_rng(3)
    cases = [resolve(KERNELS[kernel], sample(random, kernel, feature=feature)) for _ in range(30)]
    usual = Case(heads=2)
    assert {*TOLD, "mixed"} == {*FEATURES}
    assert sum(getattr(case, TOLD[feature]) != getattr(usual, TOLD[feature]) for case in cases) >= 25


@pytest.mark.parametrize("kernel", ["flash", "split_k"])
def test_a_mixed_case_has_several_features(kernel):
    random, usual = np.random.default_rng(3), Case(heads=2)
    cases = [resolve(KERNELS[kernel], sample(random, kernel, feature="mixed")) for _ in range(60)]
    fields = {*TOLD.values()} - {"head_dim", "mask_mod", "score_mod"}
    had = [{name for name in fields if getattr(case, name) != getattr(usual, name)} for case in cases]
    assert set().union(*had) == fields and sum(len(one) >= 3 for one in had) > 40


def test_sequences_without_queries_and_without_keys_are_among_them():
    random = np.random.default_rng(0)
    cases = [sample(random, "flash", feature="packed") for _ in range(200)]
    assert any(0 in case.seqlens_q for case in cases) and any(0 in case.seqlens_k for case in cases)
    pages = [sample(random, "flash", feature="paged") for _ in range(100)]
    assert {case.kv_layout for case in pages} == {"NHD", "HND"} and len({case.page_size for case in pages}) == 5
    assert 10 < sum(case.seqlens_q is not None for case in pages) < 90


def test_a_case_has_no_feature_unless_it_is_asked_for():
    """And the same draws as without any."""
    one, other = (np.random.default_rng(5) for _ in range(2))
    for _ in range(20):
        case = sample(one, "flash")
        assert case == sample(other, "flash", feature=None) and not case.ragged and case.sinks is None
        assert (case.head_dim_v, case.page_size, case.pack_gqa) == (case.head_dim, None, False)


def test_an_unknown_feature_is_refused():
    assert refusal(lambda: sample(np.random.default_rng(0), "flash", feature="rope")) == (
        f"feature must be one of {', '.join(FEATURES)}; got 'rope'"
    )
