"""When a formula holds: on what it was not learned from, of enough numbers, and for nearly all of the error."""

import numpy as np

from workbench.judge.explain.unknown.difference import of_operand
from workbench.judge.explain.unknown.formula import INDEPENDENT, Places, holds, places


def some(actual: np.ndarray, expected: np.ndarray, bound: float = 1e-6) -> Places:
    return places(of_operand("x", "kd", actual, np.full(actual.shape, bound), expected))


EXPECTED = np.random.default_rng(0).standard_normal((40, 30))


def test_all_of_it():
    found = some(2 * EXPECTED, EXPECTED)
    formula = holds("twice", found, 2 * found.expected)
    assert formula is not None
    assert (formula.of, formula.wrong, formula.residual, formula.unexplained) == (1200, 1200, 0, 0)


def test_what_holds_only_where_it_was_learned_is_none():
    """Less than a hundredth of all elements, but more of those on which it was tried."""
    found = some(2 * EXPECTED, EXPECTED)
    few = ~found.learned & (np.arange(len(found.actual)) % 50 == 7)
    assert 0.005 * len(few) < few.sum() < 0.01 * len(few)
    assert holds("twice", found, np.where(few, 2.1, 2) * found.expected) is None
    assert holds("twice", found, np.where(found.learned, 2.1, 2) * found.expected) is None


def test_one_in_20_elements_that_is_another_refutes_it():
    other = np.where(np.arange(30) % 20 == 7, 2.001, 2)
    found = some(other * EXPECTED, EXPECTED)
    assert holds("twice", found, 2 * found.expected) is None


def test_it_speaks_of_more_than_half():
    found = some(2 * EXPECTED, EXPECTED)
    for share, said in ((0.4, False), (0.6, True)):
        tried = np.where(np.arange(len(found.actual)) < share * len(found.actual), 2 * found.expected, np.nan)
        assert (holds("twice", found, tried) is not None) == said


def test_few_different_numbers_are_no_evidence():
    """1200 elements, but 30 numbers."""
    expected = np.broadcast_to(EXPECTED[0], EXPECTED.shape)
    found = some(2 * expected, expected)
    assert len(np.unique(expected)) < INDEPENDENT and holds("twice", found, 2 * found.expected) is None


def test_a_constant_counts_by_what_it_stands_for():
    found = some(0 * EXPECTED, EXPECTED)
    assert holds("0", found, np.zeros_like(found.expected)) is not None


def test_errors_a_little_beyond_their_budget_are_not_explained_by_next_to_nothing():
    """Within twice the budget of the expectation itself, which a formula that changes nothing reproduces."""
    sign = np.sign(np.random.default_rng(1).standard_normal(EXPECTED.shape))
    found = some(EXPECTED + 1.5e-6 * sign, EXPECTED)
    assert len(found.actual) == 1200 and holds("itself", found, found.expected, growth=2.0) is None


def test_numbers_alone_are_looked_at():
    actual = 2 * EXPECTED
    actual[:4] = np.nan
    actual[4] = np.inf
    found = some(actual, EXPECTED)
    assert len(found.actual) == 35 * 30
    formula = holds("twice", found, 2 * found.expected)
    assert formula is not None and (formula.of, formula.wrong) == (1050, 1200)
