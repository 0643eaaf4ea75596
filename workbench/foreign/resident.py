"""A foreign function called again and again on arrays that stay on its device: what travels is what changes, and the
part of the result that is looked at.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np

from workbench.arrays import as_numpy
from workbench.case.box import Box
from workbench.case.stages import LSE, OUT
from workbench.foreign.layouts import BOX
from workbench.foreign.returned import by_name
from workbench.trace.trace import Part, Resident

#: boxes of four axes, of which a part is a part in each library
_BOXES = (BOX, "bshd")


def resident(
    placed: Callable[[], tuple[Mapping[str, Any], Mapping[str, Any]]],
    once: Callable[[Mapping[str, Any], Mapping[str, Any]], Any],
    axes: Mapping[str, str],
    over: Callable[[np.ndarray], Any],
    name: str,
) -> Resident | None:
    """The function on arrays that stay; None where inputs or results are no boxes (packed rows, pages).

    `placed` makes its arguments where it wants them, which is done once; `once` calls it with them. `axes` of out and
    lse, and of k and v where they differ ("kv").
    """
    of_out, of_kv = axes[OUT], axes.get("kv", axes[OUT])
    if of_out not in _BOXES or of_kv not in _BOXES or axes.get(LSE, "bhs") not in ("bhs", ""):
        return None
    own = cache(placed)

    def boxed(x: Any, axes: str) -> Any:
        """[b, h, s, d] of an array, which stays where it is."""
        return x if axes == BOX else x.swapaxes(1, 2)

    def again(changed: Mapping[str, Part], part: Box) -> dict[str, np.ndarray]:
        positional, keywords = own()
        arrays = dict(positional)
        for x, (at, values) in changed.items():
            arrays[x] = _copy(positional[x])
            boxed(arrays[x], of_out if x == "q" else of_kv)[_index(at)] = over(_least(values))
        made = by_name(once(arrays, keywords), name)
        there = {OUT: boxed(made[OUT], of_out)}
        if made.get(LSE) is not None:
            there[LSE] = made[LSE]
        return {stage: as_numpy(x[_index(part)], f"{name}: {stage}").copy() for stage, x in there.items()}

    return again


def _copy(x: Any) -> Any:
    """`x` with its strides, so that the kernel takes the path that it took."""
    return x.clone() if hasattr(x, "clone") else x.copy(order="K")


def _least(x: np.ndarray) -> np.ndarray:
    """`x` with axes that are broadcast (stride 0) cut to 1, which the assignment broadcasts again."""
    return x[tuple(slice(0, 1) if step == 0 else slice(None) for step in x.strides)]


def _index(part: Box) -> tuple[Any, ...]:
    """A part as an index that each library takes."""
    return tuple(x if isinstance(x, slice) else x.tolist() for x in part)
