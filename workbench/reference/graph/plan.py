"""What every pass over a graph has to know of it under a contract: which nodes, in which order, and what each reads."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from workbench.floats import array_namespace, smallest_normal, smallest_subnormal, unit_roundoff
from workbench.reference.arithmetic import Arithmetic
from workbench.reference.graph.combine import is_float
from workbench.reference.graph.contract import CASTS, OPERANDS, Contract
from workbench.reference.graph.error import Own, none
from workbench.reference.graph.node import Graph
from workbench.reference.graph.patterns import ADDS, patterns_of
from workbench.reference.graph.rules import CONSTANT, INPUT
from workbench.reference.graph.rules.moves import MOVES
from workbench.reference.graph.rules.roundings import added
from workbench.reference.graph.site import Operand, Site


class Plan:
    """Of one graph, contract and set of dumps."""

    def __init__(self, graph: Graph, contract: Contract, dumps: Mapping[int, Any], asked: Collection[int]) -> None:
        self.graph, self.contract, self.dumps, self.asked = graph, contract, dumps, frozenset(asked)
        self.patterns, self.stored = patterns_of(graph), stored(graph, contract)
        self.order = sorted(upstream(graph, asked, dumps))
        self.readers = self.readers_of()

    def readers_of(self, bounded: bool = True) -> dict[int, int]:
        """How many nodes read each; `bounded`: as of `reads`."""
        left = dict.fromkeys(self.order, 0)
        for i in self.order:
            for j in self.reads(i, bounded):
                if j in left:
                    left[j] += 1
        return left

    def reads(self, i: int, bounded: bool = True) -> tuple[int, ...]:
        """What a node reads in this pass: a dump that nobody asks for reads nothing. `bounded`: what its bound alone
        looks at, too.
        """
        if i in self.dumps and i not in self.asked:
            return ()
        return (*self.graph.nodes[i].reads, *self._looks(i, bounded))

    def _looks(self, i: int, bounded: bool) -> tuple[int, ...]:
        """What its bound alone looks at, or the judgement of its dump; and the factors of a product that it adds."""
        ordered = self.patterns.ordered.get(i) if bounded and i in self.dumps else None
        found = [*(self.sees(i) if bounded else ()), *(() if ordered is None else ordered[:1])]
        if OPERANDS[self.contract.operands][0]:
            found += [f for k in range(len(self.graph.nodes[i].reads)) for f in self.patterns.products.get((i, k), ())]
        return tuple(found)

    def sees(self, i: int) -> tuple[int, ...]:
        """Of a - max(a, x) x; of exp(a - b) a and b, where the kernel did not give their difference."""
        rival = self.patterns.rivals.get(i)
        path, terms = self.patterns.exponents.get(i, ((), ()))
        terms = () if self.contract.exp == "natural" or any(j in self.dumps for j in path) else terms
        return terms if rival is None else (rival, *terms)

    def alone(self, i: int) -> bool:
        """Whether a node writes to what another write made and nothing else reads, nor anybody asks for."""
        node = self.graph.nodes[i]
        if node.op != "write":
            return False
        j = node.reads[0]
        seen = j in self.asked or j in self.dumps or j in self.stored
        return self.graph.nodes[j].op == "write" and self.readers[j] == 1 and not seen

    def feeds(self, i: int) -> bool:
        """Whether it is a sum that no dump shows, and a later sum reads."""
        return i in self.patterns.sizes and i not in self.dumps

    def site(self, i: int) -> Arithmetic | None:
        """How the contract stores a node; None where nothing is lost."""
        if i in self.stored:
            return self.contract.site(self.stored[i])
        cast = self.graph.nodes[i].op == "cast" and CASTS in self.contract.stored
        return self.contract.site(CASTS) if cast else None

    def own(self, rule: Any, i: int, s: Site) -> Own:
        """What a node rounds: whole numbers nothing; a result that the contract may round to fewer bits once more."""
        if not is_float(s.y):
            return Own()
        own: Own = rule.own(s)
        if not self.contract.round or not self._rounded(i):
            return own
        dtype = self.contract.rounds[1]
        factor = none(own.random) and none(own.common) and own.exact is None  # alone: samples draw nothing beside it
        if factor and s.normal and smallest_normal(dtype) <= self.contract.floor:
            return own._replace(relative=(own.relative**2 + unit_roundoff(dtype) ** 2) ** 0.5)
        own = as_array(s, own)
        once = unit_roundoff(dtype) * abs(s.held) + self._underflow(dtype) * (s.held != 0)
        random = once if none(own.random) else s.xp.sqrt(own.random * own.random + once * once)
        return own._replace(worst=once + own.worst, random=random)

    def _underflow(self, dtype: str) -> float:
        """What one such rounding loses of numbers below the normal ones: of a gradient that is stored before it is
        multiplied by that of a result, at most the largest of these times as much.
        """
        lost = smallest_subnormal(dtype) / 2
        if self.contract.rounds[0] != "gradients":
            return lost
        heads = [self.graph.nodes[self.graph.inputs[name]].value for name in self.graph.cotangents.values()]
        return lost * max([1.0, *(float(array_namespace(x).max(abs(x))) for x in heads if prod(x.shape))])

    def _rounded(self, i: int) -> bool:
        """Whether the contract rounds a node to fewer bits, beyond what it stores."""
        node, which = self.graph.nodes[i], self.contract.rounds[0]
        if which == "gradients":
            return node.op == "factored"
        if which == "saved" or i in self.graph.saved:
            return i in self.graph.saved
        return node.op not in _NO_RESULT and (which == "inside" or i not in self.graph.inside)


def as_array(s: Site, own: Own) -> Own:
    """The same, with roundings that are a share of the value as an array."""
    if not own.relative:
        return own
    random = own.relative * abs(s.held)
    random = random if own.exact is None else s.xp.where(own.exact, 0.0, random)
    return own._replace(random=random, relative=0.0, exact=None)


#: what makes no new number
_NO_RESULT = frozenset((INPUT, CONSTANT, *MOVES))


def upstream(graph: Graph, asked: Iterable[int], dumps: Collection[int] = ()) -> set[int]:
    """The nodes that `asked` are made of, nothing beyond a dump."""
    found, queue = set(asked), list(asked)
    while queue:
        for j in graph.nodes[queue.pop()].reads:
            if j not in found:
                found.add(j)
                if j not in dumps:
                    queue.append(j)
    return found


def with_terms(rule: Any, s: Site, one: Operand) -> Operand:
    """The operand with its terms, where it is a sum that no dump shows: the next sum may then assume any order."""
    found: dict[str, Any] = {}
    if s.node.op in ("add", "subtract"):
        found = added(*s.reads)
    elif s.node.op in ADDS or s.reads[0].terms > 1:
        found = rule.terms(s)
    if s.node.op in ADDS and found["terms"] > 1:
        whole = Operand(s.y, **found)
        found["attributed"] = s.xp.maximum(whole.prefixes(s.held), 0.0 * s.held + whole.attributed)
    return replace(one, **found)


def bits_of(dtype: Any) -> int:
    """Significant bits of a dtype, 53 of what is no float."""
    try:
        return round(-float(np.log2(unit_roundoff(str(dtype).rpartition(".")[2]))))
    except (ValueError, TypeError):
        return 53


def stored(graph: Graph, contract: Contract) -> dict[int, str]:
    """Node -> the stage of the contract as which it is stored."""
    found, places = dict[int, str](), graph.places()
    for name in contract.stored:
        if name == CASTS:
            continue
        nodes = graph.latest(name) if name in graph.stages else (places[name],)
        found |= dict.fromkeys((*nodes, graph.results.get(name, nodes[-1])), name)
    return found
