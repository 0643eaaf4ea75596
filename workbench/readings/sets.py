"""Sets of elements in words: the rule that makes exactly these, and where none does, how many they are and one row.

A set is never said as the box around it. "keys 64-127 in rows 0-31" is a set that fills this box.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from workbench.readings.finding import spans

#: rows and keys of tiles whose edges a set may follow
SIZES = (8, 16, 24, 32, 48, 64, 80, 96, 128, 192, 256)
#: distances from the diagonal that are listed, and lengths
LISTED = 4
#: sets of heads that have rules of their own
KINDS = 3
#: runs of indices that are listed in full
RUNS = 6
#: axes of rows, as sets of them are said
ROW_AXES = ("batches", "heads", "rows")
#: formulas of the first and of the last key of rows that are tried together
FORMULAS = 8
#: no limit below and above
NONE = 1 << 40


def of_axes(of: np.ndarray, names: Sequence[str]) -> str:
    """Elements [..] of axes of these plural `names`, outermost first: "dims 0-3 of rows 5, 7", "rows 3 of heads 0-1",
    "elements from row 26, dim 8 on in each tile of 32 rows", "12 elements, such as dims 3-4 of row 7 of head 0". An
    axis that the set has all of is left out.
    """
    return box(of, names) or (_tails(of, names) if of.ndim == 2 else "") or _example(of, names)


def box(of: np.ndarray, names: Sequence[str]) -> str:
    """As `of_axes`; "" where the set does not fill the box around it."""
    along = [np.flatnonzero(of.any(tuple(i for i in range(of.ndim) if i != axis))) for axis in range(of.ndim)]
    if not of.any() or of.sum() != np.prod([len(x) for x in along]):
        return ""
    said = [f"{name} {spans(x)}" for x, name, n in zip(along, names, of.shape, strict=True) if len(x) < n]
    return " of ".join(reversed(said or [f"{names[-1]} {spans(along[-1])}"]))


def _tails(of: np.ndarray, names: Sequence[str]) -> str:
    """What lies behind an element of each whole tile of rows; "" where it is another set."""
    dims = of.shape[1]
    for size in SIZES:
        whole = len(of) // size * size
        tiles = of[:whole].reshape(-1, size * dims)
        if not len(tiles) or of[whole:].any() or (tiles != tiles[0]).any():
            continue
        first = int(tiles[0].argmax())
        if tiles[0, first:].all() and tiles[0].any():
            row, dim = divmod(first, dims)
            return f"elements from {_one(names[0])} {row}, {_one(names[1])} {dim} on in each tile of {size} {names[0]}"
    return ""


def _example(of: np.ndarray, names: Sequence[str]) -> str:
    """How many they are, and those of the row that has most."""
    if not of.any():
        return "none"
    place = np.unravel_index(int(of.sum(-1).argmax()), of.shape[:-1])
    at = [f"{_one(name)} {i}" for i, name, n in zip(place, names[:-1], of.shape[:-1], strict=True) if n > 1]
    some = " of ".join([f"{names[-1]} {spans(np.flatnonzero(of[place]))}", *reversed(at)])
    return f"{of.sum():,} {'elements' if of.ndim > 1 else names[-1]}, such as {some}"


def _one(name: str) -> str:
    return "batch" if name == "batches" else name.removesuffix("s")


def of_keys(of: np.ndarray, among: np.ndarray | None = None) -> str:
    """Keys of rows, bool [b, h, q, k], in words. `among`: those that rows should see, of which it is said alone; None:
    all keys.

    "keys 32-47 in rows 0-31", "keys 32-63 that rows 32-127 see", "keys at offset +1 from the diagonal in rows 0-46",
    "keys from i + 1 on in row i", "keys from 64 (i div 64) + 64 on in row i of heads 1", "keys from 37 on of batch 0,
    from 12 on of batch 1", "96 elements, such as keys 3-7 of row 5 of head 0".
    """
    could = np.ones(of.shape, bool) if among is None else among | of
    kinds: dict[bytes, np.ndarray] = {}
    for at in np.argwhere(of.any((2, 3))):
        kind = kinds.setdefault(of[tuple(at)].tobytes(), np.zeros(of.shape[:2], bool))
        kind[tuple(at)] = True
    whole = (_of_heads(of, could, np.asarray(of.any((2, 3)))) or _lengths(of, could)) if kinds else ""
    each = [_of_heads(of, could, some) for some in kinds.values()] if not whole and len(kinds) <= KINDS else []
    said = whole or (" and ".join(each) if all(each) else "")
    return said or _example(of, ("batches", "heads", "rows", "keys"))


def _of_heads(of: np.ndarray, could: np.ndarray, some: np.ndarray) -> str:
    """As `of_keys`, of `some` heads [b, h] that have one rule; "" where they have none."""
    along = [(name, np.asarray(some.any(axis))) for name, axis in (("heads", 0), ("batches", 1))]
    if not np.array_equal(some, along[1][1][:, None] & along[0][1]):
        return ""
    where = "".join(f" of {name} {spans(np.flatnonzero(x))}" for name, x in along if not x.all())
    at = np.unravel_index(int((of.sum((2, 3)) * some).argmax()), some.shape)
    for rule in _rules(of[at], could[at]):
        if np.array_equal(of[some], could[some] & rule.made):
            return rule.said.format(of=where)
    return ""


@dataclass(frozen=True, eq=False)
class _Rule:
    said: str  #: {of}: where it says of which heads
    made: np.ndarray  #: bool [q, k], the keys of which it is said


def _lengths(of: np.ndarray, could: np.ndarray) -> str:
    """Keys of all rows and heads from a length of each batch on; "" where they are others."""
    said = []
    for b in np.flatnonzero(of.any((1, 2, 3))):
        first = np.flatnonzero(of[b].any((0, 1)))[0]
        if not np.array_equal(of[b], could[b] & (np.arange(of.shape[3]) >= first)):
            return ""
        said.append(f"from {first} on of batch {b}")
    more = f" and so on, in {len(said)} batches" if len(said) > LISTED else ""
    return f"keys {', '.join(said[:LISTED])}{more}"


def _rules(of: np.ndarray, could: np.ndarray) -> Iterator[_Rule]:
    """Rules of the keys of rows [q, k], the plainest first; they need not hold."""
    rows, keys = of.shape
    i, j = np.arange(rows)[:, None], np.arange(keys)
    some, columns = np.asarray(of.any(1)), np.asarray(of.any(0))
    own = f"rows {spans(np.flatnonzero(some))}"
    listed = _runs(some) <= RUNS
    if listed and _runs(columns) <= RUNS:
        filled, said = some[:, None] & columns, f"keys {spans(np.flatnonzero(columns))}"
        where = f"in {own}{{of}}" if np.array_equal(of, filled) else f"that {own}{{of}} see"
        yield _Rule(f"{said} {where}", filled)
    distance = j - i - (keys - rows)
    few = np.unique(distance[of])
    if listed and len(few) <= LISTED:
        said = f"keys at offset {', '.join(f'{x:+d}' for x in few)} from the diagonal in {own}{{of}}"
        yield _Rule(said, some[:, None] & np.isin(distance, few))
    inside = _bands(of, could)
    for said, low, high in inside:
        note = " (the diagonal begins at the top left)" if rows != keys and _is_corner(said) else ""
        yield _Rule(f"keys {said}{note}{{of}}", (low <= j) & (j <= high))
    whole = (of == could).all(1) & some
    rest = np.asarray((of & ~whole[:, None]).any(0))
    if listed and whole.any() and rest.any() and _runs(rest) <= RUNS:
        said = f"all keys of rows {spans(np.flatnonzero(whole))} and keys {spans(np.flatnonzero(rest))} in rows"
        others = some & ~whole
        made = whole[:, None] | others[:, None] & rest
        yield _Rule(f"{said} {spans(np.flatnonzero(others))}{{of}}", made)
    if listed:
        for said, low, high in inside:
            yield _Rule(f"keys {said} ({own}){{of}}", (low <= j) & (j <= high) & some[:, None])
    for said, low, high in [] if inside else _bands(could & ~of, could):
        yield _Rule(f"all keys but those {said}{{of}}", (j < low) | (high < j))
    yield from _tiles(of, could)


def _is_corner(said: str) -> bool:
    """Whether keys begin behind the diagonal of the top left corner, or end with it."""
    return said.startswith("from i + 1 ") or said.endswith((" to i in row i", "up to i in row i"))


def _runs(of: np.ndarray) -> int:
    """Runs of indices that are in a set."""
    return int(np.count_nonzero(np.diff(np.flatnonzero(of)) > 1)) + 1


def _tiles(of: np.ndarray, could: np.ndarray) -> Iterator[_Rule]:
    """Whole tiles, the largest first."""
    rows, keys = of.shape
    for n, m in sorted(((n, m) for n in SIZES for m in SIZES), key=lambda x: -x[0] * x[1]):
        if n >= rows and m >= keys:
            continue
        cut = np.pad(of, ((0, -rows % n), (0, -keys % m))).reshape(-(-rows // n), n, -(-keys // m), m).any((1, 3))
        made = np.repeat(np.repeat(cut, n, 0), m, 1)[:rows, :keys]
        if np.array_equal(made & could, of):
            a, b = np.argwhere(cut)[0]
            first = f"rows {n * a}-{min(n * a + n, rows) - 1} and keys {m * b}-{min(m * b + m, keys) - 1}"
            yield _Rule(f"{cut.sum()} of {cut.size} tiles of {n} rows and {m} keys{{of}} (such as {first})", made)
            return


def _bands(of: np.ndarray, could: np.ndarray) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """The first and the last key of each row [q, 1], where its keys follow each other, and what lies between in words:
    "up to 63 in row i", "from i - 8 to i + 8 in row i"; the plainest first.
    """
    rows, keys = of.shape
    at = np.flatnonzero(of.any(1))
    if not at.size:
        return []
    i, j = np.arange(rows), np.arange(keys)
    first, last = of.argmax(1)[at], keys - 1 - of[:, ::-1].argmax(1)[at]
    between = could[at] & (j >= first[:, None]) & (j <= last[:, None])
    if not np.array_equal(between, of[at]):
        return []
    before = np.where(could[at] & (j < first[:, None]), j, -NONE).max(1)
    behind = np.where(could[at] & (j > last[:, None]), j, NONE).min(1)
    lower = [("", np.full(rows, -NONE))] if (before == -NONE).all() else [*_limits(before + 1, first, at, i, keys)]
    upper = [("", np.full(rows, NONE))] if (behind == NONE).all() else [*_limits(last, behind - 1, at, i, keys)]
    found = []
    for low, a in _different(lower):
        for high, b in _different(upper):
            said = f"from {low} {f'to {high}' if high else 'on'}" if low else f"up to {high}"
            if low or high:
                found.append((f"{said} in row i", a[:, None], b[:, None]))
    return found


def _different(limits: list[tuple[str, np.ndarray]]) -> list[tuple[str, np.ndarray]]:
    """Of formulas that make the same numbers the plainest, a few."""
    found: dict[bytes, tuple[str, np.ndarray]] = {}
    for said, made in limits:
        found.setdefault(made.tobytes(), (said, made))
    return [*found.values()][:FORMULAS]


def _limits(
    least: np.ndarray, most: np.ndarray, at: np.ndarray, i: np.ndarray, keys: int
) -> Iterator[tuple[str, np.ndarray]]:
    """Formulas of i, of all rows, that are from `least` to `most` in the rows `at`, the plainest first."""
    offset = keys - len(i)

    def fitted(made: np.ndarray, said: str, size: int = 1) -> Iterator[tuple[str, np.ndarray]]:
        low, high = int((least - made[at]).max()), int((most - made[at]).min())
        if low > high:
            return
        # of several numbers a whole tile, or that of one of the two corners, or the nearest to 0
        known = [x for x in (0, 1, -1, offset, offset + 1, offset - 1, -(-low // size) * size) if low <= x <= high]
        add = known[0] if known else min(max(low, 0), high)
        yield _sum(said, add), made + add

    yield from fitted(np.zeros_like(i), "")
    yield from fitted(i, "i")
    for n in SIZES:
        yield from fitted(n * (i // n), f"{n} (i div {n})", n)
    for m in SIZES:
        for by in dict.fromkeys((0, offset, 1, offset + 1)):
            yield from fitted(m * ((i + by) // m), f"{m} ({_of(_sum('i', by))} div {m})", m)
    for n in SIZES:
        for m in SIZES:
            for by in dict.fromkeys((offset, n - 1 + offset, n + offset, 0, n - 1, n)):
                inner = _sum(f"{n} (i div {n})", by)
                yield from fitted(m * ((n * (i // n) + by) // m), f"{m} (({inner}) div {m})", m)


def _of(said: str) -> str:
    return f"({said})" if " " in said else said


def _sum(said: str, add: int) -> str:
    if not said:
        return str(add)
    return said if not add else f"{said} {'+' if add > 0 else '-'} {abs(add)}"
