"""Tiles of queries and keys whose scores another code path makes: without the softcap, the bias, the scale."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from workbench.readings.finding import Finding
from workbench.readings.model import Model
from workbench.readings.of_scores import logs
from workbench.readings.sets import of_keys
from workbench.readings.target import Target

#: queries and keys of a tile; 0: all
TILES = (0, 128, 64, 48, 32, 24, 16, 8)
#: share of the weights that have to be of one path or of the other
ENOUGH = 0.98
#: how far ln P may be from that of a score, at least: of float32
NEAR = 1e-4

Respond = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True, eq=False)
class InTiles:
    """What becomes of scaled dot products [.., q, k], in some tiles and elsewhere."""

    there: Respond
    elsewhere: Respond
    tiles: np.ndarray  #: bool [b, h, q, k], or 1 in place of b and h

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Of products of other shapes, which no run has, what becomes of those elsewhere."""
        if x.ndim < 2 or x.shape[-2:] != self.tiles.shape[-2:]:
            return self.elsewhere(x)
        return np.where(self.tiles, self.there(x), self.elsewhere(x))


def _ways(model: Model, softcap: float) -> Iterator[tuple[str, Respond, bool]]:
    """What may become of scores on another path, in words, and whether what keys weigh by themselves is left out."""
    scale = model.scale or 1.0
    respond = model.respond
    if softcap:
        yield "are not capped", lambda x: x, False
    if np.any(np.isfinite(model.start) & (model.start != 0)):
        yield "have no bias", respond, True
    yield "are 0", np.zeros_like, False
    yield "lack the scale", lambda x: respond(x / scale), False
    yield "are scaled twice", lambda x: respond(x * scale), False


def in_tiles(target: Target, model: Model, read: np.ndarray, allowed: np.ndarray) -> tuple[Model, list[Finding]]:
    """Tiles whose scores are made another way than those of the others, which are right but for one number a row."""
    memory = model.memory(target.natural)
    q, k = (model.read(name, memory[name]) for name in model.operands)
    raw = q @ k.swapaxes(-1, -2) * model.scale * model.factor
    y = logs(read, allowed)
    noise = np.maximum(4 * allowed / np.where(read > 0, read, np.inf), NEAR)
    known = np.isfinite(y) & np.isfinite(model.start)
    if model.fixed is not None:
        known &= ~model.fixed
    if known.sum() < 32:
        return model, []
    plain = np.where(known, y - model.respond(raw) - np.where(known, model.start, 0.0), np.nan)
    for said, there, bare in _ways(model, target.case.softcap or 0.0):
        bias = 0.0 if bare else np.where(known, model.start, 0.0)
        other = np.where(known, y - there(raw) - bias, np.nan)
        of_row = _mode(np.concatenate([plain, other], -1), float(np.median(noise[known])))[..., None]
        is_plain, is_other = (known & (abs(x - of_row) <= noise) for x in (plain, other))
        alone = is_other & ~is_plain
        if (is_plain | is_other)[known].mean() < ENOUGH or alone.sum() < 8:
            continue
        tiles = completed(alone, is_plain & ~is_other)
        if tiles is None:
            continue
        seen = np.isfinite(model.start) & tiles
        text = (
            f"scores of {of_keys(seen, np.isfinite(model.start))} {said}, as if another code path computed these tiles"
        )
        found = Finding("tiles", "scores", text, int(alone.sum()), alone.size, {"tiles": tiles})
        changes = {"start": np.where(seen, 0.0, model.start)} if bare else {}
        return model.but(respond=InTiles(there, model.respond, tiles), **changes), [found]
    return model, []


def _mode(x: np.ndarray, near: float) -> np.ndarray:
    """The number that most of the last axis are near to; NaN where there is none."""
    order = np.sort(x, -1)
    flat = order.reshape(-1, order.shape[-1])
    found = np.full(len(flat), np.nan)
    for i, row in enumerate(flat):
        some = row[np.isfinite(row)]
        if some.size:
            count = np.searchsorted(some, some + 2 * near) - np.arange(len(some))
            first = int(count.argmax())
            found[i] = np.median(some[first : first + count[first]])
    return found.reshape(x.shape[:-1])


def completed(of: np.ndarray, never: np.ndarray) -> np.ndarray | None:
    """The largest tiles that have all of `of` [b, h, q, k] and nothing of `never`, alike in all heads if that may be;
    None where there are none.
    """
    b, h, rows, keys = of.shape
    alike = tuple(np.asarray(x.any((0, 1), keepdims=True)) for x in (of, never))
    for x, no in (alike, (of, never)):
        for n in sorted(TILES, key=lambda size: -(size or rows)):
            for m in sorted(TILES, key=lambda size: -(size or keys)):
                if n >= rows or m >= keys or not (n or m):
                    continue
                tiles = _of_tiles(x, n or rows, m or keys)
                if not (tiles & no).any():
                    return tiles
    return None


def _of_tiles(x: np.ndarray, n: int, m: int) -> np.ndarray:
    """Tiles of n queries and m keys that have some of x."""
    rows, keys = x.shape[2:]
    wide = np.pad(x, ((0, 0), (0, 0), (0, -rows % n), (0, -keys % m)))
    any_ = wide.reshape(*x.shape[:2], wide.shape[2] // n, n, wide.shape[3] // m, m).any((3, 5))
    return np.repeat(np.repeat(any_, n, 2), m, 3)[:, :, :rows, :keys]
