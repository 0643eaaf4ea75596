"""Which keys the tiles of a row have, which tiles its splits have, and in which order they are visited."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Tiling:
    """The key tiles of every row of a run."""

    keys: tuple[slice, ...]  #: keys of each tile, in order
    splits: tuple[tuple[int, ...], ...]  #: tiles of each split, in the order in which a row visits them; may be empty

    @cached_property
    def order(self) -> tuple[tuple[int, int | None], ...]:
        """Every tile with the one before it, None for the first of a split; split by split, as they are visited."""
        return tuple(pair for split in self.splits for pair in zip(split, (None, *split), strict=False))

    @property
    def last(self) -> int:
        """The tile that a row visits last."""
        return self.order[-1][0]

    @property
    def starts(self) -> frozenset[int]:
        """The first tile of each split, at which a running state starts anew."""
        return frozenset(split[0] for split in self.splits if split)


def tiling(
    seqlen_k: int,
    block_k: int,
    splits: int = 1,
    *,
    split_bounds: Sequence[int] | None = None,
    tile_order: str | Sequence[int] = "ascending",
) -> Tiling:
    """The tiles of `seqlen_k` keys; fields as of a contract. With `split_bounds` each split has tiles of its own, the
    last of which may be ragged.
    """
    if split_bounds is None:
        keys = tiles(seqlen_k, block_k)
        ranges = split_tiles(len(keys), splits)
    else:
        keys, ranges = [], []
        for start, stop in zip(split_bounds, split_bounds[1:], strict=False):
            own = tiles(stop - start, block_k)
            ranges.append(range(len(keys), len(keys) + len(own)))
            keys += [slice(start + tile.start, start + tile.stop) for tile in own]
    place = range(len(keys)) if isinstance(tile_order, str) else {t: i for i, t in enumerate(tile_order)}
    backwards = tile_order == "descending"
    visited = (tuple(sorted(own, key=lambda t: place[t], reverse=backwards)) for own in ranges)
    return Tiling(tuple(keys), tuple(visited))


def tiles(seqlen_k: int, block_k: int) -> list[slice]:
    """Keys of every tile, in order; the last tile may be ragged."""
    return [slice(start, min(start + block_k, seqlen_k)) for start in range(0, seqlen_k, block_k)]


def split_tiles(n_tiles: int, splits: int) -> list[range]:
    """Tiles of every split, ceil(n_tiles / splits) each; the last ones may have fewer, or none."""
    each = -(-n_tiles // splits)
    return [range(min(s * each, n_tiles), min((s + 1) * each, n_tiles)) for s in range(splits)]
