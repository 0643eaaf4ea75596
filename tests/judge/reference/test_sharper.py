"""Which elements are asked in reverse mode."""

import numpy as np

from tests.plain_kernels import inputs, naive, naive_scan, scan_inputs
from workbench.judge.reference import sharper as module
from workbench.judge.reference.sharper import MOST, OTHERS, affordable, asked, sharper
from workbench.reference.graph import Contract, budgets, trace

GRAPH = trace(naive, inputs(0, "float32"))
NODES = [GRAPH.results["result"]]


def test_the_farthest_off_are_asked_and_some_others() -> None:
    beyond = np.zeros((48, 32))
    beyond[5, 7], beyond[6, 1], beyond[0, 1] = 5.0, np.inf, 0.5
    found = asked(beyond, affordable(GRAPH, NODES))
    assert found[0] == (5, 7) and (6, 1) not in found and (0, 1) not in found
    assert {(0, 0), (47, 31)} < {*found} and len(found) == 1 + OTHERS
    assert len(asked(np.full((48, 32), 5.0), affordable(GRAPH, NODES))) <= MOST + OTHERS
    assert asked(np.zeros((0, 32)), affordable(GRAPH, NODES)) == []


def test_work_is_counted(monkeypatch) -> None:
    monkeypatch.setattr(module, "WORK", 0)
    assert len(asked(np.full((48, 32), 5.0), affordable(GRAPH, NODES))) <= 2 * OTHERS
    monkeypatch.setattr(module, "LARGEST", 10)
    assert asked(np.full((48, 32), 5.0), affordable(GRAPH, NODES)) == []


def test_turns_have_their_index_first() -> None:
    graph = trace(naive_scan, scan_inputs())
    names = tuple(f"state[{i}]" for i in range(6))
    found = sharper(graph, Contract(), names, [(5, 2), (3, 1)], {})
    for (turn, i), (worst, likely) in found.items():
        forward = budgets(graph, Contract(), None, [names[turn]])[names[turn]].budget
        assert 0 < likely <= worst <= forward.bound[i]
    assert len(found) == 2
