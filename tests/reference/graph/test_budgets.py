"""What is known to make budgets of plain code wrong: each test fails where one rule of the graph is missing."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from workbench.floats import round_to, smallest_normal, smallest_subnormal
from workbench.reference.arithmetic import gamma
from workbench.reference.graph import Contract, Expected, budget_at, budgets, sources, stage, trace, undecided
from workbench.reference.graph.error import Error
from workbench.reference.graph.forward import forward
from workbench.reference.graph.rules.moves import MOVES, Write
from workbench.reference.losses import U

RNG = np.random.default_rng(3)


STRICT = Contract()


def result(f: Any, contract: Contract = STRICT, dumps: Any = None, name: str = "result", **inputs: Any) -> Expected:
    return budgets(trace(f, inputs), contract, dumps)[name]


def within(actual: Any, expected: Expected, statistical: bool = False) -> bool:
    budget = expected.budget.statistical if statistical else expected.budget.bound
    right = abs(np.asarray(actual, np.float64) - expected.value) <= budget
    return bool(right.size and np.all(right))


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Every test draws the same numbers, whichever ran before it."""
    RNG.bit_generator.state = np.random.default_rng(3).bit_generator.state


def float32(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


# sums


def one_by_one(x):
    total = np.zeros(x.shape[1:], x.dtype)
    for row in x:
        total = total + row
    return total


def in_place(x):
    total = np.zeros(x.shape[1:], x.dtype)
    for row in x:
        total += row
    return total


def nested(x):
    return np.sum(np.sum(x.reshape(8, -1, *x.shape[1:]), axis=1), axis=0)


def halves(x):
    return np.sum(x[::2], axis=0) + np.sum(x[1::2], axis=0)[None][0]


@pytest.mark.parametrize("f", [one_by_one, in_place, nested, halves], ids=lambda f: f.__name__)
def test_a_sum_may_be_added_in_any_order_however_it_is_written(f: Any) -> None:
    x = float32(64, 50)
    whole = result(lambda x: np.sum(x, axis=0), x=x)
    made = result(f, x=x)
    assert np.allclose(made.budget.bound, whole.budget.bound, rtol=1e-4, atol=0)
    assert np.allclose(whole.budget.bound, gamma(63, U) * abs(x.astype(np.float64)).sum(0), rtol=1e-6, atol=0)
    ratio = made.budget.statistical / whole.budget.statistical
    assert np.all((ratio > 0.99) & (ratio < 1.4))


def test_a_long_sum_of_positive_terms_one_after_the_other_is_within() -> None:
    """Rounding grows with n, not log n: 139 deviations of a model that adds pairwise."""
    x = abs(float32(16384, 20))
    made = result(lambda x: np.sum(x, axis=0), x=x)
    total = np.zeros(20, np.float32)
    for row in x:
        total = total + row
    assert within(total, made, statistical=True)
    assert not within(total * np.float32(1 + 2**-8), made)


def test_a_sum_that_was_dumped_is_a_term_like_others() -> None:
    def f(x):
        return stage("part", np.sum(x, axis=0)) + x[0]

    x = float32(64, 5)
    seen = result(f, dumps={"part": x.sum(0)}, x=x)
    assert np.all(seen.budget.bound < result(f, x=x).budget.bound / 5)


# one error that all elements share


def test_an_exp_that_is_always_an_ulp_too_large_is_not_averaged_away() -> None:
    def f(x):
        return np.sum(np.exp(x), axis=-1)

    x = -abs(float32(4, 4096))
    graph, elements, exact = trace(f, {"x": x}), [(i,) for i in range(4)], Contract(exp_ulps=0.0)
    made = budgets(graph, Contract())["result"]
    assert within(np.sum(np.exp(x.astype(np.float64)) * (1 + 2 * U), axis=-1), made, statistical=True)
    forward_ = [budgets(graph, contract)["result"].budget.statistical for contract in (Contract(), exact)]
    reverse = [budget_at(graph, contract, "result", elements).statistical for contract in (Contract(), exact)]
    for of_exp in (forward_[0] - forward_[1], reverse[0] - reverse[1]):
        assert np.all(of_exp > 2 * U * made.value)


def test_an_approximation_of_exp_errs_alike_for_equal_arguments() -> None:
    """A cubic is off by 730 ulps where the keys but some are equal: in lse nothing of it is averaged away, and out
    moves between the two kinds of keys.
    """

    def f(x, v):
        weights = np.exp(x - np.max(x, axis=-1, keepdims=True))
        total = np.sum(weights, axis=-1, keepdims=True)
        return weights @ v / total, np.log(total)

    x = np.full((4, 256), -0.17, np.float32)
    x[:, :32], v = 0.0, np.ones((256, 3), np.float32)
    v[:32] = 3.0
    graph, off = trace(f, {"x": x, "v": v}), 730 * 2 * U
    weights = np.exp(x.astype(np.float64)) * np.where(x == 0, 1.0, 1 + off)
    total = weights.sum(-1, keepdims=True)
    for name, actual in (("result[0]", weights @ v / total), ("result[1]", np.log(total))):
        made = budgets(graph, Contract(exp_ulps=730.0))[name]
        assert within(actual, made, statistical=True) and not within(actual, budgets(graph, Contract())[name], True)
        at = budget_at(graph, Contract(exp_ulps=730.0), name, [(1, 0)])
        assert 0 < abs(actual - made.value)[1, 0] <= at.statistical[0]


def test_an_approximation_of_exp_need_not_hit_1() -> None:
    x = np.zeros(4, np.float32)
    assert within(np.full(4, 1 + 4e-5), result(lambda x: np.exp(x), Contract(exp_ulps=730.0), x=x))
    assert np.all(result(lambda x: np.exp(x), x=x).budget.bound == 0)


def test_a_constant_that_float32_does_not_hold_is_off_alike_everywhere() -> None:
    x = abs(float32(4, 4096))
    rounded, wide = np.float64(np.float32(0.1)), x.astype(np.float64)
    made = result(lambda x: np.sum(x * 0.1, axis=-1), x=x)
    assert within(np.sum(wide * rounded, axis=-1), made, statistical=True)
    exact = result(lambda x: np.sum(x * 0.125, axis=-1), x=x)
    assert np.allclose(exact.budget.bound, gamma(4095, U) * wide.sum(-1) * 0.125, rtol=1e-6, atol=0)


def test_a_tensor_core_that_cuts_off_is_within_when_it_is_declared() -> None:
    a, b = abs(float32(3, 2048)).astype(np.float16), abs(float32(2048, 5)).astype(np.float16)
    made = {
        name: result(lambda a, b: a @ b, Contract(accumulate=name), a=a, b=b) for name in ("float32", "tensor-core")
    }
    total = np.zeros((3, 5))
    for k in range(2048):
        total = round_to(total + np.outer(a[:, k].astype(float), b[k].astype(float)), "float32", toward_zero=True)
    assert within(total, made["tensor-core"], statistical=True) and not within(total, made["float32"], statistical=True)


# maxima


def test_a_maximum_that_does_not_change_is_one_number() -> None:
    """m - max(m, x) is 0 without an error where x cannot reach m; else its error is twice that of m."""

    def f(q, k):
        m = np.max(q @ k.T, axis=-1)
        new = np.maximum(m, m - 5.0)
        late = np.where(new == -np.inf, 0.0, new)
        return np.exp(m - new), np.exp(m - late), np.exp(m - np.maximum(m - 1e-9, m))

    made = budgets(trace(f, {"q": float32(6, 32), "k": float32(7, 32)}), Contract())
    for name in ("result[0]", "result[1]"):
        assert np.all(made[name].value == 1) and np.all(made[name].budget.bound <= 5 * U)
    assert np.all(made["result[2]"].budget.bound > 1e-6)


def softmax(x, y):
    scores = x @ y
    weights = np.exp(scores - np.max(scores, axis=-1, keepdims=True))
    return weights / np.sum(weights, axis=-1, keepdims=True)


def test_errors_of_one_source_cancel_in_reverse() -> None:
    x, y = float32(5, 64) / 4, float32(64, 9)
    graph = trace(softmax, {"x": x, "y": y})
    forward = budgets(graph, Contract())["result"].budget
    elements = [(i, j) for i in range(5) for j in range(9)]
    at = budget_at(graph, Contract(), "result", elements)
    ratio = at.bound / forward.bound.ravel()
    assert np.all(ratio <= 1) and np.median(ratio) < 0.75
    assert np.median(at.statistical / forward.statistical.ravel()) < 0.6
    actual = softmax(x, y).ravel()
    exact = budgets(graph, Contract())["result"].value.ravel()
    assert np.all(abs(actual - exact) <= at.statistical + U * exact)


def test_the_largest_source_is_the_line_that_is_hardest_to_compute() -> None:
    x, y = float32(5, 64) / 4, float32(64, 9)
    listed = sources(trace(softmax, {"x": x, "y": y}), Contract(), "result", (0, 0))
    first = softmax.__code__.co_firstlineno
    assert listed[0].line.number == first + 1 and listed[0].words == "x @ y"
    assert {one.line.number - first for one in listed} == {1, 2, 3}
    assert sorted((one.worst for one in listed), reverse=True) == [one.worst for one in listed]


def test_a_maximum_is_off_by_what_its_rival_is_off() -> None:
    """In reverse, too, where the adjoint of the rival is 0."""

    def f(a, x, y):
        return np.maximum(a, x @ y) * 0.5

    x = np.array([[1e3, -1e3, 1 - 2.0**-20]], np.float32)
    inputs = {"a": np.ones(1, np.float32), "x": x, "y": np.ones(3, np.float32)}
    at = budget_at(trace(f, inputs), Contract(), "result", [(0,)])
    assert at.bound[0] >= 1e-5 and at.statistical[0] >= 1e-5


# casts


def test_a_cast_that_is_declared_is_predicted() -> None:
    def f(x, v):
        weights = np.exp(x)
        return weights @ v

    x, v = -abs(float32(64, 256)), float32(256, 5)
    contract = Contract(stored={"weights": "float16"})
    narrow = np.exp(x.astype(np.float64)).astype(np.float16)
    made = budgets(trace(f, {"x": x, "v": v}), contract)
    assert np.array_equal(made["weights"].value, narrow.astype(np.float64))
    bound = made["weights"].budget.bound
    assert (bound == 0).mean() > 0.9 and np.all((bound == 0) | (bound >= 2.0**-25)) and np.any(bound > 0)
    for off in (1 - 4 * U, 1 + 4 * U):  # an exp that is off by 2 ulps is cast to the next value here and there
        assert within((np.exp(x.astype(np.float64)) * off).astype(np.float16), made["weights"])
    exact = narrow.astype(np.float64) @ v.astype(np.float64)
    assert within(exact, made["result"])
    assert not within(exact, result(f, x=x, v=v))


def test_what_has_no_bound_has_none_after_a_cast() -> None:
    """In reverse and in what follows, too; and the line that left it so is named."""

    def f(x, y):
        rest = np.sum(x, axis=-1)
        ratio = y / rest
        return ratio * 0.5

    x = np.array([[1, 2**-24, -1], [1, 1, 1]], np.float32)
    graph, contract = trace(f, {"x": x, "y": np.ones(2, np.float32)}), Contract(stored={"ratio": "bfloat16"})
    made = budgets(graph, contract)
    for name in ("ratio", "result"):
        assert np.array_equal(np.isinf(made[name].budget.bound), [True, False])
        assert [line.number - f.__code__.co_firstlineno for line in made[name].open] == [2]
        assert np.array_equal(np.isinf(budget_at(graph, contract, name, [(0,), (1,)]).bound), [True, False])


def test_sums_of_too_many_terms_for_their_dtype_have_no_bound_when_stored() -> None:
    """n u is above 1: nothing is known of the last of 512 sums in bfloat16."""
    made = budgets(trace(lambda a, b: stage("out", a @ b), {"a": float32(3, 512), "b": float32(512, 2)}),
                   Contract(accumulate="bfloat16", stored={"out": "bfloat16"}))  # fmt: skip
    assert np.all(np.isinf(made["out"].budget.bound))


def test_casts_of_the_reference_are_made_where_the_contract_says_so() -> None:
    def f(x):
        return np.exp(x).astype(ml_dtypes.bfloat16) * np.float32(1)

    x = float32(4, 32)
    declared = budgets(trace(f, {"x": x}), Contract(stored={"casts": "bfloat16"}))["result"]
    assert np.array_equal(declared.value, round_to(np.exp(x.astype(np.float64)), "bfloat16"))
    assert np.array_equal(result(f, x=x).value, np.exp(x.astype(np.float64)))


# contractions


def outer_products(k, v, decay):
    state = np.zeros((k.shape[1], v.shape[1]), k.dtype)
    for t in range(len(k)):
        state = decay[t] * state + (k[t] * 1.1)[:, None] * (v[t] * 1.1)[None, :]
    return state


def matrix(k, v, decay):
    return (k * 1.1).T @ (v * 1.1)


def products(k, v, decay):
    return np.sum((k * 1.1)[:, :, None] * (v * 1.1)[:, None, :], axis=0)


def norm(k, v, decay):
    return np.sum((k * 1.1) * (k * 1.1), axis=-1) * decay


def scaling(k, v, decay):
    return (k * 1.1) * (decay * 1.1)[:, None] + v


@pytest.mark.parametrize(("f", "rounds"), [(outer_products, True), (matrix, True), (products, True), (norm, False), (scaling, False)],
                         ids=lambda f: getattr(f, "__name__", str(f)))  # fmt: skip
def test_operands_are_rounded_in_contractions_and_nowhere_else(f: Any, rounds: bool) -> None:
    inputs = {"k": float32(16, 8), "v": float32(16, 8), "decay": np.ones(16, np.float32)}
    strict, usual = (result(f, Contract(operands=name), **inputs).budget.bound for name in ("float32", "bfloat16"))
    assert np.all(usual > 100 * strict) if rounds else np.array_equal(usual, strict)


@pytest.mark.parametrize("f", [outer_products, matrix, products], ids=lambda f: f.__name__)
def test_a_kernel_that_rounds_its_operands_is_within(f: Any) -> None:
    k, v, decay = float32(16, 8), float32(16, 8), np.ones(16, np.float32)
    made = {name: result(f, Contract(operands=name), k=k, v=v, decay=decay) for name in ("float32", "bfloat16")}
    narrow = [round_to(x.astype(np.float64) * 1.1, "bfloat16") for x in (k, v)]
    actual = narrow[0].T @ narrow[1]
    assert within(actual, made["bfloat16"], statistical=True) and not within(actual, made["float32"])


@pytest.mark.parametrize("f", [outer_products, matrix, products], ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", ["float16", "e4m3"])
def test_operands_below_the_normal_numbers_of_their_dtype_lose_more_than_digits(f: Any, name: str) -> None:
    """Weights of a softmax far from its maximum: 2^-24.5 is 2^-24 in float16, or 0."""
    dtype = {"e4m3": "float8_e4m3fn"}.get(name, name)
    small = round(np.log2(smallest_normal(dtype)))
    k, v = np.exp2(RNG.uniform(small - 12, small, (16, 8))).astype(np.float32), float32(16, 8)
    made = result(f, Contract(operands=name), k=k, v=v, decay=np.ones(16, np.float32))
    narrow = [round_to(x.astype(np.float64) * 1.1, dtype) for x in (k, v)]
    actual, exact = narrow[0].T @ narrow[1], (k.astype(np.float64) * 1.1).T @ (v.astype(np.float64) * 1.1)
    assert within(actual, made, statistical=True)
    assert not within(1.5 * exact, made) and np.all(made.budget.bound < 40 * smallest_subnormal(dtype))


@pytest.mark.parametrize("f", [matrix, products], ids=lambda f: f.__name__)
def test_sums_in_float16_lose_what_is_below_its_numbers(f: Any) -> None:
    k, v = (np.exp2(RNG.uniform(-13, -10, (16, 8))).astype(np.float32) for _ in range(2))
    made = result(f, Contract(accumulate="float16"), k=k, v=v, decay=np.ones(16, np.float32))
    total = np.zeros((8, 8), np.float16)
    for a, b in zip(1.1 * k, 1.1 * v, strict=True):
        total = (total + np.outer(a, b).astype(np.float16)).astype(np.float16)
    assert within(total, made, statistical=True) and not within(total * np.float64(2), made)


@pytest.mark.parametrize("f", [products, lambda k, v, decay: np.sum((k * 1.0)[:, :, None] * v[:, None, :], axis=0)])
def test_a_sum_of_products_is_added_as_the_contract_says(f: Any) -> None:
    inputs = {"k": float32(16, 8), "v": float32(16, 8), "decay": np.ones(16, np.float32)}
    strict, narrow = (result(f, Contract(accumulate=name), **inputs).budget.bound for name in ("float32", "float16"))
    assert np.all(narrow > 1000 * strict)


def test_the_noise_of_a_contracted_product_belongs_to_its_sum() -> None:
    def f(a, b):
        product = (a * 1.1) * (b * 1.1)
        return product, np.sum(product, axis=-1)

    x = {"a": float32(3, 8), "b": float32(3, 8)}
    strict, usual = (budgets(trace(f, x), Contract(operands=name)) for name in ("float32", "bfloat16"))
    assert np.array_equal(strict["result[0]"].budget.bound, usual["result[0]"].budget.bound)
    assert np.all(usual["result[1]"].budget.bound > 100 * strict["result[1]"].budget.bound)


def test_operands_that_the_dtype_holds_are_exact() -> None:
    held = round_to(float32(5, 5), "bfloat16").astype(np.float32)
    summed = [result(lambda a: np.sum(a[:, :, None] * a.T[None], axis=1), Contract(operands=name), a=held).budget.bound
              for name in ("float32", "bfloat16")]  # fmt: skip
    assert np.array_equal(*summed)
    a = result(lambda a: a @ a.T, Contract(operands="bfloat16"), a=held)
    assert np.array_equal(a.budget.bound, result(lambda a: a @ a.T, a=held).budget.bound)
    assert np.all(a.budget.bound <= gamma(5, U) * (abs(held) @ abs(held).T).astype(np.float64) * 1.01)


# what is not finite


def test_hidden_keys_are_exactly_zero_and_their_rows_have_budgets() -> None:
    def f(x, mask):
        scores = np.where(mask, x * 1.1, -np.inf)
        top = np.max(scores, axis=-1, keepdims=True)
        weights = np.exp(scores - top)
        return scores, weights, weights / np.sum(weights, axis=-1, keepdims=True)

    made = budgets(trace(f, {"x": float32(4, 6), "mask": np.tri(4, 6, dtype=bool)}), Contract())
    for i, hidden in enumerate((-np.inf, 0.0, 0.0)):
        one = made[f"result[{i}]"]
        up = np.triu_indices(4, 1, 6)
        assert np.all(one.value[up] == hidden) and np.all(one.budget.bound[up] == 0)
        assert np.all(np.isfinite(one.budget.bound)) and np.all(np.isfinite(one.budget.statistical))


def test_where_the_reference_is_nan_the_budget_is_nan_and_fails() -> None:
    x = np.array([1.0, np.nan, 0.0], np.float32)
    made = result(lambda x: x * 1.1, x=x)
    assert np.array_equal(np.isnan(made.budget.bound), [False, True, False])
    assert not within(np.zeros(3), made)


def test_a_denominator_that_may_be_zero_gives_no_bound_and_says_its_line() -> None:
    def f(x, y):
        rest = np.sum(x, axis=-1)
        ratio = y / rest
        return ratio * 0.0 + 1.0

    x = np.array([[1, 2**-24, -1], [1, 1, 1], [2.0**-25, 1, -1]], np.float32)
    made = result(f, x=x, y=np.ones(3, np.float32))
    assert np.array_equal(np.isinf(made.budget.bound), [True, False, True])
    assert [line.number - f.__code__.co_firstlineno for line in made.open] == [2]


def test_a_denominator_that_is_zero_for_sure_is_what_ieee_makes_of_it() -> None:
    made = result(lambda x: x / (x * 0.0), x=np.array([1.0, 0.0], np.float32))
    assert made.value[0] == np.inf and made.budget.bound[0] == 0 and np.isnan(made.budget.bound[1])


# choices


def gate(x, w):
    scores = x @ w
    best = np.argsort(-scores, axis=-1)[:, :2]
    return best, np.take_along_axis(scores, best, axis=-1)


def test_a_choice_within_its_budget_is_open_and_a_kernel_may_choose_either() -> None:
    x, w = np.ones((2, 4), np.float32), np.zeros((4, 5), np.float32)
    w[0], w[1, 2] = [3, 2, 2, 1, 0], 1e-9
    x[1] = [1, 5e8, 1, 1]
    graph = trace(gate, {"x": x, "w": w})
    alone = budgets(graph, Contract())
    first = gate.__code__.co_firstlineno
    assert np.array_equal(np.isinf(alone["best"].budget.bound), [[False, True], [False, False]])
    assert [line.number - first for line in alone["result[1]"].open] == [2]
    for places, right in (([[0, 1], [0, 2]], True), ([[0, 2], [0, 2]], True), ([[0, 3], [0, 2]], False),
                          ([[0, 0], [0, 2]], False), ([[0, 2], [0, 1]], False), ([[0, 9], [0, 2]], False)):  # fmt: skip
        chosen = budgets(graph, Contract(), {"best": np.array(places)})
        assert within(np.array(places), chosen["best"]) == right
        assert np.all(np.isfinite(chosen["result[1]"].budget.bound)) or not right


def test_an_open_condition_reaches_to_the_other_branch() -> None:
    def f(x, y):
        z = x @ y
        return np.where(z > 0, z, 0.0), np.where(z > 0, z + 1, 0.0), np.sign(z), np.floor(z)

    x = np.array([[1, -1, 2.0**-30], [1, 1, 0]], np.float32)
    made = [budgets(trace(f, {"x": x, "y": np.ones(3, np.float32)}), Contract())[f"result[{i}]"] for i in range(4)]
    assert np.all(made[0].budget.bound <= 2e-6)
    for one in made[1:]:
        assert one.budget.bound[0] >= 1 and one.budget.bound[1] <= 1e-6 or one is made[3]


def test_a_choice_by_argmax_is_right_where_its_score_is() -> None:
    x = np.array([[1.0, 1.0, 0.5], [0.5, 1.0, 0.25]], np.float32)
    graph = trace(lambda x: np.argmax(x * 1.1, axis=-1), {"x": x})
    assert np.array_equal(np.isinf(budgets(graph, Contract())["result"].budget.bound), [True, False])
    for places, right in (([0, 1], True), ([1, 1], True), ([2, 1], False), ([0, 0], False)):
        assert within(np.array(places), budgets(graph, Contract(), {"result": np.array(places)})["result"]) == right


def test_a_cast_that_may_not_fit_has_no_bound() -> None:
    x = np.array([1.0, 1.27, 1.3, -1.2801, -1.3], np.float32)
    made = result(lambda x: (x * 100.1).astype(np.int8) + 0.0, x=x)
    assert np.array_equal(np.isinf(made.budget.bound), [False, False, True, False, True]) and len(made.open) == 1


def test_a_decision_on_a_value_that_is_off_or_that_a_dump_turns_is_told() -> None:
    def f(x, w):
        scores = x @ w
        sign = 1.0 if scores[0] > 0 else -1.0
        total = float(scores[1])
        return scores * sign * (total if x[0, 0] > 0 else 1.0)

    first = f.__code__.co_firstlineno
    x, w = np.array([[1, -1, 2.0**-30], [1, 1, 1]], np.float32), np.ones(3, np.float32)
    graph = trace(f, {"x": x, "w": w})
    told = undecided(graph, Contract())
    assert [(one.decision.line.number - first, one.decision.words) for one in told] == [(2, "if"), (3, "float()")]
    assert told[0].off == 1 and 0 < told[1].off < 1e-6
    sure = trace(f, {"x": np.ones((2, 3), np.float32), "w": w})
    assert [one.decision.words for one in undecided(sure, Contract())] == ["float()"]
    dumps = {"scores": np.array([-1, 3], np.float32)}
    assert [one.decision.words for one in undecided(sure, Contract(), dumps)] == ["if"], "which the dump turns"


def test_no_place_may_be_chosen_twice() -> None:
    graph = trace(lambda x: np.argsort(x * 1.1, axis=-1)[:, :2], {"x": np.array([[1.0, 1.0, 5.0]], np.float32)})
    for places, right in (([[0, 1]], True), ([[1, 0]], True), ([[1, 1]], False), ([[0, 0]], False)):
        assert within(np.array(places), budgets(graph, Contract(), {"result": np.array(places)})["result"]) == right


# errors that elements share


def error_of(f: Any, **inputs: Any) -> Error:
    """The error of what f returns."""
    graph = trace(lambda **x: -f(**x), inputs)
    node = graph.results["result"]
    run = forward(graph, Contract(), {node}, {}, {}, reverse=True)
    return next(run.segments())[node].site.reads[0].error


def test_an_error_that_terms_share_is_not_averaged_away() -> None:
    x, y = abs(float32(3)) + 1, abs(float32(3, 400))
    with_ = error_of(lambda x, y: np.sum(np.sqrt(x)[:, None] * y, axis=-1), x=x, y=y)
    without = error_of(lambda x, y: np.sum(x[:, None] * y, axis=-1), x=np.sqrt(x.astype(np.float64)), y=y)
    size = np.sum(np.sqrt(x.astype(np.float64))[:, None] * y, axis=-1)
    # 2 roundoffs of the root, all alike, and what the product rounds beside it
    assert np.allclose(with_.variance - without.variance, 5 * (U * size) ** 2, rtol=1e-2, atol=0)


def test_errors_of_one_source_add_up_and_others_as_squares() -> None:
    x = abs(float32(5)) + 1
    twice = error_of(lambda x: 2 * np.sqrt(x) + 4 * np.sqrt(x), x=x)

    def of_one(x):
        root = np.sqrt(x)
        return 2 * root + 4 * root

    once, root = error_of(of_one, x=x), np.sqrt(x.astype(np.float64))
    assert np.allclose(once.variance, (12 * U * root) ** 2 + (6 * U * root) ** 2, rtol=1e-5, atol=0)
    assert np.allclose(
        twice.variance, (4 * U * root) ** 2 + (8 * U * root) ** 2 + (6 * U * root) ** 2, rtol=1e-5, atol=0
    )


# long graphs


def scan(k, v, decay):
    state, outs = np.zeros((k.shape[1], v.shape[1]), k.dtype), []
    for t in range(len(k)):
        state = decay[t] * state + k[t, :, None] * v[t, None, :]
        outs.append((k[t] @ state) / np.float32(2))
    return np.stack(outs)


def filling(x):
    o = np.zeros((len(x), 6, x.shape[1]), x.dtype)
    for t in range(len(x)):
        o[t, t % 6] = x[t] * 1.1
    part = o[1:3].copy()
    o[0] += part[0]
    return o, part


def test_an_array_that_is_filled_in_a_loop_is_copied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    copied = []
    value = MOVES["write"].value
    monkeypatch.setattr(Write, "value", lambda self, *x, **how: copied.append(1) or value(*x, **how))
    x = float32(40, 3)
    graph = trace(filling, {"x": x})
    made = budgets(graph, Contract(), names=["result[0]", "result[1]"])
    assert len(copied) <= 4
    for name, wanted in zip(made, filling(x.astype(np.float64)), strict=True):
        assert np.array_equal(made[name].value, wanted)
        assert np.array_equal(made[name].budget.bound > 0, wanted != 0)
    elements = [(0, 1, 2), (39, 3, 1), (0, 5, 0)]
    at = budget_at(graph, Contract(), "result[0]", elements)
    assert np.all(at.bound <= made["result[0]"].budget.bound[tuple(np.transpose(elements))])
    assert np.array_equal(at.bound > 0, [True, True, False])


def test_a_long_graph_is_gone_through_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = {"k": float32(24, 4), "v": float32(24, 3), "decay": abs(float32(24))}
    graph, elements = trace(scan, inputs), [(23, 0), (11, 2), (0, 1)]
    whole = budget_at(graph, Contract(), "result", elements)
    monkeypatch.setattr("workbench.reference.graph.forward.SEGMENT", 10)
    parts = budget_at(graph, Contract(), "result", elements)
    assert np.all(whole.bound > 0) and np.allclose(parts.bound, whole.bound, rtol=1e-12, atol=0)
    assert np.allclose(parts.statistical, whole.statistical, rtol=1e-12, atol=0)
    assert len(graph.nodes) > 200
    exact, actual = budgets(graph, Contract())["result"].value, scan(**inputs)
    assert all(abs(actual[e] - exact[e]) <= whole.statistical[k] for k, e in enumerate(elements))


def test_a_state_that_forgets_a_term_is_found_where_forward_bounds_explode() -> None:
    """A recurrence whose forward bound grows with every token, where errors of one token are damped by the next."""

    def delta_rule(k, v, wrong=False):
        state = np.zeros((k.shape[1], v.shape[1]), k.dtype)
        for t in range(len(k)):
            written = v[t] - k[t] @ state
            state = state + (0.0 if wrong and t == 40 else 1.0) * k[t, :, None] * written[None, :]
        return state

    k = float32(96, 8)
    k = (k / np.sqrt((k * k).sum(-1, keepdims=True))).astype(np.float32)
    inputs = {"k": k, "v": float32(96, 4)}
    graph = trace(delta_rule, inputs)
    forward, elements = budgets(graph, Contract())["result"], [(i, 1) for i in range(8)]
    at = budget_at(graph, Contract(), "result", elements)
    right, wrong = (delta_rule(**inputs, wrong=one).astype(np.float64) - forward.value for one in (False, True))
    assert all(abs(right[e]) <= at.statistical[k] for k, e in enumerate(elements))
    assert max(abs(wrong[e]) / at.bound[k] for k, e in enumerate(elements)) > 1
    assert np.median([at.bound[k] / forward.budget.bound[e] for k, e in enumerate(elements)]) < 0.01


def test_a_predicted_cast_is_where_errors_end_in_reverse() -> None:
    def f(x, v):
        weights = np.exp(x * 1.1)
        return weights @ v

    x, v = -abs(float32(4, 32)), float32(32, 5)
    graph, contract = trace(f, {"x": x, "v": v}), Contract(stored={"weights": "float16"})
    elements = [(i, j) for i in range(4) for j in range(5)]
    at = budget_at(graph, contract, "result", elements)
    narrow = np.exp(x.astype(np.float64) * 1.1).astype(np.float16).astype(np.float32)
    exact = budgets(graph, contract)["result"].value
    actual = (narrow @ v).astype(np.float64)
    assert all(abs(actual[e] - exact[e]) <= at.bound[k] for k, e in enumerate(elements))
    listed = sources(graph, contract, "result", (0, 0))
    assert {one.words for one in listed} <= {"weights @ v", "exp(x * 1.1)"}


# below the smallest normal number


BELOW = {
    "product": lambda x: x * x[::-1],
    "square": lambda x: x**2,
    "power of two": lambda x: x * x * 0.5,
    "quotient by one": lambda x: x * x / 2,
    "sum": lambda x: np.sum(x * x, axis=-1),
    "running sum": lambda x: np.cumsum(x * x, axis=-1),
    "one after the other": lambda x: x[:, 0] * x[:, 1] + x[:, 2] * x[:, 3],
}


@pytest.mark.parametrize("f", BELOW.values(), ids=BELOW)
def test_what_float32_holds_but_for_its_size_may_be_flushed(f: Any) -> None:
    x = (float32(8, 8).astype(ml_dtypes.bfloat16) * 1e-20).astype(ml_dtypes.bfloat16)
    expected = result(f, x=x)
    assert np.all((0 < abs(expected.value)) & (abs(expected.value) < 2.0**-126))
    assert within(0 * expected.value, expected) and within(0 * expected.value, expected, statistical=True)


@pytest.mark.parametrize("f", [BELOW["product"], BELOW["square"]], ids=["product", "square"])
def test_what_float32_holds_is_exact_at_usual_sizes(f: Any) -> None:
    assert np.all(result(f, x=float32(8, 8).astype(ml_dtypes.bfloat16)).budget.bound == 0)


@pytest.mark.parametrize("f", [outer_products, matrix], ids=lambda f: f.__name__)
def test_operands_of_the_first_token_are_rounded_too(f: Any) -> None:
    """Its product is added to a state of 0, which rounds nothing."""
    k, v = float32(1, 8), float32(1, 8)
    made = result(f, Contract(operands="bfloat16"), k=k, v=v, decay=np.ones(1, np.float32))
    narrow = [round_to(x.astype(np.float64) * 1.1, "bfloat16") for x in (k, v)]
    assert within(narrow[0].T @ narrow[1], made, statistical=True)
