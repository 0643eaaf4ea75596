"""Tensors that a reference makes of nothing: zeros, ranges, random numbers. torch makes them, floats in float64."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from workbench.reference.graph.arrays import Traced, held
from workbench.reference.graph.recording import Recording
from workbench.reference.graph.torch_tensor import DTYPES, of_torch, plain_array

#: of numbers alone
CREATE = frozenset(
    (
        "zeros ones full eye arange linspace scalar_tensor tril_indices triu_indices empty empty_strided"
        " _efficientzerotensor"  # 0 without memory, of autograd
    ).split()
)
#: of the shape of an array, or for `new_` of its dtype alone
LIKE: Mapping[str, Any] = {
    "zeros_like": 0, "ones_like": 1, "full_like": None, "new_zeros": 0, "new_ones": 1, "new_full": None,
    "empty_like": 0, "new_empty": 0, "new_empty_strided": 0,
}  # fmt: skip
#: at random: of numbers alone, of the shape of an array, written into one
DRAW = frozenset("rand randn randint randperm normal".split())
DRAW_LIKE: Mapping[str, str] = {"rand_like": "uniform_", "randn_like": "normal_"}
DRAW_INTO = frozenset("uniform_ normal_ bernoulli_ exponential_ random_".split())


def created(run: Recording, func: Any, args: Any, kwargs: dict[str, Any]) -> Traced:
    """What a factory makes."""
    func = torch.ops.aten.zeros.default if func is torch.ops.aten._efficientzerotensor.default else func
    plain = func(*args, **kwargs)
    noted = DTYPES.get(plain.dtype)
    if noted is None:
        run.refuse(f"no rule for a tensor of {plain.dtype}")
    if "empty" in func._schema.name:
        plain = torch.zeros_like(plain)
    elif plain.is_floating_point() and plain.dtype != torch.float64:
        plain = func(*args, **kwargs | {"dtype": torch.float64})
    return held(run, plain_array(plain), noted)


def like(run: Recording, name: str, x: Any, args: Any, dtype: Any = None) -> Traced:
    """zeros_like and new_zeros, and what goes with them."""
    noted = x.dtype if dtype is None else dtype
    noted = DTYPES[noted] if isinstance(noted, torch.dtype) else noted
    shape = tuple(args[0]) if name.startswith("new_") else tuple(x.shape)
    fill = LIKE[name]
    if fill is None:
        fill = args[-1]
    return held(run, np.full(shape, fill, noted if noted.kind in "biu" else np.float64), noted)


def drawn(run: Recording, func: Any, args: Any, kwargs: dict[str, Any]) -> Traced:
    """Random numbers, as torch draws them outside of a run."""
    plain = func(*args, **kwargs)
    return held(run, plain_array(plain), DTYPES[plain.dtype])


def drawn_into(x: Traced, name: str, args: Any, kwargs: dict[str, Any]) -> Traced:
    """Random numbers of the shape and the dtype of x."""
    if any(isinstance(one, Traced) for one in (*args, *kwargs.values())):
        x.run.refuse(f"no rule for {name} with computed parameters")
    plain = getattr(torch.empty(x.shape, dtype=of_torch(x.dtype)), name)(*args, **kwargs)
    return held(x.run, plain_array(plain), x.dtype)
