"""Which line of a reference leaves elements without a budget."""

from collections.abc import Sequence

import numpy as np

from workbench.arrays import on_cpu
from workbench.expectation.elements import Comparison, State
from workbench.judge.reference.given import Given
from workbench.judge.reference.held import like
from workbench.reference.graph import Contract, Graph
from workbench.reference.graph.expected import elements_of
from workbench.reference.graph.forward import forward, upstream
from workbench.reference.graph.node import Line
from workbench.reference.graph.rules import RULES


def opened(graph: Graph, contract: Contract, one: Given, given: Sequence[Given], found: Comparison) -> str:
    """Why elements were not judged, in words behind their number: the first line whose budget is infinite; else that
    budgets are as large as what the elements are made of, or that what they read is NaN.
    """
    if found.summary.count(State.POISONED):
        return ": what they are made of is NaN"
    vacuous = found.state == State.VACUOUS
    if np.isfinite(found.budget[vacuous]).all():
        return ": their budgets are as large as the terms that they add up"
    line, words = first_open(graph, contract, one, given)
    return f": their budget is infinite from {line} on ({words})"


def first_open(graph: Graph, contract: Contract, one: Given, given: Sequence[Given]) -> tuple[Line, str]:
    """The first node of which a budget is not finite, as its line and what it does."""
    dumps = {i: like(graph, x) for other in given for i, x in zip(other.nodes, other.turns, strict=True)}
    nodes = sorted(upstream(graph, one.nodes, dumps))
    budgets = forward(graph, contract, nodes, dumps, elements_of(graph)).budgets
    node = next((i for i in nodes if i in budgets and not np.isfinite(on_cpu(budgets[i].bound)).all()), one.nodes[-1])
    rule = RULES.get(graph.nodes[node].op)
    return graph.nodes[node].line, graph.nodes[node].op if rule is None else rule.words
