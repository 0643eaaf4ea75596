"""Nodes that are turns of one loop: of the same line and place in its body."""

from collections.abc import Iterator, Sequence
from typing import Any

from workbench.reference.graph import Graph
from workbench.reference.graph.node import Line
from workbench.reference.graph.rules import INPUT


def classes(graph: Graph, nodes: Sequence[int]) -> list[tuple[int, ...]]:
    """The nodes, in order, those of one place in a loop's body together: a node a turn."""
    lines: dict[Line, list[int]] = {}
    found: dict[Any, list[int]] = {}
    for i in nodes:
        if graph.nodes[i].op == INPUT:
            found[i] = [i]
        else:
            lines.setdefault(graph.nodes[i].line, []).append(i)
    for line, some in lines.items():
        for run in _runs(some):
            does = [_does(graph, i) for i in run]
            n = _period(does)
            for k, i in enumerate(run):
                found.setdefault((line, *does[:n], k % n), []).append(i)
    return sorted(map(tuple, found.values()), key=lambda one: one[-1])


def _does(graph: Graph, i: int) -> Any:
    """What a node does, alike in all turns."""
    node = graph.nodes[i]
    return node.op, node.shape, tuple(graph.nodes[j].shape for j in node.reads)


def _runs(nodes: Sequence[int]) -> Iterator[list[int]]:
    """Nodes that follow one another, nothing of another line between them."""
    run = [nodes[0]]
    for i in nodes[1:]:
        if i != run[-1] + 1:
            yield run
            run = []
        run.append(i)
    yield run


def _period(does: Sequence[Any]) -> int:
    """How many steps repeat: all where none do."""
    n = len(does)
    return next(k for k in range(1, n + 1) if n % k == 0 and [*does] == [*does[:k]] * (n // k))
