"""Edits of what a step reads: another value of the same shape, such as a stale or an unnormalised one."""

from collections.abc import Collection, Iterator, Mapping
from functools import partial
from itertools import combinations, islice

from workbench.judge.reference.causes.edit import Draft, Edit, Make
from workbench.judge.reference.causes.known import is_known
from workbench.judge.reference.causes.names import Names
from workbench.judge.reference.causes.sums import Step
from workbench.judge.reference.given import is_whole
from workbench.reference.graph import Graph
from workbench.reference.graph.patterns import PASSES
from workbench.reference.graph.rules import CONSTANT

#: values that are tried in the place of one, at most: the nearest before it
MOST = 12
#: arrays of places that are exchanged two and two, at most: the nearest to the end
MOST_EXCHANGED = 8
#: steps with a number whose place a value of the step's own shape may take, and how many values are tried
NUMBERS, FEW = ("multiply", "divide", "add", "subtract"), 3


def operands_of(graph: Graph, i: int, names: Names) -> Iterator[Step]:
    """Words, family, size and what takes the place of a step that reads something else."""
    node = graph.nodes[i]
    for k, j in enumerate(node.reads):
        one = graph.nodes[j]
        if one.op == CONSTANT and not one.value.ndim:
            for other in _in_place_of_number(graph, i, names) if node.op in NUMBERS else ():
                yield f"reads {names.of(other)} in place of {one.value:g}", "operand", 3, _with({i: other}, k)
            continue
        for other, size in _others(graph, i, j, names):
            of, new = names.of(j), names.of(other)
            said, family = _in_place_of(graph, j, other, names)
            said = f"is {new}" if of == names.of(i) and family == "operand" else said
            same = of == new  # a variable's earlier value: that a step is left out says so, too
            said = f"reads {of} of line {graph.nodes[other].line.number}, not yet updated" if same else said
            yield said, family, size + same, _with({i: other}, k)
    if len(node.reads) == 2 and node.op in ("subtract", "divide", "matmul"):
        a, b = (graph.nodes[j].shape for j in node.reads)
        if node.op != "matmul" or a[-2:] == b[-2:]:
            yield "has its operands in each other's place", "operand", 2, lambda d: d.again(*reversed(d.old.reads))


def _in_place_of(graph: Graph, j: int, other: int, names: Names) -> tuple[str, str]:
    """Words and family of an edit that reads `other` in place of j: one term of two leaves out the other one."""
    one = graph.nodes[j]
    left = [x for x in one.reads if x != other]
    if one.op == "add" and len(one.reads) == 2 and len(left) == 1:
        name, where = names.of(left[0]), f"of line {graph.nodes[left[0]].line.number}"
        return f"leaves out {name if where in name else f'{name} {where}'}", "left out"
    return f"reads {names.of(other)} in place of {names.of(j)}", "operand"


def _in_place_of_number(graph: Graph, i: int, names: Names) -> Iterator[int]:
    node = graph.nodes[i]
    alike = (j for j in names.before(i) if graph.nodes[j].shape == node.shape and graph.nodes[j].op != CONSTANT)
    return islice((j for j in alike if is_whole(graph.nodes[j].dtype) == is_whole(node.dtype)), FEW)


def _others(graph: Graph, i: int, j: int, names: Names) -> Iterator[tuple[int, int]]:
    """Nodes that may be read in place of j, and how unlikely that is: what j is made of, then what has a name."""
    one, seen = graph.nodes[j], {j}
    for other in one.reads:
        seen.add(other)
        if _alike(graph, j, other):
            yield other, 1
    count = 0
    for other in names.before(i):
        if other not in seen and _alike(graph, j, other):
            yield other, 2
            count += 1
            if count == MOST:
                return


def _alike(graph: Graph, j: int, other: int) -> bool:
    a, b = graph.nodes[j], graph.nodes[other]
    constant = b.op == CONSTANT and not b.value.ndim
    return a.shape == b.shape and is_whole(a.dtype) == is_whole(b.dtype) and not constant


def _with(others: Mapping[int, int], k: int) -> Make:
    """Operand k is another node, of each node its own."""
    return lambda d: d.again(*(others[d.node] if at == k else j for at, j in enumerate(d.old.reads)))


def exchanged(graph: Graph, nodes: Collection[int], names: Names) -> Iterator[Edit]:
    """Arrays of whole numbers, as columns and rows of places, two and two in each other's place."""
    alike: dict[tuple[object, ...], list[int]] = {}
    for i, node in enumerate(graph.nodes):
        if i in nodes and i in names.own and node.shape and is_known(node) and is_whole(node.dtype):
            alike.setdefault((node.shape, node.dtype), []).append(i)
    for some in alike.values():
        for i, j in combinations(some[-MOST_EXCHANGED:], 2):
            name = f"{names.of(i)} and {names.of(j)}"
            yield Edit((i, j), partial(_value, {i: j, j: i}), name, "stand in each other's place", "places", 2)


def _value(of: Mapping[int, int], d: Draft) -> None:
    d.hold(d.graph.nodes[of[d.node]].value, d.old.dtype)


def of_turns(
    graph: Graph, nodes: tuple[int, ...], turns: Mapping[int, tuple[int, ...]], names: Names
) -> Iterator[Step]:
    """As `operands_of`, for a step in a loop: an operand replaced by what it is computed from in the same iteration, or
    by its value in the one before. `turns`: node -> the node of each iteration.
    """
    rep = nodes[-1]
    for k, j in enumerate(graph.nodes[rep].reads):
        for m, x in enumerate(graph.nodes[j].reads):
            if _alike(graph, j, x) and graph.nodes[j].op not in PASSES:
                others = _each(graph, nodes, k, m)
                if others is not None:
                    said, family = _in_place_of(graph, j, x, names)
                    yield said, family, 1, _with(others, k)
        before = turns.get(j, ())
        if len(before) == len(nodes) > 1 and _alike(graph, j, before[-2]):
            own = dict(zip(nodes[1:], before[:-1], strict=True)) | {nodes[0]: before[0]}
            yield f"reads {names.of(j)} of the turn before", "operand", 1, _with(own, k)


def _each(graph: Graph, nodes: tuple[int, ...], k: int, m: int) -> dict[int, int] | None:
    """Operand m of operand k, of each node."""
    found = {}
    for i in nodes:
        j = graph.nodes[i].reads[k]
        if len(graph.nodes[j].reads) <= m:
            return None
        x = graph.nodes[j].reads[m]
        if not _alike(graph, j, x):
            return None
        found[i] = x
    return found
