"""Each rule: its value is NumPy's, its adjoint the derivative, and its bounds hold for float32 and for operands that are
off. A primitive without an example here fails."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from workbench.reference.graph import Contract, applied, budget_at, budgets, may_lose, trace
from workbench.reference.graph.arrays import Traced
from workbench.reference.graph.error import EXACT, Error, Own
from workbench.reference.graph.expected import elements_of
from workbench.reference.graph.forward import Kept, _Run, forward
from workbench.reference.graph.reverse import adjoints
from workbench.reference.graph.rules import INPUT, RULES
from workbench.reference.graph.site import Operand, Site
from workbench.reference.graph.torch_composites import erf as traced_erf

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((2, 3, 4)).astype(np.float32), RNG.standard_normal((2, 3, 4)).astype(np.float32)
UP = (abs(X) + np.float32(0.5)).astype(np.float32)
A, B = RNG.standard_normal((2, 3, 5)).astype(np.float32), RNG.standard_normal((2, 5, 4)).astype(np.float32)


def erf(x):  # which torch has, and NumPy has not
    return traced_erf(x) if isinstance(x, Traced) else np.asarray(np.frompyfunc(math.erf, 1, 1)(x), x.dtype)


def share(x):  # of the gradient of a maximum, which autograd alone makes
    value = x.value if isinstance(x, Traced) else x
    made = (value == value.max(1, keepdims=True)) * 1.0
    return x.made("share", {"of": "max", "axis": (1,)}, made) if isinstance(x, Traced) else made


def either(x, y):  # one number that a kernel makes in one of two ways
    if not isinstance(x, Traced):
        return np.maximum(x, y)
    value = np.maximum(x.value, y.value)
    return Traced(x.run, value, x.run.add("either", (x.node_of_run, y.node_of_run), {}, value, x.dtype), x.dtype)


def factored(x):  # of a gradient, as a kernel may make it
    return x.made("factored", {}, x.value.copy()) if isinstance(x, Traced) else x


def written(x, y):
    out = np.zeros(x.shape, x.dtype)
    out[:, 1] = x[:, 0] * y[:, 2]
    out.T[0] = y.T[1] + x.T[2]
    return out


#: primitive -> a function that has it, and its inputs
EXAMPLES: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "add": (lambda x, y: x + y, (X, Y)),
    "subtract": (lambda x, y: x - y, (X, Y[:, :1])),
    "multiply": (lambda x, y: x * y, (X, Y[0])),
    "divide": (lambda x, y: x / y, (X, UP)),
    "negative": (lambda x: -x, (X,)),
    "abs": (lambda x: abs(x), (X,)),
    "square": (lambda x: x**2, (X,)),
    "sqrt": (lambda x: np.sqrt(x), (UP,)),
    "cbrt": (lambda x: np.cbrt(x), (UP,)),
    "reciprocal": (lambda x: np.reciprocal(x), (UP,)),
    "exp": (lambda x: np.exp(x), (X,)),
    "exp2": (lambda x: np.exp2(x), (X,)),
    "expm1": (lambda x: np.expm1(x), (X,)),
    "log": (lambda x: np.log(x), (UP,)),
    "log2": (lambda x: np.log2(x), (UP,)),
    "log10": (lambda x: np.log10(x), (UP,)),
    "log1p": (lambda x: np.log1p(x), (UP,)),
    "tanh": (lambda x: np.tanh(x), (X,)),
    "sinh": (lambda x: np.sinh(x), (X,)),
    "cosh": (lambda x: np.cosh(x), (X,)),
    "sin": (lambda x: np.sin(x), (X,)),
    "cos": (lambda x: np.cos(x), (X,)),
    "erf": (lambda x: erf(x), (X,)),
    "floor_divide": (lambda x: np.argsort(x, axis=1) // 2, (X,)),
    "arctan": (lambda x: np.arctan(x), (X,)),
    "arcsinh": (lambda x: np.arcsinh(x), (X,)),
    "power": (lambda x, y: x**y, (UP, Y)),
    "logaddexp": (lambda x, y: np.logaddexp(x, y), (X, Y)),
    "deg2rad": (lambda x: np.deg2rad(x), (X,)),
    "rad2deg": (lambda x: np.rad2deg(x), (X,)),
    "sum": (lambda x: np.sum(x, axis=(0, 2)), (X,)),
    "cumsum": (lambda x: np.cumsum(x, axis=1), (X,)),
    "matmul": (lambda a, b: a @ b, (A, B)),
    "index": (lambda x: x[:, [2, 0, 2]], (X,)),
    "transpose": (lambda x: x.transpose(1, 2, 0), (X,)),
    "reshape": (lambda x: x.reshape(4, 6), (X,)),
    "broadcast": (lambda x: np.broadcast_to(x[:, :1], (2, 3, 4)), (X,)),
    "named": (lambda x: x[...], (X,)),
    "cast": (lambda x: x.astype(np.float16), (X,)),
    "as_float": (lambda x: (x > 0).astype(np.float32), (X,)),
    "repeat": (lambda x: np.repeat(x, 2, axis=1), (X,)),
    "flip": (lambda x: np.flip(x, axis=1), (X,)),
    "roll": (lambda x: np.roll(x, 1, axis=2), (X,)),
    "tril": (lambda x: np.tril(x, -1), (X,)),
    "triu": (lambda x: np.triu(x), (X,)),
    "concat": (lambda x, y: np.concatenate([x, y], axis=1), (X, Y)),
    "write": (written, (X, Y)),
    "maximum": (lambda x, y: np.maximum(x, y), (X, Y)),
    "minimum": (lambda x, y: np.minimum(x, y), (X, Y)),
    "either": (either, (X, Y)),
    "max": (lambda x: np.max(x, axis=1, keepdims=True), (X,)),
    "min": (lambda x: x.min(axis=(0, 1)), (X,)),
    "share": (share, (X,)),
    "factored": (lambda x: factored(x * x), (X,)),
    "where": (lambda x, y: np.where(x > y, x, 2 * y), (X, Y)),
    "equal": (lambda x: x == 0, (X,)),
    "not_equal": (lambda x: x != 0, (X,)),
    "less": (lambda x, y: x < y, (X, Y)),
    "less_equal": (lambda x, y: x <= y, (X, Y)),
    "greater": (lambda x, y: x > y, (X, Y)),
    "greater_equal": (lambda x, y: x >= y, (X, Y)),
    "logical_and": (lambda x, y: (x > 0) & (y > 0), (X, Y)),
    "logical_or": (lambda x, y: (x > 0) | (y > 0), (X, Y)),
    "logical_xor": (lambda x, y: (x > 0) ^ (y > 0), (X, Y)),
    "logical_not": (lambda x: ~(x > 0), (X,)),
    "isnan": (lambda x: np.isnan(x), (X,)),
    "isinf": (lambda x: np.isinf(x), (X,)),
    "isfinite": (lambda x: np.isfinite(x), (X,)),
    "floor": (lambda x: np.floor(3 * x), (X,)),
    "ceil": (lambda x: np.ceil(3 * x), (X,)),
    "trunc": (lambda x: np.trunc(3 * x), (X,)),
    "rint": (lambda x: np.rint(3 * x), (X,)),
    "sign": (lambda x: np.sign(x), (X,)),
    "executed": (lambda x: (40 * x).astype(np.int8), (X,)),
    "argmax": (lambda x: np.argmax(x, axis=1), (X,)),
    "argmin": (lambda x: np.argmin(x, axis=2, keepdims=True), (X,)),
    "argsort": (lambda x: np.argsort(x, axis=1), (X,)),
    "sort": (lambda x: np.sort(x, axis=1), (X,)),
    "lose": (lambda x, y: may_lose(x, 0.001 * y), (X, Y)),
    "applied": (lambda x: applied(lambda y: y * abs(y), x), (X,)),
    "gather": (lambda x: np.take_along_axis(x, np.argmax(x, axis=1, keepdims=True), axis=1), (X,)),
}
#: what jumps has no derivative
JUMPS = {
    name
    for name in EXAMPLES
    if RULES[name].__class__.__name__ in ("Compare", "Kind", "Logical", "Step", "Place", "Quotient", "Share", "Applied")
} | {"as_float"}
NAMES = ("x", "y")


def inputs(arrays: tuple[np.ndarray, ...], names: tuple[str, ...]) -> dict[str, np.ndarray]:
    return dict(zip(names, arrays, strict=True))


def example(name: str) -> tuple[Callable[..., Any], dict[str, np.ndarray]]:
    f, arrays = EXAMPLES[name]
    names = f.__code__.co_varnames[: f.__code__.co_argcount]
    return f, inputs(arrays, names)


def test_every_rule_has_an_example() -> None:
    assert RULES and set(EXAMPLES) == set(RULES)


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_its_value_is_that_of_numpy(name: str) -> None:
    f, given = example(name)
    graph = trace(f, given)
    if name != "named":
        assert name in {node.op for node in graph.nodes}
    made = budgets(graph, Contract())["result"].value
    wide = f(**{key: x.astype(np.float64) for key, x in given.items()})
    if name == "cast":
        wide = given["x"].astype(np.float64)  # noted, not made
    assert made.size and np.array_equal(made, wide)


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_its_bounds_hold_for_float32_and_for_operands_that_are_off(name: str) -> None:
    f, given = example(name)
    scale = {
        key: np.float32(1) + np.float32(2**-22) * RNG.integers(-1, 2, x.shape).astype(np.float32)
        for key, x in given.items()
    }

    def off(**x: Any) -> Any:
        return f(**{key: x[key] * x[f"by {key}"] for key in given})

    # the products round operands of the primitive, as a graph has it and as float32 does it
    both = {**given, **{f"by {key}": s for key, s in scale.items()}}
    expected = budgets(trace(off, both), Contract())["result"]
    actual = np.asarray(off(**both), np.float64)
    if name == "cast":
        actual = (given["x"] * scale["x"]).astype(np.float64)
    within = abs(actual - expected.value) <= expected.budget.bound
    assert within.size and np.all(within)
    assert np.all(abs(actual - expected.value) <= expected.budget.statistical)
    wide = np.isinf(expected.budget.bound).mean()
    assert wide == 0


@pytest.mark.parametrize("name", sorted(set(EXAMPLES) - JUMPS))
def test_its_adjoint_is_the_derivative(name: str) -> None:
    f, given = example(name)
    graph = trace(f, given)
    node = graph.results["result"]
    run = forward(graph, Contract(), {node}, {}, elements_of(graph), reverse=True)
    g = RNG.standard_normal(run.values[node].shape)
    found = {i: adjoint for _, i, adjoint, _ in adjoints(run, node, [g], every=True)}
    for key, x in given.items():
        adjoint = found[graph.inputs[key]]
        step = 1e-6 * RNG.standard_normal(x.shape)
        wide = {one: y.astype(np.float64) for one, y in given.items()}
        ends = [f(**wide | {key: wide[key] + sign * step}) for sign in (1, -1)]
        if name == "cast":
            ends = [wide[key] + sign * step for sign in (1, -1)]
        moved = np.sum(g * (ends[0] - ends[1])) / 2
        assert adjoint.shape == x.shape and np.isclose(np.sum(adjoint * step), moved, rtol=1e-5, atol=1e-12)


@pytest.fixture
def off(monkeypatch: pytest.MonkeyPatch) -> float:
    """Inputs that are off by a tenth, and by a hundredth where they are small."""

    def given(run: _Run, i: int) -> Operand:
        node = run.graph.nodes[i]
        if node.op != INPUT or node.value.dtype.kind in "biu":
            return Operand(node.value, EXACT, node.bits)
        e = amount(node.value)
        if run.keep:
            run.kept[i] = Kept(Site(node, (), node.value, run.contract), Own(e, e), 0.0, 0.0)
        return Operand(node.value, Error(e, e * e, 0.0, 1 << i, (False,) * node.value.ndim), 53)

    monkeypatch.setattr(_Run, "_given", given)
    return 0.1


def amount(x: np.ndarray) -> np.ndarray:
    return 0.1 * abs(x.astype(np.float64)) + 0.01


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_the_worst_case_is_one_where_operands_are_far_off(name: str, off: float) -> None:
    """Forward and in reverse: at corners of the operands' intervals and within, in float64."""
    f, given = example(name)
    graph = trace(f, given)
    expected = budgets(graph, Contract())["result"]
    wide = {key: x.astype(np.float64) for key, x in given.items()}
    elements = [tuple(int(RNG.integers(0, n)) for n in expected.value.shape) for _ in range(4)]
    at = budget_at(graph, Contract(), "result", elements)
    farthest = np.zeros(expected.value.shape)
    for k in range(60):
        part = {
            key: RNG.choice([-1.0, 1.0], x.shape) if k % 3 else RNG.uniform(-1, 1, x.shape) for key, x in wide.items()
        }
        moved = {key: x + part[key] * amount(x) for key, x in wide.items()}
        made = np.asarray(moved["x"] if name == "cast" else f(**moved), np.float64)
        farthest = np.maximum(farthest, abs(made - expected.value))
    held = 1 + 1e-12  # float64's own roundings
    assert np.all(farthest <= held * expected.budget.bound)
    assert all(farthest[e] <= held * at.bound[k] for k, e in enumerate(elements))
    if name not in JUMPS | {"gather"}:  # and it is not far wider than that
        assert np.median(expected.budget.bound / np.maximum(farthest, 1e-9)) < 4


@pytest.mark.parametrize("name", ["sum", "matmul", "exp", "divide", "cumsum"])
def test_a_bound_is_not_far_from_what_may_happen(name: str) -> None:
    """Rounding all that a rule may round upwards comes within a factor of its bound: it is no empty promise."""
    f, given = example(name)
    expected = budgets(trace(f, given), Contract())["result"]
    elements = [(0,) * expected.value.ndim]
    at = budget_at(trace(f, given), Contract(), "result", elements)
    assert np.all(at.bound > 0) and np.all(at.bound <= expected.budget.bound[elements[0]])
    assert np.all(expected.budget.bound <= 40 * 2.0**-24 * np.maximum(abs(expected.value), 1))
