"""Values that a backward pass computes again, with roundings of their own."""

from dataclasses import replace

import numpy as np
import torch

from workbench.reference.graph.arrays import Traced
from workbench.reference.graph.patterns import PASSES
from workbench.reference.graph.recording import Recording
from workbench.reference.graph.rules import CONSTANT, INPUT

#: how far back from a value to the products of matrices and sums that it is made of, at most: from the gradient of a
#: softmax's maximum, written by hand, to the sum of dout out it is 9
DEPTH = 12
#: primitives after which a softmax is one still
_NOTES = ("named", "cast")


def again(x: Traced) -> Traced:
    """x, as a sum in the backward pass of a softmax reads it: computed again from what the forward pass made.

    A softmax's backward pass takes from each g the sum of g y. Where one y is nearly 1 that is the same g, and its
    error would cancel. Kernels sum something else: flash attention dout out, and of a maximum nothing.
    """
    assert x.run.backward is not None
    return Traced(x.run, x.value, _again(x.run, x.node_of_run, x.run.backward.first), x.dtype, x.fixed)


def is_of_softmax(g: Traced) -> bool:
    """Whether autograd begins with g the gradient of a divisor, or of b in exp(a - b): of a softmax by hand its sum,
    and its maximum.
    """
    name, nodes = autograd_of(), g.run.nodes
    node = nodes[g.node_of_run]
    of_exp = node.op == "multiply" and any(nodes[source(g.run, j)].op == "exp" for j in node.reads)
    return name.startswith("DivBackward") or (name.startswith("SubBackward") and of_exp)


def autograd_of() -> str:
    """What autograd calls the operation whose gradient it makes."""
    node = torch._C._current_autograd_node()
    return "" if node is None else str(node.name())


def _again(run: Recording, i: int, first: int) -> int:
    """A node from `first` on once more, and what it reads, up to a sum or a product of matrices."""
    known = dict[int, int]()

    def copy(i: int, depth: int) -> int:
        node = run.nodes[i]
        if i < first or not depth or node.op in (INPUT, CONSTANT, "write"):
            return i
        if i not in known:
            reads = node.reads if node.op in ("sum", "matmul") else [copy(j, depth - 1) for j in node.reads]
            run.nodes.append(replace(node, reads=tuple(reads), line=run.line()))
            known[i] = len(run.nodes) - 1
            run.again[known[i]] = i
        return known[i]

    return copy(i, DEPTH)


def softmax_again(run: Recording, i: int) -> int:
    """The node of exp(x - logsumexp), with x computed again, where node i is exp(x - m) by its sum, a softmax; else i.

    Flash attention makes it so. Where one element is nearly 1, its error is that of x and of the logsumexp, and that of
    a softmax nearly 0.
    """
    nodes, notes, start = run.nodes, list[int](), i
    while nodes[i].op in PASSES:
        notes.append(i)
        i = nodes[i].reads[0]
    if nodes[i].op != "divide":
        return start
    weights, total = source(run, nodes[i].reads[0], _NOTES), nodes[i].reads[1]
    added = nodes[source(run, total)]
    off = nodes[source(run, nodes[weights].reads[0], _NOTES)] if nodes[weights].op == "exp" else None
    if off is None or off.op != "subtract" or added.op != "sum" or source(run, added.reads[0], _NOTES) != weights:
        return start
    x, shift = off.reads
    if nodes[shift].shape != nodes[total].shape:
        return start

    def made(op: str, *reads: int) -> int:
        shape = np.broadcast_shapes(*(nodes[j].shape for j in reads))
        return run.add(op, reads, {}, np.empty(shape), nodes[i].dtype)

    found = made("exp", made("subtract", _again(run, x, 0), made("add", shift, made("log", total))))
    for note in reversed(notes):
        nodes.append(replace(nodes[note], reads=(found,)))
        found = len(nodes) - 1
    run.again[found] = start
    return found


def source(run: Recording, i: int, through: frozenset[str] | tuple[str, ...] = PASSES) -> int:
    """The node whose elements node i has, moved or noted as something else."""
    while run.nodes[i].op in through:
        i = run.nodes[i].reads[0]
    return i
