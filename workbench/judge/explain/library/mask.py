"""Masks: which keys a query sees, and what becomes of those that it does not see."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np

from workbench.case.mask_parts import Band, hides
from workbench.floats import unit_roundoff
from workbench.judge.explain.hypothesis import Change, Edit, Hypothesis, Unfit, altered, of_family
from workbench.judge.explain.library import edges, indices
from workbench.judge.explain.library.arithmetic import tile_width
from workbench.judge.explain.library.bias import but_for_padding
from workbench.judge.explain.library.edges import BLOCKS
from workbench.judge.explain.library.scored import unmasked
from workbench.reference.stage import Step
from workbench.reference.steps.altered import Altered

#: hypotheses of the left edge of a window, as of `edges.moved`
_OF_WINDOWS = ("no-left", "left-top", "left-bottom", "window-")
#: how many keys before a query windows show that nobody asked for: those of so many keys, and one more
WINDOWS = (*range(1, 17), 31, 32, 63, 64, 127, 128, 255, 256, 511, 512, 1023, 1024, 2047, 2048, 4095, 4096)
#: what masks add, and kernels put, in the place of -inf, by which keys leak
LEAKS = (-1.0, -2.0, -3.0, -4.0, -5.0, -8.0, -10.0, -15.0, -16.0, -20.0, -30.0, -32.0, -50.0, -64.0, -100.0)
#: what kernels put in the place of -inf
SENTINELS = (-1e4, -5e4, -65504.0, -1e5, -1e6, -1e9, -1e30, float(np.finfo(np.float32).min), 0.0)

#: stages that tiles have a part of
_OF_TILES = ("qk", "scores", "probs", "probs_cast", "row_max", "correction", "row_sum", "acc")
_made = of_family("mask")


def hypotheses() -> Iterator[Hypothesis]:
    """All of the family, the plainest first."""
    yield _of("none", "no key is masked", lambda at, seen: np.ones_like(seen))
    for name, words, more in (("more", "more", True), ("less", "less", False)):
        text = f"no key is masked when there are {words} queries than keys"
        sign = 1 if more else -1
        here = lambda at, seen, s=sign: seen | (s * (seen.shape[-2] - seen.shape[-1]) > 0)  # noqa: E731
        yield _of(f"none-if-{name}-queries", text, here)
    for name, text, ends in edges.moved():
        yield _of(name, text, lambda at, seen, ends=ends, name=name: edges.between(_with_edge(seen, name), ends))
    yield from _hiding()
    for b in BLOCKS[2:]:
        text = f"the mask only skips tiles: in tiles that a block of {b} queries visits, no key is masked"
        yield _of(f"none-in-visited-{b}", text, lambda at, seen, b=b: seen | _visited(at, seen, b))
    yield _of("inverted", "the mask is inverted", lambda at, seen: ~seen)
    yield _of("transposed", "the mask is transposed", lambda at, seen: _transposed(seen))
    for one in indices.permutations():
        for axis, named in ((-2, "row"), (-1, "column")):
            text = f"the mask of the wrong {named} is used: {one.text}"
            yield _of(f"{named}-{one.id}", text, lambda at, seen, one=one, axis=axis: _taken(seen, one, axis))
    for axis, named in enumerate(("batch", "head")):
        of_first = altered("visible", lambda at, seen, axis=axis: _of_first(seen, axis))
        yield _made(f"first-{named}", f"the mask of {named} 0 is used for every {named}", of_first, across=True)
    yield from _lost()
    yield from _filled()
    yield from _tails()
    yield from _unvisited()


def _with_edge(seen: np.ndarray, name: str) -> np.ndarray:
    """The mask; Unfit for an edge of a window or of a causal mask that it has not, as where padding ends its rows."""
    side = "left" if name.startswith(_OF_WINDOWS) else "right" if name == "no-right" else ""
    if side and not edges.moves(seen, side):
        raise Unfit
    return seen


def _hiding() -> Iterator[Hypothesis]:
    """Keys hidden that nobody asked to hide: causal, in windows."""
    for top_left in (False, True):
        corner = "-top-left" if top_left else ""
        bands = {"causal": Band(None, 0, top_left)}
        for n in WINDOWS:
            bands |= {f"window-{n}": Band(n, None, top_left), f"window-{n}-causal": Band(n, 0, top_left)}
            bands |= {f"window-{n}-{n}": Band(n, n, top_left)}
        for name, band in bands.items():
            yield _of(f"hides-{name}{corner}", hides(band.hidden), partial(_in_band, band))


def _in_band(band: Band, at: Any, seen: np.ndarray) -> np.ndarray:
    """What of a mask is in a band; Unfit where an edge of it hides nothing, as a plainer band then says the same."""
    rows, keys = seen.shape[-2:]
    found: np.ndarray = seen & band.made(rows, keys)
    plainer = [Band(band.left, None, band.top_left), Band(None, band.right, band.top_left)]
    plainer += [Band(band.left, band.right)] if band.top_left else []
    if any(one != band and np.array_equal(seen & one.made(rows, keys), found) for one in plainer):
        raise Unfit
    return found


def _of(name: str, text: str, change: Change) -> Hypothesis:
    def changed(at: Any, seen: np.ndarray) -> np.ndarray:
        other = change(at, seen)  # some rows of a run may not show it
        return other if np.array_equal(seen, other) else but_for_padding(seen, other)

    return _made(name, text, altered("visible", changed))


def _lost() -> Iterator[Hypothesis]:
    """Keys that no query sees."""

    def hidden(name: str, text: str, which: Callable[[Any, np.ndarray, int], np.ndarray]) -> Hypothesis:
        return _of(name, text, lambda at, seen: seen & ~which(at, np.arange(seen.shape[-1]), seen.shape[-1]))

    yield hidden("last-key", "the last key is skipped", lambda at, j, k: j == k - 1)
    yield hidden("first-key", "the first key is skipped", lambda at, j, k: j == 0)
    yield hidden("last-tile", "the last key tile is skipped", lambda at, j, k: _in_tiles(at, j, [-1]))
    yield hidden("first-tile", "the first key tile is skipped", lambda at, j, k: _in_tiles(at, j, [0]))
    yield hidden("odd-tiles", "every second key tile is skipped", lambda at, j, k: _odd(at, j))
    yield hidden("last-of-tile", "the last key of each tile is skipped", lambda at, j, k: _edges(at, j, -1))
    yield hidden("first-of-tile", "the first key of each tile is skipped", lambda at, j, k: _edges(at, j, 0))
    yield hidden(
        "split-start", "the first key of every split except split 0 is skipped", lambda at, j, k: _cuts(at, j, 0)
    )
    yield hidden(
        "split-end", "the last key of every split except the last is skipped", lambda at, j, k: _cuts(at, j, -1)
    )
    for b in BLOCKS:
        yield hidden(
            f"whole-{b}",
            f"keys past the last full block of {b} are skipped",
            lambda at, j, k, b=b: (j >= k // b * b) & (k >= b),
        )
    for name, place, words in (("first", 0, "first"), ("last", -1, "last")):
        yield hidden(f"{name}-split", f"the {words} split is skipped", lambda at, j, k, p=place: _in_split(at, j, p))
    yield _of(
        "keys-as-queries",
        "the loop over keys ends at seqlen_q instead of seqlen_k",
        lambda at, s: s & (np.arange(s.shape[-1]) < s.shape[-2]),
    )


def _filled() -> Iterator[Hypothesis]:
    """What masked scores become."""
    for b in (None, *BLOCKS[2:]):
        tiles = "" if b is None else f" within tiles that a block of {b} queries visits"
        place = "" if b is None else f"-in-visited-{b}"
        for value in (*SENTINELS, *(LEAKS if b is None else ())):
            fill = altered("scores", lambda at, x, v=value, b=b: np.where(_hidden(at, b), v, x), "visible")
            yield _made(f"filled-{value:g}{place}", f"masked scores are {value:g}, not -inf{tiles}", fill)
        text = f"the softcap is applied after the mask: masked scores are -softcap{tiles}"
        yield _made(f"before-cap{place}", text, *_capped_masks(b))
        yield _made(f"before-cap-in-scores{place}", text, _capped_masks(b)[1])
    yield _made("not-in-probs", "the mask is applied to the maximum but not to probs", Edit("probs", _leak))
    for value in (*SENTINELS[:-1], *LEAKS):
        added = altered("scores", lambda at, x, v=value: np.where(at("visible"), x, unmasked(at) + v), "qk", "scale")
        yield _made(f"added-{value:g}", f"the mask adds {value:g} to scores instead of -inf", added)
    top = altered("row_max", lambda at, x: np.maximum(at("-row_max"), unmasked(at).max(-1)), "qk", "scale")
    yield _made("not-in-max", "the maximum includes masked keys", top)


def _capped_masks(b: int | None) -> tuple[Edit, Edit]:
    """Capped scores, and scores, of a kernel that caps what it masked."""
    change = lambda at, x: np.where(_hidden(at, b), -_cap(at), x)  # noqa: E731
    return altered("capped", change, "visible"), altered("scores", change, "visible")


def _cap(at: Any) -> float:
    return float(at.p.numbers.get("softcap", np.inf))


def _hidden(at: Any, b: int | None) -> np.ndarray:
    """Keys that are masked, all or those in tiles that a block of b queries visits."""
    seen: np.ndarray = at("visible")
    return ~seen if b is None else ~seen & _visited(at, seen, b)


def _visited(at: Any, seen: np.ndarray, b: int) -> np.ndarray:
    """Which scores lie in a tile of which a block of b queries sees a key."""
    found = np.zeros_like(seen)
    for keys in at.tiling.keys:
        for first in range(0, seen.shape[-2], b):
            rows = slice(first, first + b)
            found[..., rows, keys] = seen[..., rows, keys].any((-1, -2), keepdims=True)
    return found


def _tails() -> Iterator[Hypothesis]:
    """Padding behind the last key, whose rows of k and v are 0: what it adds stands nowhere but in sums."""

    def pads(at: Any, b: int | None) -> int:
        """Columns behind the last key, up to a whole tile or a whole block of it."""
        here, width = at.tiling.keys[at.tile[0]], tile_width(at)
        own = here.stop - here.start
        return 0 if here.stop < at.p.keys or (b or 0) > width else (-own) % (b or width)

    def summed(b: int | None, score: Callable[[Any], float] = lambda at: 0.0) -> Edit:
        """row_sum with what the padding adds."""

        def changed(at: Any, x: np.ndarray) -> np.ndarray:
            return x + pads(at, b) * np.exp(np.minimum(score(at) - _subtracted(at), 700.0))

        return altered("row_sum", changed, "subtracted")

    def highest(b: int | None, score: Callable[[Any], float] = lambda at: 0.0) -> Edit:
        """row_max with the padding."""
        return altered("row_max", lambda at, x: np.maximum(x, score(at)) if pads(at, b) else x)

    for b in (None, 4, 8, 16, 32, 64):
        id_, whole = ("tail", "tile") if b is None else (f"tail-{b}", f"block of {b}")
        text = f"padding past the last key, up to a full {whole}, is not masked"
        yield _made(id_, text, highest(b), summed(b))
        yield _made(f"{id_}-in-sum", f"{text} in row_sum", summed(b))
        yield _made(f"{id_}-in-max", f"{text} in row_max", highest(b))
    words = "the mask is applied to the maximum but not to probs; padding is not masked in probs either"
    yield _made("not-in-probs-nor-tail", words, Edit("probs", _leak), summed(None))
    at_cap = lambda at: -_cap(at)  # noqa: E731
    for b in (None, *BLOCKS[2:]):
        place, tiles = (
            ("", "") if b is None else (f"-in-visited-{b}", f" within tiles that a block of {b} queries visits")
        )
        words = f"the softcap is applied after the mask, to padding too: masked scores are -softcap{tiles}"
        edits = *_capped_masks(b), highest(None, at_cap), summed(None, at_cap)
        yield _made(f"before-cap-and-tail{place}", words, *edits)


def _leak(step: Step) -> Step:
    # masked scores are no smaller than others: exp of one of some hundreds turns a rounding of it into as many
    return Altered(step, _leaking, ("qk", "scale", "visible"), slack=512 * unit_roundoff("float32"))


def _leaking(at: Any, p: np.ndarray) -> np.ndarray:
    """probs whose masked keys weigh what they would without the mask."""
    return np.where(at("visible"), p, np.exp(np.minimum(unmasked(at) - _subtracted(at)[..., None], 700.0)))


def _subtracted(at: Any) -> np.ndarray:
    """What probs subtract: 0 where no key was seen yet, as kernels do."""
    top: np.ndarray = at("subtracted")
    return np.where(top == -np.inf, 0.0, top)


def _unvisited() -> Iterator[Hypothesis]:
    """Key tiles that are never visited, so that their part of each stage is never written, or their keys hidden."""
    which: dict[str, tuple[str, Callable[[Any], set[int]]]] = {
        "ragged": ("a partial last tile is", _ragged),
        "of-queries": ("tiles past seqlen_q are", lambda at: _behind(at, at.p.inputs["q"].shape[-2])),
        "last": ("the last tile is", lambda at: {len(at.tiling.keys) - 1} if len(at.tiling.keys) > 1 else set()),
        "first": ("the first tile is", lambda at: {0} if len(at.tiling.keys) > 1 else set()),
        "ends": (
            "the last tile of every split except the last is",
            lambda at: {s[-1] for s in at.tiling.splits[:-1] if s},
        ),
        "full-ends": ("the last tile of every full split except the last is", _full_ends),
        "all-ends": ("the last tile of each split is", lambda at: {s[-1] for s in at.tiling.splits if len(s) > 1}),
        "left-over": ("tiles left over by tiles // splits are", _left_over),
    }
    for name, (text, tiles) in which.items():
        never = [altered(x, partial(_unwritten, tiles)) for x in _OF_TILES]
        yield _made(f"unvisited-{name}", f"{text} never visited", *never)
        hidden = lambda at, seen, tiles=tiles: seen & ~_in_tiles(at, np.arange(seen.shape[-1]), tiles(at))  # noqa: E731
        yield _of(f"unvisited-{name}-hidden", f"{text} never visited", hidden)


def _unwritten(tiles: Callable[[Any], set[int]], at: Any, x: np.ndarray) -> np.ndarray:
    """A stage in which what certain key tiles write is NaN, as of tiles that are never visited."""
    if at.tile is not None:
        return x + np.nan if at.tile[0] in tiles(at) else x
    return np.where(_in_tiles(at, np.arange(x.shape[-1]), tiles(at)), np.nan, x)


def _full_ends(at: Any) -> set[int]:
    first, *_ = splits = at.tiling.splits
    return {s[-1] for s in splits[:-1] if s and len(s) == len(first)}


def _ragged(at: Any) -> set[int]:
    last = at.tiling.keys[-1]
    return {len(at.tiling.keys) - 1} if last.stop - last.start < tile_width(at) else set()


def _behind(at: Any, rows: int) -> set[int]:
    return set(range(-(-min(rows, at.p.keys) // tile_width(at)), len(at.tiling.keys)))


def _left_over(at: Any) -> set[int]:
    tiles, splits = len(at.tiling.keys), len(at.tiling.splits)
    return set(range(max(tiles // splits, 1) * splits, tiles))


def _in_tiles(at: Any, keys: np.ndarray, tiles: Iterable[int]) -> np.ndarray:
    found = np.zeros(len(keys), bool)
    for t in tiles:
        found[at.tiling.keys[t]] = True
    return found


def _odd(at: Any, keys: np.ndarray) -> np.ndarray:
    return _in_tiles(at, keys, range(1, len(at.tiling.keys), 2))


def _edges(at: Any, keys: np.ndarray, end: int) -> np.ndarray:
    return np.isin(keys, [range(len(keys))[tile][end] for tile in at.tiling.keys])


def _in_split(at: Any, keys: np.ndarray, place: int) -> np.ndarray:
    visited = [split for split in at.tiling.splits if split]
    return _in_tiles(at, keys, visited[place]) if len(visited) > 1 else np.zeros(len(keys), bool)


def _cuts(at: Any, keys: np.ndarray, end: int) -> np.ndarray:
    """Keys on either side of the cuts between splits: behind them (0) or before them (-1)."""
    starts = sorted(min(at.tiling.keys[t].start for t in split) for split in at.tiling.splits if split)[1:]
    return np.isin(keys, [start + end for start in starts])


def _taken(seen: np.ndarray, one: indices.Indexing, axis: int) -> np.ndarray:
    return indices.taken(seen, one, axis).astype(bool)


def _transposed(seen: np.ndarray) -> np.ndarray:
    return seen.swapaxes(-1, -2) if seen.shape[-1] == seen.shape[-2] else seen


def _of_first(seen: np.ndarray, axis: int) -> np.ndarray:
    if seen.ndim < 4:
        return seen
    return but_for_padding(seen, np.broadcast_to(seen.take([0], axis=axis), seen.shape))
