"""What a plain function says that a kernel may lose, and functions of which only values are known."""

import numpy as np

from workbench.reference.graph import Contract, applied, budgets, may_lose, trace

X = np.linspace(-2, 2, 9, dtype=np.float32)


def test_what_may_be_lost_is_in_the_budgets_of_what_follows() -> None:
    def plain(x: np.ndarray) -> np.ndarray:
        kept = may_lose(x, 0.25 * abs(x), 4)
        return 2 * kept

    expected = budgets(trace(plain, {"x": X}), Contract())
    wide = X.astype(np.float64)
    assert np.array_equal(expected["kept"].value, wide) and np.array_equal(expected["result"].value, 2 * wide)
    np.testing.assert_allclose(expected["kept"].budget.bound, abs(wide))
    np.testing.assert_allclose(expected["result"].budget.bound, 2 * abs(wide), rtol=1e-5)
    assert np.all(expected["kept"].budget.statistical <= expected["kept"].budget.bound)
    assert np.array_equal(plain(X), 2 * X)


def test_a_function_of_which_only_values_are_known_is_bounded_by_them() -> None:
    """Beyond a kink as far as it goes there; where it is not finite it is 0."""

    def bent(x: np.ndarray) -> np.ndarray:
        return np.where(x < -1.9, -np.inf, abs(x - 1))

    def plain(x: np.ndarray) -> np.ndarray:
        off = may_lose(x, 0.5)
        return applied(bent, off)

    expected = budgets(trace(plain, {"x": X}), Contract())["result"]
    wide = X.astype(np.float64)
    assert np.array_equal(expected.value, np.where(wide < -1.9, 0.0, abs(wide - 1)))
    near = abs(wide - 1) < 0.3
    assert near.any() and np.all(expected.budget.bound[near] >= 0.5) and np.all(expected.budget.bound[2:] < 0.6)
    assert np.array_equal(plain(X), expected.value.astype(np.float32))
