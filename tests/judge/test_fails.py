"""Which outcomes fail."""

from dataclasses import replace

import numpy as np
import pytest

from workbench import Case, Refusal, diff, run
from workbench.expectation.observed import Observed
from workbench.judge.diff import SEVERITY
from workbench.judge.fails import FAIL_ON, classed, failing, outcome


def mean(q, k, v, *, scale, causal):
    return np.broadcast_to(v.mean(axis=2, keepdims=True, dtype=np.float64), q.shape).astype(q.dtype)


def test_every_verdict_and_the_gate_fail_or_pass_by_the_mildest_that_is_to_fail():
    always = {"missing", "bug", "untestable", "gate"}
    assert failing("bug") == always
    assert failing("biased") == {*always, "biased"}
    assert failing("suspicious") == {*always, "biased", "evidence", "suspicious"}
    assert failing() == failing("evidence") == {*always, "biased", "evidence"}
    for mildest in {*FAIL_ON} & {*SEVERITY}:  # whatever is worse fails too; what is right passes
        assert {*SEVERITY[SEVERITY.index(mildest) :]} <= failing(mildest)
        assert not {"exact", "rounding"} & failing(mildest)


def test_an_unknown_verdict_is_refused():
    with pytest.raises(Refusal, match="fail_on must be one of bug, biased, evidence, suspicious; got 'rounding'"):
        failing("rounding")


def test_a_failed_gate_stands_above_the_verdict():
    judged = diff(run(mean, Case(seqlen=4, head_dim=8, distribution="index-coded").but(scale=0.0)))
    assert outcome(judged) == judged.verdict in ("exact", "rounding")
    assert outcome(replace(judged, run=Observed(replace(judged.trace, gates=("not rebuilt",))))) == "gate"


@pytest.mark.parametrize(("verdict", "doubt", "found"), [
    ("suspicious", "evidence", "evidence"), ("suspicious", "assumption", "suspicious"), ("biased", "evidence", "biased"),
    ("rounding", "", "rounding"), ("bug", "", "bug"),
])  # fmt: skip
def test_of_what_is_suspicious_the_class_decides_in_a_test(verdict, doubt, found):
    judged = diff(run(mean, Case(seqlen=4, head_dim=8, scale=1e-30)))
    assert judged.doubt == ""
    stages = tuple(replace(stage, verdict=verdict, doubt=doubt) for stage in judged.stages)
    assert classed(replace(judged, stages=stages)) == found
