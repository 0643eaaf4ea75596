"""A bias and a mask that are put in: which elements of them are read, and where they are added."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from workbench.case.mask_parts import Parts, parts
from workbench.judge.explain.hypothesis import Change, Edit, Hypothesis, Unfit, altered, of_family
from workbench.judge.explain.library import edges, indices
from workbench.judge.explain.library.arithmetic import LN2, LOG2E
from workbench.judge.explain.library.indices import taken
from workbench.judge.explain.library.scored import asked, before_cap, instead, own_mask

_of = of_family("bias")


def hypotheses() -> Iterator[Hypothesis]:
    """All of the family, the plainest first."""
    for name, text, change in _biases():
        yield _of(name, text, _instead(change))
    yield _of("before-cap", "the bias is added before the softcap", before_cap(_own))
    for name, text, change in _masks():
        plainly = name.startswith("padding")
        yield _of(f"mask-{name}", text, _seen(change if plainly else partial(_no_padding, change)))
    for name, text, ends in edges.shifted():
        yield _of(f"beside-mask-{name}", f"{text}; the given mask is right", _beside_mask(ends))
    for which, words, edit in (("", "bias", _instead), ("mask-", "given mask", _seen)):
        for axis, named in ((1, "head"), (0, "batch")):
            for one in indices.others():
                other: Change = lambda at, x, one=one, axis=axis: but_for_padding(x, taken(x, one, axis))  # noqa: E731
                text = f"the {words} of the wrong {named} is used: {one.text}"
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
    yield "scaled", "the bias is multiplied by the scale", lambda at, bias: at("scale") * bias
    yield "unscaled", "the bias is divided by the scale", lambda at, bias: bias / at("scale")
    yield "no-log2e", "the bias is missing a factor of log2(e)", lambda at, bias: bias * LN2
    yield "log2e", "the bias has an extra factor of log2(e)", lambda at, bias: bias * LOG2E
    yield "of-first-row", "the bias of row 0 is added to all rows", _first_row
    yield "of-next-row", "the bias of the next row is added", lambda at, bias: np.roll(bias, -1, -2)
    yield "of-next-key", "the bias of the next key is added", lambda at, bias: np.roll(bias, -1, -1)
    yield "transposed", "the bias is transposed", lambda at, bias: _transposed(bias)


def _seen(change: Change) -> Edit:
    """`change` of the mask that was put in, beside what the case masks itself."""

    def changed(at: Any, x: np.ndarray) -> np.ndarray:
        return own_mask(at) & change(at, asked(at, "mask_put_in"))

    return altered("visible", changed)


def _beside_mask(ends: edges.Ends) -> Edit:
    """Other edges of what the case masks itself, beside the mask that was put in."""
    return altered("visible", lambda at, x: edges.between(own_mask(at), ends) & asked(at, "mask_put_in"))


def _masks() -> Iterator[tuple[str, str, Callable[[Any, np.ndarray], np.ndarray]]]:
    yield "none", "the given mask is not applied", lambda at, seen: np.ones_like(seen)
    for end, other in (("first", "last"), ("last", "first"), ("", "")):
        keys = f" of the {end} keys" if end else ""
        name = f"padding-{end or 'anywhere'}"
        text = f"the padding mask{keys} is not applied"
        yield name, text, lambda at, seen, end=end: _parts(seen, end).base
        if end:
            text = f"the padding mask hides the {other} keys in place of the {end}"
            yield f"{name}-flipped", text, lambda at, seen, end=end: _parts(seen, end).flipped
    yield "no-right", "keys after the query are not hidden (causal)", partial(_without, "right")
    yield "no-left", "the window is not applied", partial(_without, "left")
    yield "inverted", "the given mask is inverted", lambda at, seen: ~seen
    yield "transposed", "the given mask is transposed", lambda at, seen: _transposed(seen)
    yield "of-first-row", "the given mask of row 0 is used for all rows", _first_row
    yield "of-next-row", "the given mask of the next row is used", lambda at, seen: np.roll(seen, -1, -2)
    yield "of-next-key", "the given mask of the next key is used", lambda at, seen: np.roll(seen, -1, -1)


def _parts(seen: np.ndarray, end: str) -> Parts:
    """A mask with padding at one end taken apart; Unfit where it is another."""
    found = parts(seen)
    if found is None or not found.padding.any() or found.end != end:
        raise Unfit
    return found


def _without(side: str, at: Any, seen: np.ndarray) -> np.ndarray:
    """A mask without a side of its band, in rows that see nothing, too; Unfit where it has none."""
    found = parts(seen)
    if found is None or getattr(found.band, side) is None:
        raise Unfit
    left, right = (None if x == side else getattr(found.band, x) for x in ("left", "right"))
    return replace(found.band, left=left, right=right).made(*seen.shape[2:]) & ~found.padding[:, None, None]


def but_for_padding(seen: np.ndarray, other: np.ndarray, rows: np.ndarray | None = None) -> np.ndarray:
    """The mask `other`; Unfit where it is `seen` without its padding, which is likelier: as that of a batch which has
    none is for all. `rows`: those that see a key at all; None: as `seen` has it.
    """
    if seen.ndim == other.ndim == 4 and seen.dtype == bool and not np.all(seen.any((1, 2))):
        found, known = parts(seen), seen.any(-1, keepdims=True) if rows is None else rows
        if found is not None and np.array_equal(found.base & known, other & known):
            raise Unfit
    return other


def _no_padding(change: Callable[[Any, np.ndarray], np.ndarray], at: Any, seen: np.ndarray) -> np.ndarray:
    return but_for_padding(seen, change(at, seen), (seen & own_mask(at)).any(-1, keepdims=True))


def _first_row(at: Any, x: np.ndarray) -> np.ndarray:
    return np.broadcast_to(x[..., :1, :], x.shape)


def _transposed(x: np.ndarray) -> np.ndarray:
    """With queries and keys exchanged; as it is where they are not as many."""
    return x.swapaxes(-1, -2) if x.shape[-1] == x.shape[-2] else x
