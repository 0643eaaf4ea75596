"""Layout and indexing faults: wrong operand, wrong head, permuted rows or dims, wrong strides and tile addresses."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from workbench.judge.explain.hypothesis import Edit, Hypothesis, across, altered, of_family
from workbench.judge.explain.library import indices
from workbench.judge.explain.library.indices import Indexing, taken
from workbench.reference.steps.parameters import by_query_head

#: operands that go together -> as words
OPERANDS = {"q": "q", "k": "k", "v": "v", "kv": "k and v"}
_OPERANDS_TOO = OPERANDS | {"qk": "q and k", "qkv": "q, k and v"}
#: rows of a tile in shared memory
_TILES = (16, 32, 64, 128)
#: how far apart rows may be taken to lie, in elements, of head_dim
_APART: dict[str, tuple[str, Callable[[int], int]]] = {
    "d+8": ("head_dim + 8", lambda d: d + 8),
    "d-8": ("head_dim - 8", lambda d: d - 8),
    "d+1": ("head_dim + 1", lambda d: d + 1),
    "d-1": ("head_dim - 1", lambda d: d - 1),
    "2d": ("2 * head_dim", lambda d: 2 * d),
    "d/2": ("head_dim / 2", lambda d: d // 2),
}
_of = of_family("layout")


def hypotheses() -> Iterator[Hypothesis]:
    """All of the family, the plainest first."""
    for x, other in ("kv", "vk", "kq", "qk", "vq"):
        text = f"{other} is read in place of {x}"
        yield _of(f"{other}-for-{x}", text, *_rows_read(x, partial(_instead, other)))
    yield from across(_heads())
    for axis, named in ((-2, "rows"), (-1, "dims")):
        for one in indices.permutations():
            moved = partial(taken, indexing=one, axis=axis)
            yield from read(f"{named}-{one.id}", f"{named} of {{}} are read {one.text}", moved)
    yield from _slots()
    yield from _lacking()
    yield from _products()
    yield from _blocks()
    yield from _pitches()


def _slots() -> Iterator[Hypothesis]:
    """The newest row of a cache in the slot before its own."""
    own: dict[str, tuple[str, Callable[[np.ndarray], np.ndarray]]] = {
        "too": ("is also written one slot too early", lambda x: x[..., -1:, :]),
        "zero": ("is written one slot too early, and its own slot is 0", lambda x: 0 * x[..., -1:, :]),
        "swapped": ("is swapped with the row before it", lambda x: x[..., -2:-1, :]),
    }
    for name, (words, left) in own.items():
        text = f"the newest row of {{}} {words}"
        cached = {x: y for x, y in OPERANDS.items() if x != "q"}
        yield from read(f"slot-before-{name}", text, partial(_newest_before, left), cached)


def _newest_before(own: Callable[[np.ndarray], np.ndarray], x: np.ndarray) -> np.ndarray:
    """Rows whose last is in the slot before, and `own` of them in its own; one row stays."""
    return x if x.shape[-2] < 2 else np.concatenate([x[..., :-2, :], x[..., -1:, :], own(x)], -2)


def _rows_read(operands: str, change: Callable[[Any, np.ndarray, str], np.ndarray]) -> tuple[Edit, ...]:
    """An edit per operand: `change(at, rows, name)` of the rows [b, h, n, d] that the kernel reads as that operand."""
    return tuple(altered(f"{x}_rows", lambda at, rows, x=x: change(at, rows, x), x) for x in operands)


def read(
    name: str, text: str, change: Callable[[np.ndarray], np.ndarray], operands: Mapping[str, str] = OPERANDS
) -> Iterator[Hypothesis]:
    """A hypothesis for each group of operands (q, k, v, k and v) whose rows [..., n, d] are read as `change(rows)`; {}
    in `text` stands for the operands.
    """
    for some, words in operands.items():
        yield _of(f"{name}-{some}", text.format(words), *_rows_read(some, lambda at, rows, x: change(rows)))


def _instead(other: str, at: Any, rows: np.ndarray, x: str) -> np.ndarray:
    """Rows of another operand for `rows`, zero-filled where it has fewer; `rows` where shapes do not fit."""
    instead = by_query_head(at(other), at.heads)
    if instead.shape[1] != rows.shape[1] or instead.shape[-1] != rows.shape[-1]:
        return rows
    found = np.zeros_like(rows)
    n = min(rows.shape[-2], instead.shape[-2])
    found[..., :n, :] = instead[..., :n, :]
    return found


def _heads() -> Iterator[Hypothesis]:
    for operands, words in OPERANDS.items():
        for one in indices.others() if operands == "q" else indices.heads():
            text = f"the wrong head of {words} is read: {one.text}"
            yield _of(f"head-{one.id}-{operands}", text, *_rows_read(operands, partial(_of_heads, one)))
        for one in indices.others():
            text = f"the wrong batch of {{}} is read: {one.text}"
            yield from read(f"batch-{one.id}", text, partial(taken, indexing=one, axis=0), {operands: words})
    for operands, words in _OPERANDS_TOO.items():
        text = f"batch and head of {words} are swapped in the grid index (z % batch instead of z // heads)"
        yield _of(f"batch-for-head-{operands}", text, *_rows_read(operands, _batch_for_head))


def _of_heads(one: Indexing, at: Any, rows: np.ndarray, x: str) -> np.ndarray:
    raw: np.ndarray = at(x)
    return raw[:, one.map(np.arange(at.heads), raw.shape[1])]


def _batch_for_head(at: Any, rows: np.ndarray, x: str) -> np.ndarray:
    b, h = at(x).shape[:2]
    z = np.arange(b * h).reshape(b, h)
    return by_query_head(at(x)[z % b, z // b % h], at.heads)


def _lacking() -> Iterator[Hypothesis]:
    """Dims that a product leaves out, as if they were 0."""
    dims: dict[str, tuple[str, indices.Map]] = {
        "first-half": ("the first half of the dims", lambda d, n: d < n // 2),
        "second-half": ("the second half of the dims", lambda d, n: d >= n // 2),
        "without-last": ("all dims but the last", lambda d, n: d < n - 1),
        "without-first": ("all dims but the first", lambda d, n: d > 0),
    }
    for b in (8, 16, 32, 64):
        dims[f"whole-{b}"] = (f"the dims of full blocks of {b}", lambda d, n, b=b: d < n // b * b)
        dims[f"without-last-{b}"] = (f"all dims but the last {b}", lambda d, n, b=b: d < n - b)
        dims[f"last-{b}"] = (f"the last {b} dims", lambda d, n, b=b: d >= n - b)
        dims[f"first-{b}"] = (f"the first {b} dims", lambda d, n, b=b: d < b)
    for b in (1, 2, 4, 8, 16, 32):
        dims[f"low-{b}"] = (f"the first {b} of every {2 * b} dims", lambda d, n, b=b: d % (2 * b) < b)
        dims[f"high-{b}"] = (f"the last {b} of every {2 * b} dims", lambda d, n, b=b: d % (2 * b) >= b)
    products = {"q": "the dot products", "v": "the products with v"}
    for name, (words, kept) in dims.items():
        yield from read(f"dims-{name}", f"{{}} use only {words}", partial(_cut, kept), products)


def _cut(kept: indices.Map, rows: np.ndarray) -> np.ndarray:
    return np.where(kept(np.arange(rows.shape[-1]), rows.shape[-1]), rows, 0.0)


def _blocks() -> Iterator[Hypothesis]:
    """Fragments and tiles read with rows swapped, blocks transposed, or a wrong row stride."""
    for b, half, low in product((1, 2, 4, 8, 16), (4, 8, 16), (True, False)):
        dims = f"the {'first' if low else 'last'} {half} of every {2 * half} dims"
        text = f"rows i and i ^ {b} of {{}} are swapped in {dims}"
        yield from read(f"rows-xor-{b}-{'low' if low else 'high'}-{half}", text, partial(_partly_swapped, b, half, low))
    for b in (4, 8, 16, 32):
        text = f"each {b} by {b} block of {{}} is read transposed"
        yield from read(f"blocks-transposed-{b}", text, partial(_blocks_transposed, b=b))
    fixed = {str(n): (str(n), lambda d, n=n: n) for n in _TILES}
    for (name, (words, stride)), (some, said), size in product((_APART | fixed).items(), OPERANDS.items(), _TILES):
        text = f"tiles of {size} rows of {{}} are read with a row stride of {words}"
        yield from read(f"stride-{name}-{size}", text, partial(_read_apart, stride, size), {some: said})
    for pad, (some, said), size in product((1, 2, 4, 8, 16), OPERANDS.items(), _TILES):
        text = f"tiles of {size} rows of {{}} are stored with a row padding of {pad} but read without it"
        yield from read(f"unpadded-{pad}-{size}", text, partial(_unpadded, pad, size), {some: said})


def _partly_swapped(b: int, half: int, low: bool, rows: np.ndarray) -> np.ndarray:
    """Neighbouring blocks of b rows swapped, in one half of every 2 * half dims only; zeros behind the last row."""
    n = rows.shape[-2]
    padded = _padded(rows, 2 * b, 1)
    swapped = padded[..., np.arange(padded.shape[-2]) ^ b, :][..., :n, :]
    return np.where((np.arange(rows.shape[-1]) % (2 * half) < half) == low, swapped, rows)


def _read_apart(stride: Callable[[int], int], size: int, rows: np.ndarray) -> np.ndarray:
    return _strided(rows, rows.shape[-1], stride(rows.shape[-1]), size)


def _unpadded(pad: int, size: int, rows: np.ndarray) -> np.ndarray:
    return _strided(rows, rows.shape[-1] + pad, rows.shape[-1], size)


def _pitches() -> Iterator[Hypothesis]:
    """Wrong pitch, tiles at wrong key offsets, fragment quadrants swapped, accumulation restarted."""
    up = {f"up-{n}": (f"head_dim rounded up to {n}", lambda d, n=n: -(-d // n) * n) for n in _TILES}
    for name, (words, pitch) in (up | {name: _APART[name] for name in ("d+1", "d-1", "d+8", "2d")}).items():
        yield from read(
            f"pitch-{name}", f"rows of {{}} are read with a pitch of {words}", partial(_pitched, pitch), _OPERANDS_TOO
        )
    for b, operands in product(_TILES, ("k", "v", "kv")):
        text = f"tiles of {OPERANDS[operands]} are read {b} keys apart"
        yield _of(f"tiles-apart-{b}-{operands}", text, *_rows_read(operands, partial(_tiles_apart, b)))
    for b in (2, 4, 8, 16):
        text = f"in each {2 * b} by {2 * b} block of {{}} the off-diagonal {b} by {b} blocks are swapped"
        yield from read(f"quadrants-{b}", text, partial(quadrants_swapped, b=b))
    for b, m, low in product((4, 8, 16), (8, 16, 32), (True, False)):
        columns = f"the {'first' if low else 'last'} {b} of every {2 * b} keys"
        text = f"for {columns} the dot products use only the last {m} dims"
        edit = altered("qk", partial(_begun_anew, b, m, low), "q_rows", "k_rows")
        yield _of(f"anew-{m}-{'low' if low else 'high'}-{b}", text, edit)


def _pitched(pitch: Callable[[int], int], rows: np.ndarray) -> np.ndarray:
    n, d = rows.shape[-2:]
    flat = rows.reshape(*rows.shape[:-2], n * d)
    return flat[..., (np.arange(n)[:, None] * pitch(d) + np.arange(d)) % (n * d)]


def _tiles_apart(b: int, at: Any, rows: np.ndarray, x: str) -> np.ndarray:
    n, found = rows.shape[-2], np.zeros_like(rows)
    for t, keys in enumerate(at.tiling.keys):
        places = t * b + np.arange(keys.stop - keys.start)
        inside = places < n
        found[..., keys, :][..., inside, :] = rows[..., places[inside], :]
    return found


def _begun_anew(b: int, m: int, low: bool, at: Any, x: np.ndarray) -> np.ndarray:
    last = at("q_rows")[..., -m:] @ at("k_rows")[..., -m:].swapaxes(-1, -2)
    return np.where((np.arange(x.shape[-1]) % (2 * b) < b) == low, last, x)


def _products() -> Iterator[Hypothesis]:
    """Dot products and probs whose rows, columns or blocks are permuted."""

    def transposed(at: Any, x: np.ndarray) -> np.ndarray:
        return x.swapaxes(-1, -2) if x.shape[-1] == x.shape[-2] else x

    yield _of("qk-transposed", "qk is stored transposed", altered("qk", transposed))
    for b in (8, 16, 32, 64):
        edit = altered("qk", lambda at, x, b=b: _blocks_transposed(x, b))
        yield _of(f"qk-blocks-transposed-{b}", f"each {b} by {b} block of qk is transposed", edit)
    places = ((-2, "rows"), (-1, "columns"))
    for one, stage, (axis, named) in product(indices.permutations(), ("qk", "probs_cast"), places):
        edit = altered(stage, lambda at, x, one=one, axis=axis: taken(x, one, axis))
        yield _of(f"{stage}-{named}-{one.id}", f"{named} of {stage} are read {one.text}", edit)


def quadrants_swapped(x: np.ndarray, b: int) -> np.ndarray:
    """Both off-diagonal quadrants of each 2b by 2b block swapped; behind the ends of x lie zeros."""
    n, m = x.shape[-2:]
    whole = _padded(x, 2 * b, 2 * b)
    parts = whole.reshape(*x.shape[:-2], -1, 2, b, whole.shape[-1] // (2 * b), 2, b)
    return parts.swapaxes(-5, -2).reshape(whole.shape)[..., :n, :m]


def _blocks_transposed(x: np.ndarray, b: int) -> np.ndarray:
    """Each b by b block of the last two axes transposed; behind their ends lie zeros."""
    n, m = x.shape[-2:]
    whole = _padded(x, b, b)
    tiles = whole.reshape(*x.shape[:-2], -1, b, whole.shape[-1] // b, b)
    return tiles.swapaxes(-3, -1).reshape(whole.shape)[..., :n, :m]


def _padded(x: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """x with zeros behind its last two axes, up to whole blocks of so many rows and columns."""
    n, m = x.shape[-2:]
    found = np.zeros((*x.shape[:-2], -(-n // rows) * rows, -(-m // columns) * columns))
    found[..., :n, :m] = x
    return found


def _strided(x: np.ndarray, laid: int, apart: int, size: int) -> np.ndarray:
    """Each tile of so many rows, laid with one row stride and read with another; between and behind them lie zeros."""
    *outer, n, d = x.shape
    if apart <= 0 or apart == laid:
        return x
    whole = -(-n // size) * size
    tiles = np.zeros((*outer, whole, laid))
    tiles[..., :n, :d] = x
    flat = tiles.reshape(*outer, whole // size, size * laid)
    index = np.arange(size)[:, None] * apart + np.arange(d)
    found = np.where(index < size * laid, flat[..., np.minimum(index, size * laid - 1)], 0.0)
    return found.reshape(*outer, whole, d)[..., :n, :]
