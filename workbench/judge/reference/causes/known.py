"""Constants of whole numbers, such as a mask of places: a graph that is judged has their values, and one that is edited
the steps that make them, too.
"""

from dataclasses import replace

from workbench.reference.graph import Graph
from workbench.reference.graph.node import Node
from workbench.reference.graph.rules import CONSTANT, INPUT


def unfolded(graph: Graph) -> Graph:
    """The graph with the steps of its constants, which keep their values."""
    nodes = [*graph.nodes]
    for i, (op, reads) in graph.made_of.items():
        nodes[i] = replace(nodes[i], op=op, reads=reads)
    return replace(graph, nodes=tuple(nodes))


def is_known(node: Node) -> bool:
    """Whether numbers of the reference and whole ones alone make it, so that a run has its value."""
    return node.value is not None and node.op != INPUT


def folded(node: Node) -> Node:
    """The same, as a constant where it is known."""
    return replace(node, op=CONSTANT, reads=()) if is_known(node) else node
