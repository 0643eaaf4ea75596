"""Decisions of a run that a right kernel need not share."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.reference.graph.contract import Contract
from workbench.reference.graph.device import numpy_of
from workbench.reference.graph.expected import Dumps, elements_of, placed
from workbench.reference.graph.forward import forward
from workbench.reference.graph.node import Decision, Graph


@dataclass(frozen=True)
class Undecided:
    """A place where the run went on with a value that a kernel may have otherwise."""

    decision: Decision
    off: float  #: how far the value may be off, of a truth 1


def undecided(graph: Graph, contract: Contract, dumps: Dumps | None = None) -> list[Undecided]:
    """The decisions of a run whose values are off, and those that dumps turn, in the order of the run: what follows one
    of them is that of the run alone, and its error is in no budget.
    """
    nodes = {one.node for one in graph.decisions}
    if not nodes:
        return []
    found = forward(graph, contract, nodes, placed(graph, dumps or {}), elements_of(graph))
    listed = []
    for one in graph.decisions:
        off = float(np.max(numpy_of(found.budgets[one.node].bound), initial=0.0))
        turned = not _same(found.values[one.node], one.value)
        if off > 0 or turned:
            listed.append(Undecided(one, off if off > 0 else np.inf))
    return listed


def _same(a: Any, b: Any) -> bool:
    return bool(np.allclose(numpy_of(a), numpy_of(b), rtol=1e-12, atol=0, equal_nan=True))
