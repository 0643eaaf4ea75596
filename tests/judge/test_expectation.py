"""What a part of a trace should be under two contracts: computed once where that is right."""

from dataclasses import replace

import numpy as np
import pytest

from workbench import Case, Trace, run
from workbench.case.assumptions import alternatives, usual
from workbench.case.contract import of_foreign
from workbench.judge.expectation import Expectation
from workbench.judge.judgeable import readable

CASE = Case(seqlen_q=9, seqlen_k=40, heads=2, head_dim=16, dtype="bfloat16", splits=2, block_k=16, causal=True)


SAID = {"block_k": 16, "splits": 2, "probs_dtype": "bfloat16"}


@pytest.fixture(scope="module", params=[{}, SAID, SAID | {"probs_rounding": "nearest"}], ids=len)
def trace(request: pytest.FixtureRequest) -> Trace:
    """A run of split_k, all of whose stages were given, as a function that says some of its contract."""
    return replace(run("split_k", CASE, backend="emulator"), contract=of_foreign(request.param, CASE))


@pytest.mark.parametrize("dumped", [False, True])
def test_under_another_contract_it_is_what_it_would_be_from_the_start(trace: Trace, dumped: bool) -> None:
    given = readable(trace) if dumped else {}
    first = Expectation(trace, given)
    others = [usual(trace.contract), *(contract for _, contract in alternatives(trace.contract))]
    others += [replace(trace.contract, base2=True), replace(trace.contract, scores_dtype="float32", assumed=())]
    shared = 0
    for contract in others:
        found, fresh = first.under(contract), Expectation(replace(trace, contract=contract), given)
        assert found.trace.contract == contract
        shared += found.computed is first.computed
        for name, stage in fresh.computed.items():
            np.testing.assert_array_equal(found.computed[name], stage, err_msg=name)
        assert found.problem.losses == fresh.problem.losses
    assert 0 < shared < len(others)
    # a usual kernel casts probs before they are normalised: where the cast is known, the reference makes it, too
    same = first.under(usual(trace.contract)).computed is first.computed
    assert same == ("probs_rounding" in trace.contract.assumed)
