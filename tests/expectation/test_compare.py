"""Elements that may be anything: corrections that multiply nothing."""

from dataclasses import replace

import numpy as np
import pytest

from tests.stored import stored
from workbench import Case, Trace, diff
from workbench.expectation.elements import State
from workbench.report.words import findings

CASE = Case(seqlen=48, head_dim=8, block_q=16, block_k=16)
#: rows from 24 on see none of the first tile's keys
WINDOW = CASE.but(window=(8, 0))


def with_correction(case: Case, value: float, q: slice, t: int, target: str = "flash", **contract: object) -> Trace:
    """A right run, with another correction of some rows at a tile: what reads it is as it was."""
    trace = stored(target, case)
    correction = trace.stages["correction"].copy()
    correction[:, :, q, t] = value
    stages = {**trace.stages, "correction": correction}
    return replace(trace, stages=stages, contract=replace(trace.contract, **contract))


@pytest.mark.parametrize("value", [1.0, 7.0, -3e38])
def test_a_correction_before_which_there_is_nothing_may_be_any_number(value: float) -> None:
    judged = diff(with_correction(CASE, value, slice(None), 0))
    assert (judged.verdict, judged.origins, judged.victims) == ("rounding", (), ())
    assert (judged["correction"].judged.state[..., 0] == State.VACUOUS).all()
    assert (
        "  correction: 48 of 144 elements not judged: they multiply nothing, since row_sum and acc are 0 before them"
        in (findings(judged))
    )


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_makes_nan_of_nothing_is_a_bug(value: float) -> None:
    judged = diff(with_correction(CASE, value, slice(3, 4), 0))
    assert judged.origins == ("correction",) and judged["correction"].judged.summary.outside == 1


def test_a_correction_of_something_is_judged() -> None:
    judged = diff(with_correction(CASE, 0.5, slice(3, 4), 1))
    # row_sum and acc of the trace were made with the right one
    assert judged.origins == ("correction", "row_sum", "acc")
    assert judged["correction"].judged.summary.outside == 1


def test_a_row_that_has_seen_no_key_has_nothing_either() -> None:
    judged = diff(with_correction(WINDOW, 1.0, slice(24, None), 1))
    assert (judged.verdict, judged.origins) == ("rounding", ())
    assert judged["correction"].judged.summary.count(State.VACUOUS) == 24
    # row 23 sees key 15, of the first tile
    assert diff(with_correction(WINDOW, 1.5, slice(23, None), 1)).origins == ("correction", "row_sum", "acc")


def test_each_split_begins_with_nothing() -> None:
    judged = diff(with_correction(CASE.but(splits=3), 1.0, slice(None), 2, "split_k"))
    assert (judged.verdict, judged.origins) == ("rounding", ())


@pytest.mark.parametrize("contract", [{"mask_sentinel": -1e30}, {"exp_floor": -126.0}])
def test_what_a_sentinel_or_a_floor_leaves_in_row_sum_is_wiped_out_by_the_correction(contract: dict) -> None:
    trace = with_correction(WINDOW, 1.0, slice(24, None), 1, **contract)
    assert "correction" in diff(trace).origins


def test_sinks_that_enter_first_are_something() -> None:
    sunk = CASE.but(sinks="normal")
    trace = with_correction(sunk, 1.0, slice(None), 0)
    assert trace.contract.sinks == "first" and "correction" in diff(trace).origins
