"""Causes in attention sinks."""

import numpy as np
import pytest

from tests.judge.explain.fields import judged, named
from workbench import Case

CASE = Case(heads=4, kv_heads=2, seqlen_q=20, seqlen_k=37, head_dim=8, scale=0.4, sinks=(0.3, -0.7, 1.9, 1.1))

#: hypothesis -> the logits [1, h, 1] that a kernel takes, of the case and its own
LOGITS = {
    "none": lambda c, r, s: np.full_like(s, -np.inf),
    "scaled": lambda c, r, s: s * c.scale,
    "base-2": lambda c, r, s: s * np.log(2),
    "zero": lambda c, r, s: 0 * s,
    "twice": lambda c, r, s: s + np.log(2),
    "double": lambda c, r, s: 2 * s,
    "head-next": lambda c, r, s: np.roll(s, -1, 1),
    "head-zero": lambda c, r, s: s[:, :1] + 0 * s,
    "kv-head": lambda c, r, s: s[:, np.arange(c.heads) // (c.heads // c.kv_heads)],
}
#: hypothesis -> what is added to the sum of a row, of the logits and the largest score
TERMS = {
    "raw": lambda s, top: s + 0 * top,
    "unit": lambda s, top: 1 + 0 * top,
    "no-max": lambda s, top: np.exp(s) + 0 * top,
}


@pytest.mark.campaign(but=3)
@pytest.mark.parametrize("wrong", LOGITS)
def test_other_logits_are_named_where_sinks_enter_last(wrong):
    assert f"sinks.{wrong}" in named(CASE, {"sinks": LOGITS[wrong]})


@pytest.mark.parametrize("wrong", ["none", "base-2"])
def test_other_logits_are_named_from_out_and_lse(wrong):
    assert f"sinks.{wrong}" in named(CASE, {"sinks": LOGITS[wrong]}, dump=False)


@pytest.mark.parametrize("wrong", ["none", "zero", "head-next"])
def test_other_logits_are_named_where_sinks_enter_first(wrong):
    assert f"sinks.{wrong}-first" in named(CASE, {"sinks": LOGITS[wrong]}, sinks="first")


@pytest.mark.parametrize("wrong", TERMS)
def test_what_is_no_exp_of_a_logit_is_named(wrong):
    assert f"sinks.{wrong}" in named(CASE, {"term": lambda c, r, term: TERMS[wrong]})


@pytest.mark.parametrize("wrong", ["none", "head-next"])
def test_a_sink_that_is_wrong_in_out_or_in_lse_alone_is_named_there(wrong):
    assert f"sinks.{wrong}-in-out" in named(CASE, {"sinks_of_out": LOGITS[wrong]})
    assert f"sinks.{wrong}-in-lse" in named(CASE, {"sinks_of_lse": LOGITS[wrong]}, lse_includes_sink=True)


def test_a_sink_in_the_maximum_alone_is_named():
    assert "sinks.in-max-alone" in named(CASE, {"unit": lambda c, r, unit: 0 * unit}, sinks="first")


def test_the_cause_is_proved_on_fresh_cases():
    found = judged(CASE, {"sinks": LOGITS["head-next"]}).explain()
    (cause,) = found.causes
    assert cause.id == "sinks.head-next" and cause.proved and cause.trial.held and not found.unexplained
    assert cause.text == "the sink of the wrong head is used: the next one"


def test_another_fault_is_not_said_to_be_of_sinks():
    (cause,) = judged(CASE, {"scale": lambda c, r, scale: scale * scale}).explain().causes
    assert cause.id == "scale.twice" and cause.proved
