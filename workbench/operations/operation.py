"""An operation as a record: its axes, inputs, plain function, stages, conventions and distributions of inputs.

What runs it, judges it and shows it knows none of its stages by name.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from workbench.reference.graph import Contract

#: axis letter -> how long it is
Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Setting:
    """What stages depend on."""

    sizes: Sizes
    numbers: Mapping[str, float]  #: flags among them, False or True
    conventions: Mapping[str, Any]
    dtype: str  #: of the inputs that have no dtype of their own, and of results
    optional: tuple[str, ...] = ()  #: the optional inputs that there are
    own: tuple[str, ...] = ()  #: inputs that the function made itself, which nobody saw
    functions: Mapping[str, Any] = field(default_factory=dict)  #: by keyword, each itself or by its name


#: inputs by name, of what a case says
Draw = Callable[[Setting, np.random.Generator], dict[str, np.ndarray]]


@dataclass(frozen=True)
class Turn:
    """One turn of a loop in plain code that carries a state along an axis."""

    #: the body of the loop. It takes the inputs, those along the axis cut to one tile, `before` (the state so far) and
    #: the numbers, by name. Its local `state` is the next state, affine in `before` with one matrix for all columns
    function: Callable[..., Any]
    begins: str  #: the input that is the state before the first turn
    written: str  #: the local of the same columns that the state takes in, and so carries its errors on
    #: conventions by which a function may compute, too, that says none of them and returns results alone
    otherwise: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Operation:
    """One operation."""

    name: str
    axes: Mapping[str, str]  #: letter -> its name, as in `--axes rows=64,dim=512`
    sizes: Mapping[str, int | str]  #: where nothing is said; a letter: as long as that axis
    inputs: Mapping[str, str]  #: name -> axes, in the order in which a function takes them
    stages: Callable[[Setting], Mapping[str, str]]  #: name -> axes of what a function may dump, in data-flow order
    #: what it computes in plain code, of its inputs, numbers and conventions by name, with stages as local variables:
    #: its graph gives values, budgets and causes
    reference: Callable[..., Any]
    results: tuple[str, ...]  #: stages that a function returns, in this order; those that it has
    distributions: Mapping[str, Draw]  #: by name, the usual first
    #: what `reference` takes beside its inputs, numbers and conventions, of these inputs in float64
    beside: Callable[[Setting, Mapping[str, np.ndarray]], Mapping[str, Any]] = lambda of, inputs: {}
    #: a turn of its loop along `walked`, which gives sharper budgets than the whole loop; None: that gives them
    turn: Callable[[Setting], Turn | None] = lambda of: None
    contract: Callable[[Setting], Contract] = lambda of: Contract()  #: how kernels compute it
    optional: Mapping[str, str] = field(default_factory=dict)  #: input that a case may have, a keyword -> its axes
    #: keyword -> its usual value, a number or a flag; what makes it of the sizes; or its type alone: a case has it only
    #: where it is said
    numbers: Mapping[str, float | type | Callable[[Sizes], float]] = field(default_factory=dict)
    functions: tuple[str, ...] = ()  #: keywords of functions of single elements that a case may have
    #: name -> what a function may do, the usual first
    conventions: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    #: conventions on which values and budgets depend, beside those on which the names of stages do
    budgeted: Callable[[Setting], Collection[str]] = lambda of: ()
    #: whose it is -> what known kernels do, all of it at once, that is not the usual
    known: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    dtypes: Mapping[str, str] = field(default_factory=dict)  #: of inputs that do not have that of the case
    #: stage -> which of its elements a kernel need not write, bool that broadcasts to it, of the inputs; of those
    #: nothing is judged
    free: Callable[[Setting, Mapping[str, np.ndarray]], Mapping[str, np.ndarray]] = lambda of, inputs: {}
    #: why sizes, numbers and optional inputs do not fit each other; empty where they do
    rule: Callable[[Setting], str] = lambda of: ""
    #: stage -> sum of absolute terms per element of inputs and stages; over the value it is the condition number.
    #: A budget as large as it is vacuous
    terms: Callable[[Setting, Mapping[str, np.ndarray]], Mapping[str, np.ndarray]] = lambda of, values: {}
    walked: str = ""  #: letter of the axis along which a state is carried, whose tiles are "t", and their places "c"
    tile: Callable[[Setting], int] = lambda of: 1  #: how long a tile of it is
