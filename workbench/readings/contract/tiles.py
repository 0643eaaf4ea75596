"""Tiles and splits of keys, and the order of tiles, by what a larger maximum does to keys of one and the same score.

Keys of one score weigh the same, to the last bit, but where a key w with a larger score was met between them: what was
there before has the old maximum in its exp, and is rescaled; what comes with w or after it has the new one. Two keys of
opposite values add up to 0 or not: nothing has to be near anything.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from workbench.readings.contract.field import Field, unread
from workbench.readings.contract.subject import Subject

#: calls that may be spent
CALLS = 240
#: how often a pair that is treated otherwise may seem alike by chance
CHANCE = 1e-4
#: scores of w above the others', beyond what lazy rescaling forgives (8 ln 2)
RISES = (6.5, 6.75, 7.0, 7.25, 7.5)
SEED = 5
#: times the difference that a pair has without w
NOISE = 64.0
#: share of pairs across an edge that may seem alike by chance
MISSED = 0.1
NAMES = ("block_k", "splits", "split_bounds", "tile_order")


@dataclass(frozen=True, eq=False)
class Pairs:
    """Whether key b was treated otherwise than the reference key when w was the maximum, [w, b]."""

    differ: np.ndarray
    alike: np.ndarray  #: seen, and never otherwise; neither: not seen
    reference: int


def tiles(subject: Subject) -> Iterator[Field]:
    """block_k, splits, split_bounds and tile_order, as far as they can be read."""
    plan = _plan(subject)
    if isinstance(plan, str):
        yield from (unread(name, plan) for name in NAMES)
        return
    found = _looked(subject, *plan)
    if found is None:
        reason = f"in {CALLS} calls too few pairs of keys were seen often enough: take more queries"
        yield from (unread(name, reason) for name in NAMES)
        return
    edges = _edges(found, subject.keys)
    if _one_by_one(found, subject.keys):
        yield Field("block_k", 1, "every key that is a larger maximum parts the keys before it from those behind it")
        for name in NAMES[1:]:
            yield unread(name, "keys are rescaled one by one, from which end cannot be told")
    elif len(edges) == 2:
        reason = f"no run of the {subject.keys} keys is rescaled by itself: one tile, or maxima are known before"
        yield from (unread(name, reason) for name in NAMES)
    else:
        yield from _structure(found, edges, subject.keys)


def _plan(subject: Subject) -> tuple[int, int] | str:
    """How many w a call has, and how many rounds there may be; or why there are none."""
    rows, keys = len(subject.whole), subject.keys
    if keys < 4 or subject.depth < 2 or subject.width < 2:
        return f"of {keys} keys and {subject.depth} dims there are too few"
    if rows < 2:
        return f"{rows} rows see all keys, and it takes 2"
    count = min(subject.depth - 1, rows - 1, keys - 1)
    each = -(-keys // (subject.width - 1)) * -(-keys // count)
    if each * 2 > CALLS:
        return (
            f"{2 * each:,} calls and more would be needed with {rows} rows that see all {keys} keys: take more queries"
        )
    return count, CALLS // each


def _looked(subject: Subject, count: int, rounds: int) -> Pairs | None:
    """All pairs of a key w and another, `count` w at once, until what is seen by chance only is hardly missed; None
    where so many rounds do not suffice.
    """
    keys, reference = subject.keys, 1
    hits, looks = np.zeros((keys, keys), int), np.zeros((keys, keys), int)
    rng = np.random.default_rng(SEED)
    for one in range(rounds):
        others = rng.permutation(np.delete(np.arange(keys), reference))
        tops = np.zeros(keys, bool)
        tops[others[: (keys + 1) // 3]] = True
        tops[[0, keys - 1]] = True
        for first in range(0, len(others), count):
            _look(subject, others[first : first + count], tops, rng, (hits, looks, reference))
        differ = hits > 0
        few = float(np.quantile(looks[looks > 0], 0.1)) if looks.any() else 0.0
        rate = hits[differ].sum() / looks[differ].sum() if differ.any() else 0.5
        if one and (1 - rate) ** few <= CHANCE:
            return Pairs(differ, (looks > 0) & ~differ, reference)
    return None


def _look(
    subject: Subject,
    ws: np.ndarray,
    tops: np.ndarray,
    rng: np.random.Generator,
    into: tuple[np.ndarray, np.ndarray, int],
) -> None:
    """One call for each block of keys that V has room for."""
    hits, looks, reference = into
    rows, keys = len(subject.whole), subject.keys
    high = tops.copy()
    high[ws] = True
    k = np.zeros((keys, subject.depth))
    k[~high, 0] = -1.0
    k[ws, 1 + np.arange(len(ws))] = rng.choice(RISES, len(ws))
    q = np.zeros((subject.rows, subject.depth))
    which = rng.permutation(np.arange(rows) % (len(ws) + 1)) - 1  # -1: no w
    q[subject.whole, 0] = rng.integers(16, 65, rows) / 64.0
    some = np.flatnonzero(which >= 0)
    q[subject.whole[some], 1 + which[some]] = 1.0
    read = np.flatnonzero(~high & (np.arange(keys) != reference))
    width = subject.width - 1
    for first in range(0, len(read), width):
        part = read[first : first + width]
        v = np.zeros((keys, subject.width))
        v[reference, : len(part)] = 2.0**14
        v[part, np.arange(len(part))] = -(2.0**14)
        out = abs(subject.ask(q, k, v).out[subject.whole][:, : len(part)])
        if not np.isfinite(out).all():
            continue
        # where a pair is not alike without w, as little can be told of it with w
        noise = NOISE * out[which < 0].max(initial=0.0) * np.exp(-min(RISES))
        for at, w in enumerate(ws):
            mine = out[which == at]
            hits[w, part] += (mine > noise).sum(0)
            looks[w, part] += len(mine)


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
        reason = "what comes after a larger maximum is not the same for all keys of a tile"
        yield from (unread(name, reason) for name in NAMES)
        return
    count = len(edges) - 1
    splits = _chains(after)
    if splits is None:
        words = ", ".join(map(str, edges[:8]))
        yield from (unread(name, f"tiles from keys {words} ... are in no one order") for name in NAMES)
        return
    if len(splits) == count:
        words = ", ".join(map(str, edges[:8]))
        reason = (
            f"maxima are of runs of keys that begin at {words}{' ...' if count > 8 else ''}: tiles, or splits of one"
        )
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
        yield from (unread(name, f"tiles from keys {words} ... have no one size") for name in NAMES)
        return
    said = f"keys are rescaled together in runs of {block}"
    yield Field("block_k", block, f"{said}, that begin at {', '.join(map(str, edges[:4]))} ...")
    yield from _splits(bounds, block, keys)
    order = [tile for one in sorted(splits, key=min) for tile in one]
    count = len(sizes)
    if order == list(range(count)):
        yield Field("tile_order", "ascending", "what comes before a larger maximum is what lies before it")
    elif all(one == sorted(one, reverse=True) for one in splits):
        yield Field("tile_order", "descending", "what comes before a larger maximum is what lies behind it")
    elif len(splits) == 1:
        yield Field("tile_order", tuple(order), f"tiles are rescaled in this order, of {keys} keys")
    else:
        yield unread("tile_order", "splits have orders of their own")


def _splits(bounds: list[int], block: int, keys: int) -> Iterator[Field]:
    if len(bounds) == 2:
        reason = "no run of keys has a maximum of its own: there are none, or one maximum for all"
        yield unread("splits", reason)
        yield unread("split_bounds", reason)
        return
    count = -(-keys // block)
    each = -(-bounds[1] // block)
    shown = f"maxima of their own have runs of keys that end at {', '.join(map(str, bounds[1:]))}"
    even = [*range(0, count, each), count]
    if [min(x * block, keys) for x in even] != bounds:
        yield unread("splits", f"{shown}: they are unequal")
        yield Field("split_bounds", tuple(bounds), shown)
        return
    fitting = [n for n in range(1, count + 1) if -(-count // n) == each]
    if len(fitting) == 1:
        yield Field("splits", fitting[0], shown)
        yield unread("split_bounds", "splits of whole tiles say it")
    else:
        yield unread("splits", f"{shown}, as of {fitting[0]} to {fitting[-1]} splits")
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
