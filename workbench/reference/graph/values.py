"""Values of nodes while a run is recorded whose arrays are blank: of what the reference decides by."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from workbench.reference.graph.device import moved
from workbench.reference.graph.node import Node
from workbench.reference.graph.rules import CONSTANT, INPUT, RULES

#: elements of values that are kept from one decision to the next, 512 MB: those of a loop read what is new alone
KEPT = 2**26


class Values:
    """Of the nodes of one run, on a device of torch."""

    def __init__(self, nodes: Sequence[Node], device: Any) -> None:
        self._nodes, self.device = nodes, device
        self._kept: dict[int, Any] = {}

    def of(self, node: int) -> np.ndarray:
        """The value of a node, in NumPy."""
        import torch
        from torch.utils._mode_utils import no_dispatch

        # what torch is asked for here is not of the run
        with np.errstate(all="ignore"), torch.no_grad(), torch._C.DisableTorchFunction(), no_dispatch():
            return self._of(node)

    def _of(self, node: int) -> np.ndarray:
        order, queue = {node}, [node]
        while queue:
            for j in self._nodes[queue.pop()].reads:
                if j not in order and j not in self._kept:
                    order.add(j)
                    queue.append(j)
        last = {j: i for i in sorted(order) for j in self._nodes[i].reads}
        for i in sorted(order):
            self._kept[i] = self._kept[i] if i in self._kept else self._value(i)
            for j in self._nodes[i].reads:
                if last[j] == i and self._kept[j].numel() > KEPT:
                    del self._kept[j]
        found: np.ndarray = self._kept[node].cpu().numpy()
        self._forget()
        return found

    def _value(self, i: int) -> Any:
        node = self._nodes[i]
        if node.op in (INPUT, CONSTANT):
            return moved(node.value, self.device)
        attributes = moved(node.attributes, self.device)
        return RULES[node.op].value(*(self._kept[j] for j in node.reads), **attributes)

    def _forget(self) -> None:
        """The oldest, until the others are few enough."""
        total = sum(x.numel() for x in self._kept.values())
        for i in [*self._kept]:
            if total <= KEPT:
                return
            total -= self._kept.pop(i).numel()
