"""Tiles of keys."""

from typing import Any


def tile_width(at: Any) -> int:
    """Keys of a whole tile, which a run with one ragged tile alone has none of."""
    first = at.tiling.keys[0]
    return int(at.contract.block_k or first.stop - first.start)
