"""Edits of two weights that add up to 1, which a kernel has as 1/2, since nobody passed them on, or exchanged."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from math import log

from workbench.judge.reference.causes.edit import Draft, Edit
from workbench.reference.graph import Graph
from workbench.reference.graph.rules import CONSTANT

#: two numbers of Python are one, but for roundings
SAME = 1e-12


def weights(graph: Graph, nodes: Sequence[int]) -> Iterator[Edit]:
    """Two weights that add up to 1, and their logarithms: one half each, as a default has it, or exchanged."""
    numbers: dict[float, list[int]] = {}
    for j, one in enumerate(graph.nodes):
        if one.op == CONSTANT and not one.value.ndim:
            numbers.setdefault(float(one.value), []).append(j)
    for c in [x for x, some in numbers.items() if 0 < x < 0.5 and not set(nodes).isdisjoint(some)]:
        other = next((x for x in numbers if abs(c + x - 1) < SAME), None)
        if other is None:
            continue
        of = dict[int, tuple[float, float]]()
        for a, b in ((c, other), (other, c)):
            of |= {i: (0.5, b) for i in numbers[a]}
            logs = [i for x, some in numbers.items() if abs(x - log(a)) < SAME for i in some]
            of |= {i: (log(0.5), log(b)) for i in logs}
        for k, said in enumerate(("are 1/2 each, in logarithms too", "stand in each other's place, in logarithms too")):
            make = partial(_another_number, {i: new[k] for i, new in of.items()})
            yield Edit(tuple(of), make, f"{c:g} and {other:g}", said, "factor", 2)


def _another_number(of: Mapping[int, float], d: Draft) -> None:
    d.hold(of[d.node])
