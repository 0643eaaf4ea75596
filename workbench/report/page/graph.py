"""The data-flow graph of the stages of a run, laid out: what each stage reads stands above it.

Layers by the longest way from the inputs, and within a layer the order in which lines cross least, by the means of
neighbours (Sugiyama, Tagawa and Toda, "Methods for visual understanding of hierarchical system structures", 1981). A
line that passes a layer has a place of its own in it, so that it runs around the stages there.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from workbench.case.stages import INPUTS, MASKS
from workbench.expectation.observed import Observed
from workbench.reference.dataflow import direct

#: sizes in pixels: a box, the room between two, the room that a passing line takes
WIDTH, HEIGHT, ACROSS, DOWN, LANE = 104, 38, 12, 26, 8
#: walks through all layers, after which the order of no graph of ours changes
SWEEPS = 8

#: a stage or an input; of a line that passes a layer (what reads, what is read, layer)
Vertex = str | tuple[str, str, int]


@dataclass(frozen=True)
class Placed:
    """A box of the graph."""

    name: str
    x: float  #: of its centre, in pixels
    y: float


@dataclass(frozen=True)
class Graph:
    """Boxes and lines in pixels."""

    width: float
    height: float
    boxes: tuple[Placed, ...]  #: in data-flow order
    #: (what is read, what reads it) -> a path of SVG
    lines: Mapping[tuple[str, str], str]


def flow(run: Observed) -> dict[str, tuple[str, ...]]:
    """Every stage that a kernel of this kind has -> the stages and inputs that it reads, in data-flow order."""
    steps = run.table
    stages = [name for name, stage in steps.items() if stage.dumped]
    inputs = {*INPUTS, *(name for name in MASKS if name in run.trace.inputs)}
    known = {*stages, *inputs}
    return {name: tuple(ref for ref in direct(steps, name) if ref in known and ref != name) for name in stages}


def laid_out(reads: Mapping[str, Sequence[str]]) -> Graph:
    """The graph of `reads`, stage -> what it reads, of which none reads a later one."""
    layers = _layers(reads)
    rows, edges = _with_lanes(reads, layers)
    for sweep in range(SWEEPS):
        _ordered(rows, edges, downwards=sweep % 2 == 0)
    x = _across(rows, edges)
    left = min(x[one] - _room(one) / 2 for row in rows for one in row)
    right = max(x[one] + _room(one) / 2 for row in rows for one in row)
    place = {one: (x[one] - left, HEIGHT / 2 + i * (HEIGHT + DOWN)) for i, row in enumerate(rows) for one in row}
    boxes = tuple(Placed(name, *place[name]) for name in layers)
    lines = {
        (ref, name): _path([place[one] for one in _way(ref, name, layers)])
        for name, refs in reads.items()
        for ref in refs
    }
    return Graph(right - left, len(rows) * (HEIGHT + DOWN) - DOWN, boxes, lines)


def _layers(reads: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Stages and inputs -> how far down they stand; inputs right above what reads them first."""
    found: dict[str, int] = {}
    for name, refs in reads.items():
        found[name] = 1 + max((found.get(ref, 0) for ref in refs), default=0)
    inputs = [ref for refs in reads.values() for ref in refs if ref not in reads]
    first = {ref: min(found[name] for name, refs in reads.items() if ref in refs) - 1 for ref in inputs}
    return first | found


def _way(ref: str, name: str, layers: Mapping[str, int]) -> list[Vertex]:
    """What a line from one box to another passes, both included."""
    between = range(layers[ref] + 1, layers[name])
    return [ref, *((name, ref, layer) for layer in between), name]


def _with_lanes(
    reads: Mapping[str, Sequence[str]], layers: Mapping[str, int]
) -> tuple[list[list[Vertex]], list[tuple[Vertex, Vertex]]]:
    """Boxes and passing lines by layer, and the pairs of neighbouring layers that lines join."""
    rows: list[list[Vertex]] = [[] for _ in range(1 + max(layers.values()))]
    for name, layer in layers.items():
        rows[layer].append(name)
    edges: list[tuple[Vertex, Vertex]] = []
    for name, refs in reads.items():
        for ref in refs:
            way = _way(ref, name, layers)
            edges += zip(way, way[1:], strict=False)
            for i, lane in enumerate(way[1:-1], 1):
                rows[layers[ref] + i].append(lane)
    return rows, edges


def _neighbours(edges: Iterable[tuple[Vertex, Vertex]], downwards: bool) -> dict[Vertex, list[Vertex]]:
    """Each vertex -> those above it (`downwards`) or below."""
    found: dict[Vertex, list[Vertex]] = {}
    for upper, lower in edges:
        key, other = (lower, upper) if downwards else (upper, lower)
        found.setdefault(key, []).append(other)
    return found


def _ordered(rows: list[list[Vertex]], edges: Sequence[tuple[Vertex, Vertex]], downwards: bool) -> None:
    """Order each row by the mean place of what its vertices are joined to in the row before."""
    joined = _neighbours(edges, downwards)
    order = rows[1:] if downwards else rows[-2::-1]
    before = rows if downwards else rows[::-1]
    for previous, row in zip(before, order, strict=False):
        at = {one: i / max(len(previous) - 1, 1) for i, one in enumerate(previous)}
        own = {one: i / max(len(row) - 1, 1) for i, one in enumerate(row)}
        means = {one: _mean([at[other] for other in joined.get(one, [])], own[one]) for one in row}
        row.sort(key=means.__getitem__)


def _across(rows: Sequence[Sequence[Vertex]], edges: Sequence[tuple[Vertex, Vertex]]) -> dict[Vertex, float]:
    """The centre of every vertex: near the mean of what it is joined to, with room between neighbours of a row."""
    x: dict[Vertex, float] = {}
    for row in rows:
        at = 0.0
        for one in row:
            x[one] = at + _room(one) / 2
            at += _room(one) + ACROSS
        for one in row:
            x[one] -= (at - ACROSS) / 2
    for sweep in range(2 * SWEEPS):
        joined = _neighbours(edges, downwards=sweep % 2 == 0)
        for row in rows if sweep % 2 == 0 else reversed(rows):
            wanted = {one: _mean([x[other] for other in joined.get(one, [])], x[one]) for one in row}
            x |= _apart(row, wanted)
    return x


def _apart(row: Sequence[Vertex], wanted: Mapping[Vertex, float]) -> dict[Vertex, float]:
    """Places in order and apart, as near to the wanted ones as pushing from both ends makes them."""
    room = [(_room(a) + _room(b)) / 2 + ACROSS for a, b in zip(row, row[1:], strict=False)]
    right = [wanted[one] for one in row]
    for i, gap in enumerate(room):
        right[i + 1] = max(right[i + 1], right[i] + gap)
    left = [wanted[one] for one in row]
    for i, gap in reversed([*enumerate(room)]):
        left[i] = min(left[i], left[i + 1] - gap)
    return {one: (a + b) / 2 for one, a, b in zip(row, left, right, strict=True)}


def _room(one: Vertex) -> float:
    return WIDTH if isinstance(one, str) else LANE


def _mean(places: Sequence[float], otherwise: float) -> float:
    return sum(places) / len(places) if places else otherwise


def _path(points: Sequence[tuple[float, float]]) -> str:
    """A path from the lower edge of the first box to the upper edge of the last, straight through layers in between."""
    (x, y), *rest = points
    path = f"M{x:.1f} {y + HEIGHT / 2:.1f}"
    y += HEIGHT / 2
    for i, (to_x, to_y) in enumerate(rest):
        top = to_y - HEIGHT / 2
        middle = (y + top) / 2
        path += f"C{x:.1f} {middle:.1f} {to_x:.1f} {middle:.1f} {to_x:.1f} {top:.1f}"
        x, y = to_x, top
        if i < len(rest) - 1:
            y = to_y + HEIGHT / 2
            path += f"V{y:.1f}"
    return path
