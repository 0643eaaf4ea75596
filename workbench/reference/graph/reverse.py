"""Reverse mode: the budget of an element as the sum over all roundings of |d element / d rounding| times its bound.

Errors of one source cancel, as those of a softmax's maximum do, which no forward bound sees. What first order leaves
out is in it: f(x + e) - f(x) - f'(x) e of every node, bounded by the forward pass, is one more error of the node. So
the worst case is one, and where forward bounds are wide it widens by itself.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.floats import array_namespace
from workbench.reference.bound import Budget, deviations
from workbench.reference.graph.contract import Contract
from workbench.reference.graph.error import EXACT, none
from workbench.reference.graph.expected import Dumps, elements_of, known, placed
from workbench.reference.graph.forward import Forward, Kept, forward
from workbench.reference.graph.node import Graph, Line
from workbench.reference.graph.rules import RULES
from workbench.reference.graph.words import words
from workbench.refusal import Refusal

Element = tuple[int, ...]
#: for roundings of values that are off themselves: sums of 100,000 terms lose 0.6 % of what is moved
MARGIN = 1.01


@dataclass(frozen=True)
class Source:
    """What one line of the reference adds to the budget of an element."""

    line: Line
    words: str  #: the largest of it, such as "q @ k transposed"
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
    for element, parts in zip(elements, _parts(run, node, elements), strict=True):
        bound = MARGIN * sum(part.worst for part in parts)
        stat = sum(part.common for part in parts) + deviations(count) * sum(part.variance for part in parts) ** 0.5
        ahead, ahead_likely = float(whole.bound[element]), float(whole.statistical[element])
        worst.append(_smaller(ahead, bound))
        likely.append(_smaller(worst[-1], _smaller(ahead_likely, MARGIN * stat)))
        sizes.append(np.inf if isinstance(whole.size, float) else float(whole.size[element]))
    return Budget(np.array(worst), np.array(likely), np.array(sizes))


@np.errstate(all="ignore")
def sources(graph: Graph, contract: Contract, name: str, element: Element, dumps: Dumps | None = None) -> list[Source]:
    """What an element's worst case comes from, by line of the reference, the largest first."""
    node, run = _kept(graph, contract, name, [element], dumps)
    by_line: dict[Line, list[Any]] = {}
    for part in _parts(run, node, [element])[0]:
        total = by_line.setdefault(graph.nodes[part.node].line, [0.0, 0.0, 0.0, {}])
        total[0], total[1], total[2] = total[0] + part.worst, total[1] + part.variance, total[2] + part.common
        total[3][part.node] = part.worst
    found = [
        Source(line, words(graph, max(nodes, key=nodes.__getitem__)), worst, common + variance**0.5)
        for line, (worst, variance, common, nodes) in by_line.items()
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
    return node, forward(graph, contract, {node}, given, elements_of(graph), reverse=True)


@dataclass(frozen=True)
class _Part:
    """What one node adds."""

    node: int
    worst: float
    variance: float
    common: float


def _parts(run: Forward, node: int, elements: Sequence[Element]) -> list[list[_Part]]:
    """What each element's budget is made of."""
    value = run.values[node]
    seeds = []
    for element in elements:
        seeds.append(array_namespace(value).zeros_like(value))
        seeds[-1][element] = 1.0
    found: list[list[_Part]] = [[] for _ in elements]
    for k, i, g, kept in adjoints(run, node, seeds):
        part = None if kept is None else _part(i, g, kept)
        if part is not None:
            found[k].append(part)
    return found


def adjoints(
    run: Forward, node: int, seeds: Sequence[Any], every: bool = False
) -> Iterator[tuple[int, int, Any, Kept | None]]:
    """For each seed the nodes that `node` is made of, from the last one back, each with d sum(seed node) / d node and
    what the forward pass kept of it: those that are off; or `every` one, inputs last.
    """
    found: list[dict[int, Any]] = [{node: seed} for seed in seeds]
    for kept in run.segments():
        for i in sorted(kept, reverse=True):
            for k, waiting in enumerate(found):
                g = waiting.pop(i, None)
                if g is None:
                    continue
                yield k, i, g, kept[i]
                _back(g, kept[i], waiting, every)
    for k, waiting in enumerate(found):
        yield from ((k, i, g, None) for i, g in waiting.items())


def _back(g: Any, kept: Kept, waiting: dict[int, Any], every: bool) -> None:
    """Hands the adjoint of a node on to those that it reads."""
    rule, site = RULES.get(kept.site.node.op), kept.site
    if rule is None or kept.cut:
        return
    for k, j in enumerate(site.node.reads):
        if every or site.reads[k].error is not EXACT:
            moved = rule.adjoint(site, k, g)
            waiting[j] = moved if j not in waiting else waiting[j] + moved


def _part(i: int, g: Any, kept: Kept) -> _Part | None:
    """|g| times the bounds of what comes in at a node. One relative error that all elements share is added up first."""
    own, xp = kept.own, kept.site.xp
    if none(own.worst) and none(kept.beyond):
        return None
    size = abs(g)

    def reached(bound: Any) -> float:
        return 0.0 if none(bound) else float(xp.sum(xp.where(size == 0, 0.0, size * bound)))

    variance = 0.0 if none(own.random) else float(xp.sum(xp.where(size == 0, 0.0, size * own.random) ** 2))
    common = reached(kept.likely) + reached(own.common)
    if own.alike:
        common += own.alike * abs(float(xp.sum(g * kept.site.held)))
    return _Part(i, reached(kept.beyond) + reached(own.worst), variance, common)


def _smaller(a: float, b: float) -> float:
    """min, where NaN is no bound."""
    return b if np.isnan(a) and not np.isnan(b) else min(a, b) if not np.isnan(b) else a
