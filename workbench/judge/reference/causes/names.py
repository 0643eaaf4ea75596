"""How a report calls the nodes of a graph."""

from collections.abc import Iterator

from workbench.reference.graph import Graph
from workbench.reference.graph.patterns import PASSES
from workbench.reference.graph.rules import CONSTANT, RULES

#: characters of an expression that a report spells out
LONGEST = 48
#: what has the elements of what it reads, and is called as that
CALLED_AS = PASSES | {"as_float", "factored"}


class Names:
    """Names of nodes: of inputs and stages their own, of others an expression."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.own = {i: name for name, i in graph.inputs.items()}
        for name, turns in graph.stages.items():  # of several names of one value the first, of the reference's own
            self.own |= {i: name for i in turns if i not in self.own or "." in self.own[i] and "." not in name}
        for given in graph.gradients.values():  # which has no variable: what only moves its elements has its name, too
            i = graph.results[given]
            while i not in self.own:
                self.own[i] = given
                i = graph.nodes[i].reads[0] if graph.nodes[i].op in CALLED_AS else i
        self._order = sorted(self.own)

    def of(self, i: int) -> str:
        """The name, or an expression of names."""
        said = self._said(i, 3)
        node = self.graph.nodes[i]
        if len(said) <= LONGEST:
            return said
        return f"the {'gradient through the ' if node.line.backward else ''}{node.op} of line {node.line.number}"

    def before(self, i: int) -> Iterator[int]:
        """Nodes that have a name, before a node, the nearest first."""
        return (j for j in reversed(self._order) if j < i)

    def _said(self, i: int, depth: int) -> str:
        node = self.graph.nodes[i]
        while i not in self.own and node.op in CALLED_AS:
            i = node.reads[0]
            node = self.graph.nodes[i]
        if i in self.own:
            return self.own[i]
        if node.op == CONSTANT:
            return f"{node.value.item():g}" if node.value.ndim == 0 else f"the array of line {node.line.number}"
        if not depth:
            return "..."
        form = RULES[node.op].words
        read = [self._said(j, depth - 1) for j in node.reads]
        closed = form.count("{") == 1 and ("(" in form or form[0] == "|")
        return str(form.format(*(f"({one})" if " " in one and not closed else one for one in read)))
