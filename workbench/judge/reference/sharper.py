"""Which elements are asked in reverse mode, and their budgets.

A forward bound adds up errors that cancel: of an attention's out it is 2 to 6 times that of reverse mode, of the last
token of a recurrence 500 times. One pass in reverse costs about what a trace costs, and gives one element.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from workbench.reference.graph import Contract, Graph, budget_at
from workbench.reference.graph.forward import upstream

#: share of a forward bound from which on an error is asked again: beyond reverse mode's it would be wrong, and that is
#: seldom less than a hundredth
LEFT_OPEN = 0.01
#: elements of a result that are asked at most, the farthest off first
MOST = 64
#: of these, some that are spread evenly, whatever their error
OTHERS = 4
#: values of all nodes together that passes in reverse may go over, about a second; and above which none is made, since
#: each node's value is kept
WORK, LARGEST = 4e7, 2e7


def asked(graph: Graph, nodes: Sequence[int], beyond: np.ndarray) -> list[tuple[int, ...]]:
    """The elements of an array that are asked, of which `beyond` says the error in units of the forward bound."""
    size = sum(prod(graph.nodes[i].shape) for i in upstream(graph, nodes))
    if size > LARGEST or not beyond.size:
        return []
    most = int(min(max(WORK / max(size, 1), OTHERS), MOST))
    flat = np.nan_to_num(beyond.ravel(), nan=0.0, posinf=0.0)
    order = np.argsort(-flat, kind="stable")[:most]
    chosen = [int(i) for i in order if flat[i] > LEFT_OPEN]
    spread = np.linspace(0, flat.size - 1, min(OTHERS, flat.size)).astype(int)
    return [
        tuple(int(k) for k in np.unravel_index(i, beyond.shape)) for i in dict.fromkeys([*chosen, *map(int, spread)])
    ]


def sharper(
    graph: Graph,
    contract: Contract,
    names: Sequence[str],
    elements: Sequence[tuple[int, ...]],
    dumps: Mapping[str, Any],
) -> dict[tuple[int, ...], tuple[float, float]]:
    """Worst-case and statistical budgets of elements of a stage: of several iterations, `names`, the first index
    counts them.
    """
    several = len(names) > 1
    found: dict[tuple[int, ...], tuple[float, float]] = {}
    for turn, name in enumerate(names):
        some = [at for at in elements if not several or at[0] == turn]
        if some:
            others = {key: x for key, x in dumps.items() if key != name}
            made = budget_at(graph, contract, name, [at[1:] if several else at for at in some], others)
            found |= {at: (float(made.bound[i]), float(made.statistical[i])) for i, at in enumerate(some)}
    return found
