"""Edits of a graph: what they compute, by the short way and by the graph that has them."""

import numpy as np
import pytest

from workbench.judge.reference.causes.edit import Edit, edited, fits
from workbench.judge.reference.causes.library import Slab, edits
from workbench.judge.reference.causes.loops import classes
from workbench.judge.reference.causes.replay import Replay
from workbench.reference.graph import Contract, Graph, budgets, trace
from workbench.reference.graph.arrays import Traced
from workbench.reference.graph.plan import upstream
from workbench.work import Work


def norm(x, w):
    scale = (x * x).mean(-1, keepdims=True) + 1e-3
    out = x / np.sqrt(scale) * w
    total = (out * x).sum(0)
    return out, total


def scan(k, v):
    state = np.zeros(v.shape[1])
    states = []
    for t in range(len(k)):
        state = 0.5 * state + k[t] * v[t]
        states.append(state)
    out = np.stack(states)
    return out


@pytest.fixture(scope="module")
def graph() -> Graph:
    rng = np.random.default_rng(0)
    return trace(norm, {"x": rng.standard_normal((6, 20)), "w": rng.standard_normal(20)})


def named(graph: Graph, words: str):
    nodes = sorted(upstream(graph, graph.results.values()))
    return next(one for one in edits(graph, nodes) if one.words == words)


@pytest.mark.parametrize("slab", [None, Slab(20, (19,))])
def test_the_short_way_gives_what_the_edited_graph_gives(graph: Graph, slab: Slab | None) -> None:
    asked = list(graph.results.values())
    replay = Replay(graph, asked, {}, {})
    replay.start()
    found = edits(graph, replay.order, (), slab)
    assert len(found) > 500
    some = 0
    with np.errstate(all="ignore"):
        for edit in found[::29]:
            made = replay.of(edit, Work(1e9))
            if made is None:
                continue
            whole = budgets(edited(graph, edit)[0], Contract(), {}, ["out", "total"])
            for name, node in zip(("out", "total"), asked, strict=True):
                mine = made.values.get(node, replay.made[node])
                np.testing.assert_allclose(mine, whole[name].value, rtol=1e-12, err_msg=edit.words)
            some += bool(made.values)
    assert some > 10


def test_an_edit_for_one_result_leaves_the_other_as_it_is(graph: Graph) -> None:
    edit = named(graph, "scale is multiplied by 2")
    right = budgets(graph, Contract())
    both = budgets(edited(graph, edit)[0], Contract())
    alone = budgets(edited(graph, edit, {graph.results["result[1]"]})[0], Contract())
    np.testing.assert_allclose(both["out"].value, right["out"].value / np.sqrt(2))
    np.testing.assert_array_equal(alone["out"].value, right["out"].value)
    np.testing.assert_allclose(alone["total"].value, both["total"].value)


def test_a_sum_of_products_stays_a_contraction_whose_operands_a_contract_rounds() -> None:
    rng = np.random.default_rng(0)
    inputs = {name: rng.standard_normal((3, 16)) for name in ("x", "y")}

    def dots(x, y):
        out = (x * y).sum(-1)
        return out

    graph = trace(dots, inputs)
    edit = named(graph, "out leaves out its last term")
    narrow = Contract(operands="bfloat16")
    mine, right = (budgets(one, narrow)["out"].budget.bound for one in (edited(graph, edit)[0], graph))
    np.testing.assert_allclose(mine, right, rtol=0.5)


def test_edits_of_one_graph_fit_that_of_other_inputs_of_the_same_sizes(graph: Graph) -> None:
    rng = np.random.default_rng(1)
    other = trace(norm, {"x": rng.standard_normal((6, 20)), "w": rng.standard_normal(20)})
    smaller = trace(norm, {"x": rng.standard_normal((5, 20)), "w": rng.standard_normal(20)})
    assert fits(graph, other)
    assert not fits(graph, smaller)


def test_turns_of_a_loop_are_edited_together_in_the_first_the_last_and_at_the_ends_of_chunks() -> None:
    rng = np.random.default_rng(0)
    graph = trace(scan, {"k": rng.standard_normal(20), "v": rng.standard_normal((20, 2))})
    groups = {one: len(one) for one in classes(graph, range(len(graph.nodes)))}
    assert sum(n == 20 for n in groups.values()) >= 4
    nodes = sorted(upstream(graph, graph.results.values()))
    some = [one for one in edits(graph, nodes) if one.words.startswith("state is multiplied by 2")]
    turns = {one.said: one.nodes for one in some if "state only" not in one.said and one.nodes[0] > 5}
    last = "is multiplied by 2, in the last turn of each 8"
    assert {said: len(some) for said, some in turns.items()} == {
        "is multiplied by 2": 20, "is multiplied by 2, in the first turn only": 1,
        "is multiplied by 2, in the last turn only": 1, "is multiplied by 2, but for the first turn": 19,
        "is multiplied by 2, but for the last turn": 19, last: 3, "is multiplied by 2, in the first turn of each 8": 3,
        "is multiplied by 2, in the first turn of each 8 but the first": 2,
        "is multiplied by 2, in the last turn of each 16": 2, "is multiplied by 2, in the first turn of each 16": 2,
        "is multiplied by 2, in the first turn of each 16 but the first": 1,
    }  # fmt: skip
    assert turns[last] == tuple(turns["is multiplied by 2"][i] for i in (7, 15, 19))


def test_an_array_may_be_read_as_if_it_were_stored_otherwise_and_a_mask_ignored() -> None:
    def masked(x, seen):
        y = np.where(seen, x, 0.0)
        return y

    x, seen = np.arange(6.0).reshape(2, 3), np.array([[True, False, True]] * 2)
    graph = trace(masked, {"x": x, "seen": seen})
    made = {
        words: budgets(edited(graph, named(graph, words))[0], Contract())["y"].value
        for words in (
            "x is read as if axes 0 and 1 were in each other's place",
            "seen is True everywhere",
            "x has neighbours of axis 1 in each other's place, with 0 where there is none",
        )
    }
    other, whole, pairs = made.values()
    np.testing.assert_array_equal(pairs, np.where(seen, [[1, 0, 0], [4, 3, 0]], 0.0))
    np.testing.assert_array_equal(other, np.where(seen, x.reshape(3, 2).T, 0.0))
    np.testing.assert_array_equal(whole, x)


def in_two_ways(x, y):
    first, second = x + y, y + x
    value = np.maximum(first.value, second.value)
    node = x.run.add("either", (first.node_of_run, second.node_of_run), {}, value, x.dtype)
    return Traced(x.run, value, node, x.dtype) * 2


def test_of_a_number_that_is_made_in_two_ways_the_edited_one_counts() -> None:
    """A maximum of both would hide what makes one smaller."""
    graph = trace(in_two_ways, {"x": np.arange(1.0, 5.0), "y": np.arange(1.0, 5.0)})
    i = next(i for i, node in enumerate(graph.nodes) if node.op == "either")
    second, last = graph.nodes[i].reads[1], graph.results["result"]
    halved = Edit((second,), lambda d: d.add("multiply", d.node, d.hold(0.5)), "sum", "is halved", "factor", 1)
    replay = Replay(graph, [last], {}, {})
    replay.start()
    made = replay.of(halved, Work(100))
    assert made is not None
    assert np.array_equal(made.values[last], np.arange(2.0, 10.0, 2.0))
    whole = budgets(edited(graph, halved)[0], Contract(), {}, ["result"])["result"]
    assert np.array_equal(whole.value, made.values[last])
