"""How a machine rounds float32 to narrower floats: direction, subnormals, and what lies beyond the largest.

A float's bits without the sign, read as a number, count the floats up to it. Between two neighbours lies a fraction, so
that every argument has a position, and a rounding direction is a function from positions to whole numbers. Tried are
all neighbours of the narrow type, of both signs: an end, the middle, the quarters, and the float32 next to the ends and
to the middle.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numba import cuda, float32

from workbench.cuda import device, ptx
from workbench.cuda.calibrate.backends import THREADS, Machine
from workbench.cuda.calibrate.record import OTHER, Cast
from workbench.floats import ulp

#: direction -> what it makes of positions; the last bit of an even position's float is 0
ROUNDINGS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "exact": lambda x: x,
    "nearest-even": np.rint,
    "nearest-away": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x),
    "toward-zero": np.trunc,
    "away-from-zero": lambda x: np.copysign(np.ceil(np.abs(x)), x),
    "up": np.ceil,
    "down": np.floor,
}


def rounding_of(positions: np.ndarray, rounded: np.ndarray) -> str:
    """The first of `ROUNDINGS` that gives every result, or "other": where none does, or where nothing was tried."""
    if positions.size == 0:
        return OTHER
    return next((name for name, f in ROUNDINGS.items() if np.array_equal(f(positions), rounded)), OTHER)


@dataclass(frozen=True)
class Conversion:
    """A conversion under test."""

    dtype: Any  #: to which it rounds
    kernel: Callable[..., None]  #: of float32 [n] and an array of the same numbers of `dtype`, as `result` holds them
    result: Any  #: dtype of that array's elements: one number, or two
    overflow: str = "infinity"  #: what numbers beyond the largest, and infinity, are promised to become


def _packing(operation: Any) -> Any:
    def kernel(x: Any, out: Any) -> None:
        i = cuda.grid(1)
        if i < out.size:
            out[i] = operation(x[2 * i], x[2 * i + 1])

    return kernel


def _storing(store: Any) -> Any:
    def kernel(x: Any, out: Any) -> None:
        i = cuda.grid(1)
        if i < out.size:
            out[i] = store(x[i])

    return kernel


#: the conversions of `ptx`, and the stores of kernels of ours
CONVERSIONS = {
    "cvt_f16x2_f32": Conversion(np.float16, _packing(ptx.cvt_f16x2_f32), np.uint32),
    "cvt_bf16x2_f32": Conversion(ml_dtypes.bfloat16, _packing(ptx.cvt_bf16x2_f32), np.uint32),
    "cvt_e4m3x2_f32": Conversion(ml_dtypes.float8_e4m3fn, _packing(ptx.cvt_e4m3x2_f32), np.uint16, "largest"),
    "cvt_e5m2x2_f32": Conversion(ml_dtypes.float8_e5m2, _packing(ptx.cvt_e5m2x2_f32), np.uint16, "largest"),
    "store_float16": Conversion(np.float16, _storing(float32), np.float16),
    "store_bfloat16": Conversion(ml_dtypes.bfloat16, _storing(device.store_bfloat16), np.uint16),
}


def cast_on(machine: Machine, conversion: Conversion) -> Callable[[np.ndarray], np.ndarray]:
    """A function from float32 [n], n even, to what the machine makes of them, in the conversion's dtype."""
    launch = machine(conversion.kernel)

    def cast(x: np.ndarray) -> np.ndarray:
        out = np.zeros(x.nbytes // 4 * np.dtype(conversion.dtype).itemsize, np.uint8).view(conversion.result)
        launch(-(-out.size // THREADS), THREADS, (x, out))
        return out.view(conversion.dtype)

    return cast


def measure(cast: Callable[[np.ndarray], np.ndarray]) -> Cast:
    """What `cast`, a function as `cast_on` returns it, does."""
    dtype = cast(np.zeros(2, np.float32)).dtype
    x, positions = arguments(dtype)
    reached = _counts(cast(x))
    rounding, flushes = rounding_of(positions, reached), False
    small = np.abs(positions) < _counts(ml_dtypes.finfo(dtype).smallest_normal)
    if rounding == OTHER and not reached[small].any():
        rounding, flushes = rounding_of(positions[~small], reached[~small]), True
    largest, largest_float32 = float(ml_dtypes.finfo(dtype).max), float(np.finfo(np.float32).max)
    beyond = min(largest + float(ulp(largest, dtype)), largest_float32)
    return Cast(
        rounding,
        flushes,
        overflow=_outcome(cast, beyond, -beyond, largest_float32, -largest_float32),
        infinity=_outcome(cast, np.inf, -np.inf),
        nan=_outcome(cast, np.nan, np.nan),
    )


def arguments(dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """What is tried: float32 numbers and their positions, float64, among the numbers of `dtype`."""
    finfo = ml_dtypes.finfo(dtype)
    near = 2.0 ** (finfo.nmant - 23)  # to the next float32, of the way from one number of dtype to the next
    fractions = np.array([0.0, near, 0.25, 0.5 - near, 0.5, 0.5 + near, 0.75, 1 - near])
    counts = np.arange(_counts(finfo.max) + 1)
    lower = counts.astype(f"u{np.dtype(dtype).itemsize}").view(dtype).astype(np.float64)
    x = (lower[:-1, None] + np.diff(lower)[:, None] * fractions).ravel()
    positions = (counts[:-1, None] + fractions).ravel()
    x, positions = np.append(x, lower[-1]), np.append(positions, counts[-1])
    return np.concatenate([x, -x]).astype(np.float32), np.concatenate([positions, -positions])


def _counts(x: Any) -> Any:
    """How many numbers of x's dtype lie between 0 and x, int64 with the sign of x; of an array or a scalar."""
    bits = x.view(f"u{x.itemsize}").astype(np.int64)
    sign = 1 << 8 * x.itemsize - 1
    return np.where(bits & sign, -1, 1) * (bits & sign - 1)


def _outcome(cast: Callable[[np.ndarray], np.ndarray], *x: float) -> str:
    """What the cast makes of all x: "nan", "infinity", "largest" or "other"."""
    made = cast(np.array(x, np.float32))
    values, largest = made.astype(np.float64), float(ml_dtypes.finfo(made.dtype).max)
    if np.all(np.isnan(values)):
        return "nan"
    ends = {"infinity": np.inf, "largest": largest}
    return next((name for name, end in ends.items() if np.array_equal(values, np.copysign(end, x))), OTHER)
