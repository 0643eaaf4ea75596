"""What is asked for when gradients of a reference are."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.floats import DTYPES
from workbench.refusal import Refusal


@dataclass(frozen=True)
class Gradients:
    """Gradients of the results, from which torch.autograd goes back: `d<result>` among the inputs, or drawn.

    Refusal for a dtype that is none of floats.
    """

    seed: int | None = None  #: of those that are drawn, from a normal distribution; None: all are among the inputs
    dtype: str = "float32"  #: in which they are drawn, so that a kernel with results in it reads the same numbers

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise Refusal(f"gradients are drawn in one of {', '.join(DTYPES)}; got {self.dtype!r}")

    def drawn(self, place: int, shape: tuple[int, ...]) -> np.ndarray:
        """The gradient of the result at a place, in float64, of numbers that `dtype` holds."""
        assert self.seed is not None
        value = np.random.default_rng([self.seed, place]).standard_normal(shape)
        return np.asarray(value.astype(DTYPES[self.dtype]).astype(np.float64))


def split(f: Callable[..., Any], inputs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The inputs that f takes, and the others: gradients of its results. Of `**kwargs` all are taken."""
    try:
        named = inspect.signature(f).parameters.values()
    except (TypeError, ValueError):  # a builtin that does not tell
        return dict(inputs), {}
    if any(one.kind is one.VAR_KEYWORD for one in named):
        return dict(inputs), {}
    known = {one.name for one in named}
    own = {name: x for name, x in inputs.items() if name in known}
    return own, {name: x for name, x in inputs.items() if name not in known}
