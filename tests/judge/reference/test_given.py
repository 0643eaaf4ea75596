"""Arrays of a kernel matched with results and stages of a reference."""

import numpy as np
import pytest

from tests.plain_kernels import inputs, naive, naive_norm, naive_scan, scan_inputs
from workbench.judge.reference.given import matched
from workbench.reference.graph import stage, trace
from workbench.refusal import Refusal

NORM = trace(naive_norm, {"x": np.ones((2, 4), np.float32), "weight": np.ones(4, np.float32)})
SCAN = trace(naive_scan, scan_inputs())


def unwritten(arrays):
    if isinstance(arrays, dict):
        return {name: np.zeros(x.shape, bool) for name, x in arrays.items()}
    return [None if x is None else np.zeros(x.shape, bool) for x in arrays]


def match(graph, arrays):
    return matched(graph, arrays, unwritten(arrays), "f")


def test_results_are_called_as_the_reference_calls_them() -> None:
    assert [NORM.called(name) for name in NORM.results] == ["out", "squares"]
    nameless = trace(lambda x: (x * 2.0, x + 1.0), {"x": np.ones(2, np.float32)})
    assert [nameless.called(name) for name in nameless.results] == ["result[0]", "result[1]"]
    by_key = trace(lambda x: {"dx": x * 2.0}, {"x": np.ones(2, np.float32)})
    assert [one.name for one in match(by_key, [np.ones(2)])] == ["dx"]


def test_order_is_the_reference_s_whatever_the_kernel_s() -> None:
    found = match(NORM, {"out": np.ones((2, 4), np.float32), "squares": np.ones((2, 1), np.float32)})
    assert [one.name for one in found] == ["squares", "out"] and all(one.result for one in found)
    assert [one.name for one in match(NORM, [None, np.ones((2, 1), np.float32)])] == ["squares"]


@pytest.mark.parametrize(
    ("arrays", "places"),
    [
        ({"state": np.ones((7, 8), np.float32)}, tuple(f"state[{i}]" for i in range(-1, 6))),
        ({"state[-1]": np.ones(8, np.float32)}, ("state[-1]",)),
        ({"state": np.ones(8, np.float32)}, ("state",)),
        ({"state[2]": np.ones(8, np.float32)}, ("state[2]",)),
        ({"state": np.ones((6, 8), np.float32)}, tuple(f"state[{i}]" for i in range(6))),
        ({f"state[{i}]": np.ones(8, np.float32) for i in range(6)}, tuple(f"state[{i}]" for i in range(6))),
    ],
    ids=["along an axis", "before the loop", "the last", "one", "of the loop", "of the loop, one by one"],
)
def test_turns_of_a_loop(arrays, places) -> None:
    (found,) = match(SCAN, arrays)
    assert found.places == places and len(found.turns) == len(places) and not found.result
    assert all(one.shape == (8,) for one in found.turns)


def test_all_iterations_beside_the_last() -> None:
    """state[0] is the first iteration, though the name was assigned before the loop."""
    several = {f"state[{i}]": np.full(8, i, np.float32) for i in range(6)}
    whole, last = match(SCAN, {**several, "state": np.full(8, 5, np.float32)})
    assert whole.name == "state[:]" and whole.places == tuple(f"state[{i}]" for i in range(6))
    assert last.name == "state" and SCAN.places()["state[5]"] == SCAN.places()["state"] == last.nodes[0]


def test_a_stage_by_its_own_name() -> None:
    graph = trace(lambda x: stage("twice", x * 2.0) + 1.0, {"x": np.ones(3, np.float32)})
    assert match(graph, {"twice": np.ones(3, np.float32)})[0].name == "twice"


def test_what_does_not_fit_is_refused_with_the_line() -> None:
    graph = trace(naive, inputs(0, "float32"))
    right = np.ones((48, 32), np.float32)
    for arrays, words in (
        ({"out": right.T}, r"f returned out of shape \[32, 48\]; out of the reference \(.*plain_kernels.py:\d+\)"),
        ({"out": right.astype(bool)}, "in bool"),
        ({"prob": right}, "stage 'prob'; did you mean probs"),
        ([right, right], r"returned 2 arrays; the reference returns 1: result \(.*plain_kernels.py:\d+\)"),
    ):
        with pytest.raises(Refusal, match=words):
            match(graph, arrays)
    with pytest.raises(
        Refusal, match=r"returned 4 iterations of state; the reference \(.*plain_kernels.py:\d+\) has 6"
    ):
        match(SCAN, {"state": np.ones((4, 8), np.float32)})
    places = trace(lambda x: np.argmax(x, axis=-1), {"x": np.ones((2, 3), np.float32)})
    with pytest.raises(Refusal, match="in float32"):
        match(places, [np.zeros(2, np.float32)])


def test_the_first_turn_of_a_name_that_is_assigned_twice_is_not_the_last() -> None:
    def twice(x):
        y = x * 2.0
        y = y + 1.0
        return y

    graph = trace(twice, {"x": np.ones(3, np.float32)})
    (first,) = match(graph, {"y[-1]": np.ones(3, np.float32)})
    assert first.nodes == (graph.stages["y"][0],) and not first.result
    (only,) = match(graph, {"y[0]": np.ones(3, np.float32)})  # as of a loop of one iteration
    assert only.nodes == (graph.stages["y"][1],)
    (last,) = match(graph, {"y": np.ones(3, np.float32)})
    assert last.nodes == (graph.stages["y"][1],) and last.result
