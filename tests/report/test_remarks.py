"""The sentences beside the verdict, whole."""

from dataclasses import replace

import numpy as np
import pytest

from tests.stored import stored
from workbench import Case, diff
from workbench.report.document import diff_document
from workbench.report.remarks import notes, remarks

CASE = Case(seqlen=16, head_dim=8, block_q=16, block_k=16)


def traced(q_signs=1.0, **stages):
    """A run on ones, whose numbers are known: out is 1, and so is every term but for its sign."""
    q, k, v = (np.ones(x.shape, np.float32) for x in CASE.inputs())
    q[0, 0, 7] *= q_signs
    trace = stored("flash", CASE, inputs=(q, k, v))
    return replace(trace, stages={**trace.stages, **stages})


def test_a_right_kernel_passes_every_rule():
    assert remarks(diff(traced())) == [
        "correctly rounded: out 100.0%, lse 0.0%",
        "other rules on out: assert_close passes, atol 1e-2 passes, FlashAttention 2x passes",
    ]


def test_rules_that_fail_say_by_how_much():
    out = np.ones((1, 1, 16, 8), np.float32)
    out[0, 0, 3, 2] = 1.5
    # 0.5 / (1e-5 + 1.3e-6); 1 + 0.3 - 0.3 is 1 - 2^-24 in float32, and the mean of 16 ones is exact
    assert remarks(diff(traced(out=out))) == [
        "correctly rounded: out 99.2%, lse 0.0%",
        "other rules on out: assert_close fails (4.42e+04x its tolerance), atol 1e-2 fails (0.5, limit 0.01), "
        "FlashAttention 2x fails (0.5, limit 1.19e-07)",
    ]


def test_without_out_no_rule_is_told_of():
    trace = traced()
    judged = diff(replace(trace, stages={"lse": trace.stages["lse"]}, requested=()))
    assert remarks(judged) == ["correctly rounded: lse 0.0%"]
    assert diff_document(judged)["rules"] == [] and diff_document(judged)["bits_lost"] == {}


@pytest.mark.parametrize(
    ("last", "lost"), [(-7.0, "inf"), (-7 + 2.0**-20, "23.8"), (-7 + 2.0**-16, None)], ids=["all", "most", "some"]
)
def test_ill_conditioned_sums_are_counted_and_the_worst_is_named(last, lost):
    """Seven terms of 1 and one of nearly -7: 14 / 2^-20 is 23.8 bits, 14 / 2^-16 is 19.8, which leaves more than 4."""
    lines = remarks(diff(traced(np.array([1, 1, 1, 1, 1, 1, 1, last], np.float32))))
    assert lines[2:] == (
        []
        if lost is None
        else [
            "ill-conditioned: qk has 16 of 256 elements with fewer than 4 good bits, "
            f"worst at b=0 h=0 q=7 k=0: {lost} bits lost"
        ]
    )


def test_nan_of_the_inputs_is_told():
    trace = traced()
    trace.inputs["k"][0, 0, 3, :2] = np.nan
    assert notes(diff(trace)) == ["the inputs have NaN (2 in k): NaN is expected in every result that reads them"]
