"""What a reference gives where operands of its contractions have fewer bits: a prediction, where budgets are bounds."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from workbench.floats import array_namespace, to_float64
from workbench.reference.graph.combine import is_float
from workbench.reference.graph.expected import Dumps, placed
from workbench.reference.graph.node import Graph, Line
from workbench.reference.graph.patterns import patterns_of
from workbench.reference.graph.plan import upstream
from workbench.reference.graph.rules import CONSTANT, INPUT, RULES

#: of a float64 and this many times it float64 holds the upper 11 bits alone (Dekker 1971, Numer. Math. 18)
_SPLIT = 2.0**42 + 1

#: an operand of a contraction at a line of the reference -> what the kernel multiplies in its place
Change = Callable[[Line, Any], Any]


def to_nearest(_: Line, x: Any) -> Any:
    """What TF32 keeps of it, 11 significant bits, rounded to nearest."""
    y = x * _SPLIT
    return y - (y - x)


def cut_off(line: Line, x: Any) -> Any:
    """What TF32 keeps of it where hardware cuts the rest off: of what was rounded up the number before it."""
    near = to_nearest(line, x)
    return array_namespace(x).where(abs(near) > abs(x), to_nearest(line, near * (1 - 2.0**-11)), near)


@np.errstate(all="ignore")
def with_operands(graph: Graph, names: Sequence[str], dumps: Dumps, change: Change) -> list[Any]:
    """The values of stages and results, in float64 but for operands that `change` gives; `dumps` in place of stages in
    what follows.
    """
    places, given = graph.places(), placed(graph, dumps)
    asked = [places[name] for name in names]
    order = sorted(upstream(graph, asked, given))
    contractions, found, values = patterns_of(graph).contractions, dict[int, Any](), dict[int, Any]()
    last = {j: i for i in order for j in graph.nodes[i].reads}
    for i in order:
        node = graph.nodes[i]
        if i in asked or i not in given:
            values[i] = _value(graph, i, values, change if i in contractions else None)
        if i in asked:
            found[i] = values[i]
        if i in given:
            values[i] = to_float64(given[i]) if is_float(given[i]) else given[i]
        for j in node.reads:
            if last[j] == i:
                values.pop(j, None)
    return [found[i] for i in asked]


def _value(graph: Graph, i: int, values: Mapping[int, Any], change: Change | None) -> Any:
    node = graph.nodes[i]
    if node.op in (INPUT, CONSTANT):
        return node.value
    x = [values[j] for j in node.reads]
    x = x if change is None else [change(node.line, one) if is_float(one) else one for one in x]
    y = RULES[node.op].value(*x, **node.attributes)
    return np.asarray(y) if isinstance(y, np.generic) else y
