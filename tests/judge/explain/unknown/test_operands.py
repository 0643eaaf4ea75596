"""Operands that are solved from products: only where they are determined."""

import numpy as np

from tests.odd_kernels import CASE, judged, scaled_where
from workbench.judge.explain.formulas import formulas
from workbench.judge.explain.unknown.operands import Product, _solved

RNG = np.random.default_rng(0)
A, X = RNG.standard_normal((1, 2, 64, 16)), RNG.standard_normal((1, 2, 16, 48))


def product(a: np.ndarray, made: np.ndarray, bound: float = 1e-6) -> Product:
    return Product("k", X.swapaxes(-1, -2), True, a, made, np.full(made.shape, bound))


def test_the_operand_that_was_read():
    read = X.copy()
    read[:, :, 3] *= 2
    solved = _solved(product(A, A @ read))
    assert solved is not None
    x, found = solved
    np.testing.assert_allclose(x, read, atol=1e-12)
    assert found.wrong[..., 3].all() and found.wrong.sum() == 2 * 48
    assert (abs(found.actual - read.swapaxes(-1, -2)) <= found.bound).all()


def test_what_the_bound_covers_is_right():
    noise = 1e-6 * RNG.uniform(-1, 1, (1, 2, 64, 48))
    assert _solved(product(A, A @ X + noise)) is None
    assert _solved(product(A, A @ X + noise, bound=1e-9)) is not None


def test_an_ill_conditioned_product_tells_nothing():
    """Of two columns alike only the sum of their rows is known."""
    a, read = A.copy(), X.copy()
    a[..., 5] = a[..., 6]
    read[:, :, 5] += 1
    assert _solved(product(a, a @ read)) is None


def test_fewer_rows_than_columns_tell_nothing():
    assert _solved(product(A[:, :, :12], A[:, :, :12] @ (2 * X))) is None


def test_heads_that_share_an_operand_are_solved_together():
    right = np.repeat(X[:, :1], 2, axis=1)
    read = 2 * right
    a = A[:, :, :12]
    found = _solved(product(a, a @ read)._replace(right=right.swapaxes(-1, -2)))
    assert found is not None
    np.testing.assert_allclose(found[0], read, atol=1e-12)


def test_as_many_rows_as_columns_make_anything_of_another_operand():
    """32 queries and 32 dims: every qk is some product with q, and that one of them is wrong says nothing of k."""
    case = CASE.but(seqlen=32, kv_heads=4, causal=False)
    observed, stage = judged("qk", scaled_where(lambda b, h, q, k: k % 4 == 1), case)
    assert stage.judged.outside.any() and formulas(observed, stage) == ()
