"""Causes in dropout."""

import numpy as np
import pytest

from tests.judge.explain.fields import judged, named
from workbench import Case

CASE = Case(batch=3, heads=4, kv_heads=2, seqlen_q=24, seqlen_k=24, head_dim=8, dropout_p=0.25)


def share(case):
    return np.float32(1 - case.dropout_p)


FAULTS = {
    "inverted": {"kept": lambda c, r, kept: ~kept},
    "transposed": {"kept": lambda c, r, kept: kept.swapaxes(-1, -2) if c.seqlen_q == c.seqlen_k else kept},
    "head-next": {"kept": lambda c, r, kept: np.roll(kept, -1, 1)},
    "batch-next": {"kept": lambda c, r, kept: np.roll(kept, -1, 0)},
    "none": {"dropped": lambda c, p, kept: p},
    "unscaled": {"dropped": lambda c, p, kept: kept * share(c)},
    "in-sum": {"summed": lambda c, p, kept: kept},
    "in-sum-and-unscaled": {
        "dropped": lambda c, p, kept: kept * share(c),
        "summed": lambda c, p, kept: kept,
    },
}


@pytest.mark.parametrize("wrong", FAULTS)
def test_a_fault_is_named(wrong):
    assert f"dropout.{wrong}" in named(CASE, FAULTS[wrong])


@pytest.mark.parametrize("wrong", ["inverted", "unscaled", "in-sum"])
def test_a_fault_is_named_from_out_and_lse(wrong):
    assert f"dropout.{wrong}" in named(CASE, FAULTS[wrong], dump=False)


def test_the_cause_is_proved_on_fresh_cases():
    (cause,) = judged(CASE, FAULTS["head-next"]).explain().causes
    assert cause.id == "dropout.head-next" and cause.proved and cause.trial.held
