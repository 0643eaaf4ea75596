"""The NumPy front end: views, writes, creation, casts, decisions and refusals mean what they mean in NumPy."""

import functools
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy import zeros

from workbench.reference.graph import Contract, budgets, trace
from workbench.reference.graph.functions import FUNCTIONS
from workbench.reference.graph.ufuncs import UFUNCS
from workbench.refusal import Refusal

RNG = np.random.default_rng(1)
X = RNG.standard_normal((4, 6)).astype(np.float32)
FILE = __file__


def columns(x):
    o = np.zeros(x.shape, x.dtype)
    for t in range(x.shape[1]):
        o[:, t] = x[:, t] * (t + 1)
    return o


def augmented(x):
    y = x
    y += 1
    return x * y


def through_views(x):
    o = np.zeros((6, 4))
    row, turned = o[2], o.T
    turned[...] = x
    row *= 2
    block = o.reshape(3, 2, 4)[1]
    block[0, ::2] -= row[:2]
    return o, row, turned[1], block


def copies(x):
    y, z, flat = x.copy(), x[[0, 2]], x.flatten()
    y[0] = 0
    z[...] = 5
    flat[3] = 7
    return x + 0, y, z, flat


def swapped(x):
    x[[0, 1]] = x[[1, 0]]
    a, b = x[2], x[3].copy()
    x[3] = a
    x[2] = b
    return x * 1


def out_of_ufuncs(x):
    o = np.empty_like(x)
    np.exp(x, out=o)
    np.multiply(o, 2, out=o[:, :6])
    total = np.add.reduce(x, axis=1)
    return o, total, np.add.accumulate(x, axis=1), np.maximum.reduce(x), np.subtract.outer(x[:, 0], x[0])


def masked(x):
    m = x > 0
    y = x.copy()
    y[m] = 0
    return y, x[m], np.where(~m & (x < -0.5), -1.0, x)


def stacked(x):
    rows = [x[i] * i for i in range(4)]
    return np.stack(rows), np.array(rows), np.concatenate([x, x], 1), np.vstack([x[0], x[1]]), np.hstack([x, x])


def created(x):
    n = x.shape[1]
    positions = np.arange(n) / n
    table = np.cos(positions[None] * np.linspace(0, 1, 4)[:, None])
    return table * x + np.eye(4, n) + np.tri(4, n) + np.ones_like(x) + np.full(n, 0.5) + np.identity(4)[:, :1], table


def reduced(x):
    return x.mean(), x.var(axis=0), x.std(1, keepdims=True), np.linalg.norm(x, axis=1), x.sum(), x.max(), x.min(0)


def moved(x):
    parts = np.split(x, 2, axis=1)
    a, b = np.array_split(x, 2)
    return (
        parts[1], a, b, np.moveaxis(x[None], 0, 2), np.squeeze(x[None]), np.tile(x, (2, 1)), np.pad(x, ((1, 0), (0, 2))),
        np.diagonal(x), np.diff(x, axis=1), np.take(x, [1, 0], axis=1), x.T, x.mT,
        np.broadcast_arrays(x, x[:1])[1], np.flip(x), np.expand_dims(x, (0, 3)), x.ravel()[::2], np.roll(x, 1),
    )  # fmt: skip


def contracted(x):
    return (
        np.einsum("ij,kj->ik", x, x), np.einsum("ij,ij->i", x, x), np.einsum("ij->j", x), np.einsum("...j,j->...", x, x[0]),
        np.einsum("ij,jk,kl->il", x, x.T, x), np.einsum("i,j", x[0], x[1]), np.einsum("ii->i", x[:, :4]),
        np.dot(x, x.T), np.inner(x, x), np.outer(x[0], x[1]), np.tensordot(x, x, ((0,), (0,))), np.vdot(x[0], x[1]),
        x[0] @ x.T, x @ x[0], np.dot(2.0, x), np.einsum("ijk,jk->i", x[None] * 1, x),
    )  # fmt: skip


def chosen(x):
    best = np.argmax(x, axis=1)
    order = np.argsort(-x, axis=1)[:, :2]
    labels = np.array([0, 3, 1, 5])
    y = x.copy()
    np.put_along_axis(y, np.array([[1], [0], [2], [3]]), 9.0, axis=1)
    return (
        best, x[np.arange(4), best], x[np.arange(4), labels], np.take_along_axis(x, order, axis=1), np.sort(x, axis=1),
        x[labels[:2] % 4], np.clip(x, -1, 0.5), x.clip(min=0), np.round(x, 1), np.nan_to_num(x), y,
        np.any(x > 2), np.all(x > -9, axis=1), (x > 0).sum(axis=1), np.abs(x) ** 1.5, np.float32(2) * x,
    )  # fmt: skip


SAME: list[Callable[..., Any]] = [
    columns, augmented, through_views, copies, swapped, out_of_ufuncs, masked, stacked, created, reduced, moved,
    contracted, chosen,
]  # fmt: skip


def flat(x: Any) -> list[Any]:
    return [y for one in x for y in flat(one)] if isinstance(x, list | tuple) else [x]


@pytest.mark.parametrize("f", SAME, ids=lambda f: f.__name__)
def test_a_run_is_that_of_numpy(f: Callable[..., Any]) -> None:
    given = X.copy()
    made = budgets(trace(f, {"x": given}), Contract())
    assert np.array_equal(given, X), "inputs are copied"
    wanted = flat(f(X.astype(np.float64)))
    names = ["result"] if len(wanted) == 1 else [f"result[{i}]" for i in range(len(wanted))]
    assert names
    for name, one in zip(names, wanted, strict=True):
        assert made[name].value.shape == np.shape(one), name
        assert np.allclose(made[name].value, one, rtol=1e-13, atol=1e-15), name
        assert np.all(made[name].budget.bound >= 0), name


def test_inputs_in_float64_are_copied_too() -> None:
    given = X.astype(np.float64)
    trace(augmented, {"x": given})
    assert np.array_equal(given, X)


@pytest.mark.parametrize("f", SAME, ids=lambda f: f.__name__)
def test_its_budgets_hold_for_float32(f: Callable[..., Any]) -> None:
    made = budgets(trace(f, {"x": X}), Contract())
    actual = flat(f(X.copy()))
    names = ["result"] if len(actual) == 1 else [f"result[{i}]" for i in range(len(actual))]
    for name, one in zip(names, actual, strict=True):
        within = abs(np.asarray(one, np.float64) - made[name].value) <= made[name].budget.bound
        assert within.size and np.all(within), name


def of(f: Callable[..., Any], **inputs: Any) -> Any:
    return trace(f, inputs or {"x": X})


UNARY = {name for name in dir(np) if isinstance(getattr(np, name), np.ufunc) and getattr(np, name).nin == 1}
BINARY = {name for name in dir(np) if isinstance(getattr(np, name), np.ufunc) and getattr(np, name).nin == 2}


@pytest.mark.parametrize("name", sorted(UNARY | BINARY))
def test_every_ufunc_has_a_rule_or_is_refused_by_name_and_line(name: str) -> None:
    ufunc = getattr(np, name)
    x = abs(X) + np.float32(0.5)
    y = np.array(x, np.float64)
    if name in ("matmul", "matvec", "vecmat", "vecdot"):
        x, y = x[:, :4], y[:, :4]

    def f(x):
        return ufunc(*[x] * ufunc.nin)

    try:
        graph = trace(f, {"x": x})
    except Refusal as refusal:
        line = f.__code__.co_firstlineno + 1
        assert str(refusal).startswith(f"{FILE}:{line}: no rule for np.{ufunc.__name__}")
        return
    made = budgets(graph, Contract())["result"]
    wanted = ufunc(*[y] * ufunc.nin)
    assert np.allclose(made.value, wanted, rtol=1e-13)
    exact = np.asarray(ufunc(*[x] * ufunc.nin), np.float64)
    assert np.all(abs(exact - wanted) <= made.budget.bound)


def test_what_has_a_rule_is_most_of_what_references_use() -> None:
    used = {"add", "multiply", "exp", "log", "sqrt", "maximum", "tanh", "matmul", "divide", "sin", "less", "floor"}
    assert used <= UFUNCS and len(FUNCTIONS) > 60


@pytest.mark.parametrize("name", ["convolve", "interp", "cross", "kron", "fft.fft", "linalg.inv", "linalg.svd", "sinc",
                                  "unwrap", "gradient", "prod", "cumprod", "median", "quantile", "histogram", "unique",
                                  "select", "apply_along_axis", "linalg.solve", "trapezoid", "i0", "nansum"])  # fmt: skip
def test_a_function_without_a_rule_is_refused_by_name_and_line(name: str) -> None:
    function = functools.reduce(getattr, name.split("."), np)
    more = {"interp": (X[0], X[0]), "quantile": (0.5,), "select": ([X],), "apply_along_axis": (0,)}.get(name, (X,) if name in ("convolve", "cross", "kron", "linalg.solve") else ())  # fmt: skip

    def f(x):
        first = {"select": [x > 0], "apply_along_axis": np.sum}.get(name, x)
        return function(first, *more, *([x] if name == "apply_along_axis" else []))

    with pytest.raises(Refusal, match=rf"{FILE}:{f.__code__.co_firstlineno + 2}: no rule for .*{name.split('.')[-1]}"):
        trace(f, {"x": X})


def test_an_array_made_elsewhere_is_refused_with_its_line() -> None:
    table = np.cos(np.arange(24.0)).reshape(4, 6)

    def f(x):
        return x * table

    with pytest.raises(Refusal, match=rf"{FILE}:{f.__code__.co_firstlineno + 1}: an array of 24 floats.*Pass it as"):
        of(f)


def test_a_few_coefficients_may_come_from_anywhere() -> None:
    taps = np.array([0.25, 0.5, 0.25])
    assert np.all(budgets(of(lambda x: x[:, :3] * taps), Contract())["result"].value == X[:, :3] * taps)


def test_writing_into_an_array_made_elsewhere_is_refused() -> None:
    def f(x):
        import numpy

        o = numpy.zeros(x.shape)
        o[:, 0] = x[:, 0]
        return o

    with pytest.raises(Refusal, match="would become a plain one.*np of the reference's own module"):
        of(f)


def test_functions_imported_from_numpy_belong_to_the_run_too() -> None:
    def f(x):
        o = zeros(x.shape, np.float32)
        o[0] = x[0]
        return o

    assert np.array_equal(budgets(of(f), Contract())["result"].value[0], X[0])


def test_casts_among_floats_are_noted_and_not_made() -> None:
    def f(x):
        half = x.astype(np.float16)
        wide = half.astype(np.float32) + np.zeros(6, ml_dtypes.bfloat16)
        return half, wide, np.asarray(x, dtype=np.float64)

    graph = of(f)
    made = budgets(graph, Contract())
    assert all(np.array_equal(made[f"result[{i}]"].value, X) for i in range(3))
    assert [graph.nodes[graph.results[f"result[{i}]"]].dtype for i in range(3)] == [np.float16, np.float32, np.float64]


def test_casts_to_8_bits_and_whole_numbers_are_made() -> None:
    def f(x):
        return (10 * x).astype(np.int8), x.astype(ml_dtypes.float8_e4m3fn).astype(np.float32)

    made = budgets(of(f), Contract())
    assert np.array_equal(made["result[0]"].value, (10.0 * X.astype(np.float64)).astype(np.int8))
    assert np.array_equal(made["result[1]"].value, X.astype(ml_dtypes.float8_e4m3fn).astype(np.float64))


def test_a_reference_sees_the_dtype_of_the_user() -> None:
    seen = []

    def f(x):
        seen.append((x.dtype, float(np.finfo(x.dtype).eps), (x * 2).dtype, (x + np.float32(1)).dtype, np.exp(x).dtype))
        return x * (2.0 if x.dtype == ml_dtypes.bfloat16 else 3.0)

    made = budgets(trace(f, {"x": X}, dtype=ml_dtypes.bfloat16), Contract())
    assert seen == [(np.dtype(ml_dtypes.bfloat16), 2.0**-7, np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16))]  # fmt: skip
    assert np.array_equal(made["result"].value, 2 * X.astype(np.float64))


def test_what_a_run_decides_is_noted_with_its_line() -> None:
    def f(x):
        scale = 2.0 if x[0, 0] > 0 else 3.0
        return x * scale * float(x[1, 1]) * int(abs(x[2, 2]) + 1) + (x.shape[0] if x.any() else 0)

    graph = of(f)
    first = f.__code__.co_firstlineno
    assert [(one.line.number - first, one.words) for one in graph.decisions] == [
        (1, "if"), (2, "float()"), (2, "int()"), (2, "if"),
    ]  # fmt: skip


def test_whole_numbers_decide_nothing() -> None:
    def f(x, labels):
        return x[np.arange(4), labels] * int(labels[0]) + (1 if labels.max() > 2 else 0)

    labels = np.array([0, 3, 1, 5])
    graph = of(f, x=X, labels=labels)
    assert not graph.decisions
    made = budgets(graph, Contract())["result"]
    assert np.array_equal(made.value, f(X.astype(np.float64), labels))


def test_random_numbers_of_one_seed_are_the_same_in_both_runs() -> None:
    def f(x):
        return x * (np.random.default_rng(3).random(x.shape) < 0.5)

    assert np.array_equal(budgets(of(f), Contract())["result"].value, f(X.astype(np.float64)))


def test_random_numbers_that_differ_are_refused() -> None:
    def f(x):
        return x * np.random.default_rng().standard_normal(x.shape)

    with pytest.raises(Refusal, match="draws other random numbers"):
        of(f)


def test_a_result_that_is_no_array_of_the_run_is_refused() -> None:
    with pytest.raises(Refusal, match="returns float as result"):
        of(lambda x: 3.0)


def test_the_module_of_the_reference_is_as_before_after_a_run_that_fails() -> None:
    def f(x):
        raise KeyError("of the reference")

    with pytest.raises(KeyError):
        of(f)
    assert globals()["np"].zeros is zeros and isinstance(np.zeros(3), np.ndarray)


def test_counts_and_places_are_whole_numbers() -> None:
    def f(x):
        seen = x > 0
        count, running, first = seen.sum(-1), seen.cumsum(-1), np.argmax(x, axis=-1)
        anything, share = seen.max(-1), seen.mean(-1)
        last = np.take_along_axis(x, count[:, None] - 1, axis=-1)
        return count, running, first, anything, share, last, count / 3

    x = np.random.default_rng(8).standard_normal((3, 5)).astype(np.float32) + 1
    graph = trace(f, {"x": x})
    made = budgets(graph, Contract())
    for (name, node), plain in zip(graph.results.items(), f(x), strict=True):
        noted = graph.nodes[node].dtype
        assert isinstance(noted, np.dtype) and np.allclose(made[name].value, plain), name
        assert noted == plain.dtype or noted.kind == plain.dtype.kind == "f", name
    assert all(isinstance(node.dtype, np.dtype) for node in graph.nodes)
