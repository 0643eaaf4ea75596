"""Numbers of online softmax that each tile of keys has: what a step of ln(P / expected) is held against."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

#: rows of a tile of queries
ROWS = (8, 16, 32, 64)
#: numbers of other rows and heads that are tried in place of a row's own
_ELSEWHERE = ("tile maximum", "running maximum", "tile lse", "ln(own sum)", "running lse")
#: numbers that steps of later tiles add up
_ADDED_UP = (
    "own correction", "own - running maximum", "ln(own sum)", "ln(running sum)", "own maximum",
    "running maximum",
)  # fmt: skip


def tiles_of(size: int, keys: int) -> tuple[int, ...]:
    """Where tiles of `size` keys begin."""
    return tuple(range(0, keys, size))


def by_tile(scores: np.ndarray, edges: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """The maximum of each tile and the sum of e^(s - maximum), [b, h, q, tile]; -inf and 0 where nothing is seen."""
    top = np.maximum.reduceat(scores, edges, axis=-1)
    safe = np.where(np.isfinite(top), top, 0.0)
    sizes = np.diff([*edges, scores.shape[-1]])
    return top, np.add.reduceat(np.exp(scores - np.repeat(safe, sizes, -1)), edges, axis=-1)


@np.errstate(all="ignore")
def known(scores: np.ndarray, edges: Sequence[int], *, elsewhere: bool = False) -> dict[str, np.ndarray]:
    """Name -> number of each row and tile, [b, h, q, tile] in natural units; NaN where a tile has none.

    `elsewhere`: also those of other rows and heads, as of a kernel that reads them at another place.
    """
    top, total = by_tile(scores, edges)
    running = np.maximum.accumulate(top, -1)
    before = np.concatenate([running[..., :1], running[..., :-1]], -1)
    own = top + np.log(total)
    so_far = np.logaddexp.accumulate(own, -1)
    last = running[..., -1:]
    behind = np.concatenate([running[..., 1:], last], -1)
    found = {
        "own maximum": top - last,
        "running maximum": running - last,
        "maximum before": before - last,
        "next running maximum": behind - last,
        "own correction": before - running,
        "next correction": running - behind,
        "own - running maximum": top - running,
        "ln(own sum)": np.log(total),
        "own lse": own - so_far[..., -1:],
        "tile lse": own,
        "tile maximum": top,
        "running lse": so_far - so_far[..., -1:],
        "ln(running sum)": so_far - running,
    }
    found |= {f"{name}, summed over later tiles": _later(found[name]) for name in _ADDED_UP}
    if elsewhere:
        for name in _ELSEWHERE:
            found |= {f"{name} {where}": x for where, x in others(found[name])}
    tiles = len(edges)
    for t in {0, tiles - 1}:
        found[f"maximum of the row in tile {t}"] = np.where(np.arange(tiles) == t, last, 0.0)
    if tiles <= 32:
        found |= {f"tile {t}": np.broadcast_to(np.arange(tiles) == t, top.shape).astype(float) for t in range(tiles)}
    return {name: np.where(np.isfinite(x), x, np.nan) for name, x in found.items()}


def _is_elsewhere(name: str) -> bool:
    return any(name.startswith(f"{one} ") for one in _ELSEWHERE)


def _later(x: np.ndarray) -> np.ndarray:
    """The sum over the tiles behind each."""
    kept = np.where(np.isfinite(x), x, 0.0)
    return np.cumsum(kept[..., ::-1], -1)[..., ::-1] - kept


def others(x: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """It as of another place, and which: of other rows, heads and tiles, of memory that is read in another order."""
    b, h, q, t = x.shape
    rows = np.arange(q)
    found = [(f"of the first row of {n}", x[:, :, rows // n * n]) for n in ROWS if n < q]
    found += [("of the previous row", np.roll(x, 1, 2)), ("of the next row", np.roll(x, -1, 2))]
    if q % 2 == 0:
        found.append(("of row i % (rows / 2)", x[:, :, rows % (q // 2)]))
    if h > 1:
        found += [("of the previous head", np.roll(x, 1, 1)), ("of head 0", np.broadcast_to(x[:, :1], x.shape))]
        head = np.arange(h)
        found += [(f"of the first head of each {n}", x[:, head // n * n]) for n in (2, 3, 4) if n < h]
        # groups or kv heads taken for each other
        found += [(f"of head h % {n}", x[:, head % n]) for n in (2, 3, 4, 8) if n < h]
        found += [(f"of head h // {n}", x[:, head // n]) for n in (2, 3, 4, 8) if n < h]
        found.append(("stored as [query, head]", x.swapaxes(1, 2).reshape(b, h, q, t)))
        found.append(("read as [query, head]", x.reshape(b, q, h, t).swapaxes(1, 2)))
    if t > 1:
        by_split = x.transpose(0, 1, 3, 2)  # b, h, t, q
        found.append(("stored as [split, head]", by_split.swapaxes(1, 2).reshape(b, h, t, q).transpose(0, 1, 3, 2)))
        found.append(("read as [split, head]", by_split.reshape(b, t, h, q).swapaxes(1, 2).transpose(0, 1, 3, 2)))
        rows_ = b * h * q
        of_all = np.moveaxis(x, 3, 0).reshape(t, rows_)
        written, read = of_all.T.reshape(t, rows_), of_all.reshape(rows_, t).T
        for name, one in (
            ("stored as [batch * head * row, split]", written),
            ("read as [batch * head * row, split]", read),
        ):
            found.append((name, np.moveaxis(one.reshape(t, b, h, q), 0, 3)))
        found.append(("stored as [split, row]", by_split.reshape(b, h, q, t)))
        found.append(("read as [split, row]", x.reshape(b, h, t, q).transpose(0, 1, 3, 2)))
        found.append(("of the previous tile", np.roll(x, 1, 3)))
        found.append(("of the next tile", np.roll(x, -1, 3)))
        found.append(("of tile 0", np.broadcast_to(x[..., :1], x.shape)))
        found.append(("of the last tile", np.broadcast_to(x[..., -1:], x.shape)))
    return found


@dataclass(frozen=True, eq=False)
class Step:
    """A factor that the weights of a tile have beyond e^score: e^(sum of slope * number of the tile)."""

    edges: tuple[int, ...]  #: where tiles begin
    terms: tuple[tuple[str, float], ...]  #: names of `known` and their slopes
    in_sum: bool = True  #: whether what weights are divided by has it too

    def of(self, scores: np.ndarray) -> np.ndarray:
        """Its logarithm for each key, [b, h, q, k]."""
        numbers = known(scores, self.edges, elsewhere=any(_is_elsewhere(name) for name, _ in self.terms))
        whole = sum(slope * np.nan_to_num(numbers[name]) for name, slope in self.terms)
        return np.repeat(whole, np.diff([*self.edges, scores.shape[-1]]), -1)
