"""A case of a function that a plain reference judges: what its inputs are made of."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from workbench.operations.reference.inputs import Given, function_of_inputs


@dataclass(frozen=True)
class ReferenceCase:
    """What `inputs` is asked for, and which other values of it."""

    axes: Mapping[str, int] = field(default_factory=dict)
    dtype: str | None = None
    seed: int = 0
    distribution: str = ""

    def asked(self) -> dict[str, Any]:
        """The case as arguments of `call.diff_reference`."""
        return {"axes": self.axes, "dtype": self.dtype, "seed": self.seed, "distribution": self.distribution}

    @property
    def words(self) -> str:
        """The case in words."""
        named = [f"{self.distribution} inputs"] if self.distribution else []
        of = [self.dtype] if self.dtype else []
        return ", ".join([*(f"{axis}={n}" for axis, n in self.axes.items()), *of, *named, f"seed {self.seed}"])


def axes_of(inputs: Given) -> dict[str, int]:
    """The sizes that a function of inputs takes: its keywords whose default is a whole number, with that; none of a
    file and of arrays. Refusal for what cannot be found.
    """
    function = function_of_inputs(inputs)
    parameters = {} if function is None else inspect.signature(function).parameters
    return {name: one.default for name, one in parameters.items() if type(one.default) is int and name != "seed"}
