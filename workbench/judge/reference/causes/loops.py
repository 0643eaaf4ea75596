"""Nodes that are turns of one loop: of the same line and place in its body."""

from collections.abc import Iterator, Sequence
from typing import Any

from workbench.reference.graph import Graph
from workbench.reference.graph.node import Line
from workbench.reference.graph.rules import INPUT

#: steps in a body of one line, at most
LONGEST = 32
#: turns that are a loop where nothing of another line is between them: two steps of a line may be alike
TURNS = 3


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
            for first, n, turns in _repeats(does):
                for at in range(first, first + n * turns):
                    k = (at - first) % n
                    found.setdefault((line, first, *does[first : first + n], k), []).append(run[at])
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


def _repeats(does: Sequence[Any]) -> Iterator[tuple[int, int, int]]:
    """Where steps begin that repeat, how many they are, and how often: once where they do not."""
    at = single = 0
    while at < len(does):
        for n in range(1, min(LONGEST, (len(does) - at) // TURNS) + 1):
            turns = 1
            while does[at + n * turns : at + n * (turns + 1)] == does[at : at + n] and at + n * (turns + 1) <= len(
                does
            ):
                turns += 1
            if turns >= TURNS:
                if single < at:
                    yield single, at - single, 1
                yield at, n, turns
                at += n * turns
                single = at
                break
        else:
            at += 1
    if single < at:
        yield single, at - single, 1
