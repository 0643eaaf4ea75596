"""Edits of masked means: what is masked out counts in the sum, all of it or one addend, and in the divisor."""

from collections.abc import Collection, Iterator, Mapping
from functools import partial
from math import prod

from workbench.judge.reference.causes.edit import Draft, Edit, Make
from workbench.judge.reference.causes.names import Names
from workbench.judge.reference.given import is_whole
from workbench.reference.graph import Graph
from workbench.reference.graph.rules import CONSTANT


def masked_means(graph: Graph, nodes: Collection[int], names: Names) -> Iterator[Edit]:
    """Of each sum of what a mask leaves, over a count: that the mask is not applied to all of it, or to the count."""
    for i in nodes:
        if (at := _masked(graph, i)) is None:
            continue
        masked = graph.nodes[at]
        n = prod(masked.shape) // prod(graph.nodes[i].shape)
        mask, name = names.of(masked.reads[0]), names.of(at)
        every: dict[int, Make] = {i: partial(_over, n)}
        said_n = f", and the sum is divided by {n}"
        yield _edit({at: _unmasked, **every}, name, f"is not masked by {mask}{said_n}")
        for addend, path in _addends(graph, masked.reads[1]):
            some: dict[int, Make] = {at: partial(_with, addend, path)}
            said = f"keeps {names.of(addend)} where {mask} is False"
            yield _edit(some, name, said)
            yield _edit(some | every, name, said + said_n)


def _masked(graph: Graph, i: int) -> int | None:
    """What a mask leaves, of a node that divides the sum of that by a number; None of another node."""
    node = graph.nodes[i]
    if node.op != "divide" or graph.nodes[node.reads[0]].op != "sum" or graph.nodes[node.reads[1]].shape:
        return None
    (at,) = graph.nodes[node.reads[0]].reads
    if graph.nodes[at].op != "where":
        return None
    zero = graph.nodes[graph.nodes[at].reads[2]]
    return at if zero.op == CONSTANT and not zero.value.any() else None


def _edit(makes: Mapping[int, Make], name: str, said: str) -> Edit:
    return Edit(tuple(makes), lambda d: makes[d.node](d), name, said, "mask", 2)


def _addends(graph: Graph, i: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    """The addends that a node is made of, behind factors of it, and these, the last first."""
    path, node = tuple[int, ...](), graph.nodes[i]
    while node.op in ("multiply", "divide") and graph.nodes[node.reads[1]].op == CONSTANT:
        path, i = (*path, i), node.reads[0]
        node = graph.nodes[i]
    if node.op in ("add", "subtract"):
        for j in node.reads:
            one = graph.nodes[j]
            if one.shape == node.shape and not is_whole(one.dtype) and (node.op == "add" or j == node.reads[0]):
                yield j, path


def _over(n: int, d: Draft) -> None:
    d.again(d.old.reads[0], d.hold(n))


def _unmasked(d: Draft) -> None:
    d.add("named", d.old.reads[1])


def _with(addend: int, path: tuple[int, ...], d: Draft) -> None:
    made = addend
    for i in reversed(path):
        made = d.add(d.of(i).op, made, d.of(i).reads[1])
    d.again(*d.old.reads[:2], made)
