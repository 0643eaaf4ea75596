"""A part of a trace held against its expectation: a verdict on every element, in the units that the kernel stores."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import reduce
from operator import add, and_

import numpy as np

from workbench.arrays import in_float64, on_cpu
from workbench.case.box import Box
from workbench.case.contract import Contract
from workbench.case.stages import OUT
from workbench.expectation.elements import WRONG, Compared, Elements, State, Summary, compare, summary
from workbench.expectation.expectation import Expectation, in_bool
from workbench.expectation.without_keys import as_stored, mapped, named_empty, without_keys
from workbench.floats import array_namespace
from workbench.machine import one_blas_thread
from workbench.reference.bound import Budget
from workbench.reference.losses import U
from workbench.reference.steps.sums import RunningSum
from workbench.trace.trace import unwritten

#: elements that are compared at once, 1 MB in float64: fewer do not pay for handing over between threads, more leave
#: the cache
PIECE = 2**17
#: what is rounded before a lag is compared with its threshold: the difference, scale log2(e), log2(e) in it, the
#: product
LAG_ROUNDINGS = 4


def summaries(
    e: Expectation, names: Sequence[str], stores: Mapping[str, Elements], at_hand: Mapping[str, np.ndarray]
) -> dict[str, Summary]:
    """The summary of each stage of `names` over a part; its elements go into `stores` where there is one.

    `at_hand`: dumped stages that are in float64 already, in natural units (`Expectation.given`).
    """
    bounds = e.budgets(names)
    found = {}
    for name in names:
        pieces = []
        for rows in _pieces(e, name):
            one = _compared(e, name, bounds[name], rows, at_hand.get(name))
            piece = e.part.rows(rows)
            if name in stores:
                _keep(one, stores[name], piece, e.run.axes(name))
            pieces.append(summary(one, piece.offset(e.run.axes(name))))
        found[name] = reduce(add, pieces)
    return found


def failing(e: Expectation, names: Sequence[str], at_hand: Mapping[str, np.ndarray]) -> dict[str, Summary]:
    """The summaries of those stages of `names` of which an element is outside its budget in a part.

    Elements are held against a cheap lower bound of their budgets first. A right kernel is nearly always within it, and
    its budgets then are not computed.
    """
    within = {name for name, bound in e.least(names).items() if _within(e, name, bound, at_hand.get(name))}
    left = [name for name in names if name not in within]
    return {name: found for name, found in summaries(e, left, {}, at_hand).items() if found.outside} if left else {}


def _within(e: Expectation, name: str, bound: np.ndarray, at_hand: np.ndarray | None) -> bool:
    """Whether no element of a stage is outside a budget of `bound`."""
    found = _compared(e, name, Budget(bound, bound, np.inf), slice(None), at_hand).state
    return not any(bool(array_namespace(found).any(found == state)) for state in WRONG)


def compared(e: Expectation, names: Sequence[str]) -> Iterator[tuple[str, Compared]]:
    """Each stage of `names` over a part of its trace, held against its expectation within its budget."""
    with one_blas_thread():
        bounds = e.budgets(names)
    for name in names:
        yield name, _compared(e, name, bounds[name], slice(None), e.given.get(name))


def expected_out(e: Expectation) -> np.ndarray:
    """What out should be over a part, in float64 and before any cast; in rows without keys what the contract says."""
    expected, value = e.computed[OUT], e.run.contract.empty_out
    if value == 0 or isinstance(value, str) or np.isnan(value):
        return expected
    return np.where(e.empty[..., None], value, expected)


def _pieces(e: Expectation, name: str) -> Iterator[slice]:
    """Queries of a part, as many at once as a processor's cache holds with all that comparing them takes."""
    assert isinstance(e.part.q, slice)
    length = e.part.q.stop - e.part.q.start
    rows = length if e.device != "cpu" else max(1, PIECE * length // e.computed[name].size)
    for first in range(0, length, rows):
        yield slice(first, min(first + rows, length))


def _compared(e: Expectation, name: str, budget: Budget, rows: slice, at_hand: np.ndarray | None) -> Compared:
    """Some queries of a part of a stage, held against their expectation within their budget."""
    run, cut, stage = e.run, Box(q=rows), e.run.known[name]
    axes, contract = stage.axes, run.contract
    dumped = cut.of(e.part.of(run.dumped[name], axes), axes)
    if at_hand is None or run.unit(name) != 1 or stage.result:
        actual = run.in_stored_units(name, dumped, e.device)
    else:
        actual = cut.of(at_hand, axes)
    # a slot that nobody wrote holds a NaN of its own
    blank = array_namespace(actual).isnan(actual)
    if bool(blank.any()):
        blank = in_bool(unwritten(dumped), e.device)
    narrow = mapped(budget, lambda array: cut.of(array, axes))
    expected, stored = as_stored(run, name, cut.of(e.computed[name], axes), narrow)
    if stage.empty:
        actual, expected, stored = without_keys(e, name, cut, actual, expected, stored)
    if name in run.free_maxima:
        expected = _as_chosen(contract, actual, expected, stored, contract.lag * run.unit(name))
    if stage.rescales:
        stored = _where_it_rescales(e, name, cut, actual, expected, stored)
    open_, sparse = e.open_slots(name), run.trace.sparse.get(name)
    if sparse is None and open_ is None:
        found = compare(actual, blank, expected, stored, dumped.dtype, contract.saturates)
    else:
        off = array_namespace(actual).zeros_like(actual)
        if sparse is not None:
            off = in_float64(cut.of(e.part.of(sparse, axes), axes), e.device)
        given = off == off if open_ is None else (off == off) & ~cut.of(open_, axes)
        widened = mapped(stored, lambda array: array[given] + off[given])
        stored = replace(widened, size=stored.size if isinstance(stored.size, float) else stored.size[given])
        one = compare(actual[given], blank[given], expected[given], stored, dumped.dtype, contract.saturates)
        found = _among(one, given, actual)
    found = _with_nan(e, cut, name, found) if e.holds_nan else found
    return named_empty(e, cut, found) if stage.empty else found


def _with_nan(e: Expectation, cut: Box, name: str, found: Compared) -> Compared:
    """What was compared, of inputs with NaN: where it may reach a NaN is right; where it must, and what was read does
    hold it, anything else is wrong.
    """
    most, least = (cut.of(some[name], e.run.axes(name)) for some in e.reached)
    xp = array_namespace(found.state)
    there, known = xp.isnan(found.actual), (found.state != State.ABSENT) & (found.state != State.UNWRITTEN)
    right = there & xp.isnan(most) & known
    lost = ~there & xp.isnan(found.expected) & xp.isnan(least) & known
    over = xp.where(right, 0.0, xp.where(lost, np.inf, found.over_budget))
    state = xp.where(right, float(State.EXACT), xp.where(lost, float(State.NAN), found.state))
    expected = xp.where(right, np.nan, found.expected)
    return replace(found, expected=expected, over_budget=over, state=xp.astype(state, xp.uint8))


def _as_chosen(contract: Contract, actual: np.ndarray, expected: np.ndarray, budget: Budget, lag: float) -> np.ndarray:
    """The expectation of maxima that the kernel was free to choose: its own choice where that is a number, and no
    smaller than the running maximum where the contract says so; of one that may lag, the nearest to its own that does
    not by more. Whether it does, a kernel decides in float32: a difference of two maxima, each of which may be
    rounded, times a constant, which is two roundings.
    """
    xp = array_namespace(actual)
    right = xp.isfinite(actual)
    if contract.row_max == "lagging":
        slack = LAG_ROUNDINGS * U * lag + 2 * U * abs(expected)
        return xp.where(right, xp.clip(actual, expected - lag - slack, expected), expected)
    if contract.row_max == "upper_bound":
        right = right & (actual >= expected - budget.bound)
    return xp.where(right, actual, expected)


def _where_it_rescales(
    e: Expectation, name: str, cut: Box, actual: np.ndarray, expected: np.ndarray, budget: Budget
) -> Budget:
    """The budget of correction, the stage `name`, infinite where what is beyond it multiplies states of exactly 0: at
    the first tile of a split, and of a row that has seen no key, unless a sentinel or a floor fills its row_sum with
    what that correction wipes out. NaN and infinity, which make NaN of 0, stay wrong.
    """
    xp, contract = array_namespace(actual), e.run.contract
    beyond = abs(actual - expected) > budget.bound
    states = {x: s for x, s in e.run.table.items() if isinstance(s.step, RunningSum) and s.step.rescale == name}
    if any(state.begins for state in states.values()) or not bool(xp.any(beyond)):
        return budget
    zero = (cut.of(e.computed[x], state.axes) == 0 for x, state in states.items())
    empty = reduce(and_, (xp.all(x, axis=-1) if x.ndim > actual.ndim else x for x in zero))
    clean = not np.isfinite(contract.mask_sentinel) and contract.exp_floor is None
    for t, before in e.run.tiling.order:
        if before is not None:
            beyond[..., t] &= empty[..., before] if clean else False
    return replace(budget, bound=xp.where(beyond, np.inf, budget.bound))


def _among(one: Compared, given: np.ndarray, like: np.ndarray) -> Compared:
    """The compared elements `one` at their places `given`, bool of the shape of `like`; the others ABSENT, their values
    NaN.
    """
    xp = array_namespace(like)
    whole = {field.name: xp.full_like(like, np.nan) for field in fields(Compared)}
    whole["state"] = xp.astype(xp.full_like(like, float(State.ABSENT)), xp.uint8)
    for name, array in whole.items():
        array[given] = getattr(one, name)
    return Compared(**whole)


def _keep(found: Compared, elements: Elements, part: Box, axes: str) -> None:
    for name in ("expected", "budget", "statistical", "over_budget", "state"):
        target = part.of(getattr(elements, name), axes)
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            target[...] = on_cpu(getattr(found, name))


def on_host(found: Compared) -> Compared:
    """The same as arrays of NumPy."""
    return Compared(*(on_cpu(getattr(found, one.name)) for one in fields(Compared)))
