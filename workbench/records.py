"""Values as JSON takes them."""

import math
from typing import Any

import numpy as np


def number(value: Any) -> Any:
    """`value` with every non-finite number as its name, in dicts and lists too."""
    if isinstance(value, dict):
        return {key: number(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [number(item) for item in value]
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else str(float(value))
    return int(value) if isinstance(value, np.integer) else value
