"""What a kernel should have made, with budgets, of a graph and of what the kernel dumped."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.arrays import as_numpy
from workbench.floats import FLOATS
from workbench.reference.bound import Budget
from workbench.reference.graph.contract import CASTS, Contract
from workbench.reference.graph.device import numpy_of
from workbench.reference.graph.forward import forward
from workbench.reference.graph.node import Graph, Line
from workbench.refusal import Refusal, unknown

Dumps = Mapping[str, Any]
#: dtypes of dumps in other libraries' arrays
_DUMPED = (*FLOATS, *map(np.dtype, "float8_e4m3fn float8_e5m2 bool uint8 int8 int16 int32 int64".split()))


@dataclass(frozen=True, eq=False)
class Expected:
    """One stage or result."""

    value: Any  #: in float64, of what the kernel read: dumps where they are given
    budget: Budget  #: how far a kernel that keeps its contract may be off; infinite where nothing can be said
    open: tuple[Line, ...] = ()  #: of the reference, that leave it so: a choice between equals, a division by about 0


def budgets(
    graph: Graph, contract: Contract, dumps: Dumps | None = None, names: Collection[str] | None = None
) -> dict[str, Expected]:
    """Every stage and result by name, or those of `names`, with its budget.

    dumps: arrays of stages, which what follows reads in the place of its own, without an error. Of a stage with several
    turns `name[3]`, or under `name` a list, or an array with the turns along a first axis; one of the shape of a turn
    is that of the last.

    Refusal for a name that the graph does not have, for a dump of another shape, and for a contract that stores whole
    numbers in fewer bits.
    """
    places = graph.places()
    for name in contract.stored:
        if name != CASTS and name not in places:
            raise Refusal(unknown("contract stores", name, [*graph.stages, *graph.results, CASTS]))
        node = None if name == CASTS else graph.nodes[places[name]]
        if node is not None and node.dtype.kind in "biu":
            raise Refusal(f"contract stores {name}, which is {node.dtype} ({node.line}): only floats are rounded")
    asked = {name: places[known(name, places)] for name in (places if names is None else names)}
    found = forward(graph, contract, set(asked.values()), placed(graph, dumps or {}), elements_of(graph))

    def lines(i: int) -> tuple[Line, ...]:
        nodes = (graph.nodes[j] for j in range(len(graph.nodes)) if found.open[i] >> j & 1) if found.open[i] else ()
        return tuple(dict.fromkeys(node.line for node in nodes))

    return {name: Expected(found.values[i], found.budgets[i], lines(i)) for name, i in asked.items()}


def known(name: str, places: Mapping[str, int]) -> str:
    """The name; Refusal where there is no stage or result of it."""
    if name not in places:
        raise Refusal(unknown("stage", name, places))
    return name


def elements_of(graph: Graph) -> dict[int, int | None]:
    """How many elements the whole stage has of which a node is one turn."""
    sizes = [int(np.prod(node.shape)) for node in graph.nodes]
    found: dict[int, int | None] = {}
    for turns in graph.stages.values():
        whole = sum(sizes[i] for i in turns)
        for i in turns:
            found[i] = max(whole, found.get(i) or 0)
    return found


def placed(graph: Graph, dumps: Dumps) -> dict[int, Any]:
    """Node -> its dump. Of a result that is a stage too, what was dumped of the stage counts, before its last cast.
    Refusal for two stages of one value whose dumps differ: which of them follows is not said.
    """
    found: dict[int, Any] = {}
    named: dict[int, str] = {}
    for name in sorted(dumps, key=lambda name: name not in graph.results):
        for one, i, dump in _turns(graph, name, dumps[name]):
            fitting = _fitting(graph, one, i, dump)
            twice = i in named and named[i] not in graph.results
            if twice and not np.array_equal(numpy_of(found[i]), numpy_of(fitting), equal_nan=True):
                both, line = f"{named[i]} and {one}", graph.nodes[i].line
                raise Refusal(
                    f"{both} are one value of the reference ({line}), and their dumps differ. Dump one of them, or name"
                    f" the second by stage({one!r}, ...)"
                )
            found[i], named[i] = fitting, one
    return found | {copy: found[i] for copy, i in graph.again.items() if i in found}


def _turns(graph: Graph, name: str, dump: Any) -> Iterator[tuple[str, int, Any]]:
    """Name, node and array of each turn that a dump has."""
    places = graph.places()
    turns = graph.iterations(name) if name in graph.stages else {}
    listed = isinstance(dump, Sequence) and not isinstance(dump, str)
    known(name, places)
    if listed and len(dump) != len(turns):
        raise Refusal(f"stage {name} has {len(turns)} turns; got {len(dump)} dumps")
    node = places[name]
    shape = () if listed else tuple(dump.shape)
    if listed or (len(turns) > 1 and shape != graph.nodes[node].shape and shape[:1] == (len(turns),)):
        yield from ((f"{name}[{k}]", i, one) for (k, i), one in zip(turns.items(), dump, strict=True))
    else:
        yield name, node, dump


def _fitting(graph: Graph, name: str, i: int, dump: Any) -> Any:
    node = graph.nodes[i]
    if tuple(dump.shape) != node.shape:
        raise Refusal(f"stage {name} ({node.line}) has the shape {node.shape}; its dump has {tuple(dump.shape)}")
    if isinstance(dump, np.ndarray) or not any(isinstance(one.value, np.ndarray) for one in graph.nodes):
        return dump
    return as_numpy(dump, f"dump of {name}", _DUMPED).reshape(node.shape)
