"""What is known of an operation before it is done: what its schema says, and what is given to it."""

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch

from workbench.reference.graph.arrays import FEW, Traced, held
from workbench.reference.graph.torch_tensor import DTYPES, Tensor, plain_array
from workbench.refusal import Refusal


def written(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """The tensor that an operation writes to, of those that write to one; a tuple of several."""
    found = [kwargs[name] if name in kwargs else args[place] for place, name in facts(func).written]
    return None if not found else found[0] if len(found) == 1 else tuple(found)


class Facts(NamedTuple):
    """What the schema of an operation says."""

    space: str
    name: str
    written: tuple[tuple[int, str], ...]  #: the arguments that it writes to


@cache
def facts(func: Any) -> Facts:
    schema = func._schema
    space, name = schema.name.split("::")
    listed = enumerate(schema.arguments)
    written = tuple((i, one.name) for i, one in listed if one.alias_info is not None and one.alias_info.is_write)
    return Facts(space, name, written)


def is_unknown(x: torch.Tensor) -> bool:
    """Whether it has too many floats to be a constant from anywhere."""
    return x.is_floating_point() and x.numel() > FEW


def fixed(x: Any, more: dict[str, Any], func: Any, rule: Any) -> Traced | tuple[Traced, ...] | None:
    """Of whole numbers that no rounding reaches, what torch makes of them; None where that is a float. rule: of single
    elements, which notes what they are made of; None without one.
    """
    arrays = [one for one in flat([*x, *more.values()]) if isinstance(one, Traced)]
    if not arrays or not all(one.fixed and one.whole for one in arrays):
        return None
    run = arrays[0].run
    made = func(*_plain(x), **{key: _plain(one) for key, one in more.items()})
    listed = made if isinstance(made, list | tuple) else (made,)
    if not all(isinstance(one, torch.Tensor) and not one.is_floating_point() for one in listed):
        return None
    if rule is not None and (found := _by_rule(rule, x, more, listed[0])) is not None:
        return found
    held_ = tuple(held(run, plain_array(one), DTYPES[one.dtype]) for one in listed)
    return held_ if isinstance(made, list | tuple) else held_[0]


def _by_rule(rule: Any, x: Any, more: dict[str, Any], made: torch.Tensor) -> Traced | None:
    """The same by a rule; None where that makes something else, or nothing."""
    try:
        found = rule(*x, **more)
    except (Refusal, TypeError):
        return None
    same = isinstance(found, Traced) and found.fixed and found.dtype == DTYPES[made.dtype]
    return found if same and np.array_equal(found.value, plain_array(made)) else None


def _plain(x: Any) -> Any:
    if isinstance(x, Traced):
        return torch.from_numpy(x.value.copy())
    return type(x)(_plain(one) for one in x) if isinstance(x, list | tuple) else x


def number(x: Any) -> Any:
    """Sizes and ends of ranges, which may be tensors of one number."""
    return x.item() if isinstance(x, Tensor) else x


def flat(x: Any) -> list[Any]:
    return [y for one in x for y in flat(one)] if isinstance(x, list | tuple) else [x]
