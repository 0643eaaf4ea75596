"""The graph of a reference that a user names."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from workbench.arrays import as_torch, names_numpy, names_torch, of_torch
from workbench.case.user_code import running
from workbench.foreign.target import target_of
from workbench.raised import as_raised
from workbench.reference.graph import Gradients, Graph, trace
from workbench.refusal import Raised, Refusal, Unavailable

Function = Callable[..., Any]
References = str | Function | Sequence[str | Function]
#: what a run of tensors says of a function of NumPy
PLAIN = "would become a plain array"


def each(reference: References) -> list[str | Function]:
    """The references; Refusal of none."""
    found = [reference] if isinstance(reference, str) or callable(reference) else list(reference)
    if not found:
        raise Refusal("reference takes a function or several; got none")
    return found


def traced(
    reference: str | Function, inputs: Mapping[str, Any], gradients: Gradients | None = None
) -> tuple[Graph, str]:
    """The graph of a reference on inputs, and its name. For gradients it gets tensors; so it does where it raises on
    NumPy arrays and is written in torch. Refusal as of `trace`, and for gradients of one that is written for NumPy;
    Raised where it raises.
    """
    found = target_of(reference)
    if not found.is_foreign:
        raise Refusal(f"a reference is FILE.py:FUNCTION, or a function; got {found.name}")
    function = found.function()
    if gradients is not None:
        inputs = {name: as_torch(x, name) if isinstance(x, np.ndarray) else x for name, x in inputs.items()}
    try:
        with running(function):
            return trace(function, inputs, gradients=gradients), found.name
    except KeyboardInterrupt:
        raise
    except Exception as error:
        of_numpy = gradients is not None and names_numpy(function) and not names_torch(function)
        if of_numpy and (PLAIN in str(error) or not isinstance(error, Refusal | Unavailable)):
            said = f"gradients go through torch.autograd: {found.name} is in NumPy; it must be in torch"
            raise Refusal(said) from None
        if isinstance(error, Refusal | Unavailable):
            raise
        numpy = [name for name, x in inputs.items() if isinstance(x, np.ndarray)]
        if numpy and of_torch(error, function, "numpy"):
            return traced(reference, {**inputs, **{name: as_torch(inputs[name], name) for name in numpy}})
        raise Raised(f"reference {found.name} raised:\n{as_raised(error)}") from None
