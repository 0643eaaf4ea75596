"""Cases are drawn in which a fault can show, and in which it cannot."""

from dataclasses import replace

import numpy as np
import pytest

from campaigns.showing import hiding, showing
from tests.refusals import refusal
from workbench.cuda.faults import conditions
from workbench.cuda.faults.catalogue import CATALOGUE
from workbench.explore.draw import Among

FAULT = CATALOGUE["partial-O-wrong-row"]
#: what must be drawn for a condition to fail, where faults are drawn without it
DRAWN = {conditions.raw: {"softcap": Among((None, 5.0))}}
CONDITIONS = [one for name, one in vars(conditions).items() if getattr(one, "__module__", "") == conditions.__name__]


@pytest.mark.parametrize("condition", [one for one in CONDITIONS if not one.__name__.startswith("_")])
def test_a_condition_holds_in_some_cases_and_not_in_others(condition):
    fault, random = replace(FAULT, shows=condition, needs=DRAWN.get(condition, {})), np.random.default_rng(0)
    for _ in range(20):
        case, other = showing(fault, random), hiding(fault, random)
        assert condition(case) is True and case.block_k and case.splits
        assert other is None if condition is conditions.always else condition(other) is False


def test_cases_have_what_a_fault_needs():
    fault, random = replace(FAULT, needs={"causal": True, "head_dim": 8, "seed": 5}), np.random.default_rng(0)
    drawn = [showing(fault, random) for _ in range(20)]
    assert {(case.causal, case.head_dim, case.seed) for case in drawn} == {(True, 8, 5)}
    assert len({case.seqlen_k for case in drawn}) > 5 and min(case.seqlen_q for case in drawn) >= 65


def test_a_fault_that_never_shows_is_refused():
    fault = replace(FAULT, shows=lambda case: case.heads > 99)
    assert refusal(showing, fault, np.random.default_rng(0)) == (
        "fault partial-O-wrong-row cannot show in any of 1000 random cases"
    )
