"""Names of intermediates, by `stage` and by local variables, and dumps in their place."""

import functools
from typing import Any

import numpy as np
import pytest

import workbench
from workbench.floats import round_to, to_float64
from workbench.reference.graph import Contract, Graph, budget_at, budgets, stage, trace
from workbench.refusal import Refusal

X = np.random.default_rng(2).standard_normal((3, 4)).astype(np.float32)


def names_of(f: Any, **inputs: Any) -> dict[str, int]:
    """Stage -> how many turns it has."""
    graph = trace(f, inputs or {"x": X})
    return {name: len(turns) for name, turns in graph.stages.items()}


def wrapped(f):
    @functools.wraps(f)
    def wrapper(x):
        doubled = x * 2
        return f(doubled)

    return wrapper


def wrapped_blindly(f):
    def wrapper(x):
        doubled = x * 2
        return f(doubled)

    return wrapper


def helper(x):
    inner = x + 1
    return inner * 3


def plain(x):
    first = x * 2
    a, (b, c) = first + 1, (first - 1, first * 1.5)
    a += b
    both = left = a * c
    if (walrus := both + 0.5).shape:
        pass
    return helper(walrus + left)


def looping(x):
    total = np.zeros(4, x.dtype)
    for t in range(len(x)):
        scaled = x[t] * 0.5
        total = total + scaled
    return total


def writing(x):
    o = np.zeros(x.shape, x.dtype)
    for t in range(len(x)):
        o[t] = x[t] * 3
    return o * 2


def test_outside_of_a_run_a_stage_is_what_it_names() -> None:
    x = object()
    assert workbench.stage("x", x) is x is stage("x", x)


def test_local_variables_are_stages_by_their_names() -> None:
    assert names_of(plain) == dict.fromkeys(
        ("first", "a", "b", "c", "left", "both", "walrus", "helper.inner"), 1
    ) | {"a": 2}  # fmt: skip


def test_a_closure_and_a_decorated_function_have_theirs() -> None:
    factor = 3.0

    def closed(x):
        product = x * factor
        return product + 1

    assert names_of(closed) == {"product": 1}
    assert names_of(wrapped(closed)) == {"wrapper.doubled": 1, "product": 1}
    assert names_of(wrapped_blindly(closed)) == {"doubled": 1, "closed.product": 1}
    assert names_of(functools.partial(closed)) == {"product": 1}


def test_a_repeated_name_is_its_last_value_and_each_turn_has_its_index() -> None:
    graph = trace(looping, {"x": X})
    made = budgets(graph, Contract())
    assert {name: len(turns) for name, turns in graph.stages.items()} == {"total": 4, "scaled": 3}
    assert np.array_equal(made["total"].value, made["total[2]"].value) and not made["total[-1]"].value.any()
    assert np.array_equal(made["scaled[1]"].value, 0.5 * X[1].astype(np.float64))


def test_an_array_that_is_filled_in_a_loop_is_one_stage_as_it_is_last() -> None:
    graph = trace(writing, {"x": X})
    made = budgets(graph, Contract())
    assert len(graph.stages["o"]) == 1
    assert np.array_equal(made["o"].value, 3 * X.astype(np.float64))
    dump = np.full((3, 4), 7.0, np.float32)
    assert np.all(budgets(graph, Contract(), {"o": dump})["result"].value == 14)


def test_one_value_under_two_names_has_a_dump_for_each() -> None:
    def f(x):
        first = stage("row_sum", x * 3)
        return stage("partial_sum", first) + 1

    made = budgets(trace(f, {"x": X}), Contract(), {"row_sum": X, "partial_sum": 2 * X})
    assert np.array_equal(made["row_sum"].value, 3.0 * X.astype(np.float64))
    assert np.array_equal(made["partial_sum"].value, X) and not made["partial_sum"].budget.bound.any()
    assert np.array_equal(made["result"].value, 2 * X.astype(np.float64) + 1)


def graph_of_turns() -> Graph:
    return trace(looping, {"x": X})


@pytest.mark.parametrize("kind", ["list", "array", "by index"])
def test_dumps_of_turns_are_read_in_their_place(kind: str) -> None:
    dump = np.ones((3, 4), np.float32)
    dumps: dict[str, Any] = {"scaled": dump if kind == "array" else list(dump)}
    if kind == "by index":
        dumps = {f"scaled[{k}]": x for k, x in enumerate(dump)}
    made = budgets(graph_of_turns(), Contract(), dumps)
    assert np.all(made["result"].value == 3)
    assert np.array_equal(made["scaled[2]"].value, 0.5 * X[2].astype(np.float64)), "what it should have been"


def test_a_dump_is_exact_for_what_follows_and_judged_itself() -> None:
    def f(x):
        scores = x * 1.1
        return np.exp(scores)

    graph = trace(f, {"x": X})
    alone = budgets(graph, Contract(), {"scores": (X * np.float32(1.1))})
    through = budgets(graph, Contract())
    assert np.all(alone["result"].budget.bound < through["result"].budget.bound)
    assert np.array_equal(alone["scores"].budget.bound, through["scores"].budget.bound)


@pytest.mark.parametrize(
    ("dumps", "said"),
    [
        ({"scald": X}, "stage 'scald'; did you mean scaled"),
        ({"scald": [X]}, "stage 'scald'; did you mean scaled"),
        ({"scaled": X[:, :2]}, r"stage scaled\[0\] \(.*test_stages.py:\d+\) has the shape \(4,\); its dump has \(2,\)"),
        ({"scaled": [X[0]]}, "stage scaled has 3 turns; got 1 dumps"),
    ],
)
def test_a_dump_that_does_not_fit_is_refused(dumps: Any, said: str) -> None:
    with pytest.raises(Refusal, match=said):
        budgets(graph_of_turns(), Contract(), dumps)


@pytest.mark.parametrize(
    ("name", "x", "said"), [("", X, "stage takes the name first"), ("y", 3.0, "stage 'y' takes an array that")]
)
def test_a_stage_of_something_else_is_refused_with_its_line(name: str, x: Any, said: str) -> None:
    def f(x_):
        stage(name, x)
        return x_ * 1

    with pytest.raises(Refusal, match=rf"{__file__}:{f.__code__.co_firstlineno + 1}: {said}"):
        trace(f, {"x_": X})


def test_two_dumps_of_one_value_have_to_agree() -> None:
    def f(x):
        new = x * 3
        old = new
        return old + 1

    graph = trace(f, {"x": X})
    budgets(graph, Contract(), {"new": X, "old": X.copy()})
    returned = trace(lambda x: stage("out", x * 3), {"x": X})
    budgets(returned, Contract(), {"result": X.astype(np.float16), "out": X})
    with pytest.raises(Refusal, match=r"new and old are one value of the reference \(.*\), and their dumps differ"):
        budgets(graph, Contract(), {"new": X, "old": X + 1})


def test_a_dump_that_nobody_asks_for_reads_nothing() -> None:
    def f(x):
        first = np.zeros((3, 4), x.dtype)
        first[0] = x[0] * 3
        second = first + 1
        last = first * second
        return last

    graph, dumps = trace(f, {"x": X}), {"first": X, "second": 2 * X}
    whole = budgets(graph, Contract(), dumps)["last"]
    alone = budgets(graph, Contract(), dumps, ["last"])["last"]
    assert np.array_equal(alone.value, 2 * X.astype(np.float64) ** 2)
    assert np.array_equal(alone.budget.bound, whole.budget.bound)
    at = budget_at(graph, Contract(), "last", [(1, 2)], dumps)
    assert np.all(0 < at.bound) and np.all(at.bound <= whole.budget.bound[1, 2])


def test_what_is_stored_is_the_last_value_of_a_name_and_in_a_loop_each_turn() -> None:
    def f(x):
        y = x * 1.1
        y = y * 1.3
        return y

    def of(f: Any, **stored: str) -> Any:
        return budgets(trace(f, {"x": X}), Contract(stored=stored))

    plain_, rounded = of(f), of(f, y="bfloat16")
    assert np.array_equal(rounded["y[-1]"].value, plain_["y[-1]"].value)
    assert np.array_equal(rounded["y"].value, to_float64(round_to(plain_["y"].value, "bfloat16")))
    first = of(f, **{"y[-1]": "bfloat16"})
    assert np.array_equal(first["y[-1]"].value, to_float64(round_to(plain_["y[-1]"].value, "bfloat16")))
    loop = of(looping, total="bfloat16")
    for turn in range(3):
        value = loop[f"total[{turn}]"].value
        assert np.array_equal(value, to_float64(round_to(value, "bfloat16"))), turn


def test_whole_numbers_are_not_stored_in_fewer_bits() -> None:
    def f(x):
        places = np.argmax(x, axis=-1)
        return places * 1.5

    line = f"{__file__}:{f.__code__.co_firstlineno + 1}"
    with pytest.raises(Refusal, match=rf"contract stores places, which is int64 \({line}\): only floats are rounded"):
        budgets(trace(f, {"x": X}), Contract(stored={"places": "bfloat16"}))
