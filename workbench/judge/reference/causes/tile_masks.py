"""Edits of masks: masks of whole tiles, masks that should not be there, and values that are multiplied by 0 where a
mask hides them, in the place of 0.
"""

from collections.abc import Collection, Iterator
from functools import partial
from typing import Any

import numpy as np

from workbench.judge.reference.causes.edit import Draft, Edit
from workbench.judge.reference.causes.known import is_known
from workbench.judge.reference.causes.names import Names
from workbench.reference.graph import Graph

#: rows and columns of a tile
TILES = (16, 32, 64, 128)


def tile_masks(graph: Graph, nodes: Collection[int], names: Names) -> Iterator[Edit]:
    """All of them, of some nodes."""
    yield from _of_whole_tiles(graph, nodes, names)
    yield from _times_0(graph, nodes, names)
    yield from _added(graph, nodes, names)


def _of_whole_tiles(graph: Graph, nodes: Collection[int], names: Names) -> Iterator[Edit]:
    """Masks that no input decides, with one value in all of a tile."""
    alike: dict[tuple[Any, bytes], list[int]] = {}
    for i, node in enumerate(graph.nodes):
        # the edits of what a "not" reads say the same as its own
        mask = is_known(node) and node.dtype == bool and node.op != "logical_not"
        if i in nodes and mask and min(node.shape[-2:], default=0) > 1:
            alike.setdefault((node.shape, node.value.tobytes()), []).append(i)
    for (shape, _), some in alike.items():
        for t in TILES if len(shape) > 1 else ():
            for value in (True, False):
                said = f"is {value} in whole tiles of {t} by {t}, where it is {value} in a part of them"
                yield Edit(tuple(some), partial(_whole, t, value), names.of(some[0]), said, "mask", 2)


def _whole(t: int, value: bool, d: Draft) -> None:
    x = d.old.value == value
    d.hold(in_whole_tiles(x, t) if value else ~in_whole_tiles(x, t), bool)


def in_whole_tiles(x: np.ndarray, t: int) -> np.ndarray:
    """Truths [..., rows, columns], True in all of a tile that has a True."""
    rows, columns = (np.arange(0, n, t) for n in x.shape[-2:])
    some = np.logical_or.reduceat(np.logical_or.reduceat(x, rows, axis=-2), columns, axis=-1)
    return some.repeat(t, axis=-2).repeat(t, axis=-1)[..., : x.shape[-2], : x.shape[-1]]


def _times_0(graph: Graph, nodes: Collection[int], names: Names) -> Iterator[Edit]:
    """Exponentials that are multiplied by 0 where they should be of minus infinity: NaN of infinite ones."""
    for i, node in enumerate(graph.nodes):
        hiding, j = list[int](), node.reads[0] if node.op in ("exp", "exp2") else -1
        while j >= 0 and _hides(graph, j):
            hiding.append(j)
            j = graph.nodes[j].reads[1]
        if not hiding or i not in nodes and not any(one in nodes for one in hiding):
            continue
        masks = tuple(graph.nodes[one].reads[0] for one in hiding)
        edited, said = (*sorted(hiding), i), f"is multiplied by 0, where {' or '.join(map(names.of, masks))} hides it"
        yield Edit(edited, partial(_multiplied, i, masks, 0), names.of(i), said, "mask", 3)
        if all(is_known(graph.nodes[one]) and graph.nodes[one].value.ndim > 1 for one in masks):
            for t in TILES:
                words = f"{said}, in tiles of {t} by {t} of which a part is shown"
                yield Edit(edited, partial(_multiplied, i, masks, t), names.of(i), words, "mask", 4)


def _hides(graph: Graph, i: int) -> bool:
    node = graph.nodes[i]
    if node.op != "where":
        return False
    other = graph.nodes[node.reads[2]]
    return is_known(other) and other.value.ndim == 0 and bool(other.value == -np.inf)


def _multiplied(i: int, masks: tuple[int, ...], t: int, d: Draft) -> None:
    if d.node != i:
        d.add("named", d.old.reads[1])
        return
    made = d.node
    for j in masks:
        made = d.add("multiply", made, d.add("where", j, d.hold(1.0), d.hold(0.0)))
    if t:
        some = np.logical_and.reduce(np.broadcast_arrays(*(d.of(j).value for j in masks)))
        d.add("where", d.hold(in_whole_tiles(some, t), bool), made, d.hold(0.0))


def _added(graph: Graph, nodes: Collection[int], names: Names) -> Iterator[Edit]:
    """Exponentials of a mask that should not be there, up to a diagonal or from one on."""
    for i in nodes:
        node = graph.nodes[i]
        if node.op not in ("exp", "exp2") or min(node.shape[-2:], default=0) < TILES[0] // 2 or len(node.shape) < 2:
            continue
        rows, columns = node.shape[-2:]
        for at in dict.fromkeys((columns - rows, 0)):
            for k, below, words in (
                (at, True, f"behind its diagonal {at}"), (at - 1, True, f"from its diagonal {at} on"),
                (at, False, f"up to its diagonal {at}"), (at - 1, False, f"before its diagonal {at}"),
            ):  # fmt: skip
                shown = np.tri(rows, columns, k, dtype=bool)
                make = partial(_hidden, shown if below else ~shown)
                yield Edit((i,), make, names.of(i), f"is 0 {words}", "mask", 3)


def _hidden(shown: np.ndarray, d: Draft) -> None:
    d.add("where", d.hold(shown, bool), d.node, d.hold(0.0), shape=d.old.shape)
