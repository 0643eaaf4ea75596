"""Wrong indices: maps from where an element belongs to where a faulty kernel reads it, for rows, dims and heads."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

#: indices 0 .. n-1 of an axis, and n -> the indices that are read in their place
Map = Callable[[np.ndarray, int], np.ndarray]

#: sizes of tiles, fragments and vectors in kernels
BLOCKS = (2, 4, 8, 16, 32, 64, 128)
#: which way indices are off in a block: in ids, by how much, and in words
_WAYS = (("", 1, "i + 1", "last"), ("-back", -1, "i - 1", "first"))


class Indexing(NamedTuple):
    """A wrong way to count."""

    id: str
    text: str  #: behind "rows of k are read "
    map: Map


def permutations() -> Iterator[Indexing]:
    """Index maps of rows and dims, the plainest first."""
    return map(Indexing._make, _permutations())


def _permutations() -> Iterator[tuple[str, str, Map]]:
    yield "next", "off by one (i gets i + 1)", lambda i, n: np.minimum(i + 1, n - 1)
    yield "previous", "off by one (i gets i - 1)", lambda i, n: np.maximum(i - 1, 0)
    yield "next-around", "off by one (i gets i + 1), wrapping around", lambda i, n: (i + 1) % n
    yield "previous-around", "off by one (i gets i - 1), wrapping around", lambda i, n: (i - 1) % n
    yield "first", "all from index 0", lambda i, n: 0 * i
    yield "reversed", "in reverse order", lambda i, n: n - 1 - i
    yield "halves", "with the two halves swapped", lambda i, n: (i + n // 2) % n
    yield "evens-first", "even indices first", lambda i, n: np.concatenate([i[::2], i[1::2]])
    yield "interleaved", "with the two halves interleaved", lambda i, n: _interleaved(i, n)
    yield "doubled", "with a stride of 2", lambda i, n: (2 * i) % n
    yield "pairs", "each even index twice", lambda i, n: i // 2 * 2
    for b in (1, 2, 4, 8, 16, 32, 64):
        words = "swapped in pairs" if b == 1 else f"with neighbouring blocks of {b} swapped"
        yield f"xor-{b}", words, lambda i, n, b=b: _inside(i ^ b, i, n)
    for b in (1, 2, 4, 8, 16):
        words = "swapped in pairs" if b == 1 else f"with neighbouring blocks of {b} swapped"
        yield f"xor-{b}-filled", f"{words}, zeros past the end", lambda i, n, b=b: np.where(i ^ b < n, i ^ b, -1)
    for b in BLOCKS[1:]:
        yield f"block-next-{b}", f"off by a block (i gets i + {b})", lambda i, n, b=b: _inside(i + b, i, n)
        yield f"block-previous-{b}", f"off by a block (i gets i - {b})", lambda i, n, b=b: np.where(i < b, i, i - b)
        yield f"block-first-{b}", f"with the first block of {b} repeated throughout", lambda i, n, b=b: i % b
        yield f"block-start-{b}", f"with the first of each {b} repeated over its block", lambda i, n, b=b: i // b * b
        for back, by, shifted, _ in _WAYS:
            words = f"off by one within each block of {b} (i gets {shifted}), wrapping around"
            rolled = lambda i, n, b=b, by=by: _inside(i // b * b + (i + by) % b, i, n)  # noqa: E731
            yield f"block-rolled{back}-{b}", words, rolled
        for back, by, shifted, last in _WAYS:
            cut = lambda i, n, b=b, by=by: np.where(((i + by) // b != i // b) | (i + by == n), -1, i + by)  # noqa: E731
            yield (
                f"block-cut{back}-{b}",
                f"off by one within each block of {b} (i gets {shifted}), with 0 for its {last}",
                cut,
            )
        yield (
            f"block-reversed-{b}",
            f"in reverse order within each block of {b}",
            lambda i, n, b=b: _inside(i // b * b + b - 1 - i % b, i, n),
        )
        yield (
            f"low-twice-{b}",
            f"with the lower half of each {2 * b} repeated",
            lambda i, n, b=b: i // (2 * b) * 2 * b + i % b,
        )
        high = lambda i, n, b=b: _inside(i // (2 * b) * 2 * b + b + i % b, i, n)  # noqa: E731
        yield f"high-twice-{b}", f"with the upper half of each {2 * b} repeated", high
        yield f"until-{b}", f"as 0 from {b} on", lambda i, n, b=b: np.where(i < b, i, -1)
    for b in (8, 16):
        yield (
            f"pairs-swapped-high-{b}",
            f"swapped in pairs in the upper half of each {2 * b}",
            lambda i, n, b=b: np.where(i % (2 * b) < b, i, np.where(i ^ 1 < n, i ^ 1, -1)),
        )
    for b, step, m in ((8, 2, 16), (8, 4, 16), (16, 8, 64), (32, 16, 128)):
        yield (
            f"slid-{b}-{step}-{m}",
            f"with blocks of {b} starting {step} apart in each {m}",
            lambda i, n, b=b, step=step, m=m: i // m * m + i % m // b * step + i % b,
        )
    for b, m in ((8, 2), (8, 4), (16, 2), (16, 4), (16, 8), (32, 2), (32, 4), (32, 8), (32, 16)):
        yield (
            f"transposed-{b // m}x{m}",
            f"with each block of {b} transposed as {b // m} by {m}",
            lambda i, n, b=b, m=m: _inside(i // b * b + i % b % m * (b // m) + i % b // m, i, n),
        )


def heads() -> Iterator[Indexing]:
    """Maps of a query head to a kv head among n: `i` are the query heads, as many as there are."""
    yield Indexing("modulo", "h % kv_heads in place of h // group", lambda i, n: i % n)
    yield Indexing("zero", "head 0 for all", lambda i, n: 0 * i)
    yield Indexing("clamped", "min(h, kv_heads - 1) in place of h // group", lambda i, n: np.minimum(i, n - 1))
    yield Indexing("next", "the next head", lambda i, n: (i // max(len(i) // n, 1) + 1) % n)
    yield Indexing("previous", "the previous head", lambda i, n: (i // max(len(i) // n, 1) - 1) % n)
    yield Indexing("reversed", "heads in reverse order", lambda i, n: n - 1 - i // max(len(i) // n, 1))
    yield Indexing("group-too-large", "h // (group + 1)", lambda i, n: i // (len(i) // n + 1))
    yield Indexing("group-too-small", "h // (group - 1)", lambda i, n: np.minimum(i // max(len(i) // n - 1, 1), n - 1))
    yield Indexing("first-of-pair", "h // 2", lambda i, n: np.minimum(i // 2, n - 1))


def others() -> Iterator[Indexing]:
    """Maps of an index among few, such as batches, heads of q and of out, and splits."""
    yield Indexing("zero", "index 0 for all", lambda i, n: 0 * i)
    yield Indexing("next", "the next one", lambda i, n: (i + 1) % n)
    yield Indexing("previous", "the previous one", lambda i, n: (i - 1) % n)
    yield Indexing("reversed", "in reverse order", lambda i, n: n - 1 - i)
    yield Indexing("last", "the last one for all", lambda i, n: 0 * i + n - 1)


def by_rows(x: np.ndarray) -> np.ndarray:
    """x [b, h, s, ...], stored as [b, s, h, ...], read with the strides of [b, h, s, ...]."""
    return x.swapaxes(1, 2).reshape(x.shape)


def by_heads(x: np.ndarray) -> np.ndarray:
    """x [b, h, s, ...], stored as it is, read with the strides of [b, s, h, ...]. The inverse of `by_rows`."""
    b, h, s, *rest = x.shape
    return x.reshape(b, s, h, *rest).swapaxes(1, 2)


def taken(x: np.ndarray, indexing: Indexing, axis: int) -> np.ndarray:
    """x with its elements along an axis read as the map says; 0 where it says -1."""
    n = x.shape[axis]
    places = indexing.map(np.arange(n), n)
    found = np.take(x, np.maximum(places, 0), axis=axis)
    if (places >= 0).all():
        return found
    kept = (places >= 0).reshape(-1, *[1] * (-axis - 1 if axis < 0 else x.ndim - axis - 1))
    return np.where(kept, found, 0.0)


def _inside(wanted: np.ndarray, i: np.ndarray, n: int) -> np.ndarray:
    """`wanted` where it is a valid index, else i."""
    return np.where((wanted >= 0) & (wanted < n), wanted, i)


def _interleaved(i: np.ndarray, n: int) -> np.ndarray:
    half = (n + 1) // 2
    return np.where(i % 2 == 0, i // 2, np.minimum(half + i // 2, n - 1))
