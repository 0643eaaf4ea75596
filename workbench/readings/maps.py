"""Index maps in words: which element stands where, as rows, dims, blocks, chunks, strides and swizzles.

Layouts of tensors are linear over the bits of indices more often than not ("Linear Layouts", arXiv 2505.23819).
"""

from collections.abc import Iterator

import numpy as np

from workbench.readings.finding import apart_in_words, spans
from workbench.readings.rules import SHARE, bits_of_most, linear, rule_of
from workbench.readings.rules import in_words as of_axis
from workbench.readings.sets import box, of_axes

#: axes of an operand, as sets of its elements are said
ELEMENTS = ("rows", "dims")


def bits_of(source: np.ndarray) -> tuple[list[int], int] | None:
    """An index map as a linear map of the bits of an index, plus a constant (GF(2)): the index of each bit, and
    that of index 0. None where it is no such map, and where too little of it is known (-2: not known) to tell. source:
    flat.
    """
    size = len(source)
    count = (size - 1).bit_length()
    known = np.flatnonzero(source > -2)
    if size < 2 or not known.size or (source[known] < 0).any():
        return None
    index, image = known ^ known[0], source[known] ^ source[known[0]]
    columns = [0] * count
    pivots: list[tuple[int, int, int]] = []  # a bit that one difference of indices alone has, that and its image
    for a, b in zip(index.tolist(), image.tolist(), strict=True):
        for bit, other, of in pivots:
            if a >> bit & 1:
                a, b = a ^ other, b ^ of
        if a:
            bit = a.bit_length() - 1
            pivots = [(x, o ^ a, f ^ b) if o >> bit & 1 else (x, o, f) for x, o, f in pivots] + [(bit, a, b)]
        elif b:
            return None
        if len(pivots) == count:
            break
    if len(pivots) < count:
        return None
    for bit, _, of in pivots:
        columns[bit] = of
    first = int(source[known[0]])
    for bit, column in enumerate(columns):
        first ^= column if known[0] >> bit & 1 else 0
    made = linear((columns, first), size)
    return (columns, first) if made.max() < size and np.array_equal(made[known], source[known]) else None


def in_words(source: np.ndarray, dims: int) -> str:
    """What an index map does. source: [rows, dims], row * dims + dim of what stands there, -1 for nothing."""
    source = source.reshape(-1, dims)
    rows = len(source)
    index = np.arange(rows * dims).reshape(rows, dims)
    moved = source != index
    share = f"{moved.mean():.1%} of its elements come from elsewhere"
    row, dim = np.nonzero(moved)
    there = source[moved]
    if (there < 0).all():
        whole = moved.all(0)
        if np.array_equal(moved, np.broadcast_to(whole, moved.shape)):
            return f"dims {spans(np.flatnonzero(whole))} are read as 0"
        if np.array_equal(moved, np.broadcast_to(moved.all(1)[:, None], moved.shape)):
            return f"rows {spans(np.flatnonzero(moved.all(1)))} are read as 0"
        return f"{of_axes(moved, ELEMENTS)} are read as 0"
    if (there < 0).any():
        nothing: np.ndarray = source < 0
        columns, lines = np.asarray(nothing.all(0)), np.asarray(nothing.all(1))
        if np.array_equal(nothing, columns[None] | lines[:, None]):
            rest = source[~lines][:, ~columns] if (~lines).any() and (~columns).any() else source[:0]
            gone = [f"{name} {spans(np.flatnonzero(x))}" for name, x in (("dims", columns), ("rows", lines)) if x.any()]
            said = f"{' and '.join(gone)} are read as 0"
            off = rest - index[~lines][:, ~columns]
            if not off.any():
                return said
            if np.all(off == off.flat[0]) and abs(off.flat[0]) < dims:
                return f"{said}, the others come from {apart_in_words(int(off.flat[0]), 'dim')}"
        return f"{share}; {of_axes(nothing, ELEMENTS)} are read as 0"
    from_row, from_dim = there // dims, there % dims
    if (from_dim == dim).all() and (of_rows := _of_one(row, from_row)) is not None:
        told = of_axis(*of_rows, rows, "row")
        return told + _within(moved, 1)
    if (from_row == row).all() and (of_dims := _of_one(dim, from_dim)) is not None:
        told = of_axis(*of_dims, dims, "dim")
        return told + _within(moved, 0)
    for made, said in _laid(index, source, share):
        off = source != made
        if off.mean() <= 1 - SHARE and off[moved].mean() <= 1 - SHARE:
            return said + (f", except {of_axes(off, ELEMENTS)}" if off.any() else "")
    some = ", ".join(
        f"(row {a}, dim {b}) comes from (row {x}, dim {y})"
        for a, b, x, y in list(zip(row, dim, from_row, from_dim, strict=True))[:: max(1, len(row) // 3)][:3]
    )
    where = box(moved, ELEMENTS)
    return f"{share}{f', {where}' if where else ''}: {some}"


def _within(moved: np.ndarray, axis: int) -> str:
    """In which dims (axis 1) of the rows that a rule is said of its elements are, or in which rows of dims."""
    along = moved.any(1 - axis)
    if moved.sum() != moved.any(axis).sum() * along.sum():
        return f", in {of_axes(moved, ELEMENTS)}"
    return "" if along.all() else f", in {ELEMENTS[axis]} {spans(np.flatnonzero(along))}"


def _of_bits(of: tuple[list[int], int], low: int, share: str) -> str:
    """A linear map in words; `low`: the bits of a dim."""
    columns, first = of
    added = [(bit, column ^ 1 << bit) for bit, column in enumerate(columns) if column != 1 << bit]
    if added and not first and all(bit >= low and 0 < more < 1 << low for bit, more in added):
        said = ", ".join(
            f"dim bit {' and '.join(str(x) for x in range(low) if more >> x & 1)} by row bit {bit - low}"
            for bit, more in added
        )
        chunk = min(more & -more for _, more in added)
        return f"chunks of {chunk} elements are swizzled ({share}): {said}"

    def name(bit: int) -> str:
        return f"dim bit {bit}" if bit < low else f"row bit {bit - low}"

    return (
        f"{share}: "
        + "; ".join(
            f"{name(bit)} goes to " + (" and ".join(name(x) for x in range(32) if columns[bit] >> x & 1) or "nothing")
            for bit, _ in added
        )
        + (f"; then xor (row {first >> low}, dim {first % (1 << low)})" if first else "")
    )


def _of_one(index: np.ndarray, there: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """A map of elements as one of an axis: its indices that are others, all different, and what stands there; None
    where elements of one index come from several.
    """
    pairs = np.unique(np.stack([index, there]), axis=1)
    return (pairs[0], pairs[1]) if len(np.unique(pairs[0])) == pairs.shape[1] else None


def _laid(index: np.ndarray, source: np.ndarray, share: str) -> Iterator[tuple[np.ndarray, str]]:
    """Layouts of a whole head, and their words."""
    dims = index.shape[1]
    for made, said in _layouts(index):
        yield made, f"{said} ({share})"
    of_rows, of_dims = _most_of_lines(source // dims), _most_of_lines(source.T % dims)
    told = [(rule_of(x), len(x), name) for x, name in ((of_rows, "row"), (of_dims, "dim"))]
    if all(
        rule is not None or np.array_equal(x, np.arange(n))
        for (rule, n, _), x in zip(told, (of_rows, of_dims), strict=True)
    ):
        to_row, to_dim = (np.arange(n) if rule is None else rule.made for rule, n, _ in told)
        words = " and ".join(rule.text(name) for rule, _, name in told if rule is not None)
        yield to_row[:, None] * dims + to_dim, f"{words} ({share})"
    found = None if dims & (dims - 1) else bits_of_most(source.reshape(-1))  # bits of an index are those of its dim
    if found is not None and found != ([1 << bit for bit in range(len(found[0]))], 0):
        yield linear(found, index.size).reshape(index.shape), _of_bits(found, (dims - 1).bit_length(), share)


def _most_of_lines(x: np.ndarray) -> np.ndarray:
    """The value that most of each line [n, m] have."""
    return np.sort(x, axis=1)[:, x.shape[1] // 2]


def completed(source: np.ndarray, dims: int) -> np.ndarray:
    """The map with what was not read filled in, where one rule says all that was: a stride, blocks, a rule of rows, a
    linear map of bits, or dims that go the same way in all rows.
    """
    rows = len(source)
    index = np.arange(rows * dims).reshape(rows, dims)
    known = source > -2
    for rule, _ in _layouts(index):
        if np.mean(rule[known] == source[known]) > 0.98:
            return np.where(known, source, rule)
    bits = bits_of(source.reshape(-1))
    if bits is not None:
        return linear(bits, source.size).reshape(source.shape)
    of_rows = rule_of(_rows_of(source, dims))
    if of_rows is not None:
        rule = of_rows.made[:, None] * dims + np.arange(dims)
        if np.mean(rule[known] == source[known]) >= SHARE:
            return np.where(known, source, rule)
    for c in range(dims):
        seen = source[source[:, c] > -1, c] - index[source[:, c] > -1, 0]
        zero = source[:, c] == -1
        if seen.size and np.all(seen == seen[0]) and 0 <= seen[0] < dims and not zero.any():
            source[:, c] = np.where(source[:, c] == -2, index[:, 0] + seen[0], source[:, c])
        elif zero.any() and not seen.size:
            source[:, c] = -1
    from_row = _rows_of(source, dims)[:, None]
    filled: np.ndarray = np.where((source == -2) & (from_row >= 0), from_row * dims + np.arange(dims), source)
    again = _periodic(filled, dims) if np.any(filled == -2) else None
    return filled if again is None else np.where(filled > -2, filled, again)


def _periodic(source: np.ndarray, dims: int) -> np.ndarray | None:
    """The map of which rows do the same after so many others, as a swizzle has it; None where none do."""
    first = np.arange(len(source))[:, None] * dims
    known = source > -1
    if np.any(source == -1) or known.all():
        return None
    off = np.where(known, source - first, -1)
    for period in (2, 4, 8, 16, 32):
        turns = len(source) // period
        if turns < 2:
            return None
        told, _ = most_of(off[: turns * period].reshape(turns, -1).T, known[: turns * period].reshape(turns, -1).T)
        whole = first + np.resize(told.reshape(period, dims), source.shape)
        inside = np.all((whole >= 0) & (whole < source.size))
        if inside and np.mean(whole[known] == source[known]) >= SHARE:
            return whole
    return None


def _rows_of(source: np.ndarray, dims: int) -> np.ndarray:
    """The row that stands at each row as a whole, [row]; -2 where it is none, or too little was read."""
    seen = source > -1
    base = source - np.arange(dims)
    first = np.take_along_axis(base, seen.argmax(1)[:, None], 1)
    told = (seen.sum(1) >= 3) & np.all((base == first) | ~seen, axis=1) & (first[:, 0] % dims == 0)
    return np.where(told, first[:, 0] // dims, -2)


def relaid(row: np.ndarray, dim: np.ndarray, rows: int, dims: int) -> Iterator[tuple[np.ndarray, str]]:
    """Memory of [dims / x, rows, x] that is read as [dims / y, rows, y], as caches of keys are split."""
    parts = [x for x in (1, 2, 4, 8, 16, 32, dims) if x <= dims and dims % x == 0]
    for x in dict.fromkeys(parts):
        for y in dict.fromkeys(parts):
            if x != y:
                at = dim // y * (y * rows) + y * row + dim % y
                said = f"memory laid out as [{dims // x}, {rows}, {x}] is read as [{dims // y}, {rows}, {y}]"
                yield at // x % rows * dims + at // (x * rows) * x + at % x, said


def rows_completed(source: np.ndarray, size: int) -> np.ndarray:
    """Maps of heads [b, h, rows, dims] of the index in the whole of `size` elements, with rows filled in that come from
    one place, and those whose places go on as the others do.
    """
    rows, dims = source.shape[2:]
    index = np.arange(rows)
    for at in np.ndindex(*source.shape[:2]):
        seen = source[at] >= 0
        first, share = most_of((source[at] - np.arange(dims)) % size, seen)
        base = np.where((seen.sum(1) >= 3) & (share > 0.6), first, -1)
        known = index[base >= 0]
        if len(known) >= 4:
            step, _ = _most(np.diff(base[known]) % size)
            begin, of_line = _most((base[known] - step * known) % size)
            if of_line > 0.8:
                base = (begin + step * index) % size
        for i in index[base >= 0]:
            place = (base[i] + np.arange(dims)) % size
            source[at][i] = np.where(source[at][i] == -1, -1, place)
    return source


def most_of(x: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of each row of [n, m] the value that half of those that are known have, in the middle of them, and the share
    that have it.
    """
    count = known.sum(1)
    order = np.sort(np.where(known, x, np.iinfo(np.int64).max), axis=1)
    best: np.ndarray = np.zeros(len(x), np.int64)
    share: np.ndarray = np.zeros(len(x))
    for middle in (np.maximum(count - 1, 0) // 2, np.minimum(count // 2, x.shape[1] - 1)):
        told = np.take_along_axis(order, middle[:, None], 1)
        of_told = ((x == told) & known).sum(1) / np.maximum(count, 1)
        best, share = np.where(of_told > share, told[:, 0], best), np.maximum(share, of_told)
    return best, share


def _most(x: np.ndarray) -> tuple[int, float]:
    """The value that most have, and the share of them."""
    values, counts = np.unique(x, return_counts=True)
    return int(values[counts.argmax()]), float(counts.max() / counts.sum())


def _layouts(index: np.ndarray) -> Iterator[tuple[np.ndarray, str]]:
    """Maps of a whole head that was laid in another way, and their words; `index`: its own."""
    rows, dims = index.shape
    row, dim = np.divmod(index, dims)
    for block in (2, 4, 8, 16, 32, 64):
        if rows % block == 0 and dims % block == 0:
            cut = index.reshape(rows // block, block, dims // block, block)
            words = f"each {block} x {block} block is transposed"
            yield cut.transpose(0, 3, 2, 1).reshape(rows, dims), words
    for stride in range(1, 4 * dims):
        if stride != dims:
            yield (stride * row + dim) % index.size, f"the row stride is {stride}, not {dims}"
    yield from relaid(row, dim, rows, dims)
