"""Gradients of a maximum along axes: torch shares them among equal elements, by a comparison and a count of its truths.

By these primitives alone the count may be 0, as each comparison is open that rounding may turn. A share is between 0
and 1, and 1 where no other element comes near.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from workbench.reference.graph.arrays import Traced
from workbench.reference.graph.recording import Recording
from workbench.reference.graph.rules import RULES
from workbench.reference.graph.torch_again import source
from workbench.reference.graph.torch_elementwise import noting


class _Extreme(NamedTuple):
    """Elements that are compared with the largest or the smallest of them."""

    x: Traced
    name: str  #: max or min
    axis: tuple[int, ...]


class Shares:
    """Of one run."""

    #: operations of which such a gradient is made
    NAMES = frozenset("eq logical_or sum mul div".split())

    def __init__(self, run: Recording) -> None:
        self.run = run
        self._masks: dict[int, _Extreme] = {}  #: by node
        self._counts: dict[int, _Extreme] = {}
        self._masked: dict[int, tuple[Traced, _Extreme]] = {}  #: g * mask -> g
        self._divided: dict[int, tuple[Traced, _Extreme]] = {}  #: g / count -> g

    def made(self, name: str, x: tuple[Any, ...], rule: Callable[..., Any]) -> Any:
        """What an operation makes of x, by its rule, or by a share."""
        arrays = [one for one in x if isinstance(one, Traced)]
        nodes = [one.node_of_run for one in arrays]
        masks = [self._masks.get(i) for i in nodes]
        if name in ("mul", "div") and len(arrays) == 2:
            found = self._shared(name, arrays, nodes, masks)
            if found is not None:
                return found
        made: Traced = rule(*x)
        if name == "eq" and len(arrays) == 2:
            extreme = self._extreme(*arrays) or self._extreme(*arrays[::-1])
            if extreme is not None:
                self._masks[made.node_of_run] = extreme
        elif any(masks) and name in ("logical_or", "sum"):
            known = self._masks if name == "logical_or" else self._counts
            known[made.node_of_run] = next(one for one in masks if one is not None)
        elif name == "mul" and any(masks) and len(arrays) == 2:
            g = arrays[masks.index(None)] if None in masks else arrays[0]
            self._masked[made.node_of_run] = g, next(one for one in masks if one is not None)
        elif name == "div" and len(arrays) == 2 and nodes[1] in self._counts:
            self._divided[made.node_of_run] = arrays[0], self._counts[nodes[1]]
        return made

    def _shared(self, name: str, x: list[Traced], nodes: list[int], masks: list[_Extreme | None]) -> Traced | None:
        """The gradient by the share, where it is masked and divided by the count of the same mask."""
        if name == "div":
            g, extreme = self._masked.get(nodes[0], (None, None))
            other = self._counts.get(nodes[1])
        else:
            k = 0 if masks[1] is not None else 1
            g, extreme = self._divided.get(nodes[k], (None, None))
            other = masks[1 - k]
        if g is None or extreme is None or extreme is not other:
            return None
        x_, axis = extreme.x, extreme.axis
        how = {"of": extreme.name, "axis": axis}
        share = x_.made("share", how, RULES["share"].value(x_.value, **how), np.float64)
        return noting(g * share, g.dtype)

    def _extreme(self, a: Traced, b: Traced) -> _Extreme | None:
        """What a is, compared with its own extreme b."""
        nodes = self.run.nodes
        top = nodes[source(self.run, b.node_of_run)]
        if top.op not in ("max", "min") or source(self.run, top.reads[0]) != source(self.run, a.node_of_run):
            return None
        return None if nodes[top.reads[0]].shape != a.shape else _Extreme(a, top.op, top.attributes["axis"])
