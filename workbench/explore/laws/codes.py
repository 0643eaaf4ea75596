"""What laws may do with codes: orders of dims that keep their blocks, and opposites."""

import numpy as np

from workbench.case.formats import FORMATS, Format
from workbench.explore.laws.subject import Subject

NO_CODES = "the kernel did not return its codes and scales, or has a scale per tile"


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
