"""The running maximum, and what probs subtract."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from workbench.judge.explain.hypothesis import Change, Hypothesis, altered, of_family
from workbench.judge.explain.library import indices
from workbench.judge.explain.library.arithmetic import LN2, LOG2E, tile_width
from workbench.judge.explain.library.indices import taken

#: distance -> the map of a row to the one that it is taken for
_PARTNERS = {n: one for one in indices.permutations() for n in (1, 2, 4, 8, 16) if one.id == f"xor-{n}"}
#: numbers that stand in for a maximum
_FIXED = (1.0, 2.0, 4.0, 5.0, 8.0, 10.0, 16.0, 20.0, 32.0, 50.0, 64.0, 100.0)

_of = of_family("softmax")


def hypotheses() -> Iterator[Hypothesis]:
    """Those of the maximum, of the family softmax."""
    yield from _maxima()
    yield from _subtracted()


def _is_last(at: Any) -> bool:
    return bool(at.tile[0] in {split[-1] for split in at.tiling.splits if split})


#: tiles in which alone a fault is
_PLACES: tuple[tuple[str, str, Callable[[Any], bool]], ...] = (
    ("last", "the last tile", _is_last),
    ("first", "the first tile", lambda at: at.tile[1] is None),
    ("others", "all tiles but the first", lambda at: at.tile[1] is not None),
)


def _maxima() -> Iterator[Hypothesis]:
    forms: dict[str, tuple[str, Change]] = {
        "of-tile": ("is the max of this tile alone", lambda at, m: at("scores").max(-1)),
        "stale": ("is not updated by this tile", lambda at, m: _known(at("-row_max"), m)),
        "never-below-0": ("starts at 0", lambda at, m: np.maximum(m, 0.0)),
        "without-last": (
            "leaves out column tile_width - 1 of each tile",
            lambda at, m: _max(at, slice(tile_width(at) - 1)),
        ),
        "without-last-key": ("leaves out the last column of each tile", lambda at, m: _max(at, slice(None, -1))),
        "without-first": ("leaves out the first column of each tile", lambda at, m: _max(at, slice(1, None))),
        "first-half": ("is taken over the first half of each tile", lambda at, m: _max(at, _half(at, 0))),
        "second-half": ("is taken over the second half of each tile", lambda at, m: _max(at, _half(at, 1))),
        "even": ("is taken over every second column", lambda at, m: _max(at, slice(None, None, 2))),
        "first-tile": (
            "stays that of the first tile",
            lambda at, m: np.where(at("-row_max") > -np.inf, at("-row_max"), m),
        ),
        "min": ("is the minimum", lambda at, m: np.minimum(_known(at("-row_max"), np.inf), _finite_min(at))),
        "of-size": (
            "is taken over absolute values",
            lambda at, m: np.maximum(at("-row_max"), _finite(abs(at("scores"))).max(-1)),
        ),
        "zero": ("is 0", lambda at, m: np.zeros_like(m)),
        "finite": ("starts at -1e4 instead of -inf", lambda at, m: np.maximum(m, -1e4)),
        "mean": ("is the mean of the tile", lambda at, m: np.maximum(at("-row_max"), at("scores").mean(-1))),
        "lower": ("decreases when the tile's max is lower", lambda at, m: at("scores").max(-1)),
    }
    for b in (4, 8, 16, 32):
        forms[f"first-{b}"] = (
            f"is taken over the first {b} columns of each tile",
            lambda at, m, b=b: _max(at, slice(b)),
        )
    for n in (1, 2, 4, 8, 16):
        pair = lambda at, m, n=n: np.maximum(m, taken(m, _PARTNERS[n], -1))  # noqa: E731
        forms[f"of-two-rows-{n}"] = (f"is shared by two rows, {n} apart", pair)
    forms["none-0"] = ("is 0 where no key is visible", lambda at, m: np.where(m == -np.inf, 0.0, m))
    for n in (4, 8, 16, 32):
        every = lambda at, m, n=n: _max(at, slice(None, None, n))  # noqa: E731
        forms[f"every-{n}"] = (f"is taken over columns j % {n} == 0 only", every)
        own = lambda at, m, n=n: _of_lanes(at, n)  # noqa: E731
        forms[f"of-lane-{n}"] = (f"is taken over columns j % {n} == row % {n} only", own)
    for name, (text, change) in forms.items():
        yield _of(f"max-{name}", f"the running max {text}", altered("row_max", change, "scores", "-row_max"))
    of_qk = altered(
        "row_max",
        lambda at, m: np.maximum(at("-row_max"), np.where(at("visible"), at("qk"), -np.inf).max(-1)),
        "qk",
        "-row_max",
    )
    yield _of("max-unscaled", "the running max is that of the unscaled dot products", of_qk)


def _subtracted() -> Iterator[Hypothesis]:
    forms: dict[str, tuple[str, Change, tuple[str, ...]]] = {
        "stale": (
            "the max from before this tile",
            lambda at, m: _known(at("-row_max"), m),
            ("-row_max",),
        ),
        "nothing": ("no max at all", lambda at, m: np.zeros_like(m), ()),
        "own": ("this tile's max, not the running max", lambda at, m: at("scores").max(-1), ("scores",)),
        "scaled": ("the max with the scale applied again", lambda at, m: m * at("scale"), ()),
        "unscaled": ("the unscaled max", lambda at, m: m / at("scale"), ()),
        "no-log2e": ("the max without log2(e)", lambda at, m: m * LN2, ()),
        "log2e": ("the max times log2(e)", lambda at, m: m * LOG2E, ()),
        "never-below-0": ("max(running max, 0)", lambda at, m: np.maximum(m, 0.0), ()),
        "negative": ("the max with the wrong sign", lambda at, m: -m, ()),
    }
    for value in _FIXED:
        forms[f"{value:g}"] = (
            f"the constant {value:g} instead of the max",
            lambda at, m, v=value: np.full_like(m, v),
            (),
        )
    for name, (text, change, also) in forms.items():
        yield _of(f"subtracts-{name}", f"probs subtract {text}", altered("subtracted", change, *also))
        for place, words, here in _PLACES:
            some = lambda at, m, change=change, here=here: change(at, m) if here(at) else m  # noqa: E731
            edit = altered("subtracted", some, *also)
            yield _of(f"subtracts-{name}-in-{place}", f"in {words} probs subtract {text}", edit)


def _max(at: Any, columns: slice) -> np.ndarray:
    some = at("scores")[..., columns]
    before: np.ndarray = at("-row_max")
    return np.maximum(before, some.max(-1)) if some.shape[-1] else before


def _of_lanes(at: Any, n: int) -> np.ndarray:
    """The maximum over the columns that the lane of a row has, of n."""
    s = at("scores")
    rows, columns = np.arange(s.shape[-2])[:, None], np.arange(s.shape[-1])
    own = np.where(columns % n == rows % n, s, -np.inf).max(-1)
    return np.maximum(at("-row_max"), own)


def _half(at: Any, which: int) -> slice:
    n = at("scores").shape[-1]
    return slice(0, n // 2) if which == 0 else slice(n // 2, n)


def _known(x: np.ndarray, otherwise: Any) -> np.ndarray:
    return np.where(x > -np.inf, x, otherwise)


def _finite(x: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(x), x, -np.inf)


def _finite_min(at: Any) -> np.ndarray:
    s = at("scores")
    least: np.ndarray = np.where(np.isfinite(s), s, np.inf).min(-1)
    return least
