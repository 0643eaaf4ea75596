"""An operation as a record: its axes, inputs, table of stages, conventions and distributions of inputs.

What runs it, judges it and shows it knows none of its stages by name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from workbench.reference.stage import Table

#: axis letter -> how long it is
Sizes = Mapping[str, int]
Draw = Callable[[Sizes, np.random.Generator], dict[str, np.ndarray]]


@dataclass(frozen=True)
class Setting:
    """What a table of stages depends on."""

    sizes: Sizes
    numbers: Mapping[str, float]
    conventions: Mapping[str, Any]
    dtype: str  #: of the inputs that have no dtype of their own, and of results


@dataclass(frozen=True)
class Operation:
    """One operation."""

    name: str
    axes: Mapping[str, str]  #: letter -> its name, as in `--axes rows=64,dim=512`
    sizes: Sizes  #: where nothing is said
    inputs: Mapping[str, str]  #: name -> axes, in the order in which a function takes them
    table: Callable[[Setting], Table]
    results: tuple[str, ...]  #: stages that a function returns, in this order
    distributions: Mapping[str, Draw]  #: by name, the usual first
    numbers: Mapping[str, float] = field(default_factory=dict)  #: keyword -> its usual value
    #: name -> what a function may do, the usual first
    conventions: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    dtypes: Mapping[str, str] = field(default_factory=dict)  #: of inputs that do not have that of the case
    walked: str = ""  #: letter of the axis along which a state is carried, whose tiles are "t"
