"""Ranges of values, and whoever draws from them."""

from collections.abc import Callable
from typing import Any, NamedTuple


class Between(NamedTuple):
    """Whole numbers, both ends included; the plainest is the least."""

    low: int
    high: int


class Among(NamedTuple):
    """Some values, each as often as it stands here; the plainest is the first."""

    values: tuple[Any, ...]


#: a range, or what else whoever draws knows to draw from: a value is itself
Draw = Callable[[Any], Any]
