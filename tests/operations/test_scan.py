"""A loop judged by the graph of one turn: values of the loop itself, budgets of its unrolled graph in reverse mode."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.operations.deltas import gated_delta_rule
from workbench.floats import to_float64
from workbench.operations import scan
from workbench.operations.case import OperationCase
from workbench.operations.every import OPERATIONS
from workbench.operations.expected import Reference
from workbench.operations.run import OperationRun, run_operation
from workbench.reference.delta_rule import token
from workbench.reference.graph import Contract, budget_at, trace

DELTA = OPERATIONS["gated_delta_rule"]


def by_token(q: Any, k: Any, v: Any, gate: Any, beta: Any, initial_state: Any, *, scale: float) -> Any:
    """The loop of which a turn is the plain function."""
    state, found = initial_state, []
    for t in range(q.shape[2]):
        one = slice(t, t + 1)
        rows = (x[:, :, one] for x in (q, k, v, gate, beta))
        *_, state, _, out = token(*rows, state, scale=scale)
        found.append((out, state))
    return np.concatenate([out for out, _ in found], axis=2), np.stack([after for _, after in found], axis=2)


def run_of(distribution: str = "", **sizes: int) -> OperationRun:
    case = OperationCase(
        DELTA, {"tokens": 12, "dim": 5, "dim_v": 3, **sizes}, "float32", distribution, 1, {"scale": 0.3}
    )
    return replace(run_operation(gated_delta_rule(), case, name="mine"), told=("chunk",))


@pytest.mark.parametrize("columns", [1, 3, 8])
def test_values_are_those_of_the_loop(columns: int) -> None:
    run = run_of(dim_v=columns)
    made = Reference(run).values({}, ["out", "state"])
    inputs = {name: to_float64(x) for name, x in run.inputs.items()}
    for name, x in zip(("out", "state"), by_token(**inputs, scale=0.3), strict=True):
        np.testing.assert_allclose(made[name], x, rtol=1e-6, atol=1e-7)  # the plain function casts its inputs
        assert np.max(abs(made[name] - run.stages[name])) < 1e-5


@pytest.mark.parametrize("distribution", DELTA.distributions)
def test_budgets_of_results_are_those_of_reverse_mode(distribution: str) -> None:
    run = run_of(distribution)
    graph = trace(by_token, {**run.inputs, "scale": 0.3})
    expected = Reference(run).expected({}, ["out", "state"])
    elements = [(0, h, t, e) for h, t, e in ((0, 0, 0), (1, 3, 2), (0, 7, 1), (1, 11, 2))]
    reverse = budget_at(graph, Contract(), "result[0]", elements)
    own = [expected["out"].budget.bound[at] for at in elements]
    assert np.all(own >= 0.99 * reverse.bound) and np.all(own <= 1.25 * reverse.bound), own / reverse.bound
    likely = [expected["out"].budget.statistical[at] for at in elements]
    assert np.all(likely <= 1.5 * reverse.statistical), likely / reverse.statistical
    # a state's are by norms, of whole columns
    elements = [(0, h, t, d, e) for h, t, d, e in ((0, 0, 0, 0), (1, 3, 4, 2), (0, 11, 2, 1))]
    bounds = budget_at(graph, Contract(), "result[1]", elements).bound
    assert all(0.99 * x <= expected["state"].budget.bound[at] <= 8 * x for at, x in zip(elements, bounds, strict=True))


def test_what_was_dumped_is_exact_in_what_follows() -> None:
    run = run_of()
    every = {name: to_float64(x) for name, x in run.stages.items()}
    reference = Reference(run)

    def bound(*some: str) -> Any:
        return reference.expected({name: every[name] for name in some}, ["out"])["out"].budget.bound

    alone, by_state, by_written, of_inputs = bound(*every), bound("state"), bound("written"), bound()
    assert np.all(alone < by_state) and np.all(by_state <= of_inputs) and np.all(alone < by_written)
    # without what is written a state forgets by its gate alone
    assert np.median(by_state) < 0.5 * np.median(of_inputs) and np.median(by_written) < np.median(of_inputs)


def test_what_is_no_number_stays_in_its_columns() -> None:
    run = run_of()
    v, gate = run.inputs["v"].copy(), run.inputs["gate"].copy()
    v[0, 0, 4, 1], gate[0, 1, 6] = np.inf, np.nan
    found = Reference(replace(run, inputs={**run.inputs, "v": v, "gate": gate})).expected({}, ["out"])
    value, bound = found["out"].value, found["out"].budget.bound
    assert not np.isfinite(value[0, 0, 4:, 1]).any() and np.isfinite(np.delete(value[0, 0], 1, -1)).all()
    assert np.isnan(value[0, 1, 6:]).all() and np.isnan(bound[0, 1, 6:]).all()
    assert np.isfinite(value[0, 1, :6]).all() and np.isfinite(bound[0, 1, :6]).all()
    assert np.isfinite(np.delete(bound[0, 0], 1, -1)).all()


def test_heads_in_groups_and_rows_that_stop_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Budgets of some heads at once are those of all; rows that are left to norms after two turns have wider ones."""
    run = run_of(heads=3, tokens=30)
    usual = Reference(run).expected({}, ["out", "state"])
    monkeypatch.setattr(scan, "HELD", 1)
    assert len(Reference(run).scans) == 3
    for name, one in Reference(run).expected({}, ["out", "state"]).items():
        assert np.array_equal(one.value, usual[name].value)
        np.testing.assert_allclose(one.budget.bound, usual[name].budget.bound, rtol=1e-12)
        np.testing.assert_allclose(one.budget.statistical, usual[name].budget.statistical, rtol=1e-12)
    monkeypatch.setattr(scan, "WORK", 1.0)
    wider = Reference(run).expected({}, ["out"])["out"].budget.bound
    bound, error = usual["out"].budget.bound, abs(run.stages["out"] - usual["out"].value)
    assert np.all(wider >= 0.99 * bound) and np.median(wider) > 1.2 * np.median(bound) and np.all(error <= bound)
