"""Stages of which only some elements were given: as arrays of the whole stage, with the others left out of account."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from workbench.arrays import as_numpy
from workbench.case.case import Case
from workbench.case.stages import AXIS_NAMES, Stage, shape
from workbench.refusal import Refusal

#: elements of a stage that is laid out whole: with its errors and its judgement it takes 70 bytes an element
LARGEST = 2**25


def dims_of(stage: Stage, case: Case, where: str) -> tuple[int, ...]:
    """The shape of a stage of which some elements were given; Refusal where the case leaves it open (key tiles and
    splits), and for a stage too large to be laid out. `where` begins messages.
    """
    for axis, field in (("t", "block_k"), ("s", "splits")):
        if axis in stage.axes and getattr(case, field) is None:
            raise Refusal(
                f"{where}: stage {stage.name} has the axis {axis} ({AXIS_NAMES[axis]}), which needs {field}: "
                f'pass --{field.replace("_", "-")} for a log, or return {field} in the "contract"'
            )
    dims = shape(stage, case.sizes)
    if np.prod(dims) > LARGEST:
        sizes = ", ".join(f"{axis}={size}" for axis, size in zip(stage.axes, dims, strict=True))
        raise Refusal(
            f"{where}: a stage given in part may have at most {LARGEST} elements; {stage.name} has "
            f"{int(np.prod(dims))} ({sizes}) here: use a smaller case"
        )
    return dims


def check_index(stage: Stage, dims: tuple[int, ...], index: tuple[int, ...], where: str) -> None:
    """Refusal where `index` is not one of the stage's elements; `where` begins messages."""
    axes = " ".join(stage.axes)
    if len(index) != len(dims):
        raise Refusal(f"{where}: stage {stage.name} has {len(dims)} axes, {axes}; got {len(index)} indices")
    for axis, i, size in zip(stage.axes, index, dims, strict=True):
        if not 0 <= i < size:
            raise Refusal(f"{where}: stage {stage.name}: {AXIS_NAMES[axis]} {axis} must be 0 to {size - 1}; got {i}")


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


def of_coordinates(
    stage: Stage, dims: tuple[int, ...], given: Mapping[str, Any], where: str
) -> tuple[np.ndarray, np.ndarray]:
    """As `laid_out`, of {"indices": whole numbers [n, axes], "values": n floats}, whose values are the kernel's own.

    Refusal for anything else in `given`, an index outside the stage, and an element that is given twice.
    """
    if set(given) != {"indices", "values"}:
        raise Refusal(f'{where}: a stage given in part must be a dict of "indices" and "values"; got {sorted(given)}')
    values, indices = as_numpy(given["values"], f"{where}: values"), np.asarray(given["indices"])
    shapes = f"{list(indices.shape)} of {indices.dtype} and {list(values.shape)}"
    if indices.shape != (*values.shape, len(dims)) or values.ndim != 1 or indices.dtype.kind not in "iu":
        raise Refusal(f"{where}: indices must be whole numbers of shape [n, {len(dims)}] and values [n]; got {shapes}")
    for index in indices[((indices < 0) | (indices >= dims)).any(axis=1)][:1]:
        check_index(stage, dims, tuple(map(int, index)), where)
    if len(np.unique(indices, axis=0)) < len(indices):
        raise Refusal(f"{where}: indices name an element twice")
    return laid_out(dims, indices, values, np.zeros(len(values)))
