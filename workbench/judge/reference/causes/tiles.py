"""Edits of loops over tiles of two axes, such as queries and keys: tiles that nobody visits or that are read
transposed, and rows of another place in their tile.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

import numpy as np

from workbench.judge.reference.causes.edit import Draft, Edit
from workbench.judge.reference.causes.known import is_known
from workbench.judge.reference.causes.masks import diagonal
from workbench.judge.reference.causes.names import Names
from workbench.judge.reference.causes.steps import SINGLE
from workbench.judge.reference.causes.tile_masks import TILES, in_whole_tiles
from workbench.reference.graph import Graph
from workbench.reference.graph.patterns import PASSES

#: rows of half a fragment of a tensor core (PTX ISA, mma.m16n8k16)
HALF = 8
#: products and sums of a plane, at most: each takes some 50 edits, and a loop over chunks has one of each a turn
MOST = 16


@dataclass(frozen=True)
class Plane:
    """Arrays with an element for each pair of a row and a column."""

    rows: int
    columns: int
    products: tuple[int, ...]  #: which make them, of arrays that have rows alone and columns alone
    nodes: Mapping[int, bool]  #: of their elements -> whether columns stand before rows
    sums: Mapping[int, bool]  #: which add them up -> over rows; else over columns


def of_tiles(graph: Graph, nodes: Collection[int], names: Names) -> Iterator[Edit]:
    """All of them, of some nodes."""
    for plane in planes(graph):
        if len(plane.products) + len(plane.sums) > MOST:
            continue
        visited = [*_visited(graph, plane)]
        found = chain(
            _lost(plane, names, visited), _not_computed(plane, nodes, names, visited),
            _rows_of_elsewhere(graph, plane, names, visited), _transposed(plane, names),
            _fragments(graph, plane, names),
        )  # fmt: skip
        yield from (edit for edit in found if any(i in nodes for i in edit.nodes))


def planes(graph: Graph) -> list[Plane]:
    """Those of a graph, by their sizes."""
    found: dict[tuple[int, int], tuple[list[int], dict[int, bool], dict[int, bool]]] = {}
    at: dict[int, tuple[tuple[int, int], bool]] = {}
    for i, node in enumerate(graph.nodes):
        known = next((at[j] for j in node.reads if j in at), None)
        if known is None:
            if node.op == "matmul" and min(node.shape[-2:], default=0) > TILES[0] // 2 and len(node.shape) > 1:
                size = node.shape[-2], node.shape[-1]
                found.setdefault(size, ([], {}, {}))[0].append(i)
                at[i] = size, False
                found[size][1][i] = False
            continue
        size, turned = known
        own = found[size]
        if node.op in ("matmul", "sum"):
            over = _summed(graph, i, at)
            if over is not None:
                own[2][i] = over
            continue
        swaps = node.op == "transpose" and node.attributes["axes"][-2:] == (len(node.shape) - 1, len(node.shape) - 2)
        if swaps or node.op in SINGLE or node.op in PASSES:
            turned ^= swaps
            if node.shape[-2:] == (size[::-1] if turned else size):
                at[i] = size, turned
                own[1][i] = turned
    return [Plane(*size, tuple(some), inside, sums) for size, (some, inside, sums) in found.items() if sums]


def _summed(graph: Graph, i: int, at: Mapping[int, tuple[tuple[int, int], bool]]) -> bool | None:
    """Whether a product or sum is over rows of a plane that it reads first; None of another."""
    node = graph.nodes[i]
    first = node.reads[0]
    if first not in at:
        return None
    turned = at[first][1]
    if node.op == "matmul":
        return turned
    n = len(graph.nodes[first].shape)
    axes = node.attributes["axis"]
    axes = range(n) if axes is None else axes if isinstance(axes, tuple) else (axes,)
    last = [axis % n - n for axis in axes]
    return turned if -1 in last else not turned if -2 in last else None


# ---- which tiles are visited


def _visited(graph: Graph, plane: Plane) -> Iterator[np.ndarray]:
    """Pairs that a loop must visit, [rows, columns]: below each diagonal, or all."""
    masks = (node.value for node in graph.nodes if is_known(node) and node.dtype == bool)
    found = dict.fromkeys(diagonal(x) for x in masks if x.shape[-2:] == (plane.rows, plane.columns))
    some = [np.tri(plane.rows, plane.columns, at, dtype=bool) for at in found if at is not None]
    yield from some or [np.ones((plane.rows, plane.columns), bool)]


def _tiles_of(seen: np.ndarray, t: int) -> tuple[np.ndarray, np.ndarray]:
    """Of each pair: how many columns the rows of its tile see up to the last, and the first row that sees its tile of
    columns, a multiple of t.
    """
    n, m = seen.shape
    ends = np.where(seen.any(1), m - seen[:, ::-1].argmax(1), 0)
    ends = np.array([ends[i : i + t].max() for i in range(0, n, t)]).repeat(t)[:n]
    tiles = in_whole_tiles(seen, t)
    starts = np.where(tiles.any(0), tiles.argmax(0), -(-n // t) * t)
    return np.broadcast_to(ends[:, None], seen.shape), np.broadcast_to(starts // t * t, seen.shape)


def _kept(seen: np.ndarray, t: int) -> Iterator[tuple[str, np.ndarray]]:
    """Words for what is lost, and the pairs that are not."""
    n, m = seen.shape
    rows, columns = np.broadcast_arrays(np.arange(n)[:, None], np.arange(m))
    ends, _ = _tiles_of(seen, t)
    last_row, last = (-(-n // t) - 1) * t, np.maximum(-(-ends // t) - 1, 0) * t
    yield f"the last, partial tile of {t} rows", rows < n // t * t
    yield f"the last tile of {t} rows", rows < last_row
    yield f"the first tile of {t} rows", rows >= t
    yield f"all but the last tile of {t} rows", rows >= last_row
    yield f"the last, partial tile of {t} columns", columns < ends // t * t
    yield f"the last tile of {t} columns", columns < last
    yield f"the first tile of {t} columns", columns >= t
    yield f"all but the last tile of {t} columns", columns >= last
    if not seen.all():
        early = -(-np.maximum(ends - 1, 0) // t) * t
        first = np.where(seen.any(0), seen.argmax(0), n)[columns // t * t]
        yield f"the last visible column of a tile of {t} rows, where it begins a tile", columns < early
        yield f"the first row that sees a tile of {t} columns, where it ends a tile", rows >= (first + 1) // t * t


def _lost(plane: Plane, names: Names, visited: Sequence[np.ndarray]) -> Iterator[Edit]:
    """Sums without the pairs of a tile: of one line, or of all over rows, or over columns."""
    groups: list[tuple[int, ...]] = [(i,) for i in plane.sums]
    groups += [some for some in _groups(plane)[:2] if len(some) > 1]
    for what, kept in _losses(visited):
        for some in dict.fromkeys(groups):
            name = " and ".join(map(names.of, some)) + ": each" * (len(some) > 1)
            yield Edit(some, partial(_only, plane, kept), name, f"leaves out {what}", "part", 2 + len(some))


def _not_computed(plane: Plane, nodes: Collection[int], names: Names, visited: Sequence[np.ndarray]) -> Iterator[Edit]:
    """Products that are not made in a tile, where the last of the nodes is one, and sums without it."""
    if max(nodes) not in plane.products:
        return
    name = " and ".join(map(names.of, plane.products)) + ": each" * (len(plane.products) > 1)
    for what, kept in _losses(visited):
        for some in dict.fromkeys(filter(None, _groups(plane))):
            leave = f"{' and '.join(map(names.of, some))} leave{'s' * (len(some) == 1)} out"
            said, both = f"is not computed in {what}, which {leave}", tuple(sorted((*plane.products, *some)))
            yield Edit(both, partial(_only, plane, kept), name, said, "unwritten", 4)


def _groups(plane: Plane) -> list[tuple[int, ...]]:
    """Sums over rows, sums over columns, and all."""
    return [*(tuple(i for i, over in plane.sums.items() if over is of) for of in (True, False)), tuple(plane.sums)]


def _losses(visited: Sequence[np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    """Each that leaves something out, once."""
    told = set[bytes]()
    for seen in visited:
        for t in TILES:
            for what, kept in _kept(seen, t):
                if not kept.all() and kept.tobytes() not in told:
                    told.add(kept.tobytes())
                    yield what, kept


def _only(plane: Plane, kept: np.ndarray, d: Draft) -> None:
    """A sum of the pairs that are kept; a product that is NaN elsewhere."""
    if d.node in plane.products:
        d.add("where", d.hold(kept, bool), d.node, d.hold(np.nan), shape=d.old.shape)
        return
    j = d.old.reads[0]
    there = kept.T if plane.nodes[j] else kept
    d.again(d.add("where", d.hold(there, bool), j, d.hold(0.0), shape=d.of(j).shape), *d.old.reads[1:])


# ---- rows of another place in their tile


def _rows_of_elsewhere(graph: Graph, plane: Plane, names: Names, visited: Sequence[np.ndarray]) -> Iterator[Edit]:
    for i, turned in plane.nodes.items():
        node = graph.nodes[i]
        for k, j in enumerate(node.reads if not turned else ()):
            if graph.nodes[j].shape[-2:] != (plane.rows, 1) or is_known(graph.nodes[j]):
                continue
            for t in TILES:
                for words, places in _other_rows(plane, t, visited):
                    said = f"is {words}, in {names.of(i)} only"
                    yield Edit((i,), partial(_read_at, k, places), names.of(j), said, "places", 3)


def _other_rows(plane: Plane, t: int, visited: Sequence[np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    """Words, and of each pair the row whose value is read."""
    rows = np.broadcast_to(np.arange(plane.rows)[:, None], (plane.rows, plane.columns))
    within = rows % t
    yield f"read at the next row, in tiles of {t}", rows - within + (within + 1) % t
    yield f"read at the first row of its tile of {t}", rows - within
    # a thread has rows 2c and 2c + 1 of each 8 in its registers
    yield f"read by the number of a register, in tiles of {t}", rows - within + 2 * (within >> 3) + (within & 1)
    if t < plane.rows:
        for seen in visited:
            yield f"read in the tile of {t} rows that is visited first", within + _tiles_of(seen, t)[1]


def _read_at(k: int, places: np.ndarray, d: Draft) -> None:
    j = d.old.reads[k]
    n, lead = d.of(j).shape[-2], d.of(j).shape[:-2]
    taken = d.add("index", j, shape=(*lead, *places.shape), index=(Ellipsis, np.minimum(places, n - 1), 0))
    if (places >= n).any():
        taken = d.add("where", d.hold(places < n, bool), taken, d.hold(0.0))
    d.again(*(taken if at == k else x for at, x in enumerate(d.old.reads)))


# ---- tiles and fragments


def _transposed(plane: Plane, names: Names) -> Iterator[Edit]:
    for i in plane.sums:
        for t in TILES:
            yield Edit((i,), partial(_tiles_transposed, t), names.of(i), f"reads tiles of {t} by {t} transposed",
                       "places", 3)  # fmt: skip


def _tiles_transposed(t: int, d: Draft) -> None:
    j = d.old.reads[0]
    n, m = d.of(j).shape[-2:]
    rows, columns = np.arange(n)[:, None], np.arange(m)
    row, column = rows // t * t + columns % t, columns // t * t + rows % t
    index = (Ellipsis, np.minimum(row, n - 1), np.minimum(column, m - 1))
    taken = d.add("index", j, shape=d.of(j).shape, index=index)
    there = d.hold((row < n) & (column < m), bool)
    d.again(d.add("where", there, taken, d.hold(0.0), shape=d.of(j).shape), *d.old.reads[1:])


def _fragments(graph: Graph, plane: Plane, names: Names) -> Iterator[Edit]:
    """Rows, or columns, of the operands of products, of which a tensor core takes 16 at once."""
    for k, axis, of in ((0, -2, "rows"), (1, -1, "columns")):
        read = [graph.nodes[i].reads[k] for i in plane.products]
        some = [(i,) for i in plane.products] + [plane.products] * (len(plane.products) > 1)
        for nodes in some:
            name = " and ".join(names.of(j) for i, j in zip(plane.products, read, strict=True) if i in nodes)
            said = f"has the first {HALF} of each {2 * HALF} {of} twice, in {' and '.join(map(names.of, nodes))} only"
            yield Edit(nodes, partial(_upper_as_lower, k, axis), name, said, "places", 2 + len(nodes))


def _upper_as_lower(k: int, axis: int, d: Draft) -> None:
    j = d.old.reads[k]
    shape = d.of(j).shape
    taken = d.take(j, len(shape) + axis, np.arange(shape[axis]) & ~HALF)
    d.again(*(taken if at == k else x for at, x in enumerate(d.old.reads)))
