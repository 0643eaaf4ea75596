"""How a report calls the nodes of a graph."""

from collections.abc import Iterator

from workbench.reference.graph import Graph
from workbench.reference.graph.patterns import PASSES
from workbench.reference.graph.words import words

#: characters of an expression that a report spells out
LONGEST = 48


class Names:
    """Names of nodes: of inputs and stages their own, of others an expression."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.own = {i: name for name, i in graph.inputs.items()}
        for name, turns in graph.stages.items():
            self.own |= {i: name for i in turns if "." not in name or i not in self.own}
        self._order = sorted(self.own)

    def of(self, i: int) -> str:
        """The name, or an expression of names; what only moves elements is called as what it moves."""
        while i not in self.own and self.graph.nodes[i].op in PASSES and len(self.graph.nodes[i].reads) == 1:
            i = self.graph.nodes[i].reads[0]
        if i in self.own:
            return self.own[i]
        said = words(self.graph, i)
        return said if len(said) <= LONGEST else f"{self.graph.nodes[i].op} of this line"

    def before(self, i: int) -> Iterator[int]:
        """Nodes that have a name, before a node, the nearest first."""
        return (j for j in reversed(self._order) if j < i)
