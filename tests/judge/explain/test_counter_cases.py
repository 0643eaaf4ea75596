"""Cases on which formulas are told apart: there are some of whatever case a kernel ran on."""

import pytest

from workbench import Case, diff, run
from workbench.judge.explain.counter_cases import cases


@pytest.mark.parametrize(
    "case",
    [
        Case(seqlen=1, head_dim=2, distribution="exact"),
        Case(seqlen=4, head_dim=6, heads=4, kv_heads=2, distribution="exact"),
        Case(seqlen=8, head_dim=3, distribution="needle"),
        Case(seqlen=8, head_dim=3, distribution="index-coded"),
        Case(seqlen=20, head_dim=16, distribution="exact", scale=0.5),
    ],
    ids=repr,
)
def test_inputs_that_need_more_dims_for_more_keys_are_drawn(case):
    found = list(cases(case))
    assert len(found) >= 5 and {one.head_dim for one in found} == {case.head_dim}
    assert max(one.seqlen_k for one in found) > 100


def test_a_wrong_run_on_few_dims_is_explained():
    def doubled(q, k, v, *, scale, causal):
        return 2 * v

    found = diff(run(doubled, Case(seqlen=1, head_dim=2, distribution="exact")))
    assert found.verdict == "bug" and found.explained.tried > 0
