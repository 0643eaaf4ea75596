"""Reverse mode: the budget of an element as the sum over all roundings of |d element / d rounding| times its bound.

Errors of one source cancel, as those of a softmax's maximum do, which no forward bound sees. What first order leaves
out is in it: f(x + e) - f(x) - f'(x) e of every node, bounded by the forward pass, is one more error of the node. So
the worst case is one, and where forward bounds are wide it widens by itself.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.floats import array_namespace
from workbench.reference.bound import Budget, deviations
from workbench.reference.graph.contract import Contract
from workbench.reference.graph.expected import Dumps, elements_of, known, placed
from workbench.reference.graph.forward import Forward, forward
from workbench.reference.graph.node import Graph, Line
from workbench.reference.graph.rules import CONSTANT, RULES
from workbench.refusal import Refusal

Element = tuple[int, ...]


@dataclass(frozen=True)
class Source:
    """What one line of the reference adds to the budget of an element."""

    line: Line
    words: str  #: the primitives there, such as "{0} @ {1}"
    worst: float
    statistical: float  #: of it alone, one typical deviation


@np.errstate(all="ignore")
def budget_at(
    graph: Graph, contract: Contract, name: str, elements: Sequence[Element], dumps: Dumps | None = None
) -> Budget:
    """Budgets of single elements of a stage or result, arrays of one dimension in the order of `elements`: the smaller
    of forward and reverse bounds, each of which holds.

    Refusal for a name that the graph does not have, and an index that the array does not have.
    """
    node, run = _kept(graph, contract, name, elements, dumps)
    whole, count = run.budgets[node], elements_of(graph).get(node) or int(np.prod(graph.nodes[node].shape))
    worst, likely, sizes = [], [], []
    for element in elements:
        parts = list(_parts(graph, run, node, element))
        bound = sum(part.worst for part in parts)
        stat = sum(part.common for part in parts) + deviations(count) * sum(part.variance for part in parts) ** 0.5
        ahead, ahead_likely = float(whole.bound[element]), float(whole.statistical[element])
        worst.append(_smaller(ahead, bound))
        likely.append(_smaller(worst[-1], _smaller(ahead_likely, stat)))
        sizes.append(np.inf if isinstance(whole.size, float) else float(whole.size[element]))
    return Budget(np.array(worst), np.array(likely), np.array(sizes))


@np.errstate(all="ignore")
def sources(graph: Graph, contract: Contract, name: str, element: Element, dumps: Dumps | None = None) -> list[Source]:
    """What an element's worst case comes from, by line of the reference, the largest first."""
    node, run = _kept(graph, contract, name, [element], dumps)
    by_line: dict[Line, list[Any]] = {}
    for part in _parts(graph, run, node, element):
        made = graph.nodes[part.node]
        said = "a constant" if made.op == CONSTANT else RULES[made.op].words
        total = by_line.setdefault(made.line, [0.0, 0.0, 0.0, {}])
        total[0], total[1], total[2] = total[0] + part.worst, total[1] + part.variance, total[2] + part.common
        total[3][said] = total[3].get(said, 0.0) + part.worst
    found = [
        Source(line, max(words, key=words.__getitem__), worst, common + variance**0.5)
        for line, (worst, variance, common, words) in by_line.items()
        if worst > 0
    ]
    return sorted(found, key=lambda one: -one.worst)


def _kept(
    graph: Graph, contract: Contract, name: str, elements: Sequence[Element], dumps: Dumps | None
) -> tuple[int, Forward]:
    places = graph.places()
    node = places[known(name, places)]
    shape = graph.nodes[node].shape
    for element in elements:
        if len(element) != len(shape) or any(not -n <= i < n for i, n in zip(element, shape, strict=True)):
            raise Refusal(f"{name} has the shape {shape}; it has no element {element}")
    given = placed(graph, dumps or {})
    given.pop(node, None)
    return node, forward(graph, contract, {node}, given, elements_of(graph), keep=True)


@dataclass(frozen=True)
class _Part:
    """What one node adds."""

    node: int
    worst: float
    variance: float
    common: float


def _parts(graph: Graph, run: Forward, node: int, element: Element) -> Iterator[_Part]:
    value = run.values[node]
    seed = array_namespace(value).zeros_like(value)
    seed[element] = 1.0
    for i, g in adjoints(run, node, seed):
        part = _part(i, g, run)
        if part is not None:
            yield part


def adjoints(run: Forward, node: int, seed: Any, ends: Collection[int] = ()) -> Iterator[tuple[int, Any]]:
    """Every node that `node` is made of, from the last one back, with d sum(seed node) / d node; inputs among `ends`
    too.
    """
    found: dict[int, Any] = {node: seed}
    for i in range(node, -1, -1):
        g = found.pop(i, None)
        if g is None:
            continue
        yield i, g
        if i not in run.kept or (rule := RULES.get(run.kept[i].site.node.op)) is None:
            continue
        site = run.kept[i].site
        for k, j in enumerate(site.node.reads):
            if j in run.kept or j in ends:
                moved = rule.adjoint(site, k, g)
                found[j] = moved if j not in found else found[j] + moved


def _part(i: int, g: Any, run: Forward) -> _Part | None:
    """|g| times the bounds of what comes in at a node. One relative error that all elements share is added up first."""
    kept = run.kept.get(i)
    if kept is None:
        return None
    own, xp = kept.own, kept.site.xp
    zero = isinstance(own.worst, float) and isinstance(kept.beyond, float)
    if zero and own.worst == 0.0 and kept.beyond == 0.0:
        return None
    size = abs(g)

    def reached(bound: Any) -> float:
        if isinstance(bound, float) and bound == 0.0:
            return 0.0
        moved = size * bound
        return float(xp.sum(xp.where(size == 0, 0.0, moved)))

    beyond, expected = reached(kept.beyond), reached(kept.likely)
    random = own.random if isinstance(own.random, float) else xp.where(size == 0, 0.0, size * own.random)
    variance = 0.0 if isinstance(random, float) else float(xp.sum(random * random))
    common = expected + reached(own.common)
    if not isinstance(own.alike, float):
        common += abs(float(xp.sum(g * own.alike * xp.sign(kept.site.y))))
    return _Part(i, beyond + reached(own.worst), variance, common)


def _smaller(a: float, b: float) -> float:
    """min, where NaN is no bound."""
    return b if np.isnan(a) and not np.isnan(b) else min(a, b) if not np.isnan(b) else a
