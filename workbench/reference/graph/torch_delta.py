"""The sum of g y in a softmax's backward pass, also as flash attention makes it: the sum of dout out.

Where out = y v, and so g = dout v^T, both are one number. A kernel may make it by either, and one in 16 bits reads its
own out, which is rounded. So the node is the maximum of both, and its budget covers either formula.
"""

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from workbench.reference.graph.arrays import Traced
from workbench.reference.graph.patterns import PASSES
from workbench.reference.graph.recording import Recording

#: primitives after which rows are rows still
_ROWS = ("reshape", "named", "cast")


def of_softmax(total: Traced, g: Traced, y: Traced) -> Traced:
    """The sum of g y along the last axis, by either way."""
    run = total.run
    softmax = _rows(run, y.node_of_run)
    return _either(total, g.node_of_run, lambda i: _rows(run, i) == softmax, None)


def of_divisor(total: Traced, terms: int) -> Traced:
    """The sum of -g ((w / z) / z), a node, of a softmax w / z by hand, by either way; another sum as it is."""
    run, nodes = total.run, total.run.nodes
    if nodes[terms].op != "multiply":
        return total
    turned, twice = nodes[terms].reads
    if nodes[turned].op != "negative" or nodes[twice].op != "divide" or nodes[nodes[twice].reads[0]].op != "divide":
        return total
    z = nodes[twice].reads[1]
    parts = [_first(run, j) for j in nodes[nodes[twice].reads[0]].reads]

    def is_softmax(i: int) -> bool:
        node = nodes[_rows(run, i)]
        return node.op == "divide" and [_first(run, j) for j in node.reads] == parts

    return _either(total, nodes[turned].reads[0], is_softmax, z)


def _either(total: Traced, g: int, is_softmax: Callable[[int], bool], by: int | None) -> Traced:
    run, nodes = total.run, total.run.nodes
    assert run.backward is not None
    product = nodes[_rows(run, g)]
    if product.op != "matmul" or total.shape[-1:] != (1,):
        return total
    dout, v = product.reads
    for i in range(run.backward.first):
        node = nodes[i]
        fits = node.op == "matmul" and node.shape == nodes[dout].shape and prod(node.shape[:-1]) == total.size
        if fits and _first(run, node.reads[1]) == _first(run, v) and is_softmax(node.reads[0]):
            break
    else:
        return total
    nodes.append(replace(node, line=run.line()))
    out = len(nodes) - 1
    run.kept.add(out)

    def made(op: str, reads: tuple[int, ...], made_of: tuple[int, ...], **how: Any) -> int:
        return run.add(op, reads, how, np.broadcast_to(0.0, made_of), total.dtype)

    rows = (*node.shape[:-1], 1)
    sums = made("sum", (made("multiply", (dout, out), node.shape),), rows, axis=(len(rows) - 1,), keepdims=True)
    other = made("reshape", (sums,), total.shape, shape=total.shape)
    if by is not None:
        other = made("divide", (made("negative", (other,), total.shape), by), total.shape)
    both = made("either", (total.node_of_run, other), total.shape)
    return Traced(run, total.value, both, total.dtype, total.fixed)


def _rows(run: Recording, i: int) -> int:
    """The node whose rows node i has."""
    nodes = run.nodes
    while True:
        if i in run.again:
            i = run.again[i]
        elif nodes[i].op in _ROWS:
            i = nodes[i].reads[0]
        elif nodes[i].op == "transpose" and (before := _in_order(run, i)) is not None:
            i = before
        else:
            return i


def _in_order(run: Recording, i: int) -> int | None:
    """What one transposition after another was made of, where together they move axes of size 1 alone, as those of
    torch.einsum do.
    """
    nodes, axes = run.nodes, [*range(len(run.nodes[i].shape))]
    while nodes[i].op == "transpose":
        axes = [nodes[i].attributes["axes"][a] for a in axes]
        i = nodes[i].reads[0]
    moved = [a for a in axes if nodes[i].shape[a] > 1]
    return i if moved == sorted(moved) else None


def _first(run: Recording, i: int) -> int:
    """The node whose elements node i has."""
    while i in run.again or run.nodes[i].op in PASSES:
        i = run.again[i] if i in run.again else run.nodes[i].reads[0]
    return i
