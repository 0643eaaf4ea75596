"""Values as JSON takes them, and the rules of what it gives back."""

import math
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import numpy as np


class Rule(NamedTuple):
    """What values a field takes."""

    words: str  #: as in "must be one of ..."
    holds: Callable[[Any], bool]


def one_of(values: Collection[str]) -> Rule:
    """One of some words."""
    return Rule(f"one of {', '.join(values)}", lambda x: isinstance(x, str) and x in values)


def number(value: Any) -> Any:
    """`value` with every non-finite number as its name, in dicts and lists too."""
    if isinstance(value, dict):
        return {key: number(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [number(item) for item in value]
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else str(float(value))
    return int(value) if isinstance(value, np.integer) else value
