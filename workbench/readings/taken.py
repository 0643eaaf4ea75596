"""A number of a tile or a split that a kernel takes from elsewhere: of another tile, row or head, of none, or twice."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from workbench.readings.parts import Parts, divided, finite, partials

#: what of a tile is taken from elsewhere, in words
SITES = {
    "values": "the weighted values",
    "out": "the normalised out",
    "sum": "the row sum",
    "weight": "the weight e^(maximum - last maximum)",
    "weight of values": "the weight e^(maximum - last maximum) of values, not of sums,",
    "share": "the share e^(lse - last lse)",
    "state": "maximum, sum and values",
}
#: of how many of its own a number is
TIMES = {"none": 0.0, "twice": 2.0}
#: whose
TILES = {
    "own": "", "before": "the previous tile", "next": "the next tile", "first": "the first tile",
    "last": "the last tile",
}  # fmt: skip
ROWS = {
    "own": "", "- 1": "row i - 1", "+ 1": "row i + 1", "^ 1": "row i ^ 1", "- 8": "row i - 8", "- 16": "row i - 16",
    "- 32": "row i - 32", "- 64": "row i - 64", "^ 8": "row i ^ 8", "^ 16": "row i ^ 16",
    "first of 8": "the first row of 8", "first of 16": "the first row of 16", "first of 32": "the first row of 32",
}  # fmt: skip
HEADS = {
    "own": "", "before": "the previous head", "first": "head 0", "batch 0": "batch 0", "last batch": "the last batch",
}  # fmt: skip
#: all tiles of a row
ALL = -1
#: tiles of a row of which single ones are tried, at most
MOST = 12


@dataclass(frozen=True)
class Taken:
    """Tiles of `size` keys that are merged, of which one number is another's."""

    size: int
    site: str  #: a key of SITES
    tile: int  #: whose; ALL
    of_tile: str = "own"  #: one of TILES, a number, "none" or "twice"
    of_row: str = "own"  #: a key of ROWS
    of_head: str = "own"  #: a key of HEADS
    first: "Taken | None" = None  #: what is taken before, of tiles of the same size

    def __call__(self, of: Parts) -> tuple[np.ndarray, np.ndarray]:
        """out and lse."""
        tiles = self.taken(tiles_of(of, self.size))
        return tiles.merged(tiles.weight, tiles.sums, tiles.values)

    def taken(self, tiles: "Tiles") -> "Tiles":
        """The numbers with which a kernel merges."""
        if self.first is not None:
            tiles = self.first.taken(tiles)
        at = tuple(np.broadcast_arrays(*np.ogrid[tuple(map(slice, tiles.top.shape[:3]))]))
        found = [x.copy() for x in (tiles.weight, tiles.sums, tiles.values)]
        for t in range(tiles.count) if self.tile == ALL else (self.tile,):
            there = tiles.elsewhere(at, t, self.of_tile, self.of_row, self.of_head)
            changed = tiles.changed(self.site, at, t, there, TIMES.get(self.of_tile, 1.0))
            for whole, x in zip(found, changed, strict=True):
                whole[:, :, :, t] = x
        return replace(tiles, weight=found[0], sums=found[1], values=found[2])

    @property
    def words(self) -> str:
        """What is wrong in it."""
        before = "" if self.first is None else f"{self.first.words.partition(' (tiles of ')[0]}, and "
        what, mine = SITES[self.site], "each tile" if self.tile == ALL else f"tile {self.tile}"
        if self.of_tile in TIMES:
            said = {"none": f"{mine} lacks {what}", "twice": f"{mine} has twice {what}"}
            return f"{before}{said[self.of_tile]} (tiles of {self.size} keys)"
        tile = TILES.get(self.of_tile, f"tile {self.of_tile}")
        source = " of ".join(x for x in (tile, ROWS[self.of_row], HEADS[self.of_head]) if x)
        return f"{before}{mine} uses {what} of {source} (tiles of {self.size} keys)"


@dataclass(frozen=True, eq=False)
class Tiles:
    """Numbers of tiles of all rows, as they are merged."""

    top: np.ndarray  #: [b, h, q, tile]
    last: np.ndarray  #: the maximum of each row, [b, h, q]
    weight: np.ndarray  #: e^(maximum of the tile - that of the row)
    sums: np.ndarray
    values: np.ndarray  #: [b, h, q, tile, d]
    total: np.ndarray  #: what is right of the row sum, [b, h, q]
    of_sinks: np.ndarray | float  #: what sinks add to it

    @property
    def count(self) -> int:
        """Tiles of a row."""
        return self.top.shape[-1]

    def merged(self, weight: np.ndarray, sums: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """out and lse of such numbers of all rows."""
        with np.errstate(all="ignore"):
            total = (weight * sums).sum(-1) + self.of_sinks
            return divided((weight[..., None, :] @ values)[..., 0, :], total), self.last + np.log(total)

    def tile(self, of_tile: str, t: int) -> int:
        """The tile that is meant for tile t."""
        named = {"before": t - 1, "next": t + 1, "first": 0, "last": self.count - 1}
        return (int(of_tile) if of_tile.isdigit() else named.get(of_tile, t)) % self.count

    def elsewhere(
        self, at: tuple[np.ndarray, ...], t: int, of_tile: str, of_row: str, of_head: str
    ) -> tuple[np.ndarray, ...]:
        """Indices of a number's source, for rows at (b, h, q) arrays; a row that does not exist is the row itself."""
        b, h, q = at
        batches, heads, rows, _ = self.top.shape
        if of_row.startswith("first"):
            n = int(of_row.split()[-1])
            other = q // n * n
        elif of_row == "own":
            other = q
        else:
            sign, by = of_row.split()
            other = {"-": q - int(by), "+": q + int(by), "^": q ^ int(by)}[sign]
        other = np.where((other >= 0) & (other < rows), other, q)
        if of_head == "before":
            flat = (b * heads + h - 1) % (batches * heads)
            b, h = flat // heads, flat % heads
        elif of_head == "first":
            h = np.zeros_like(h)
        elif of_head != "own":
            b = np.full_like(b, batches - 1 if of_head == "last batch" else 0)
        return b, h, other, np.full_like(q, self.tile(of_tile, t))

    def changed(
        self,
        site: str,
        at: tuple[np.ndarray, ...],
        t: int,
        there: tuple[np.ndarray, ...],
        times: np.ndarray | float = 1.0,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Weight, sum and values of tile t of rows `at`, with a number `times` that of `there` [.., rows]."""
        mine = (*at, np.full_like(at[0], t))
        weight, sums, values = self.weight[mine], self.sums[mine], self.values[mine]
        of_dims = np.asarray(times)[..., None]
        with np.errstate(all="ignore"):
            if site == "values":
                values = of_dims * self.values[there]
            elif site == "out":
                values = of_dims * sums[..., None] * divided(self.values[there], self.sums[there])
            elif site == "sum":
                sums = times * self.sums[there]
            elif site == "weight":
                weight = times * self.weight[there]
            elif site == "weight of values":
                values = values * divided((times * self.weight[there])[..., None], weight)
            elif site == "share":
                share = times * self.weight[there] * self.sums[there] / self.total[there[:3]]
                values = values * divided((share * self.total[at])[..., None], weight * sums)
            else:
                weight = np.exp(self.top[there] - self.last[at])
                weight, sums, values = times * weight, self.sums[there], self.values[there]
        return (*np.broadcast_arrays(weight, sums), values)


def tiles_of(parts: Parts, size: int) -> Tiles:
    """Those of tiles of `size` keys, as they should be."""
    top, sums, values = partials(parts, size)
    with np.errstate(all="ignore"):
        last = finite(top.max(-1))
        weight = np.exp(top - last[..., None])
        of_sinks = 0.0 if parts.sinks is None else np.exp(parts.sinks - last)
        return Tiles(top, last, weight, sums, values, (weight * sums).sum(-1) + of_sinks, of_sinks)


def _ways(tiles: int, t: int) -> list[tuple[str, str, str]]:
    """Where numbers of tile t may be taken from, the simplest first."""
    numbers = [str(n) for n in range(1, tiles - 1)] if tiles <= MOST else []
    gone = {"before" if t == 0 else "", "next" if t == tiles - 1 else ""}
    found = [("none", "own", "own"), ("twice", "own", "own")]
    places = [x for x in (*TILES, *numbers) if x not in gone]
    found += [way for way in product(places, ROWS, HEADS) if way != ("own", "own", "own")]
    return sorted(found, key=lambda way: sum(x != "own" for x in way))


def nearest(
    of: Parts, at: tuple[np.ndarray, ...], out: np.ndarray, sizes: Sequence[int], most: int, first: Sequence[Taken] = ()
) -> list[Taken]:
    """Those that leave least of the error of out [rows, dims] at rows (b, h, q), the simplest first; by themselves, and
    after one of those `first`.
    """
    found: list[tuple[float, int, Taken]] = []
    for size in sizes:
        for before in (None, *(one for one in first if one.size == size)):
            tiles = tiles_of(of, size)
            if before is not None:
                tiles = before.taken(tiles)
            places = {(row, head): tiles.elsewhere(at, 0, "own", row, head)[:3] for row in ROWS for head in HEADS}
            for t in range(tiles.count) if tiles.count <= MOST else (0, tiles.count - 1):
                for one, left in _left(tiles, size, at, out, t, places):
                    found.append((left, len(found), replace(one, first=before)))
            for one, left in _of_all(tiles, size, at, out, places):
                found.append((left, len(found), replace(one, first=before)))
    found.sort(key=lambda one: one[:2])
    return [one for _, _, one in sorted(found[:most], key=lambda one: one[1])]


def _left(
    tiles: Tiles,
    size: int,
    at: tuple[np.ndarray, ...],
    out: np.ndarray,
    t: int,
    places: Mapping[tuple[str, str], tuple[np.ndarray, ...]],
) -> Iterator[tuple[Taken, float]]:
    """What each leaves, all ways of a site at once; `places`: rows (b, h, q) that stand for a row and a head."""
    ways = _ways(tiles.count, t)
    rows = tuple(np.stack(x) for x in zip(*(places[way[1:]] for way in ways), strict=True))
    of_tile = np.array([tiles.tile(way[0], t) for way in ways])[:, None]
    there = (*rows, np.broadcast_to(of_tile, rows[0].shape))
    times = np.array([TIMES.get(way[0], 1.0) for way in ways])[:, None]
    known, right = np.isfinite(out), np.where(np.isfinite(out), out, 0.0)
    others = np.arange(tiles.count) != t
    mine = [x[at][:, others] for x in (tiles.weight, tiles.sums, tiles.values)]
    acc = (mine[0][..., None] * mine[2]).sum(-2)
    total = (mine[0] * mine[1]).sum(-1) + np.broadcast_to(tiles.of_sinks, tiles.total.shape)[at]
    with np.errstate(all="ignore"):
        for site in SITES:
            weight, sums, values = tiles.changed(site, at, t, there, times)
            made = divided(acc + weight[..., None] * values, total + weight * sums)
            error = np.where(known, (made - right) ** 2, 0.0).sum((-1, -2))
            for n in np.argsort(np.where(np.isfinite(error), error, np.inf), kind="stable")[:3]:
                if np.isfinite(error[n]):
                    yield Taken(size, site, t, *ways[n]), float(error[n])


def _of_all(
    tiles: Tiles,
    size: int,
    at: tuple[np.ndarray, ...],
    out: np.ndarray,
    places: Mapping[tuple[str, str], tuple[np.ndarray, ...]],
) -> Iterator[tuple[Taken, float]]:
    """The same of all tiles at once, from another row or head."""
    known, right = np.isfinite(out), np.where(np.isfinite(out), out, 0.0)
    of_sinks = np.broadcast_to(tiles.of_sinks, tiles.total.shape)[at]
    rows = tuple(np.stack(x) for x in zip(*places.values(), strict=True))
    for site in SITES:
        acc: np.ndarray = np.zeros(())
        total = of_sinks
        for t in range(tiles.count):
            weight, sums, values = tiles.changed(site, at, t, (*rows, np.full_like(rows[0], t)))
            acc, total = acc + weight[..., None] * values, total + weight * sums
        error = np.where(known, (divided(acc, total) - right) ** 2, 0.0).sum((-1, -2))
        for n, (row, head) in enumerate(places):
            if (row, head) != ("own", "own") and np.isfinite(error[n]):
                yield Taken(size, site, ALL, "own", row, head), float(error[n])
