"""Changes of which elements are read: another place along an axis, or a part that is lost."""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from workbench.judge.reference.causes.change import TILES, Change, Changed
from workbench.judge.reference.causes.edit import Draft
from workbench.judge.reference.given import is_whole
from workbench.reference.graph.node import Node


def moved(node: Node) -> Iterator[Changed]:
    """A value whose elements are read at other places, or not at all."""
    for axis, n in enumerate(node.shape):
        if n > 1:
            of = f"axis {axis}" if len(node.shape) > 1 else "it"
            yield from (Changed(words, "places", size, _taken(axis, at)) for words, size, at in _maps(n, of))
            yield from (Changed(words, "part", 2, _lost(axis, where)) for words, where in _parts(n, of))
            yield from _shifted(node, axis, of)
    if len(node.shape) > 1 and node.shape[-1] == node.shape[-2]:
        yield Changed("is transposed", "places", 1, _transposed)
    for axis in range(len(node.shape) - 1):
        if min(node.shape[axis : axis + 2]) > 1:
            both = f"axes {axis} and {axis + 1}"
            yield Changed(f"is stored with {both} in each other's place", "places", 2, partial(_stored, axis))
            yield Changed(f"is read as if {both} were in each other's place", "places", 2, partial(_as_stored, axis))


def tiled(n: int) -> Iterator[tuple[int, int]]:
    """Each tile size of which the last tile is a partial one, and where this begins."""
    return ((t, n // t * t) for t in TILES if t < n and n % t)


def _maps(n: int, of: str) -> Iterator[tuple[str, int, np.ndarray]]:
    """Words, size and the places that are read instead."""
    at = np.arange(n)
    yield f"is read one place on along {of}", 1, (at + 1) % n
    yield f"is read one place back along {of}", 1, (at - 1) % n
    yield f"is read one place on along {of}, at the end the last", 2, np.minimum(at + 1, n - 1)
    yield f"is read one place back along {of}, at the start the first", 2, np.maximum(at - 1, 0)
    yield f"is reversed along {of}", 2, at[::-1].copy()
    yield f"is read at place 0 of {of} everywhere", 1, 0 * at
    if n > 2:
        last = np.where(at == n - 1, n - 2, at)
        yield f"has, last of {of}, the element before it", 1, last
        yield f"has, first of {of}, the element after it", 2, np.where(at == 0, 1, at)
    if n % 2 == 0:
        yield f"has neighbours of {of} in each other's place", 2, at ^ 1
        if n > 2:
            yield f"has the halves of {of} in each other's place", 2, (at + n // 2) % n
    for t in TILES:
        if t < n:
            yield f"is read modulo {t} along {of}", 2, at % t
            yield f"has, in tiles of {t} of {of}, the tile before, but for the first", 2, at - t * (at >= t)
    for t, start in tiled(n):
        yield f"has, in the last tile of {t} of {of}, the elements from 0 on", 2, at - start * (at >= start)
        rest = n - start
        back = np.where(at >= start, at - start + n - t, at) if rest < t else at
        yield f"has, in the last tile of {t} of {of}, the elements from {n - t} on", 3, back
    for g in (2, 3, 4, 8):
        if n % g == 0 and n > g:
            yield f"is read at i modulo {n // g} in place of i // {g} of {of}", 3, _heads(n, g)


def _heads(n: int, group: int) -> np.ndarray:
    """The kv head that head i reads by i % kv_heads in place of i // group, in an array of repeated kv heads."""
    at = np.arange(n)
    return (at % (n // group)) * group


def _parts(n: int, of: str) -> Iterator[tuple[str, slice]]:
    """Words, and where elements are 0."""
    yield f"is 0 at the last place of {of}", slice(n - 1, n)
    yield f"is 0 at the first place of {of}", slice(0, 1)
    for t, start in tiled(n):
        yield f"is 0 in the last tile of {t} of {of}, from {start} on", slice(start, n)


def _taken(axis: int, places: np.ndarray) -> Change:
    return lambda d, x: d.take(x, axis, places)


def _stored(axis: int, d: Draft, x: int) -> int:
    """The elements in the order of other axes, read as they should be."""
    shape = d.of(x).shape
    axes = [*range(len(shape))]
    axes[axis], axes[axis + 1] = axis + 1, axis
    other = d.add("transpose", x, shape=[shape[a] for a in axes], axes=tuple(axes))
    return d.reshape(other, shape)


def _as_stored(axis: int, d: Draft, x: int) -> int:
    """The elements, whose order is taken for that of other axes."""
    shape = d.of(x).shape
    axes = [*range(len(shape))]
    axes[axis], axes[axis + 1] = axis + 1, axis
    other = d.reshape(x, tuple(shape[a] for a in axes))
    return d.add("transpose", other, shape=shape, axes=tuple(axes))


def _transposed(d: Draft, x: int) -> int:
    shape = d.of(x).shape
    n = len(shape)
    return d.add("transpose", x, shape=shape, axes=(*range(n - 2), n - 1, n - 2))


def _shifted(node: Node, axis: int, of: str) -> Iterator[Changed]:
    """Read one place on or back, with 0, or of truths also 1, where there is none; or, of an odd length, neighbours."""
    n = node.shape[axis]
    for fill in (0, 1) if node.dtype == bool else (0,):
        for way, by, lost in (("on", 1, n - 1), ("back", -1, 0)):
            words = f"is read one place {way} along {of}, with {fill} where it ends"
            places = np.clip(np.arange(n) + by, 0, n - 1)
            yield Changed(words, "places", 1, partial(_filled, axis, places, lost, fill))
    if n % 2:
        words = f"has neighbours of {of} in each other's place, with 0 where there is none"
        yield Changed(words, "places", 2, partial(_filled, axis, np.minimum(np.arange(n) ^ 1, n - 1), n - 1, 0))


def _filled(axis: int, places: np.ndarray, lost: int, fill: int, d: Draft, x: int) -> int:
    return kept(d, d.take(x, axis, places), axis, slice(lost, lost + 1), fill)


def _lost(axis: int, where: slice) -> Change:
    return lambda d, x: kept(d, x, axis, where, 0)


def kept(d: Draft, x: int, axis: int, lost: slice, fill: int) -> int:
    """x, with `fill` at some places of an axis."""
    of = d.of(x)
    stays = along(of.shape, axis)
    stays[(slice(None),) * axis + (lost,)] = False
    dtype = of.dtype if is_whole(of.dtype) else np.float64
    return d.add("where", d.hold(stays, bool), x, d.hold(fill, dtype), shape=of.shape)


def along(shape: Sequence[int], axis: int) -> np.ndarray:
    """True at all places of one axis, in a shape that broadcasts."""
    return np.ones([n if a == axis else 1 for a, n in enumerate(shape)], bool)
