"""What a part of a trace should be under two contracts: computed once where that is right."""

import gc
import weakref
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.stored import stored
from workbench import Case, Trace, diff, run
from workbench.case.assumptions import alternatives, usual
from workbench.case.box import Box
from workbench.case.contract import of_foreign
from workbench.expectation.compare import compared
from workbench.expectation.expectation import Expectation
from workbench.expectation.observed import Observed
from workbench.trace.trace import blank

CASE = Case(seqlen_q=9, seqlen_k=40, heads=2, head_dim=16, dtype="bfloat16", splits=2, block_k=16, causal=True)


SAID = {"block_k": 16, "splits": 2, "probs_dtype": "bfloat16"}


@pytest.fixture(scope="module", params=[{}, SAID, SAID | {"probs_rounding": "nearest"}], ids=len)
def trace(request: pytest.FixtureRequest) -> Trace:
    """A run of split_k, all of whose stages were given, as a function that says some of its contract."""
    return replace(stored("split_k", CASE), contract=of_foreign(request.param, CASE))


@pytest.mark.parametrize("dumped", [False, True])
def test_under_another_contract_it_is_what_it_would_be_from_the_start(trace: Trace, dumped: bool) -> None:
    given = Observed(trace).readable if dumped else {}
    first = Expectation(Observed(trace), given)
    others = [usual(trace.contract), *(choice.contract for choice in alternatives(trace.contract))]
    others += [replace(trace.contract, base2=True), replace(trace.contract, scores_dtype="float32", assumed=())]
    shared = 0
    for contract in others:
        found, fresh = first.under(contract), Expectation(Observed(replace(trace, contract=contract)), given)
        assert found.run.contract == contract
        shared += found.computed is first.computed
        for name, stage in fresh.computed.items():
            np.testing.assert_array_equal(found.computed[name], stage, err_msg=name)
        assert found.problem.losses == fresh.problem.losses
    assert 0 < shared < len(others)
    # a usual kernel casts probs before they are normalised: where the cast is known, the reference makes it, too
    same = first.under(usual(trace.contract)).computed is first.computed
    assert same == ("probs_rounding" in trace.contract.assumed)


def skipping(q: Any, k: Any, v: Any, *, scale: float, causal: bool, wrong: str = "") -> Any:
    """A key at a time, and none that the row does not see, whose slots stay as they were."""
    (b, h, n, _), m = q.shape, k.shape[2]
    float32 = np.dtype(np.float32)
    stages = {"scores": blank((b, h, n, m), float32), "row_max": blank((b, h, n, m), float32)}
    out, scores = np.zeros_like(q), (q @ k.swapaxes(-1, -2) * np.float32(scale)).astype(np.float32)
    for row in range(n):
        seen = scores[:, :, row, : row + m - n + 1]
        stages["scores"][:, :, row, : row + m - n + 1] = seen
        stages["row_max"][:, :, row, : row + m - n + 1] = np.maximum.accumulate(seen, -1)
        probs = np.exp(seen - seen.max(-1, keepdims=True))
        out[:, :, row] = (probs / probs.sum(-1, keepdims=True)) @ v[:, :, : row + m - n + 1].reshape(
            b, h, -1, q.shape[3]
        )
    if wrong == "written":
        stages["scores"][0, 0, 3, -1] = scores[0, 0, 3, -1]
    elif wrong:
        stages[wrong][0, 0, 3, 0] = blank((1,), float32)[0]
    return {**stages, "out": out, "contract": {"block_k": 1}}


CAUSAL = Case(seqlen_q=6, seqlen_k=8, head_dim=4, causal=True)


def test_a_part_is_freed_where_it_is_left() -> None:
    """Not where the collector finds it: one of a GPU holds 14 GB."""
    stored_ = Observed(run("flash", Case(seqlen=64, causal=True)))
    gc.disable()
    try:
        part = Expectation(stored_, stored_.readable, Box(slice(0, 1), slice(0, 1), slice(0, 64)))
        assert dict(compared(part, ["qk", "out"]))
        left = weakref.ref(part.computed["scores"])
        del part
        assert left() is None
    finally:
        gc.enable()


def test_slots_of_keys_that_a_row_does_not_see_may_be_left() -> None:
    judged = diff(run(skipping, CAUSAL))
    assert judged.verdict == "rounding"
    found = {name: judged[name].isolated or judged[name].propagated for name in ("scores", "row_max")}
    assert {name: one.summary.size for name, one in found.items() if one is not None} == {"scores": 33, "row_max": 33}


@pytest.mark.parametrize(
    ("wrong", "verdict"), [("written", "suspicious"), ("scores", "missing"), ("row_max", "missing")]
)
def test_other_slots_may_not(wrong: str, verdict: str) -> None:
    judged = diff(run(partial(skipping, wrong=wrong), CAUSAL))
    assert judged["row_max" if wrong == "row_max" else "scores"].verdict == verdict
