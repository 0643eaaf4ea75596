"""Operands of tensor cores: chunks of swizzled rows, and probs in packed registers."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from workbench.floats import DTYPES
from workbench.judge.explain.hypothesis import Hypothesis, altered, read_as
from workbench.judge.explain.library.layout import OPERANDS, quadrants_swapped, rows_read

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


def hypotheses() -> Iterator[Hypothesis]:
    """All of them, the plainest first."""
    yield from _swizzled()
    yield from _packed()
    yield from _products()


def _swizzled() -> Iterator[Hypothesis]:
    for size in CHUNKS:
        for words, swizzle in SWIZZLES.items():
            for operands, named in OPERANDS.items():

                def moved(
                    at: Any, rows: np.ndarray, x: str, size: int = size, swizzle: Callable = swizzle
                ) -> np.ndarray:
                    return _of_chunks(rows, size, swizzle)

                text = (
                    f"chunks of {size} elements of {named} are read as if swizzled otherwise: in row r chunk "
                    f"c ^ ({words}) in place of chunk c"
                )
                yield Hypothesis(f"layout.swizzle-{size}-{words}-{operands}", text, rows_read(operands, moved))


def _of_chunks(rows: np.ndarray, size: int, swizzle: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Chunk c ^ swizzle(r) in the place of chunk c of each row r; behind its last dim a row is 0."""
    n, dims = rows.shape[-2:]
    d = np.arange(dims)
    places = (d // size ^ swizzle(np.arange(n))[:, None]) * size + d % size
    found = np.take_along_axis(rows, np.broadcast_to(np.minimum(places, dims - 1), rows.shape), axis=-1)
    return np.where(places < dims, found, 0.0)


def _packed() -> Iterator[Hypothesis]:
    """Probs that are right, and are multiplied with v as others."""
    for made, read in PACKED:

        def reinterpreted(at: Any, probs: np.ndarray, made: str = made, read: str = read) -> np.ndarray:
            return probs.astype(DTYPES[made]).view(DTYPES[read]).astype(np.float64)

        text = f"probs are packed as {made}, and multiplied with v as {read}"
        edit = read_as("acc", "probs_cast", reinterpreted)
        yield Hypothesis(f"layout.probs-{made}-as-{read}", text, (edit,))
    for b in (8, 4, 2):

        def quadrants(at: Any, probs: np.ndarray, b: int = b) -> np.ndarray:
            return quadrants_swapped(probs, b)

        text = (
            f"in each {2 * b} by {2 * b} block of probs the upper right and the lower left {b} by {b} are swapped "
            "where they meet v"
        )
        edit = read_as("acc", "probs_cast", quadrants)
        yield Hypothesis(f"layout.probs-quadrants-{b}", text, (edit,))


def _products() -> Iterator[Hypothesis]:
    """Fragments of the dot products that nothing was added to."""
    for b in (4, 8, 16, 32):
        for low in (True, False):

            def lost(at: Any, x: np.ndarray, b: int = b, low: bool = low) -> np.ndarray:
                return np.where((np.arange(x.shape[-1]) % (2 * b) < b) == low, 0.0, x)

            text = f"in the {'first' if low else 'last'} {b} of every {2 * b} keys the dot products are 0"
            yield Hypothesis(f"layout.lost-{'low' if low else 'high'}-{b}", text, (altered("qk", lost),))
