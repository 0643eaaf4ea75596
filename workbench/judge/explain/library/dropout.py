"""Dropout: which probs are dropped, how those that are kept grow, and what else it reaches."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from workbench.judge.explain.hypothesis import Change, Hypothesis, altered, of_family, read_as
from workbench.judge.explain.library import indices
from workbench.judge.explain.library.indices import taken

_of = of_family("dropout")


def hypotheses() -> Iterator[Hypothesis]:
    """All of the family, the plainest first."""
    forms: dict[str, tuple[str, Change]] = {
        "none": ("dropout is not applied", lambda at, x: at("probs")),
        "none-scaled": ("no prob is dropped, but all are divided by 1 - p", lambda at, x: at("probs") / _kept(at)),
        "unscaled": ("kept probs are not divided by 1 - p", lambda at, x: x * _kept(at)),
        "scaled-twice": ("kept probs are divided by 1 - p twice", lambda at, x: x / _kept(at)),
        "multiplied": ("kept probs are multiplied by 1 - p", lambda at, x: x * _kept(at) ** 2),
        "over-p": ("kept probs are divided by p", lambda at, x: x * _kept(at) / at("dropout_p")),
    }
    for name, (text, change) in forms.items():
        yield _of(name, text, altered("dropped", change, "probs"))
    for name, words, in_sum in (
        ("in-sum", "row_sum adds probs after dropout", lambda at, p: at("dropped")),
        (
            "in-sum-unscaled",
            "row_sum adds probs after dropout, before they are divided by 1 - p",
            lambda at, p: at("dropped") * _kept(at),
        ),
    ):
        yield _of(name, words, altered("summed", in_sum, "dropped"))
    unscaled = altered("dropped", forms["unscaled"][1], "probs")
    both = unscaled, altered("summed", lambda at, p: at("dropped"), "dropped")
    text = "row_sum adds probs after dropout, and kept probs are not divided by 1 - p"
    yield _of("in-sum-and-unscaled", text, *both)
    for name, text, change in _masks():
        yield _of(name, text, read_as("dropped", "dropout_mask", change))
    for axis, named in ((1, "head"), (0, "batch")):
        for one in indices.others():
            other: Change = lambda at, kept, one=one, axis=axis: taken(kept, one, axis)  # noqa: E731
            text = f"the dropout mask of the wrong {named} is used: {one.text}"
            edit = read_as("dropped", "dropout_mask", other)
            yield _of(f"{named}-{one.id}", text, edit, across=True)


def _kept(at: Any) -> Any:
    """1 - p."""
    return 1 - at("dropout_p")


def _masks() -> Iterator[tuple[str, str, Change]]:
    yield "inverted", "the dropout mask is inverted", lambda at, kept: ~kept
    yield "transposed", "the dropout mask is transposed", _transposed
    yield "of-next-row", "the dropout mask of the next row is used", lambda at, kept: np.roll(kept, -1, -2)
    yield "of-next-key", "the dropout mask of the next key is used", lambda at, kept: _whole(at, np.roll, -1, -1)
    yield "of-first-row", "the dropout mask of row 0 is used for all rows", _first_row
    yield "of-first-tile", "every tile uses the dropout mask of the first tile", _first_tile


def _whole(at: Any, change: Any, *arguments: int) -> np.ndarray:
    """The mask as `change` makes it of all keys, at the tile."""
    found = change(at.whole("dropout_mask"), *arguments)
    return found if at.tile is None else found[..., at.tiling.keys[at.tile[0]]]


def _transposed(at: Any, kept: np.ndarray) -> np.ndarray:
    whole = at.whole("dropout_mask")
    return kept if whole.shape[-1] != whole.shape[-2] else _whole(at, np.swapaxes, -1, -2)


def _first_row(at: Any, kept: np.ndarray) -> np.ndarray:
    return np.broadcast_to(kept[..., :1, :], kept.shape)


def _first_tile(at: Any, kept: np.ndarray) -> np.ndarray:
    if at.tile is None:
        return kept
    return at.whole("dropout_mask")[..., at.tiling.keys[0]][..., : kept.shape[-1]]
