"""Whether anything is outside its budget, without that budget: a lower bound of it, and the budget where that is not
enough.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.expectation.test_cut import CASE, CASES, of, spoilt, traced
from workbench import Trace, diff
from workbench.case.assumptions import alternatives, of_libraries, usual
from workbench.case.box import Box
from workbench.expectation import compare
from workbench.expectation.compare import failing, summaries
from workbench.expectation.elements import Summary
from workbench.expectation.expectation import Expectation
from workbench.expectation.observed import Observed
from workbench.floats import round_to

NAMES = ("out", "lse")
CONTRACTS: Mapping[str, Mapping[str, Any]] = {
    "weakest": {},
    "sum of cast": {
        "row_sum_of_cast": True, "probs_dtype": "bfloat16", "probs_normalised": False, "scores_dtype": "float32",
        "partials_dtype": "float32", "out_dtype": "float32", "normalisation": "division", "accumulation": "nearest",
        "exp_argument": "difference", "assumed": ("block_k", "splits"),
    },
    "division": {"normalisation": "division", "row_sum_of_cast": False, "probs_normalised": False},
    "nearest": {"accumulation": "nearest", "acc_accumulation": "nearest", "normalisation": "division"},
    "narrow": {"accumulator_dtype": "float16", "partials_dtype": "float32"},
    "tf32x3": {"input_precision": "tf32x3", "probs_dtype": "float32"},
    "any maximum": {"row_max": "any", "out_rounding": "toward-zero"},
    "tiles": {"block_k": 16, "splits": 2},
    "cast below all": {"probs_dtype": "float8_e4m3fn"},
}  # fmt: skip


def whole(trace: Trace) -> Expectation:
    case = trace.case
    box = Box(slice(0, case.batch), slice(0, case.heads), slice(0, case.seqlen_q))
    return Expectation(Observed(trace), {}, box, statistics=False)


@pytest.mark.campaign(every=5)
@pytest.mark.parametrize("contract", CONTRACTS)
@pytest.mark.parametrize("name", [*CASES, "dropout"])
def test_no_budget_is_below_its_lower_bound(name: str, contract: str) -> None:
    trace = traced(CASE.but(dropout_p=0.25, dtype="bfloat16") if name == "dropout" else CASES[name])
    v = trace.inputs["v"].copy()
    v[:, :, 3:5] = 0.0
    v[..., 2] = 0.0  # a dim that is 0 in every row
    v[..., 1] = v[..., 1] / 64 + 8  # and one whose values are nearly alike
    trace = of(replace(trace, inputs={**trace.inputs, "v": v}), **CONTRACTS[contract])
    for one in (trace.contract, usual(trace.contract)):
        e = whole(replace(trace, contract=one))
        least, bounds = e.least(NAMES), e.budgets(NAMES)
        # a kernel that told its tiles and its cast is not bounded in one step
        assert {*least} == {*NAMES} or e.problem.cast_aware
        for x, lower in least.items():
            assert (lower <= bounds[x].bound).all() and (lower >= 0).all()


def full(e: Expectation, names: Sequence[str]) -> dict[str, Summary]:
    return {name: found for name, found in summaries(e, names, {}, {}).items() if found.outside}


def told(found: Mapping[str, Summary]) -> str:
    """All of some summaries, NaN among their numbers."""
    return repr({name: (x.states.tolist(), x.bins.tolist(), vars(x)) for name, x in found.items()})


@pytest.mark.campaign(every=5)
@pytest.mark.parametrize("off", [0.0, 0.3, 0.6, 0.9, 0.99, 1.01, 1.1, 3.0])
@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", "window", "ragged", "sinks", "rows without keys"])
def test_what_is_outside_is_found_as_by_budgets(name: str, off: float) -> None:
    """One element of out and one of lse that are off by so many times their budgets."""
    trace = traced(CASES[name])
    usual_one = usual(trace.contract)
    bounds = whole(replace(trace, contract=usual_one))
    places = {"out": (0, 1, 29, 3), "lse": (0, 1, 28)}
    stages = {}
    for x, at in places.items():
        stage = trace.stages[x].astype(np.float64)
        stage[at] = bounds.computed[x][at] + off * bounds.budgets([x])[x].bound[at]
        stages[x] = round_to(stage, trace.stages[x].dtype).astype(trace.stages[x].dtype)
    trace = replace(trace, stages=stages)
    for contract in (usual_one, trace.contract, *(one for _, one in of_libraries(trace.contract))):
        e = whole(replace(trace, contract=contract))
        assert told(failing(e, NAMES, {})) == told(full(e, NAMES))
    if trace.case.dtype == "float32" or abs(off - 1) > 0.05:  # what rounding to 16 bits moves an element by
        assert [*failing(whole(replace(trace, contract=usual_one)), NAMES, {})] == ([] if off < 1 else [*NAMES])


@pytest.mark.parametrize("how", ["right", "wrong", "nan", "unwritten"])
def test_so_is_what_no_number_tells(how: str) -> None:
    for dtype in ("float32", "float16", "bfloat16"):
        trace = spoilt(traced(CASES[dtype]), how)
        e = whole(trace)
        assert told(failing(e, NAMES, {})) == told(full(e, NAMES))
        # inputs with NaN have no lower bounds
        v = trace.inputs["v"].copy()
        v[0, 0, 3, 0] = np.nan
        e = whole(replace(trace, inputs={**trace.inputs, "v": v}))
        assert not e.least(NAMES) and told(failing(e, NAMES, {})) == told(full(e, NAMES))


@pytest.mark.parametrize("name", [name for name in CASES if name != "put in"])
def test_budgets_of_another_contract_are_not_made_of_a_right_kernel(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = traced(CASES[name])
    # off by roundings of its sums, as kernels are, which half an ulp of out does not hold in float32
    noise = np.random.default_rng(0).uniform(-1, 1, trace.stages["out"].shape) * 2.0**-22
    out = (trace.stages["out"] + noise).astype(trace.stages["out"].dtype)
    trace = replace(trace, stages={**trace.stages, "out": np.where(trace.stages["out"] == 0, trace.stages["out"], out)})
    contracts = [usual(trace.contract), *(choice.contract for choice in alternatives(trace.contract))]
    monkeypatch.setattr(compare, "summaries", lambda *given: pytest.fail("a budget was made"))
    for contract in contracts[:3]:
        assert failing(whole(replace(trace, contract=contract)), NAMES, {}) == {}


def test_a_verdict_is_that_of_whole_budgets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels whose out is too large by a factor: none, one that known libraries excuse, one that none does."""

    def judged(trace: Trace) -> tuple[str, str]:
        found = diff(trace)
        return found.verdict, repr([(x.name, x.verdict, x.doubt, x.reason, x.if_declared) for x in found.stages])

    right = traced(CASES["bfloat16"])
    out, traces = right.stages["out"], []
    for factor in (1.0, 1.006, 1.012, 1.02):
        by = round_to(out.astype(np.float64) * factor, out.dtype).astype(out.dtype)
        traces.append(replace(right, stages={**right.stages, "out": by}, rerun=None))
    found = [judged(trace) for trace in traces]
    assert [verdict for verdict, _ in found] == ["exact", "suspicious", "bug", "bug"]
    monkeypatch.setattr(Expectation, "least", lambda self, names: {})
    assert [judged(trace) for trace in traces] == found
