"""Layout and indexing: operands, their rows, dims and heads, memory read in another order."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from workbench.judge.explain.hypothesis import Edit, Hypothesis, across, altered
from workbench.judge.explain.library import indices
from workbench.judge.explain.library.indices import Indexing, taken
from workbench.reference.steps.parameters import by_query_head

#: operands that go together -> as words
OPERANDS = {"q": "q", "k": "k", "v": "v", "kv": "k and v"}
_OPERANDS_TOO = OPERANDS | {"qk": "q and k", "qkv": "q, k and v"}


def hypotheses() -> Iterator[Hypothesis]:
    """All of the family, the plainest first."""
    yield from _swapped()
    yield from across(_heads())
    yield from _along(-2, "rows")
    yield from _along(-1, "dims")
    yield from _lacking()
    yield from across(_memory())
    yield from _products()
    yield from _blocks()
    yield from _pitches()


def rows_read(operands: str, change: Callable[[Any, np.ndarray, str], np.ndarray]) -> tuple[Edit, ...]:
    """An edit of the rows that each operand is read as: of what holds for the run, the rows and the operand's name."""
    return tuple(altered(f"{x}_rows", lambda at, rows, x=x: change(at, rows, x), x) for x in operands)


def _swapped() -> Iterator[Hypothesis]:
    for x, other in ("kv", "vk", "kq", "qk", "vq"):

        def read(at: Any, rows: np.ndarray, x: str, other: str = other) -> np.ndarray:
            instead = by_query_head(at(other), at.heads)
            if instead.shape[1] != rows.shape[1] or instead.shape[-1] != rows.shape[-1]:
                return rows
            read = np.zeros_like(rows)  # behind the last row lies nothing
            n = min(rows.shape[-2], instead.shape[-2])
            read[..., :n, :] = instead[..., :n, :]
            return read

        yield Hypothesis(f"layout.{other}-for-{x}", f"{other} is read in place of {x}", rows_read(x, read))


def _heads() -> Iterator[Hypothesis]:
    for operands, words in OPERANDS.items():
        for one in indices.others() if operands == "q" else indices.heads():

            def of_head(at: Any, rows: np.ndarray, x: str, one: Indexing = one) -> np.ndarray:
                raw = at(x)
                return raw[:, one.map(np.arange(at.heads), raw.shape[1])]

            text = f"heads of {words} are read wrong: {one.text}"
            yield Hypothesis(f"layout.head-{one.id}-{operands}", text, rows_read(operands, of_head))
        for one in indices.others():

            def of_batch(at: Any, rows: np.ndarray, x: str, one: Indexing = one) -> np.ndarray:
                return taken(rows, one, 0)

            text = f"batches of {words} are read wrong: {one.text}"
            yield Hypothesis(f"layout.batch-{one.id}-{operands}", text, rows_read(operands, of_batch))
    for operands, words in _OPERANDS_TOO.items():

        def swapped(at: Any, rows: np.ndarray, x: str) -> np.ndarray:
            return by_query_head(_batch_for_head(at(x)), at.heads)

        text = f"batch and head of {words} are told apart the wrong way round (z % batch for z // heads)"
        yield Hypothesis(f"layout.batch-for-head-{operands}", text, rows_read(operands, swapped))


def _along(axis: int, named: str) -> Iterator[Hypothesis]:
    for one in indices.permutations():
        for operands, words in OPERANDS.items():

            def permuted(at: Any, rows: np.ndarray, x: str, one: Indexing = one) -> np.ndarray:
                return taken(rows, one, axis)

            text = f"{named} of {words} are read {one.text}"
            yield Hypothesis(f"layout.{named}-{one.id}-{operands}", text, rows_read(operands, permuted))


def _lacking() -> Iterator[Hypothesis]:
    """Dims and rows that are not read, as if they were 0."""
    dims: dict[str, tuple[str, indices.Map]] = {
        "first-half": ("the first half of the dims", lambda d, n: d < n // 2),
        "second-half": ("the second half of the dims", lambda d, n: d >= n // 2),
        "without-last": ("all dims but the last", lambda d, n: d < n - 1),
        "without-first": ("all dims but the first", lambda d, n: d > 0),
    }
    for b in (8, 16, 32, 64):
        dims[f"whole-{b}"] = (f"the dims of whole blocks of {b}", lambda d, n, b=b: d < n // b * b)
        dims[f"without-last-{b}"] = (f"all dims but the last {b}", lambda d, n, b=b: d < n - b)
        dims[f"last-{b}"] = (f"the last {b} dims", lambda d, n, b=b: d >= n - b)
        dims[f"first-{b}"] = (f"the first {b} dims", lambda d, n, b=b: d < b)
    for b in (1, 2, 4, 8, 16, 32):
        dims[f"low-{b}"] = (f"the first {b} of every {2 * b} dims", lambda d, n, b=b: d % (2 * b) < b)
        dims[f"high-{b}"] = (f"the last {b} of every {2 * b} dims", lambda d, n, b=b: d % (2 * b) >= b)
    for name, (words, kept) in dims.items():
        for operands, of in {"q": "the dot products", "v": "the products with v"}.items():

            def cut(at: Any, rows: np.ndarray, x: str, kept: indices.Map = kept) -> np.ndarray:
                return np.where(kept(np.arange(rows.shape[-1]), rows.shape[-1]), rows, 0.0)

            yield Hypothesis(f"layout.dims-{name}-{operands}", f"{of} use {words} alone", rows_read(operands, cut))


def _memory() -> Iterator[Hypothesis]:
    for operands, words in _OPERANDS_TOO.items():

        def as_bshd(at: Any, rows: np.ndarray, x: str) -> np.ndarray:
            b, h, s, d = at(x).shape
            return by_query_head(at(x).reshape(b, s, h, d).swapaxes(1, 2), at.heads)

        def as_bhsd(at: Any, rows: np.ndarray, x: str) -> np.ndarray:
            return by_query_head(at(x).swapaxes(1, 2).reshape(at(x).shape), at.heads)

        def as_dims_first(at: Any, rows: np.ndarray, x: str) -> np.ndarray:
            b, h, s, d = rows.shape
            return rows.reshape(b, h, d, s).swapaxes(-1, -2)

        for name, text, change in (
            ("as-bshd", "[b, h, s, d] is read with the strides of [b, s, h, d]", as_bshd),
            ("as-bhsd", "[b, s, h, d] is read with the strides of [b, h, s, d]", as_bhsd),
            ("as-dims-first", "[s, d] is read with the strides of [d, s]", as_dims_first),
        ):
            yield Hypothesis(f"layout.{name}-{operands}", f"{words}: {text}", rows_read(operands, change))


def _blocks() -> Iterator[Hypothesis]:
    """Fragments of tiles that are read with another order of rows and columns, or with another row stride."""
    for b in (1, 2, 4, 8, 16):
        for half in (4, 8, 16):
            for low in (True, False):
                for operands, words in OPERANDS.items():

                    def partly(
                        at: Any, rows: np.ndarray, x: str, b: int = b, half: int = half, low: bool = low
                    ) -> np.ndarray:
                        here = (np.arange(rows.shape[-1]) % (2 * half) < half) == low
                        return np.where(
                            here, _padded(rows, lambda r: r[..., np.arange(r.shape[-2]) ^ b, :], 2 * b), rows
                        )

                    dims = f"the {'first' if low else 'last'} {half} of every {2 * half} dims"
                    text = f"in {dims} rows of {words} are swapped {b} apart"
                    yield Hypothesis(
                        f"layout.rows-xor-{b}-{'low' if low else 'high'}-{half}-{operands}",
                        text,
                        rows_read(operands, partly),
                    )
    for b in (4, 8, 16, 32):
        for operands, words in OPERANDS.items():

            def turned(at: Any, rows: np.ndarray, x: str, b: int = b) -> np.ndarray:
                return _blocks_transposed(rows, b)

            text = f"each {b} by {b} block of {words} is read transposed"
            yield Hypothesis(f"layout.blocks-transposed-{b}-{operands}", text, rows_read(operands, turned))
    strides: dict[str, tuple[str, Callable[[int], int]]] = {
        "d+8": ("head_dim + 8", lambda d: d + 8),
        "d-8": ("head_dim - 8", lambda d: d - 8),
        "d+1": ("head_dim + 1", lambda d: d + 1),
        "d-1": ("head_dim - 1", lambda d: d - 1),
        "2d": ("2 * head_dim", lambda d: 2 * d),
        "d/2": ("head_dim / 2", lambda d: d // 2),
        **{str(n): (str(n), lambda d, n=n: n) for n in (16, 32, 64, 128)},
    }
    for name, (text, stride) in strides.items():
        for operands, words in OPERANDS.items():
            for size in (16, 32, 64, 128):

                def strided(at: Any, rows: np.ndarray, x: str, stride: Any = stride, size: int = size) -> np.ndarray:
                    return _strided(rows, rows.shape[-1], stride(rows.shape[-1]), size)

                words_ = f"tiles of {size} rows of {words} are read with a row stride of {text}"
                yield Hypothesis(f"layout.stride-{name}-{size}-{operands}", words_, rows_read(operands, strided))
    for pad in (1, 2, 4, 8, 16):
        for operands, words in OPERANDS.items():
            for size in (16, 32, 64, 128):

                def unpadded(at: Any, rows: np.ndarray, x: str, pad: int = pad, size: int = size) -> np.ndarray:
                    return _strided(rows, rows.shape[-1] + pad, rows.shape[-1], size)

                words_ = f"tiles of {size} rows of {words}, which lie {pad} elements apart, are read as if they did not"
                yield Hypothesis(f"layout.unpadded-{pad}-{size}-{operands}", words_, rows_read(operands, unpadded))


def _pitches() -> Iterator[Hypothesis]:
    """Whole arrays with rows another way apart, tiles at other keys, quadrants of fragments at each other's place."""
    pitches: dict[str, tuple[str, Callable[[int], int]]] = {
        **{f"up-{n}": (f"head_dim rounded up to {n}", lambda d, n=n: -(-d // n) * n) for n in (16, 32, 64, 128)},
        "d+1": ("head_dim + 1", lambda d: d + 1),
        "d-1": ("head_dim - 1", lambda d: d - 1),
        "d+8": ("head_dim + 8", lambda d: d + 8),
        "2d": ("2 * head_dim", lambda d: 2 * d),
    }
    for name, (text, pitch) in pitches.items():
        for operands, words in _OPERANDS_TOO.items():

            def apart(at: Any, rows: np.ndarray, x: str, pitch: Any = pitch) -> np.ndarray:
                n, d = rows.shape[-2:]
                flat = rows.reshape(*rows.shape[:-2], n * d)
                place = (np.arange(n)[:, None] * pitch(d) + np.arange(d)) % (n * d)
                return flat[..., place]

            yield Hypothesis(
                f"layout.pitch-{name}-{operands}", f"rows of {words} are read {text} apart", rows_read(operands, apart)
            )
    for b in (16, 32, 64, 128):
        for operands in ("k", "v", "kv"):

            def begun(at: Any, rows: np.ndarray, x: str, b: int = b) -> np.ndarray:
                n, read = rows.shape[-2], np.zeros_like(rows)
                for t, keys in enumerate(at.tiling.keys):
                    places = t * b + np.arange(keys.stop - keys.start)
                    inside = places < n
                    read[..., keys, :][..., inside, :] = rows[..., places[inside], :]
                return read

            text = f"tiles of {OPERANDS[operands]} are read {b} keys apart"
            yield Hypothesis(f"layout.tiles-apart-{b}-{operands}", text, rows_read(operands, begun))
    for b in (2, 4, 8, 16):
        for operands, words in OPERANDS.items():

            def quadrants(at: Any, rows: np.ndarray, x: str, b: int = b) -> np.ndarray:
                return quadrants_swapped(rows, b)

            text = (
                f"in each {2 * b} by {2 * b} block of {words} the upper right and the lower left {b} by {b} are swapped"
            )
            yield Hypothesis(f"layout.quadrants-{b}-{operands}", text, rows_read(operands, quadrants))
    for b in (4, 8, 16):
        for m in (8, 16, 32):
            for low in (True, False):

                def anew(at: Any, x: np.ndarray, b: int = b, m: int = m, low: bool = low) -> np.ndarray:
                    q, k = at("q_rows"), at("k_rows")
                    last = q[..., -m:] @ k[..., -m:].swapaxes(-1, -2)
                    return np.where((np.arange(x.shape[-1]) % (2 * b) < b) == low, last, x)

                columns = f"the {'first' if low else 'last'} {b} of every {2 * b} keys"
                text = f"in {columns} the dot products are of the last {m} dims alone"
                edit = altered("qk", anew, "q_rows", "k_rows")
                yield Hypothesis(f"layout.anew-{m}-{'low' if low else 'high'}-{b}", text, (edit,))


def quadrants_swapped(x: np.ndarray, b: int) -> np.ndarray:
    """Both off-diagonal quadrants of each 2b by 2b block swapped; behind the ends of x lie zeros."""
    n, m = x.shape[-2:]
    rows, cols = -(-n // (2 * b)) * 2, -(-m // (2 * b)) * 2
    padded = np.zeros((*x.shape[:-2], rows * b, cols * b))
    padded[..., :n, :m] = x
    parts = padded.reshape(*x.shape[:-2], rows // 2, 2, b, cols // 2, 2, b)
    y = parts.copy()
    y[..., :, 0, :, :, 1, :], y[..., :, 1, :, :, 0, :] = parts[..., :, 1, :, :, 0, :], parts[..., :, 0, :, :, 1, :]
    return y.reshape(padded.shape)[..., :n, :m]


def _blocks_transposed(x: np.ndarray, b: int) -> np.ndarray:
    """Each b by b block of the last two axes transposed; behind their ends lie zeros."""
    n, m = x.shape[-2:]
    rows, cols = -(-n // b) * b, -(-m // b) * b
    padded = np.zeros((*x.shape[:-2], rows, cols))
    padded[..., :n, :m] = x
    tiles = padded.reshape(*x.shape[:-2], rows // b, b, cols // b, b)
    return tiles.swapaxes(-3, -1).reshape(padded.shape)[..., :n, :m]


def _padded(x: np.ndarray, change: Callable[[np.ndarray], np.ndarray], b: int) -> np.ndarray:
    """The change of x with zeros behind its rows up to a whole block of b."""
    n = x.shape[-2]
    padded = np.zeros((*x.shape[:-2], -(-n // b) * b, x.shape[-1]))
    padded[..., :n, :] = x
    return change(padded)[..., :n, :]


def _strided(x: np.ndarray, laid: int, read: int, size: int) -> np.ndarray:
    """Each tile of so many rows, laid with one row stride and read with another; between and behind them lie zeros."""
    *outer, n, d = x.shape
    if read <= 0 or read == laid:
        return x
    whole = -(-n // size) * size
    tiles = np.zeros((*outer, whole, max(laid, d)))
    tiles[..., :n, :d] = x
    flat = tiles[..., :laid].reshape(*outer, whole // size, size * laid) if laid >= d else None
    if flat is None:
        return x
    index = np.arange(size)[:, None] * read + np.arange(d)
    found = np.where(index < size * laid, flat[..., np.minimum(index, size * laid - 1)], 0.0)
    return found.reshape(*outer, whole, d)[..., :n, :]


def _products() -> Iterator[Hypothesis]:
    """Fragments of the dot products at each other's places."""

    def transposed(at: Any, x: np.ndarray) -> np.ndarray:
        return x.swapaxes(-1, -2) if x.shape[-1] == x.shape[-2] else x

    yield Hypothesis("layout.qk-transposed", "qk is stored transposed", (altered("qk", transposed),))
    for b in (8, 16, 32, 64):

        def blocks(at: Any, x: np.ndarray, b: int = b) -> np.ndarray:
            return _blocks_transposed(x, b)

        text = f"each {b} by {b} block of qk is transposed"
        yield Hypothesis(f"layout.qk-blocks-transposed-{b}", text, (altered("qk", blocks),))
    for one in indices.permutations():
        for stage in ("qk", "probs_cast"):
            for axis, named in ((-2, "rows"), (-1, "columns")):
                edit = altered(stage, lambda at, x, one=one, axis=axis: taken(x, one, axis))
                yield Hypothesis(f"layout.{stage}-{named}-{one.id}", f"{named} of {stage} are read {one.text}", (edit,))


def _batch_for_head(x: np.ndarray) -> np.ndarray:
    b, h = x.shape[:2]
    z = np.arange(b * h).reshape(b, h)
    return x[z % b, z // b % h]
