"""Stages of which only some elements were given: as arrays of the whole stage, with the others left out of account."""

import numpy as np

from workbench.case import Case
from workbench.refusal import Refusal
from workbench.stages import AXIS_NAMES, Stage, shape

#: elements of a stage that is laid out whole: with its errors and its judgement it takes some 40 bytes an element
LARGEST = 2**26


def dims_of(stage: Stage, case: Case, where: str) -> tuple[int, ...]:
    """The shape of a stage of which some elements were given; Refusal where the case leaves it open (key tiles and
    splits), and for a stage too large to be laid out. `where` begins messages.
    """
    for axis, field, what in (("t", "block_k", "the keys of a tile"), ("s", "splits", "how the keys are split")):
        if axis in stage.axes and getattr(case, field) is None:
            raise Refusal(
                f"{where}: stage {stage.name} has the axis {axis} ({AXIS_NAMES[axis]}), so that {what} must be known: "
                f"say {field} (--{field.replace('_', '-')})"
            )
    dims = shape(stage, case.sizes)
    if np.prod(dims) > LARGEST:
        sizes = ", ".join(f"{axis}={size}" for axis, size in zip(stage.axes, dims, strict=True))
        raise Refusal(
            f"{where}: stage {stage.name} has {int(np.prod(dims))} elements ({sizes}), at most {LARGEST} can be judged: "
            "run a smaller case"
        )
    return dims


def check_index(stage: Stage, dims: tuple[int, ...], index: tuple[int, ...], where: str) -> None:
    """Refusal where `index` is not one of the stage's elements; `where` begins messages."""
    axes = " ".join(stage.axes)
    if len(index) != len(dims):
        raise Refusal(f"{where}: stage {stage.name} has {len(dims)} axes, {axes}; got {len(index)} indices")
    for axis, i, size in zip(stage.axes, index, dims, strict=True):
        if not 0 <= i < size:
            raise Refusal(f"{where}: stage {stage.name}: {AXIS_NAMES[axis]} {axis} is 0 to {size - 1}; got {i}")


def laid_out(
    dims: tuple[int, ...], indices: np.ndarray, values: np.ndarray, errors: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The whole stage in the dtype of `values`, NaN where nothing was given, and how far each element may be from what
    the kernel held, NaN where nothing was given. indices [n, axes], values [n], errors [n].
    """
    stage, off = np.full(dims, np.nan, values.dtype), np.full(dims, np.nan)
    at = tuple(indices.T)
    stage[at], off[at] = values, errors
    return stage, off

