"""Index maps of one axis as a rule: shifts, clamps, strides, tiles, bits."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from workbench.readings.finding import apart_in_words, spans

#: share of the indices that a rule must make, and of those that are others; the rest are its exceptions
SHARE = 0.99
#: fewer indices that are others are listed, but for those of a whole axis
FEWEST, FEWEST_OF_ALL = 8, 3
#: runs of indices that are listed before a rule is looked for
FEW_SPANS = 4
#: tiles of which each may have a rule of its own: powers of two, at least two of them
LEAST_TILE = 2


@dataclass(frozen=True, eq=False)
class Rule:
    """Which index stands at each."""

    said: str  #: of i, such as "i - 1 (mod 64)"
    made: np.ndarray
    of: str = "{name} i is {name} {said}"

    def text(self, name: str) -> str:
        """In words of an axis: "row i is row i - 1 (mod 64)"."""
        return self.of.format(name=name, said=self.said)


def rule_of(source: np.ndarray) -> Rule | None:
    """The plainest of the rules that make the most of a map, and SHARE of it at least; None where there is none.

    source: [n], -2 where it is not known; a map that leads nowhere (-1) has no rule.
    """
    known = np.flatnonzero(source > -2)
    if len(known) < min(FEWEST, max(len(source), FEWEST_OF_ALL)) or (source[known] < 0).any():
        return None
    there, moved = source[known], source[known] != known
    best, most = None, SHARE
    for one in _rules(known, there, len(source)):
        alike = one.made[known] == there
        share = float(np.mean(alike))
        if (share > most or (best is None and share == most)) and moved.any() and np.mean(alike[moved]) >= SHARE:
            best, most = one, share
        if best is not None and most == 1:
            break
    return best


def in_words(index: np.ndarray, there: np.ndarray, size: int, name: str) -> str:
    """What a map does to the indices [n], all different, that are others, of an axis of `size`: as a rule with its
    exceptions counted, or as a list.
    """
    distance = np.unique(there - index)
    plain = ""
    if len(distance) == 1:
        plain = f"{name}s {spans(index)} come from {apart_in_words(distance[0], name)}"
    elif len(np.unique(there)) == 1:
        plain = f"{name}s {spans(index)} come from {name} {there[0]}"
    if plain and np.count_nonzero(np.diff(index) > 1) < FEW_SPANS:
        return plain
    whole, part = np.arange(size), np.full(size, -2)
    whole[index], part[index] = there, there
    if len(index) >= FEWEST or len(index) == size >= FEWEST_OF_ALL:
        for source, where in ((whole, ""), (part, f"in {name}s {spans(index)} ")):
            rule = rule_of(source)
            if rule is not None and not (plain and where):
                off = np.flatnonzero((source > -2) & (rule.made != source))
                return f"{where}{rule.text(name)}" + (f", except {excepted(off, name)}" if off.size else "")
    if plain:
        return plain
    some = [f"{a} from {b}" for a, b in list(zip(index, there, strict=True))[:5]]
    return f"{name} {', '.join(some).replace(' from', f' comes from {name}', 1)}" + (", ..." if len(index) > 5 else "")


def excepted(off: np.ndarray, name: str) -> str:
    """Indices that a rule does not make, in words."""
    return f"{len(off)} {name}{'s' * (len(off) > 1)} ({spans(off)})"


def _rules(index: np.ndarray, there: np.ndarray, size: int) -> Iterator[Rule]:
    """Rules with the numbers that most of a map has, the plainest first."""
    i = np.arange(size)
    for said, made in _of_run(index, there, size, i):
        yield Rule(said, made)
    sizes = [1 << n for n in range(LEAST_TILE.bit_length() - 1, (size - 1).bit_length()) if 2 * (1 << n) <= size]
    for tile in sizes:
        inside = index // tile == there // tile
        if np.mean(inside) >= SHARE:
            for said, made in _of_run(index[inside] % tile, there[inside] % tile, tile, i % tile):
                yield Rule(
                    said, np.minimum(i - i % tile + made, size - 1), f"{{name}} i of each {tile} is {{name}} {{said}}"
                )
    for tile in sizes[::-1]:
        if np.mean(index % tile == there % tile) >= SHARE:
            for said, made in _of_run(index // tile, there // tile, -(-size // tile), i // tile):
                whole = np.minimum(made * tile + i % tile, size - 1)
                yield Rule(said, whole, f"tile i of {tile} {{name}}s is tile {{said}}")
    yield from _of_bits(index, there, size)


def _of_run(index: np.ndarray, there: np.ndarray, size: int, i: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """The rules of a run of `size` indices, at each of `i`."""
    if by := _most((there - index) % size):
        by -= size * (by > size // 2)
        yield f"{_sum('i', by)} (mod {size})", (i + by) % size
    if (by := _most(there - index)) < 0:
        yield f"max({_sum('i', by)}, 0)", np.maximum(i + by, 0)
    elif by:
        yield f"min({_sum('i', by)}, {size - 1})", np.minimum(i + by, size - 1)
    yield f"{size - 1} - i", size - 1 - i
    flip = _most(there ^ index)
    if flip > 0 and not flip & (flip - 1):
        yield f"i xor {flip}", np.minimum(i ^ flip, size - 1)
    steps = np.diff(there)[np.diff(index) == 1] % size
    if steps.any():
        times = _most(steps[steps > 0])
        times -= size * (times > size // 2)
        add = _most((there - times * index) % size)
        if times not in (0, 1):
            yield f"{_sum(_times(times), add)} (mod {size})", (times * i + add) % size
            yield f"min({_sum(_times(times), add)}, {size - 1})", np.clip(times * i + add, 0, size - 1)
    for by in [1 << n for n in range(1, max(size - 1, 1).bit_length())]:
        yield f"i div {by}", i // by
        yield f"{by} (i div {by})", i // by * by
        yield f"{by} (i div {by}) + {by - 1}", np.minimum(i // by * by + by - 1, size - 1)
        yield f"i mod {by}", i % by
        if size % by == 0 and by < size:
            yield f"{size // by} (i mod {by}) + i div {by}", i % by * (size // by) + i // by
    later = (index - there)[index > there]
    if later.size and (odd := _most(later)) > 1:
        yield f"i mod {odd}", i % odd


def _sum(of: str, add: int) -> str:
    return f"{of} {'+' if add > 0 else '-'} {abs(add)}" if add else of


def _times(by: int) -> str:
    return "-i" if by == -1 else f"{by} i"


def _most(x: np.ndarray) -> int:
    """The value that most have; of several the least."""
    values, counts = np.unique(x, return_counts=True)
    return int(values[counts.argmax()])


def _of_bits(index: np.ndarray, there: np.ndarray, size: int) -> Iterator[Rule]:
    """The linear map of bits (GF(2)) that most of a map has."""
    source = np.full(size, -2)
    source[index] = there
    found = bits_of_most(source)
    if found is not None:
        columns, first = found
        made = linear(found, size)
        added = [(bit, column) for bit, column in enumerate(columns) if column != 1 << bit]
        said = "; ".join(
            f"bit {bit} goes to " + (" and ".join(f"bit {x}" for x in range(32) if column >> x & 1) or "nothing")
            for bit, column in added
        )
        if made.max() < size and said:
            yield Rule(said + (f"; then xor {first}" if first else ""), made, "bits of {name} i: {said}")
        elif made.max() < size:
            yield Rule(f"i xor {first}", made)


def bits_of_most(source: np.ndarray) -> tuple[list[int], int] | None:
    """As `maps.bits_of`, of a map with exceptions: each bit goes where it does in most pairs of indices that differ in
    it alone. None where a bit is in no such pair.
    """
    size = len(source)
    count, index = (size - 1).bit_length(), np.arange(size)
    known = source > -1
    columns = []
    for bit in range(count):
        other = np.minimum(index ^ 1 << bit, size - 1)
        pair = known & known[other] & (index ^ 1 << bit < size)
        if not pair.any():
            return None
        columns.append(_most(source[pair] ^ source[other[pair]]))
    if size < 2:
        return None
    first = _most(source[known] ^ linear((columns, 0), size)[known])
    return columns, first


def linear(bits: tuple[list[int], int], size: int) -> np.ndarray:
    """The index map of a linear map of bits: the index of each bit, and that of index 0."""
    columns, first = bits
    index = np.arange(size)
    made = np.full(size, first)
    for bit, column in enumerate(columns):
        made ^= np.where(index >> bit & 1, column, 0)
    return made
