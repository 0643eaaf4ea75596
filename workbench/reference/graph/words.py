"""What a node computes, in the names of the reference."""

from workbench.reference.graph.node import Graph
from workbench.reference.graph.rules import CONSTANT, INPUT, RULES

#: how far back operands without a name are spelled out
DEPTH = 3


def words(graph: Graph, node: int) -> str:
    """The definition of a node, such as "exp(scores - max of scores)": what it reads by the names of stages and inputs,
    where they have one, else by their own definitions; "..." beyond DEPTH.
    """
    names = {i: name for name, i in graph.inputs.items()}
    for name, turns in graph.stages.items():
        names |= {i: name for i in turns if "." not in name or i not in names}
    return _of(graph, node, names, DEPTH, top=True)


def _of(graph: Graph, i: int, names: dict[int, str], depth: int, top: bool = False) -> str:
    node = graph.nodes[i]
    if i in names and not top:
        return names[i]
    if node.op == INPUT:
        return names[i]
    if node.op == CONSTANT:
        return f"{float(node.value):g}" if node.value.ndim == 0 else "constants"
    if depth == 0:
        return "..."
    form = RULES[node.op].words
    read = [_of(graph, j, names, depth - 1) for j in node.reads]
    if form.count("{") > 1 or form != "{0}" and form[0] != "{" and "(" not in form:
        read = [f"({one})" if " " in one and not one.endswith(")") else one for one in read]
    return form.format(*read)
