"""What laws may do with codes: orders of dims that keep their blocks, opposites, and values that codes hold."""

from typing import NamedTuple

import numpy as np

from workbench.case.formats import FORMATS, TILE_ROWS, Format
from workbench.case.stages import BLOCKS
from workbench.explore.laws.subject import Subject
from workbench.reference.losses import losses_of

NO_CODES = "the kernel gave no quantised codes and scales, which are of all batches and rows, or scales are of tiles"
IN_TILES = "in another order rows would share other scales, those of tiles"
STATIC = "the largest number is beyond the largest code of a static scale"
#: how far both ends of a block with a zero point are above whole numbers: they become these by a zero point and codes
#: that are rounded, and others by what is cut off
_ABOVE = 0.375


class Held(NamedTuple):
    """Random numbers for V."""

    given: np.ndarray  #: float64
    stands_for: np.ndarray  #: what is left of them, float64
    off: float  #: relative error of that, by the rounding of scales


def format_of(s: Subject) -> Format | None:
    """The format of the codes that a kernel reads; None where it reads none."""
    return FORMATS[str(s.first.trace.case.codes)] if s.quantises else None


def in_another_order(s: Subject, dims: range) -> np.ndarray:
    """Dims in a random order that no scale of theirs depends on: of codes whose blocks have scales, those of a block
    stay together, and blocks change places with others as wide.
    """
    form, rng = format_of(s), s.rng
    if form is None or s.first.trace.case.scale_of != "block":
        return rng.permutation(dims)
    owners = sorted({d // form.block for d in dims})
    blocks = [np.array([d for d in dims if d // form.block == block]) for block in owners]
    wide = np.array([len(block) for block in blocks])
    places = np.arange(len(blocks))
    for n in np.unique(wide):
        places[wide == n] = places[wide == n][::-1]  # never the same
    return np.concatenate([rng.permutation(blocks[i]) for i in places])


def opposite(s: Subject, of: str) -> dict[str, np.ndarray]:
    """Codes and zero points of an input that stand for its opposite, of a format that has zero points.

    The largest code less each: (c - z) changes its sign. Quantised, -x may have other codes: a zero point in the middle
    of two codes is rounded, and a static scale cuts off but one end.
    """
    form = format_of(s)
    assert form is not None and form.zero
    names = (f"codes_{of}", f"zero_{of}")
    return {name: (form.largest - s.read[name]).astype(s.read[name].dtype) for name in names}


def held(s: Subject) -> Held | str:
    """Numbers for V that codes hold: -1, 0 and 1, of which 1 has the largest code; of four bits all that codes stand
    for, in every block the largest of them, and with a zero point both ends. Times a power of two for each token or
    block or tile that has a scale. Why there are none.
    """
    form, shape, rng = format_of(s), s.inputs["v"].shape, s.rng
    settled = s.first.trace.case
    if form is not None and settled.quantiser_scale != "dynamic":
        return STATIC
    if form is None or settled.scale_of not in BLOCKS:
        v = rng.integers(-1, 2, shape).astype(np.float64)
        v[:, :, 0, 0] = 1.0
        return Held(v, v, scale_off(s))
    given, stands_for = np.empty(shape), np.empty(shape)
    size = form.block if settled.scale_of == "block" else shape[-1]
    for first in range(0, shape[-1], size):
        dims = range(first, min(first + size, shape[-1]))
        if form.zero and len(dims) == 1:
            return "a block of one dim does not hold both ends of a format with zero points"
        scale = 2.0 ** rng.integers(-1, 2, (*shape[:3], 1))
        if s.in_tiles:
            scale = scale[:, :, np.arange(shape[2]) // TILE_ROWS]
        given[..., dims], stands_for[..., dims] = (x * scale for x in _block(form, (*shape[:3], len(dims)), rng))
    return Held(given, stands_for, scale_off(s))


def _block(form: Format, shape: tuple[int, ...], rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Numbers that share a scale along the last axis, and what codes make of them."""
    if not form.four_bits:
        v = rng.integers(-1, 2, shape).astype(np.float64)
        return v, v
    zero = rng.integers(1, int(form.largest), (*shape[:-1], 1)) if form.zero else 0
    v, places = rng.choice(form.values, shape) - zero, rng.random(shape).argsort(-1)
    np.put_along_axis(v, places[..., :1], form.largest - zero, -1)
    if not form.zero:
        return v, v
    np.put_along_axis(v, places[..., 1:2], -zero, -1)
    given = v.copy()
    np.put_along_axis(given, places[..., :2], np.take_along_axis(v, places[..., :2], -1) + _ABOVE, -1)
    # nothing is below the lower end as it is given
    return np.maximum(given, _ABOVE - zero), v


def scale_off(s: Subject) -> float:
    """The relative error of what the largest code stands for, beside those of its decoding: a scale is a quotient, and
    the scale of scales one of a product.
    """
    return 0.0 if format_of(s) is None else 2 * losses_of(s.first.trace.contract).division
