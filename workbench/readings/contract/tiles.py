"""Tiles and splits of keys, and the order of tiles: which keys are rescaled together, and which come after."""

from collections.abc import Iterator

import numpy as np

from workbench.readings.contract.field import Field, unread
from workbench.readings.contract.pairs import CALLS, RISES, SMALL_RISES, Pairs, looked, plan
from workbench.readings.contract.subject import Subject

#: share of pairs across an edge that may seem alike by chance
MISSED = 0.1
NAMES = ("block_k", "splits", "split_bounds", "tile_order")


def tiles(subject: Subject) -> Iterator[Field]:
    """block_k, splits, split_bounds and tile_order, as far as they can be read."""
    planned = plan(subject)
    if isinstance(planned, str):
        yield from (unread(name, planned) for name in NAMES)
        return
    found = looked(subject, *planned)
    if found is None:
        reason = f"this many pairs of keys need more than {CALLS} calls: use more queries"
        yield from (unread(name, reason) for name in NAMES)
        return
    if found.differ.any():
        small = looked(subject, *planned, SMALL_RISES)
        if small is None or not small.differ.any():
            least, most = min(RISES), max(SMALL_RISES)
            reason = (
                f"the kernel rescales when the row max rises by {least:g}, but not by {most:g}: it rescales lazily or "
                "uses an upper bound"
            )
            yield from (unread(name, reason) for name in NAMES)
            return
    edges = _edges(found, subject.keys)
    if _one_by_one(found, subject.keys):
        yield Field("block_k", 1, "each new maximum separates the keys before it from those after it")
        for name in NAMES[1:]:
            yield unread(name, "keys are rescaled one by one, in an unknown order")
    elif len(edges) == 2:
        reason = (
            f"no run of the {subject.keys} keys is rescaled separately: there is one tile, or maxima are known "
            "in advance"
        )
        yield from (unread(name, reason) for name in NAMES)
    else:
        yield from _structure(found, edges, subject.keys)


def _edges(found: Pairs, keys: int) -> np.ndarray:
    """Where tiles begin, and the number of keys: neighbours of one tile are treated alike by all other keys."""
    cuts = [0]
    for w in range(1, keys):
        if w == found.reference:
            continue
        before = w - 1 if w - 1 != found.reference else w - 2
        if before < 0:
            continue
        both = (found.differ | found.alike)[before] & (found.differ | found.alike)[w]
        unlike = both & (found.differ[before] != found.differ[w])
        if unlike.sum() > MISSED / 5 * max(both.sum(), 1):
            cuts.append(w)
    return np.array([*cuts, keys])


def _structure(found: Pairs, edges: np.ndarray, keys: int) -> Iterator[Field]:
    """Splits and the order of tiles, from which tiles come with or after which."""
    after = _after(found, edges)
    if after is None:
        reason = "keys of one tile are rescaled differently"
        yield from (unread(name, reason) for name in NAMES)
        return
    count = len(edges) - 1
    splits = _chains(after)
    if splits is None:
        words = ", ".join(map(str, edges[:8]))
        yield from (
            unread(name, f"tiles that begin at keys {words} ... are not visited in one order") for name in NAMES
        )
        return
    if len(splits) == count:
        words = ", ".join(map(str, edges[:8]))
        reason = f"runs that begin at keys {words}{' ...' if count > 8 else ''} are tiles, or splits of one tile each"
        yield from (unread(name, reason) for name in NAMES)
        return
    yield from _told(edges, splits, keys)


def _told(edges: np.ndarray, splits: list[list[int]], keys: int) -> Iterator[Field]:
    sizes = np.diff(edges)
    ends = [sorted(one) for one in splits]
    bounds = [0, *(int(edges[max(one) + 1]) for one in sorted(ends))]
    whole = all(one == list(range(one[0], one[-1] + 1)) for one in ends)
    block = int(sizes[0])
    inner = [int(size) for one in sorted(ends) for size in sizes[one[:-1]]]
    last = [int(sizes[one[-1]]) for one in ends]
    if not whole or any(size != block for size in inner) or any(size > block for size in last):
        words = ", ".join(map(str, edges[:8]))
        yield from (unread(name, f"tiles that begin at keys {words} ... have different sizes") for name in NAMES)
        return
    said = f"keys are rescaled together in runs of {block}"
    yield Field("block_k", block, f"{said} that begin at {', '.join(map(str, edges[:4]))} ...")
    yield from _splits(bounds, block, keys)
    order = [tile for one in sorted(splits, key=min) for tile in one]
    count = len(sizes)
    if order == list(range(count)):
        yield Field("tile_order", "ascending", "a larger maximum rescales the tiles before it")
    elif all(one == sorted(one, reverse=True) for one in splits):
        yield Field("tile_order", "descending", "a larger maximum rescales the tiles after it")
    elif len(splits) == 1:
        yield Field("tile_order", tuple(order), f"tiles are rescaled in this order, with {keys} keys")
    else:
        yield unread("tile_order", "splits have different orders")


def _splits(bounds: list[int], block: int, keys: int) -> Iterator[Field]:
    if len(bounds) == 2:
        reason = "no run of keys has its own maximum: no splits, or one maximum for all"
        yield unread("splits", reason)
        yield unread("split_bounds", reason)
        return
    count = -(-keys // block)
    each = -(-bounds[1] // block)
    shown = f"runs of keys with their own maximum end at {', '.join(map(str, bounds[1:]))}"
    even = [*range(0, count, each), count]
    if [min(x * block, keys) for x in even] != bounds:
        yield unread("splits", f"{shown}: these runs are unequal; see split_bounds")
        yield Field("split_bounds", tuple(bounds), shown)
        return
    fitting = [n for n in range(1, count + 1) if -(-count // n) == each]
    if len(fitting) == 1:
        yield Field("splits", fitting[0], shown)
        yield unread("split_bounds", "`splits` already gives them")
    else:
        yield unread("splits", f"{shown}, which fits {fitting[0]} to {fitting[-1]} splits")
        yield Field("split_bounds", tuple(bounds), shown)


def _one_by_one(found: Pairs, keys: int) -> bool:
    """Whether tiles are of one key: each w parts what lies before it from what lies behind, its neighbours too."""
    at = np.arange(keys)
    behind = at[None] > at[:, None]
    of_reference = np.broadcast_to(found.reference > at[:, None], behind.shape)
    wrong = (found.differ & (behind == of_reference)) | (found.alike & (behind != of_reference))
    known = found.differ | found.alike
    inner = at[2:-1]
    both = known[inner, inner - 1] & known[inner, inner + 1]
    parted = found.differ[inner, inner - 1] != found.differ[inner, inner + 1]
    return bool(
        wrong.sum() <= MISSED * known.sum() / 5 and both.sum() >= 4 and (parted & both).sum() >= 0.9 * both.sum()
    )


def _after(found: Pairs, edges: np.ndarray) -> np.ndarray | None:
    """Which tiles come with or after a tile, [tile, tile]; None where keys of a tile disagree."""
    count = len(edges) - 1
    tile = np.repeat(np.arange(count), np.diff(edges))
    side = np.zeros((count, count))
    for t in range(count):
        mine = np.flatnonzero(tile == t)
        for u in range(count):
            block = np.ix_(mine, np.flatnonzero(tile == u))
            differ, alike = found.differ[block].sum(), found.alike[block].sum()
            if differ + alike == 0:
                return None
            share = differ / (differ + alike)
            if MISSED < share < 1 - MISSED:
                return None
            side[t, u] = share > 0.5
    return side == np.diagonal(side)[:, None]


def _chains(after: np.ndarray) -> list[list[int]] | None:
    """The tiles of each split in the order in which they are visited; None where there is no such order."""
    count = len(after)
    sizes = after.sum(-1)
    left, found = set(range(count)), []
    while left:
        first = max(left, key=lambda t: (sizes[t], -t))
        members = [int(t) for t in np.flatnonzero(after[first])]
        if not set(members) <= left:
            return None
        chain = sorted(members, key=lambda t: -sizes[t])
        for at, t in enumerate(chain):
            if set(np.flatnonzero(after[t])) != set(chain[at:]):
                return None
        found.append(chain)
        left -= set(members)
    return found
