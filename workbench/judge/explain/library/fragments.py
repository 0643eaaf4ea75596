"""Operands of tensor cores: chunks of swizzled rows, and probs in packed registers."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product

import numpy as np

from workbench.floats import DTYPES
from workbench.judge.explain.hypothesis import Hypothesis, altered, of_family, read_as
from workbench.judge.explain.library.layout import quadrants_swapped, read

#: elements in a chunk of 16 bytes, of which a swizzle moves eight: of 16 bits, of 8, of 32
CHUNKS = (8, 16, 4)
#: by what the number of a chunk is off in row r, where rows are written with one swizzle (chunk c at c ^ (r & 7), say)
#: and read with another: none, that of rows of 128, 64 or 32 bytes, one that counts rows from elsewhere
SWIZZLES: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "r & 7": lambda r: r & 7,
    "r & 3": lambda r: r & 3,
    "r & 1": lambda r: r & 1,
    "r // 2 & 7": lambda r: r // 2 & 7,
    "r // 2 & 3": lambda r: r // 2 & 3,
    "r // 4 & 1": lambda r: r // 4 & 1,
    "r // 8 & 7": lambda r: r // 8 & 7,
    "(r ^ r // 2) & 7": lambda r: (r ^ r // 2) & 7,
    "(r ^ r // 2) & 3": lambda r: (r ^ r // 2) & 3,
    "(r ^ r // 8) & 7": lambda r: (r ^ r // 8) & 7,
    "(r ^ r + 1) & 7": lambda r: (r ^ r + 1) & 7,
    "r & 4": lambda r: r & 4,
}
#: 16-bit dtypes that probs may be packed as, and multiplied as
PACKED = (("float16", "bfloat16"), ("bfloat16", "float16"))
_of = of_family("layout")


def hypotheses() -> Iterator[Hypothesis]:
    """Those of the family layout that tensor-core operands have, the plainest first."""
    for size, (words, swizzle) in product(CHUNKS, SWIZZLES.items()):
        text = f"the wrong swizzle is used for {{}}: row r reads chunk c ^ ({words}) instead of c, chunks of {size}"
        yield from read(f"swizzle-{size}-{words}", text, partial(_of_chunks, size, swizzle))
    # probs that are right, and are multiplied with v as others
    for made, seen in PACKED:
        edit = read_as(
            "acc", "probs_cast", lambda at, p, m=made, s=seen: p.astype(DTYPES[m]).view(DTYPES[s]).astype(float)
        )
        yield _of(f"probs-{made}-as-{seen}", f"probs are packed as {made} but multiplied as {seen}", edit)
    for b in (8, 4, 2):
        text = (
            f"in each {2 * b} by {2 * b} block of probs the off-diagonal {b} by {b} blocks are swapped "
            "before the product with v"
        )
        edit = read_as("acc", "probs_cast", lambda at, probs, b=b: quadrants_swapped(probs, b))
        yield _of(f"probs-quadrants-{b}", text, edit)
    # fragments of the dot products that nothing was added to
    for b, low in product((4, 8, 16, 32), (True, False)):
        edit = altered(
            "qk", lambda at, x, b=b, low=low: np.where((np.arange(x.shape[-1]) % (2 * b) < b) == low, 0.0, x)
        )
        text = f"the dot products of the {'first' if low else 'last'} {b} of every {2 * b} keys are 0"
        yield _of(f"lost-{'low' if low else 'high'}-{b}", text, edit)


def _of_chunks(size: int, swizzle: Callable[[np.ndarray], np.ndarray], rows: np.ndarray) -> np.ndarray:
    """Each row r with chunk c ^ swizzle(r) where chunk c belongs; 0 for chunks beyond the last dim."""
    n, dims = rows.shape[-2:]
    d = np.arange(dims)
    places = (d // size ^ swizzle(np.arange(n))[:, None]) * size + d % size
    found = np.take_along_axis(rows, np.broadcast_to(np.minimum(places, dims - 1), rows.shape), axis=-1)
    return np.where(places < dims, found, 0.0)
