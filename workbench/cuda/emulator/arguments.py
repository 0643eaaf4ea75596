"""Arguments of a launch: their types and the int64 words that carry them to compiled code."""

from dataclasses import dataclass

import numpy as np

from workbench.cuda.emulator.emulator_error import EmulatorError
from workbench.cuda.emulator.intrinsics import DTYPES


@dataclass(frozen=True)
class Parameter:
    """The type of an argument: a scalar where ``ndim`` is None."""

    dtype: str
    ndim: int | None = None
    layout: str = "C"
    readonly: bool = False

    @property
    def words(self) -> int:
        """Return how many int64 words hold the argument."""
        if self.ndim is None:
            return 1
        return 1 + self.ndim * (1 if self.layout == "C" else 2)


def encoded(name: str, value: object) -> tuple[Parameter, list[int]]:
    """Return the type of an argument and the int64 words that hold it."""
    if isinstance(value, np.ndarray):
        if value.dtype.name not in DTYPES or not value.dtype.isnative:
            raise EmulatorError(f"argument {name}: arrays of dtype {value.dtype} have no CUDA type")
        layout = "C" if value.flags.c_contiguous else "A"
        parameter = Parameter(value.dtype.name, value.ndim, layout, not value.flags.writeable)
        return parameter, [value.ctypes.data, *value.shape, *(value.strides if layout == "A" else ())]
    plain = {bool: np.bool_, int: np.int64, float: np.float64}.get(type(value))
    try:
        scalar = value if plain is None else plain(value)
    except OverflowError as error:
        raise EmulatorError(f"argument {name}: {value} does not fit an int64") from error
    if not isinstance(scalar, np.generic) or scalar.dtype.name not in DTYPES:
        raise EmulatorError(f"argument {name}: {type(value).__name__} has no CUDA type; pass an array or a number")
    bits = scalar.tobytes().ljust(8, b"\0")
    return Parameter(scalar.dtype.name), [int.from_bytes(bits, "little", signed=True)]
