"""Formulas of single elements: a factor, a constant, another number of the run."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import combinations, islice
from math import e, log, log2
from typing import NamedTuple

import numpy as np

from workbench.case.stages import AXIS_NAMES
from workbench.judge.explain.unknown.difference import Difference
from workbench.judge.explain.unknown.formula import INDEPENDENT, Formula, Places, holds, places
from workbench.judge.explain.unknown.tensors import Tensors

#: a number is a known one where it is so near to it, however well the elements tell it: some roundings of float32
NEAR = 2.0**-20
#: elements from which a group's own number is learned
OF_GROUP = 4
#: a number that is learned is as far off as its elements are: their budgets count twice
LEARNED = 2.0
#: powers of 2 that have a name, 1 first
POWERS = sorted(range(-24, 25), key=abs)

Trial = Callable[[Places], Formula | None]


class Form(NamedTuple):
    """actual = number * base, where `how` is plus expected + number * base."""

    how: str  #: the base is: number; product, expected * x; quotient, expected / x; other and plus, x
    name: str = ""  #: of x
    x: np.ndarray | None = None  #: broadcasts against the array; None: 1


@np.errstate(all="ignore")
def related(found: Difference, around: Tensors) -> list[Formula]:
    """The formulas of single elements that hold: plain ones, else those with other numbers of the run, else those with
    a number of its own for each group of elements.
    """
    few = places(found, few=True)
    if len(few.where[0]) < INDEPENDENT:
        return []
    everywhere, known = places(found), numbers(around)
    for trials in (_plain(known), _with_others(around, known)):
        made = [formula for trial in trials if trial(few) and (formula := trial(everywhere))]
        if made:
            return made
    grouped = (formula for trial in _grouped(found) if trial(few) and (formula := trial(everywhere)))
    return [*islice(grouped, 1)]


@np.errstate(all="ignore")
def plain(some: Places, around: Tensors) -> list[Formula]:
    """The formulas with a factor, a constant or something added alone that hold."""
    return [formula for trial in _plain(numbers(around)) if (formula := trial(some))]


def _plain(known: Mapping[str, float]) -> list[Trial]:
    return [partial(_held, Form(how), known) for how in ("number", "product", "plus")]


def numbers(around: Tensors) -> Mapping[str, float]:
    """Numbers that a formula may hold by their names, 1 and -1 first: those of the case, of bases of logarithms, and
    powers of 2.
    """
    of_case = around.run.case.numbers
    found = {f"{2.0**power:g}" if abs(power) <= 3 else f"2^{power}": 2.0**power for power in POWERS}
    found |= {f"-{name}": -value for name, value in found.items()}
    found |= {**of_case, **{f"1 / {name}": 1 / value for name, value in of_case.items() if value}}
    return found | {"ln 2": log(2), "log2 e": log2(e), "scale * log2 e": of_case["scale"] * log2(e)}


def _with_others(around: Tensors, known: Mapping[str, float]) -> Iterator[Trial]:
    """Another stage or input in place of the expectation, as its factor, its divisor, and added to it."""
    for name, value in around.others().items():
        for how in ("other", "product", "quotient", "plus"):
            yield partial(_held, Form(how, name, value), known)


def _held(form: Form, known: Mapping[str, float], some: Places) -> Formula | None:
    """The form with the number that the learned half tells, where it then holds."""
    x = np.ones_like(some.expected) if form.x is None else some.of(form.x)
    base = {"product": some.expected * x, "quotient": some.expected / x}.get(form.how, x)
    offset = some.expected if form.how == "plus" else np.zeros_like(x)
    ratio = (some.actual - offset) / base
    error = some.bound / np.abs(base * ratio)
    usable = some.learned & np.isfinite(ratio) & np.isfinite(error)
    if form.how == "number" and np.median(np.abs(some.actual) / some.bound) <= 1:
        return _of_kind("constant", holds("actual = 0", some, offset))
    if 2 * usable.sum() < INDEPENDENT:
        return None
    sharp = usable & (error <= np.quantile(error[usable], 0.25))
    number, off = float(np.median(ratio[sharp])), max(NEAR, float(np.median(error[sharp])))
    name = next((words for words, value in known.items() if abs(number / value - 1) <= off), "")
    number = known[name] if name else number
    tried = number * base + offset
    growth = (1.0 if name else LEARNED) * (1.0 if form.how == "plus" else np.abs(tried / some.expected))
    found = holds(f"actual = {_in_words(form, name or f'{number:.6g}')}", some, tried, growth)
    return _of_kind("constant", found) if form.how == "number" else found


def _of_kind(kind: str, found: Formula | None) -> Formula | None:
    return None if found is None else replace(found, kind=kind)


def _in_words(form: Form, number: str) -> str:
    """The right side of the equation."""
    if form.how == "number":
        return number
    words = {"product": " * ".join(x for x in ("expected", form.name) if x), "quotient": f"expected / {form.name}"}
    base = words.get(form.how, form.name)
    if number in ("1", "-1") and base:
        product = number[:-1] + base
    elif number.startswith("1 / ") and base:
        product = base + number[1:]
    else:
        product = f"{base} * {number}" if base else number
    if form.how != "plus":
        return product
    return f"expected - {product[1:]}" if product.startswith("-") else f"expected + {product}"


def _grouped(found: Difference) -> Iterator[Trial]:
    """A factor or something added, of its own for each index of some axes, of few first."""
    long = [axis for axis in found.axes if found.sizes[axis] > 1]
    for n in range(1, len(long)):
        for letters in combinations(long, n):
            for added in (False, True):
                yield partial(_of_group, letters, added)


def _of_group(letters: tuple[str, ...], added: bool, some: Places) -> Formula | None:
    """The formula with the median of each group's learned half, where it holds on the other."""
    axes = some.found.axes
    index = [some.where[axes.index(letter)] for letter in letters]
    group = np.ravel_multi_index(index, [some.found.sizes[letter] for letter in letters])
    ratio = some.actual - some.expected if added else some.actual / some.expected
    usable = np.flatnonzero(some.learned & np.isfinite(ratio))
    order = usable[np.lexsort((ratio[usable], group[usable]))]
    own, first, count = np.unique(group[order], return_index=True, return_counts=True)
    if not len(own):
        return None
    of_own = np.where(count >= OF_GROUP, ratio[order][first + count // 2], np.nan)
    if np.isnan(of_own).all():
        return None
    place = np.minimum(np.searchsorted(own, group), len(own) - 1)
    number = np.where(own[place] == group, of_own[place], np.nan)
    tried = some.expected + number if added else some.expected * number
    growth = LEARNED * (1.0 if added else np.abs(number))
    low, high = np.nanmin(of_own), np.nanmax(of_own)
    of = " and ".join(AXIS_NAMES[letter] for letter in letters)
    how = f"expected {'+' if added else '*'} one number per {of}, from {low:.4g} to {high:.4g}"
    return _of_kind("learned", holds(f"actual = {how}", some, tried, growth))
