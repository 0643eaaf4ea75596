"""What only the graph knows: which products are contracted, and which difference is that of a maximum and its own
operand.
"""

from dataclasses import dataclass, field

from workbench.reference.graph.node import Graph, Node

#: primitives that only move elements of their first operand, or note something of it
PASSES = frozenset({"index", "transpose", "reshape", "broadcast", "cast", "named"})
#: sums, whose terms a kernel may add in any order, where nobody saw the sum itself
ADDS = frozenset({"add", "subtract", "sum", "matmul"})
ORDERS = frozenset({"argmax", "argmin", "argsort"})


@dataclass
class Patterns:
    """By node: what a pass needs to know beyond the node itself."""

    #: (node, operand) -> the operands of the product that is summed there
    products: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    #: products whose operands a contract rounds: of matrices, and those that are summed
    contractions: set[int] = field(default_factory=set)
    #: difference a - max(a, x) -> x
    rivals: dict[int, int] = field(default_factory=dict)
    #: exp of a - b -> what leads from there to the difference, and a and b
    exponents: dict[int, tuple[list[int], tuple[int, ...]]] = field(default_factory=dict)
    #: places that an order gave, as they are read -> what was ordered, and along which axis
    ordered: dict[int, tuple[int, int]] = field(default_factory=dict)
    #: nodes whose terms a sum that reads them may add in any order, through moves
    sizes: set[int] = field(default_factory=set)

    def product(self, i: int, k: int, place: int, product: Node) -> None:
        """Notes that operand k of node i is a product that is summed there."""
        self.products[i, k] = (product.reads[0], product.reads[1])
        self.contractions.add(place)


def patterns_of(graph: Graph) -> Patterns:
    """Those of a graph."""
    found, nodes = Patterns(), graph.nodes
    for i, node in enumerate(nodes):
        if node.op == "matmul":
            found.contractions.add(i)
        elif node.op == "sum":
            place = _source(graph, node.reads[0], {"cast", "named"})
            if nodes[place].op == "multiply" and _contracts(nodes, nodes[place], node):
                found.product(i, 0, place, nodes[place])
        elif node.op in ("add", "subtract"):
            for k, j in enumerate(node.reads):
                place = _source(graph, j, {"cast", "named", "reshape"})
                if nodes[place].op == "multiply" and _is_outer(nodes, nodes[place]):
                    found.product(i, k, place, nodes[place])
        if node.op == "subtract":
            rival = _rival(graph, *node.reads)
            if rival is not None:
                found.rivals[i] = rival
        if node.op == "exp":
            path = _unmasked(graph, node.reads[0])
            if nodes[path[-1]].op in ("add", "subtract"):
                found.exponents[i] = path, nodes[path[-1]].reads
        order = nodes[_source(graph, i, PASSES)]
        if order.op in ORDERS:
            found.ordered[i] = (order.reads[0], order.attributes["axis"])
        if node.op in ("add", "subtract", "sum"):
            for j in node.reads:
                _mark(graph, j, found.sizes)
    return found


def _contracts(nodes: tuple[Node, ...], product: Node, node: Node) -> bool:
    """Whether the sum is over an axis that both factors have; a square is a norm's, not a matrix product."""
    a, b = product.reads
    if _same(nodes, a, b):
        return False
    ndim = len(product.shape)
    axes = node.attributes["axis"]
    axes = range(ndim) if axes is None else [axis % ndim for axis in axes]
    return any(product.shape[axis] > 1 and all(_has(nodes[j].shape, axis - ndim) for j in (a, b)) for axis in axes)


def _same(nodes: tuple[Node, ...], a: int, b: int) -> bool:
    """Whether two nodes have one value by the way they are made."""
    if a == b:
        return True
    x, y = nodes[a], nodes[b]
    if x.op != y.op or x.op == "input" or len(x.reads) != len(y.reads) or x.attributes.keys() != y.attributes.keys():
        return False
    if x.op == "constant":
        return x.value.shape == y.value.shape and bool((x.value == y.value).all())
    alike = all(str(x.attributes[key]) == str(y.attributes[key]) for key in x.attributes)
    return alike and all(_same(nodes, i, j) for i, j in zip(x.reads, y.reads, strict=True))


def _is_outer(nodes: tuple[Node, ...], product: Node) -> bool:
    """Whether each factor is spread along an axis that the other has."""
    a, b = (nodes[j].shape for j in product.reads)
    last = [(_has(a, -k), _has(b, -k)) for k in range(1, len(product.shape) + 1)]
    return (True, False) in last and (False, True) in last


def _has(shape: tuple[int, ...], axis: int) -> bool:
    return len(shape) >= -axis and shape[axis] > 1


def _source(graph: Graph, i: int, through: set[str] | frozenset[str]) -> int:
    while graph.nodes[i].op in through:
        i = graph.nodes[i].reads[0]
    return i


def _rival(graph: Graph, a: int, b: int) -> int | None:
    """x, where b is max(a, x) or max(x, a), as it is or with a number in place of some."""
    nodes = graph.nodes
    top = _source(graph, b, PASSES)
    if nodes[top].op == "where":
        top = next((_source(graph, j, PASSES) for j in nodes[top].reads[1:] if nodes[j].op != "constant"), top)
    start = _source(graph, a, PASSES)
    if nodes[start].op == "where":
        start = next((_source(graph, j, PASSES) for j in nodes[start].reads[1:] if nodes[j].op != "constant"), start)
    if nodes[top].op != "maximum" or nodes[top].shape != nodes[start].shape or nodes[a].shape != nodes[start].shape:
        return None
    own = [_source(graph, j, PASSES) for j in nodes[top].reads]
    return nodes[top].reads[1 - own.index(start)] if start in own and own[0] != own[1] else None


def _unmasked(graph: Graph, i: int) -> list[int]:
    """From a node back to what it is but for casts, names and masks."""
    nodes, path = graph.nodes, [i]
    while nodes[path[-1]].op in ("cast", "named", "where"):
        of = nodes[path[-1]]
        choices = of.reads[1:] if of.op == "where" else of.reads
        back = [j for j in choices if nodes[j].op != "constant" and nodes[j].shape == of.shape]
        if len(back) != 1:
            break
        path += back
    return path


def _mark(graph: Graph, i: int, found: set[int]) -> None:
    path = [i]
    while graph.nodes[path[-1]].op in PASSES:
        path.append(graph.nodes[path[-1]].reads[0])
    if graph.nodes[path[-1]].op in ADDS:
        found.update(path)
