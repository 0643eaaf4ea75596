"""Which elements are asked in reverse mode, and their budgets.

A forward bound adds up errors that cancel: of an attention's out it is 2 to 6 times that of reverse mode, of the last
token of a recurrence 500 times. One pass in reverse costs about what a trace costs, and gives one element.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from workbench.reference.graph import Contract, Graph, budget_at
from workbench.reference.graph.plan import upstream

#: deviations from which on an element is asked: the worst case of a single rounding is 1.7 of them
LEFT_OPEN = 1.0
#: elements of a result that are asked at most, the farthest off first
MOST = 64
#: of these, some that are spread evenly, whatever their error
OTHERS = 4
#: values of all nodes together that passes in reverse may go over, about a second; and above which none is made, since
#: each node's value is kept
WORK, LARGEST = 4e7, 2e7
#: values that are as much work as a node itself, 50 microseconds: a recurrence of 512 tokens has 10,000 nodes
NODE = 2048


def is_large(graph: Graph) -> bool:
    """Whether its values are too many for passes in reverse."""
    return sum(prod(node.shape) for node in graph.nodes) > LARGEST


def affordable(graph: Graph, nodes: Sequence[int]) -> int:
    """How many elements of an array are asked at most; 0 of one that is too dear."""
    above = upstream(graph, nodes)
    size = sum(prod(graph.nodes[i].shape) for i in above)
    work = size + NODE * len(above)
    return 0 if size > LARGEST else int(min(max(WORK / max(work, 1), OTHERS), MOST))


def asked(off: np.ndarray, most: int) -> list[tuple[int, ...]]:
    """The elements of an array that are asked, of which `off` says how many deviations they are off."""
    if not most or not off.size:
        return []
    flat = np.nan_to_num(off.ravel(), nan=0.0, posinf=0.0)
    order = np.argsort(-flat, kind="stable")[:most]
    chosen = [int(i) for i in order if flat[i] > LEFT_OPEN]
    spread = np.linspace(0, flat.size - 1, min(OTHERS, flat.size)).astype(int)
    return [tuple(int(k) for k in np.unravel_index(i, off.shape)) for i in dict.fromkeys([*chosen, *map(int, spread)])]


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
