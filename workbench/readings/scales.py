"""Scales of blocks of K and V that a function quantises by itself: with whose largest element a block is multiplied, in
place of its own.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

#: keys and dims that share a scale; 0: all of a head
ROWS, DIMS = (1, 0, 16, 32, 64, 128, 8), (0, 16, 32)
#: tokens of a page, of which the scale of the first may be read for all
PAGES = (16, 32, 64, 8, 128)
_POWERS = {
    "": None, "rounded up to a power of two": np.ceil, "rounded down to a power of two": np.floor,
    "rounded to the next larger power of two": lambda x: np.floor(x) + 1,
}  # fmt: skip
_BLOCKS = {"before": -1, "after it": 1}
_GROUPS = {"in reverse": lambda n: np.arange(n)[::-1], "that follows": lambda n: np.arange(1, n + 1) % n,
           "next to its own": lambda n: (np.arange(n) ^ 1) % n,
           "of the other half of an interleaved pair": lambda n: np.arange(n).reshape(2, -1).T.reshape(-1)
           if n % 2 == 0 else np.arange(n)}  # fmt: skip


@dataclass(frozen=True)
class Size:
    """amax of each block of K or V, broadcast to the elements of the block."""

    of: str  #: k or v; empty: 1 for all
    rows: int = 0  #: keys of a block; 0: all of a head
    dims: int = 0  #: dims of a block; 0: all
    heads: str = ""  #: over all heads of a "batch", or of "all" batches
    power: str = ""  #: a key of _POWERS
    head: str = ""  #: "first" or "before", in place of its own
    batch: str = ""  #: "first"
    block: str = ""  #: "first", "half" (at half its number), or a key of _BLOCKS
    page: int = 0  #: the block of the first key of a page of so many
    group: str = ""  #: a key of _GROUPS
    order: bool = False  #: stored [head, block] and read [block, head]

    def __call__(self, memory: Mapping[str, np.ndarray], step: int) -> np.ndarray:
        """[b, heads, keys, dims / step], one for each `step` dims."""
        b, h, n, d = memory[self.of or "k"].shape
        if not self.of:
            return np.ones((b, h, n, d // step))
        rows, dims = self.rows or n, self.dims or d
        x = np.pad(abs(memory[self.of]), ((0, 0), (0, 0), (0, -n % rows), (0, -d % dims)))
        found = x.reshape(b, h, -1, rows, x.shape[3] // dims, dims).max((3, 5))
        if self.heads:
            found = np.broadcast_to(found.max((1,) if self.heads == "batch" else (0, 1), keepdims=True), found.shape)
        if (rounded := _POWERS[self.power]) is not None:
            with np.errstate(divide="ignore"):
                found = np.exp2(rounded(np.log2(found)))
        found = self._elsewhere(found)
        if self.page:
            at = np.arange(found.shape[2])
            found = found[:, :, at // max(self.page // rows, 1) * max(self.page // rows, 1)]
        return np.repeat(np.repeat(found, rows, 2)[:, :, :n], dims // step if dims < d else d // step, 3)[
            ..., : d // step
        ]

    def _elsewhere(self, x: np.ndarray) -> np.ndarray:
        """[b, h, block, group] as they are read."""
        if self.order:
            x = x.reshape(x.shape[0], x.shape[2], x.shape[1], -1).swapaxes(1, 2)
        if self.head:
            x = x[:, np.zeros(x.shape[1], int)] if self.head == "first" else np.roll(x, 1, 1)
        if self.batch:
            x = x[np.zeros(len(x), int)]
        if self.block:
            at = np.arange(x.shape[2])
            named = {"first": 0 * at, "half": at // 2}
            at = named[self.block] if self.block in named else (at + _BLOCKS[self.block]) % len(at)
            x = x[:, :, at]
        return x[..., _GROUPS[self.group](x.shape[3])] if self.group else x

    @property
    def words(self) -> str:
        """Whose."""
        if not self.of:
            return "nothing"
        return self.size_in_words + (f", that of {self.place_in_words}" if self.place_in_words else "")

    @property
    def size_in_words(self) -> str:
        """What it is the largest element of."""
        where = [f"each {self.rows} keys" if self.rows > 1 else "each key" if self.rows else ""]
        where += [f"{self.dims} dims" if self.dims else ""]
        whole = {"": "a head" if not self.rows else "", "batch": "all heads of a batch", "all": "all heads and batches"}
        said = " of ".join(["the amax", *filter(None, (" and ".join(filter(None, where)), whole[self.heads]))])
        return f"{said} of {self.of.upper()}" + (f", {self.power}" if self.power else "")

    @property
    def place_in_words(self) -> str:
        """Of which other place it is read; "" of its own."""
        heads = {"first": "head 0", "before": "the previous head"}
        blocks = {"first": "the first block", "half": "block i // 2", "before": "the previous block"}
        found = [heads[self.head] if self.head else "", "batch 0" if self.batch else ""]
        found += [blocks.get(self.block, "the next block") if self.block else ""]
        found += [f"the first key of each {self.page}" if self.page else ""]
        found += [f"the group of dims {self.group}" if self.group else ""]
        found += ["[block, head], stored as [head, block]" if self.order else ""]
        return ", ".join(filter(None, found))


@dataclass(frozen=True)
class Rescaled:
    """Elements of K or V that are divided by one size and multiplied by another."""

    of: str
    own: Size
    used: Size
    times: float = 1.0
    keys: tuple[int, int] | None = None  #: of these alone; None: of all

    def __call__(self, memory: Mapping[str, np.ndarray], step: int = 1) -> np.ndarray:
        """What they are multiplied with, [b, heads, keys, dims / step]."""
        own, used = self.own(memory, step), self.used(memory, step)
        with np.errstate(all="ignore"):
            found = np.where(own > 0, self.times * used / np.where(own > 0, own, 1.0), 1.0)
        if self.keys is None:
            return found
        at = np.arange(found.shape[2])[:, None]
        return np.where((at >= self.keys[0]) & (at < self.keys[1]), found, 1.0)

    @property
    def words(self) -> str:
        """What is wrong in it."""
        by = 1 / self.times
        times = f" / {by:.6g}" if by > 1 and by == round(by) else f" times {self.times:.6g}" if self.times != 1 else ""
        where = "" if self.keys is None else f" (keys {self.keys[0]}-{self.keys[1] - 1} only)"
        divided = f"divided by {self.own.words}" if self.own.of else ""
        used, place = self.used.words, self.used.place_in_words
        if place and not self.own.place_in_words and self.used.size_in_words == self.own.size_in_words:
            used = f"that of {place}"
        multiplied = f"multiplied by {used if self.used.of else 1}{times}"
        if not self.used.of and not times:
            multiplied = "not multiplied by it" if self.own.of else ""
        return f"{self.of.upper()} is {' but '.join(filter(None, (divided, multiplied)))}{where}"


@dataclass(frozen=True, eq=False)
class Constant:
    """Elements of K or V that are multiplied by numbers which no element of theirs tells."""

    of: str
    numbers: np.ndarray  #: [heads, keys], or 1 in place of either

    def __call__(self, memory: Mapping[str, np.ndarray], step: int = 1) -> np.ndarray:
        """What they are multiplied with, [1, heads, keys, 1]."""
        return self.numbers[None, :, :, None]

    @property
    def words(self) -> str:
        """What is wrong in it."""
        heads, keys = self.numbers.shape
        whose = [name for name, count in (("head", heads), ("key", keys)) if count > 1]
        flat = self.numbers.reshape(-1)
        said = ", ".join(f"{x:.5g}" for x in flat[:8]) + (", ..." if len(flat) > 8 else "")
        return f"{self.of.upper()} is multiplied by a factor per {' and '.join(whose)}: {said}"


def constants(of: str, factors: np.ndarray) -> Iterator[Constant]:
    """Numbers of heads, or of keys, that the factors [b, heads, keys, parts] have."""
    for axes in ((0, 2, 3), (0, 1, 3)):
        middle = np.nanmedian(factors, axes, keepdims=True)
        near = np.round(middle * 16) / 16
        middle = np.where(abs(middle - near) <= 2e-3 * abs(middle), near, middle)
        if np.isfinite(middle).all() and middle.size > 1:
            yield Constant(of, middle[0, :, :, 0])


def candidates(of: str, batches: int, heads: int) -> Iterator[tuple[Size, Size]]:
    """Sizes by which `of` may be divided and multiplied, the plainest first; those last that leave one of them out."""
    for power in _POWERS:
        for dims in DIMS:
            for rows in ROWS:
                own = Size(of, rows, dims, power=power)
                for one in _wholes(own):
                    yield from ((one, used) for used in _instead(one, batches, heads) if used != one)
    for own in (
        x for power in _POWERS for dims in DIMS for rows in ROWS for x in _wholes(Size(of, rows, dims, power=power))
    ):
        yield own, Size("")
        yield Size(""), own


def _wholes(own: Size) -> list[Size]:
    """It, and that over more heads."""
    return [own, *(replace(own, heads=x) for x in ("batch", "all") if not own.rows and not own.dims)]


def _instead(own: Size, batches: int, heads: int) -> Iterator[Size]:
    yield replace(own, of="k" if own.of == "v" else "v")
    if heads > 1 and not own.heads:
        yield from (replace(own, head=x) for x in ("first", "before"))
        yield from (replace(own, rows=0, dims=0, heads=x) for x in ("batch", "all"))
    if batches > 1 and own.heads != "all":
        yield replace(own, batch="first")
        yield replace(own, batch="first", head="first")
    if own.rows:
        yield from (replace(own, block=x) for x in ("first", "half", *_BLOCKS))
        yield replace(own, rows=0)
        yield replace(own, order=True)
        yield from (replace(own, page=n) for n in PAGES if n > own.rows)
        yield from (replace(own, rows=n) for n in ROWS if n > own.rows)
    if own.dims:
        yield replace(own, dims=0)
        yield from (replace(own, group=x) for x in _GROUPS)
    yield from (replace(own, power=x) for x in _POWERS)
