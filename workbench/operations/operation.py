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


@dataclass(frozen=True)
class Setting:
    """What a table of stages depends on."""

    sizes: Sizes
    numbers: Mapping[str, float]  #: flags among them, False or True
    conventions: Mapping[str, Any]
    dtype: str  #: of the inputs that have no dtype of their own, and of results


#: inputs by name, of what a case says
Draw = Callable[[Setting, np.random.Generator], dict[str, np.ndarray]]


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
    #: keyword -> its usual value, a number or a flag; or what makes it of the sizes
    numbers: Mapping[str, float | Callable[[Sizes], float]] = field(default_factory=dict)
    #: name -> what a function may do, the usual first
    conventions: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    dtypes: Mapping[str, str] = field(default_factory=dict)  #: of inputs that do not have that of the case
    #: stage -> which of its elements a kernel need not write, bool that broadcasts to it; of those nothing is judged
    free: Callable[[Setting], Mapping[str, np.ndarray]] = lambda of: {}
    #: why sizes and numbers do not fit each other; empty where they do
    rule: Callable[[Setting], str] = lambda of: ""
    #: input that a function may make itself -> how far its own may be from a right one, of the setting and that one
    own: Mapping[str, Callable[[Setting, np.ndarray], np.ndarray]] = field(default_factory=dict)
    walked: str = ""  #: letter of the axis along which a state is carried, whose tiles are "t", and their places "c"
    tile: Callable[[Setting], int] = lambda of: 1  #: how long a tile of it is
