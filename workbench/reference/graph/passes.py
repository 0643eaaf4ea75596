"""What several passes of drawn runs have in common."""

from math import prod
from typing import Any

from workbench.reference.graph.error import Own


class Known:
    """What the first of several passes found of the nodes, and the later ones take over."""

    def __init__(self, most: int) -> None:
        self.left = most  #: elements of roundings that may be kept
        self.centres: dict[int, Any] = {}  #: exact values of what is chosen by
        self.roundings: dict[int, tuple[Own, int]] = {}  #: of each node, and the bits of its value

    def keep(self, i: int, own: Own, bits: int) -> None:
        """Those of a node, unless there are too many already: then each pass finds out."""
        self.left -= sum(prod(x.shape) for x in own if hasattr(x, "shape"))
        if self.left >= 0:
            self.roundings[i] = own, bits
