"""The sum that a wrong stage holds: which of its terms, with which factors, and which that do not belong there."""

from collections.abc import Mapping
from itertools import combinations
from math import e, log, log2

import numpy as np

from workbench.judge.explain.unknown.difference import Difference
from workbench.judge.explain.unknown.formula import INDEPENDENT, Formula, Places, holds, places
from workbench.judge.explain.unknown.tensors import Tensors
from workbench.judge.explain.unknown.terms import Term, terms

#: as many terms at most are other than they should be
CHANGED = 3
#: factors that have a name, and how near one is to them
NAMED = {"1": 1.0, "0": 0.0, "-1": -1.0, "2": 2.0, "0.5": 0.5, "ln 2": log(2), "log2 e": log2(e)}
NEAR = 2.0**-12


@np.errstate(all="ignore")
def regression(found: Difference, around: Tensors) -> list[Formula]:
    """The sum of fewest changed terms that reproduces what is wrong; none where the stage is no sum.

    Of each number of terms the subset with the smallest sum of squared errors, in units of budget, is tried.
    """
    some, known = places(found, few=True), terms(around)
    if not known or len(some.where[0]) < INDEPENDENT:
        return []
    columns = {name: some.of(term.value) for name, term in known.items()}
    names = [name for name, column in columns.items() if 2 * np.isfinite(column).sum() > len(column)]
    if not names:
        return []
    own = {name: term.factor for name, term in known.items() if term.factor}
    right = sum((factor * columns[name] for name, factor in own.items()), np.zeros(len(some.actual)))
    learned = some.learned & np.isfinite(right)
    weight = 1 / np.maximum(some.bound[learned], np.finfo(float).tiny)
    matrix = np.stack([columns[name][learned] * weight for name in names], axis=1)
    change, everywhere = (some.actual - right)[learned] * weight, places(found)
    for n in range(1, min(CHANGED, len(names)) + 1):
        factors = dict(own)
        for j, by in zip(*_best(matrix, change, n), strict=True):
            factors[names[j]] = _named(factors.get(names[j], 0.0) + by)
        if made := _held(found.name, factors, known, everywhere):
            return [made]
    return []


def _best(a: np.ndarray, y: np.ndarray, n: int) -> tuple[tuple[int, ...], np.ndarray]:
    """The n columns that explain y best by least squares, and their factors, from the rows where these are numbers.
    Elsewhere a column is 0 while subsets are compared.
    """
    whole = np.where(np.isfinite(a), a, 0.0)
    size = np.maximum(np.linalg.norm(whole, axis=0), np.finfo(float).tiny)
    whole = whole / size
    gram, product = whole.T @ whole, whole.T @ y

    def explained(subset: tuple[int, ...]) -> float:
        some = [*subset]
        return float(product[some] @ np.linalg.lstsq(gram[np.ix_(some, some)], product[some], rcond=None)[0])

    subset = max(combinations(range(a.shape[1]), n), key=explained)
    chosen = a[:, [*subset]] / size[[*subset]]
    rows = np.isfinite(chosen).all(axis=1)
    return subset, np.linalg.lstsq(chosen[rows], y[rows], rcond=None)[0] / size[[*subset]]


def _named(factor: float) -> float:
    return next((value for value in NAMED.values() if abs(factor - value) <= NEAR), factor)


def _held(name: str, factors: Mapping[str, float], known: Mapping[str, Term], some: Places) -> Formula | None:
    """The formula with these factors, where it holds; a term counts in the budget with its size."""
    kept = {term: factor for term, factor in factors.items() if factor}
    parts = [factor * some.of(known[term].value) for term, factor in kept.items()]
    if not parts:
        return None
    growth = np.sum(np.abs(parts), axis=0) / np.abs(some.expected)
    return holds(f"{name} = {_in_words(kept)}", some, np.sum(parts, axis=0), growth)


def _in_words(factors: Mapping[str, float]) -> str:
    """A sum of products."""
    words = ""
    for term, factor in factors.items():
        name = next((name for name, value in NAMED.items() if value == abs(factor)), f"{abs(factor):.6g}")
        sign = ("-" if factor < 0 else "") if not words else (" - " if factor < 0 else " + ")
        words += sign + (term if name == "1" else f"{name} * {term}")
    return words
