"""Where a graph has the elements of a stage: all of them in one node, or a tile of tokens in each turn of a loop."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from workbench.operations.run import OperationRun, shape_of
from workbench.reference.graph import Graph

#: place of the graph -> the elements of the stage that it has, as an index
Places = Mapping[str, tuple[Any, ...]]


def places_of(run: OperationRun, graph: Graph, name: str) -> Places:
    """Those of a stage, in order."""
    case, axes = run.case, run.case.operation.stages(run.setting).get(name, "")
    if not case.operation.walked or graph.nodes[graph.places()[name]].shape == shape_of(case, axes):
        return {name: (...,)}
    tile, tokens = case.operation.tile(run.setting), case.sizes[case.operation.walked]
    found: dict[str, tuple[Any, ...]] = {}
    count = -(-tokens // tile)
    # counted from the last: before the first turn a state has another value, and a last chunk of one token another line
    for i, turn in enumerate([*graph.iterations(name)][-count:]):
        last = min((i + 1) * tile, tokens)
        own = {"t": i, case.operation.walked: slice(i * tile, last), "c": slice(0, last - i * tile)}
        place = f"{name}[{turn}]" if len(graph.stages[name]) > 1 else name
        found[place] = tuple(own.get(axis, slice(None)) for axis in axes)
    return found


def joined(places: Places, made: Mapping[str, Any], shape: tuple[int, ...]) -> np.ndarray:
    """A stage of what is made at each of its places; 0 where none has it."""
    if [*places.values()] == [(...,)]:
        return np.asarray(made[next(iter(places))])
    found = np.zeros(shape)
    for place, at in places.items():
        found[at] = made[place]
    return found
