"""A bias and a mask that are put in: which elements of them are read, and where they are added."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from workbench.judge.explain.hypothesis import Change, Edit, Hypothesis, altered, of_family
from workbench.judge.explain.library import edges, indices
from workbench.judge.explain.library.arithmetic import LN2, LOG2E
from workbench.judge.explain.library.indices import taken
from workbench.judge.explain.library.scored import asked, before_cap, instead, own_mask

_of = of_family("bias")


def hypotheses() -> Iterator[Hypothesis]:
    """All of the family, the plainest first."""
    for name, text, change in _biases():
        yield _of(name, text, _instead(change))
    yield _of("before-cap", "the bias is added before scores are capped", before_cap(_own))
    for name, text, change in _masks():
        yield _of(f"mask-{name}", text, _seen(change))
    for name, text, ends in edges.shifted():
        yield _of(f"beside-mask-{name}", f"{text}, but for the mask that was given", _beside_mask(ends))
    for which, words, edit in (("", "bias", _instead), ("mask-", "mask that was given", _seen)):
        for axis, named in ((1, "head"), (0, "batch")):
            for one in indices.others():
                other: Change = lambda at, x, one=one, axis=axis: taken(x, one, axis)  # noqa: E731
                text = f"the {words} is of another {named}: {one.text}"
                yield _of(f"{which}{named}-{one.id}", text, edit(other), across=True)


def _own(at: Any) -> np.ndarray:
    return asked(at, "bias_put_in")


def _instead(change: Change) -> Edit:
    """Scores with `change` of the bias in its place."""
    return instead(_own, change)


def _biases() -> Iterator[tuple[str, str, Change]]:
    yield "none", "the bias is not added", lambda at, bias: 0.0
    yield "twice", "the bias is added twice", lambda at, bias: 2 * bias
    yield "subtracted", "the bias is subtracted", lambda at, bias: -bias
    yield "scaled", "the bias is scaled with the dot products", lambda at, bias: at("scale") * bias
    yield "unscaled", "the bias is divided by the scale", lambda at, bias: bias / at("scale")
    yield "no-log2e", "the bias lacks log2(e)", lambda at, bias: bias * LN2
    yield "log2e", "the bias holds log2(e) once too often", lambda at, bias: bias * LOG2E
    yield "of-first-row", "the bias of row 0 is added to all rows", _first_row
    yield "of-next-row", "the bias of the next row is added", lambda at, bias: np.roll(bias, -1, -2)
    yield "of-next-key", "the bias of the next key is added", lambda at, bias: np.roll(bias, -1, -1)
    yield "transposed", "the bias is added transposed", lambda at, bias: _transposed(bias)


def _seen(change: Change) -> Edit:
    """`change` of the mask that was put in, beside what the case masks itself."""

    def changed(at: Any, x: np.ndarray) -> np.ndarray:
        return own_mask(at) & change(at, asked(at, "mask_put_in"))

    return altered("visible", changed)


def _beside_mask(ends: edges.Ends) -> Edit:
    """Other edges of what the case masks itself, beside the mask that was put in."""
    return altered("visible", lambda at, x: edges.between(own_mask(at), ends) & asked(at, "mask_put_in"))


def _masks() -> Iterator[tuple[str, str, Callable[[Any, np.ndarray], np.ndarray]]]:
    yield "none", "the mask that was given is not applied", lambda at, seen: np.ones_like(seen)
    yield "inverted", "the mask that was given is inverted", lambda at, seen: ~seen
    yield "transposed", "the mask that was given is transposed", lambda at, seen: _transposed(seen)
    yield "of-first-row", "the mask of row 0 is taken for all", _first_row
    yield "of-next-row", "the mask of the next row is taken", lambda at, seen: np.roll(seen, -1, -2)
    yield "of-next-key", "the mask of the next key is taken", lambda at, seen: np.roll(seen, -1, -1)


def _first_row(at: Any, x: np.ndarray) -> np.ndarray:
    return np.broadcast_to(x[..., :1, :], x.shape)


def _transposed(x: np.ndarray) -> np.ndarray:
    """With queries and keys exchanged; as it is where they are not as many."""
    return x.swapaxes(-1, -2) if x.shape[-1] == x.shape[-2] else x
