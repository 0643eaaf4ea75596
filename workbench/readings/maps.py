"""Index maps in words: which element stands where, as rows, dims, blocks, chunks, strides and swizzles.

Layouts of tensors are linear over the bits of indices more often than not ("Linear Layouts", arXiv 2505.23819).
"""

from collections.abc import Iterator

import numpy as np

from workbench.readings.finding import spans


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


def linear(bits: tuple[list[int], int], size: int) -> np.ndarray:
    """The index map of `bits_of`."""
    columns, first = bits
    index = np.arange(size)
    made = np.full(size, first)
    for bit, column in enumerate(columns):
        made ^= np.where(index >> bit & 1, column, 0)
    return made


def in_words(source: np.ndarray, dims: int) -> str:
    """What an index map does. source: [rows, dims], row * dims + dim of what stands there, -1 for nothing."""
    source = source.reshape(-1, dims)
    rows = len(source)
    index = np.arange(rows * dims).reshape(rows, dims)
    moved = source != index
    share = f"{moved.mean():.1%} of its elements are others"
    row, dim = np.nonzero(moved)
    there = source[moved]
    if (there < 0).all():
        whole = moved.all(0)
        if np.array_equal(moved, np.broadcast_to(whole, moved.shape)):
            return f"dims {spans(np.flatnonzero(whole))} are read as 0"
        if np.array_equal(moved, np.broadcast_to(moved.all(1)[:, None], moved.shape)):
            return f"rows {spans(np.flatnonzero(moved.all(1)))} are read as 0"
        return f"elements are read as 0 in rows {spans(row)}, dims {spans(dim)}"
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
                return (
                    f"{said}, the others are those {abs(off.flat[0])} dims {'behind' if off.flat[0] > 0 else 'before'}"
                )
        return f"{share}, some of them 0, in rows {spans(row)}, dims {spans(dim)}"
    from_row, from_dim = there // dims, there % dims
    for block in (2, 4, 8, 16, 32, 64):
        whole = _in_blocks(index, dims, block)
        if whole is not None and np.array_equal(whole[moved], there):
            return f"rows and dims are swapped within blocks of {block} x {block} ({share})"
    if (from_dim == dim).all():
        told = _of_rows(row, from_row, rows)
        return f"rows {told}" + (f", in dims {spans(dim)}" if len(np.unique(dim)) < dims else "")
    if (from_row == row).all():
        pairs = list(dict.fromkeys(zip(dim.tolist(), from_dim.tolist(), strict=True)))
        if len(pairs) <= dims:
            said = ", ".join(f"{a} is dim {b}" for a, b in pairs[:4])
            where = "" if len(np.unique(row)) == rows else f" in rows {spans(row)}"
            return f"dims are others{where}: dim {said}" + (", ..." if len(pairs) > 4 else "")
    for stride in range(1, 4 * dims):
        if stride != dims and np.mean((stride * row + dim) % (rows * dims) == there) > 0.97:
            return f"rows lie {stride} apart, not {dims} ({share})"
    for rule, said in relaid(row, dim, rows, dims):
        if np.mean(rule == there) > 0.98:
            return f"{said} ({share})"
    found = None if dims & (dims - 1) else bits_of(source.reshape(-1))  # bits of an index are those of its dim
    if found is not None:
        return _of_bits(found, (dims - 1).bit_length(), share)
    some = ", ".join(
        f"(row {a}, dim {b}) is (row {x}, dim {y})"
        for a, b, x, y in list(zip(row, dim, from_row, from_dim, strict=True))[:: max(1, len(row) // 3)][:3]
    )
    return f"{share}, in rows {spans(row)}, dims {spans(dim)}: {some}"


def _of_bits(of: tuple[list[int], int], low: int, share: str) -> str:
    """A linear map in words; `low`: the bits of a dim."""
    columns, first = of
    added = [(bit, column ^ 1 << bit) for bit, column in enumerate(columns) if column != 1 << bit]
    if not first and all(bit >= low and 0 < more < 1 << low for bit, more in added):
        said = ", ".join(
            f"dim bit {' and '.join(str(x) for x in range(low) if more >> x & 1)} by row bit {bit - low}"
            for bit, more in added
        )
        chunk = min(more & -more for _, more in added)
        return f"chunks of {chunk} elements are swizzled ({share}): {said}"

    def name(bit: int) -> str:
        return f"dim bit {bit}" if bit < low else f"row bit {bit - low}"

    return f"{share}: " + "; ".join(
        f"{name(bit)} goes to " + (" and ".join(name(x) for x in range(32) if columns[bit] >> x & 1) or "nothing")
        for bit, _ in added
    )


def _in_blocks(index: np.ndarray, dims: int, block: int) -> np.ndarray | None:
    rows = len(index)
    if rows % block or dims % block:
        return None
    cut = index.reshape(rows // block, block, dims // block, block)
    return cut.transpose(0, 3, 2, 1).reshape(rows, dims)


def _of_rows(row: np.ndarray, there: np.ndarray, rows: int) -> str:
    pairs = np.array(sorted(set(zip(row.tolist(), there.tolist(), strict=True))))
    distance = np.unique(pairs[:, 1] - pairs[:, 0])
    if len(distance) == 1:
        return f"{spans(pairs[:, 0])} are those {abs(distance[0])} {'behind' if distance[0] > 0 else 'before'}"
    if len(np.unique(pairs[:, 1])) == 1:
        return f"{spans(pairs[:, 0])} are row {pairs[0, 1]}"
    for block in (2, 4, 8, 16, 32, 64, 128):
        if np.array_equal(pairs[:, 1], pairs[:, 0] // block * block + block - 1 - pairs[:, 0] % block):
            return f"{spans(pairs[:, 0])} are in reverse order within blocks of {block}"
    return ", ".join(f"{a} is row {b}" for a, b in pairs[:5].tolist()) + (", ..." if len(pairs) > 5 else "")


def completed(source: np.ndarray, dims: int) -> np.ndarray:
    """The map with what was not read filled in, where one rule says all that was: a stride, blocks, a shift of rows, a
    linear map of bits, or dims that go the same way in all rows.
    """
    rows = len(source)
    index = np.arange(rows * dims).reshape(rows, dims)
    row, dim = np.divmod(index, dims)
    known = source > -2
    for rule in _rules(index, row, dim, rows, dims):
        if np.mean(rule[known] == source[known]) > 0.98:
            return np.where(known, source, rule)
    bits = bits_of(source.reshape(-1))
    if bits is not None:
        return linear(bits, source.size).reshape(source.shape)
    for c in range(dims):
        seen = source[source[:, c] > -1, c] - index[source[:, c] > -1, 0]
        zero = source[:, c] == -1
        if seen.size and np.all(seen == seen[0]) and 0 <= seen[0] < dims and not zero.any():
            source[:, c] = np.where(source[:, c] == -2, index[:, 0] + seen[0], source[:, c])
        elif zero.any() and not seen.size:
            source[:, c] = -1
    for j in range(rows):  # rows as a whole
        seen = source[j] > -1
        base = source[j][seen] - np.arange(dims)[seen]
        if seen.sum() >= 3 and np.all(base == base[0]) and base[0] % dims == 0:
            source[j] = np.where(source[j] == -2, base[0] + np.arange(dims), source[j])
    return source


def relaid(row: np.ndarray, dim: np.ndarray, rows: int, dims: int) -> Iterator[tuple[np.ndarray, str]]:
    """Memory of [dims / x, rows, x] that is read as [dims / y, rows, y], as caches of keys are split."""
    parts = [x for x in (1, 2, 4, 8, 16, 32, dims) if x <= dims and dims % x == 0]
    for x in dict.fromkeys(parts):
        for y in dict.fromkeys(parts):
            if x != y:
                at = dim // y * (y * rows) + y * row + dim % y
                said = f"memory of [{dims // x}, {rows}, {x}] is read as [{dims // y}, {rows}, {y}]"
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


def _rules(index: np.ndarray, row: np.ndarray, dim: np.ndarray, rows: int, dims: int) -> Iterator[np.ndarray]:
    for stride in range(1, 4 * dims):
        if stride != dims:
            yield (stride * row + dim) % (rows * dims)
    for block in (2, 4, 8, 16, 32, 64):
        if rows % block == 0 and dims % block == 0:
            cut = index.reshape(rows // block, block, dims // block, block)
            yield cut.transpose(0, 3, 2, 1).reshape(rows, dims)
    for rule, _ in relaid(row, dim, rows, dims):
        yield rule
    for shift in range(1, min(rows, 65)):
        yield np.maximum(row - shift, 0) * dims + dim
        yield np.minimum(row + shift, rows - 1) * dims + dim
        yield (row - shift) % rows * dims + dim
        yield (row + shift) % rows * dims + dim
