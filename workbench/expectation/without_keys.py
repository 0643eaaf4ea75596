"""Rows without keys, of which kernels make different things: what their results may hold."""

from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from operator import or_

import numpy as np

from workbench.case.box import Box
from workbench.case.hiding import HUGE, NEAR
from workbench.case.promises import LIBRARIES
from workbench.case.stages import OUT
from workbench.expectation.elements import Compared, State
from workbench.expectation.expectation import Conventions, Expectation
from workbench.expectation.observed import Observed
from workbench.floats import array_namespace, ulp
from workbench.reference.bound import Budget


def without_keys(
    e: Expectation, name: str, cut: Box, actual: np.ndarray, expected: np.ndarray, budget: Budget
) -> tuple[np.ndarray, np.ndarray, Budget]:
    """A result, its expectation and its budget, with what rows without keys should hold: what the contract says, or any
    of what libraries make, where it leaves it to them or finite numbers hide the keys.
    """
    contract, stage, empty = e.run.contract, e.run.known[name], cut.of(e.empty, "bhq")
    if (known := e.conventions) is not None:
        actual, expected, budget = _by_convention(e, name, cut, known, actual, expected, budget)
        empty = empty & ~cut.of(known.rows, "bhq")
    if e.follows_libraries and bool(empty.any()):  # a mask that somebody supposes hides their keys
        actual, expected = _mean(e, name, cut, empty, actual, expected)
    assert stage.masked is not None
    value, usual, xp = getattr(contract, stage.empty), stage.masked, array_namespace(actual)
    # with a floor probs of masked keys are no zeros, and row_sum of a row without keys is none
    if value == LIBRARIES and name != OUT:
        right = empty & (~xp.isfinite(actual) | (actual == 0) | (actual <= (1 - NEAR) * HUGE))
        return xp.where(right, expected, actual), expected, budget
    if value == LIBRARIES or (value == usual and contract.exp_floor is None):
        return actual, expected, budget
    if value == "any":
        actual = xp.where(empty[..., None], expected, actual)
        return actual, expected, replace(budget, bound=xp.where(empty[..., None], np.inf, budget.bound))
    if np.isnan(value):  # NaN equals nothing: what is NaN as declared counts as right, all else as NaN
        actual = actual + 0.0
        there = actual[empty]
        actual[empty] = xp.where(xp.isnan(there), xp.full_like(there, usual), np.nan)
    else:
        expected = expected + 0.0
        expected[empty] = value
    return actual, expected, budget


def _mean(
    e: Expectation, name: str, cut: Box, rows: np.ndarray, actual: np.ndarray, expected: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """A result and its expectation, with the mean of v in `rows` where the result has it, or NaN; of lse any number."""
    xp, axes = array_namespace(actual), e.run.axes(name)
    value, allowed = e.mean[name]
    plain, bound = (cut.of(x, axes) for x in (value, allowed.bound))
    near = abs(actual - plain) <= xp.maximum(bound, ulp(plain, e.run.dumped[name].dtype))
    near = (
        rows
        if name != OUT
        else (xp.all(near, axis=-1) | xp.all(xp.isnan(actual), axis=-1))[..., None] & rows[..., None]
    )
    held = xp.where(xp.isfinite(actual), actual, plain)
    return xp.where(near, held, actual), xp.where(near, held, expected)


def _by_convention(
    e: Expectation, name: str, cut: Box, known: Conventions, actual: np.ndarray, expected: np.ndarray, budget: Budget
) -> tuple[np.ndarray, np.ndarray, Budget]:
    """The same of rows that follow a convention. Right of out is a row of 0, of NaN, the mean of v, or what arithmetic
    makes of finite numbers that hide: where nobody knows these, or the contract allows their sums any rounding, v with
    any weights. Of lse an infinity or NaN is right, what the numbers make, and a number that stands for -inf. What is
    none of these is held against the mean, and an lse against the numbers.
    """
    xp, axes = array_namespace(actual), e.run.axes(name)

    def held(one: tuple[np.ndarray, Budget]) -> tuple[np.ndarray, Budget]:
        value, allowed = one
        return as_stored(e.run, name, cut.of(value, axes), mapped(allowed, lambda x: cut.of(x, axes)))

    made, of_made = held(known.made[name])
    plain, of_plain = held(e.mean[name]) if name == OUT else (made, of_made)
    spacing = ulp(plain, e.run.dumped[name].dtype)
    bound = xp.maximum(of_plain.bound, spacing)
    near = [abs(actual - plain) <= bound, abs(actual - made) <= xp.maximum(of_made.bound, spacing)]
    there = cut.of(known.rows, "bhq")
    if name == OUT:
        low, high = (cut.of(x, axes) for x in known.reach)
        any_weights = (of_made.bound >= of_made.size) | ~cut.of(known.by_numbers, "bhq")[..., None]
        loose = any_weights & (actual >= low - bound) & (actual <= high + bound)
        fits = [xp.isnan(actual), actual == 0, *near, near[-1] | loose]
        there = there[..., None]
        right = reduce(or_, (xp.all(one, axis=-1, keepdims=True) for one in fits)) & there
    else:
        right = reduce(or_, [~xp.isfinite(actual), actual == 0, *near, actual <= (1 - NEAR) * HUGE]) & there
    held_as = xp.where(xp.isfinite(actual), actual, expected)  # an element held against itself is exact
    actual = xp.where(right, held_as, actual)
    expected = xp.where(right, held_as, xp.where(there, plain, expected))
    return actual, expected, replace(budget, bound=xp.where(there & ~right, bound, budget.bound))


def named_empty(e: Expectation, cut: Box, found: Compared) -> Compared:
    """What was compared of a result, with what is wrong in rows without keys named so: it is no error of arithmetic,
    and would hide one.
    """
    if (rows := e.without_keys) is None:
        return found
    xp, rows = array_namespace(found.state), cut.of(rows, "bhq")
    wrong = (found.state == State.OUTSIDE) | (found.state == State.NAN)
    there = wrong & (rows[..., None] if found.state.ndim > rows.ndim else rows)
    return replace(found, state=xp.astype(xp.where(there, float(State.EMPTY), found.state), xp.uint8))


def mapped(budget: Budget, change: Callable[[np.ndarray], np.ndarray]) -> Budget:
    """The budget with each array changed; one array that serves twice still does."""
    bound = change(budget.bound)
    statistical = bound if budget.statistical is budget.bound else change(budget.statistical)
    size = budget.size if isinstance(budget.size, float) else change(budget.size)
    return Budget(bound, statistical, size)


def as_stored(run: Observed, name: str, expected: np.ndarray, budget: Budget) -> tuple[np.ndarray, Budget]:
    """Expectation and budget in the units in which the kernel stores the stage."""
    factor = run.unit(name)
    return (expected, budget) if factor == 1 else (expected * factor, mapped(budget, lambda array: array * factor))
