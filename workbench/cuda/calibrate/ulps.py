"""How far exp, 2^x and log of float32 are from the true values on a machine, in units in the last place.

The error of a result is measured inside of the kernel, beside float64's function of the same argument: so every one of
the two billion positive and the two billion negative float32 can be tried, and only the worst of each run of neighbours
comes back. That is accurate enough: float64's exp, exp2 and log are within 1 ulp of float64 (CUDA C++ Programming
Guide, mathematical functions; glibc alike), which is 2^-29 ulp of float32 (`REFERENCE_ULPS`); and where a float32
result is neither infinite nor 0, for exp up to |x| = 104, float64 neither overflows nor has subnormals.

An ulp is that of `workbench.floats.ulp`: the spacing of float32 at the true value.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import cuda, float64, int32
from numba.cuda import libdevice

from workbench.cuda import ptx
from workbench.cuda.calibrate.backends import THREADS, Launch, Machine
from workbench.cuda.calibrate.record import Errors

#: neighbours of which the worst comes back: 512 runs in each binade
RUN = 1 << 14

SMALLEST_SUBNORMAL, SMALLEST_NORMAL = 2.0**-149, 2.0**-126
LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Domain:
    """Which arguments are tried."""

    signs: tuple[int, ...]
    first: float  #: smallest and largest size of an argument
    last: float
    low: float = 0.0  #: smallest and largest size of the true value, of those
    high: float = math.inf


@dataclass(frozen=True)
class Function:
    """A function under test, float32 -> float32, and its true values, float64 -> float64."""

    summary: str
    value: Any
    reference: Any
    normal: tuple[Domain, ...]
    exact: tuple[Domain, ...]  #: where the result has to be the true one
    subnormal: Domain | None = None
    grows: bool = False  #: whether the error may grow with the argument
    unit: float = 0.0  #: of the errors; 0: ulps


def _of_exponential(last: float) -> dict[str, Any]:
    """The domains of exp or 2^x, whose results are float32 for arguments up to `last` in size."""
    below = math.nextafter(SMALLEST_NORMAL, 0)
    return {
        "normal": (Domain((1, -1), 0.0, last, SMALLEST_NORMAL, LARGEST),),
        "exact": (Domain((1, -1), 0.0, 0.0), Domain((-1,), math.inf, math.inf)),
        "subnormal": Domain((-1,), 0.0, last, SMALLEST_SUBNORMAL, below),
    }


def _next(x: float, towards: float) -> float:
    return float(np.nextafter(np.float32(x), np.float32(towards)))


_ONE = (Domain((1,), 1.0, 1.0),)
_SUBNORMAL_ARGUMENTS = Domain((1,), SMALLEST_SUBNORMAL, _next(SMALLEST_NORMAL, 0))


@cuda.jit(device=True)
def _exp(x: Any) -> Any:
    return math.exp(x)


@cuda.jit(device=True)
def _fast_exp(x: Any) -> Any:
    return libdevice.fast_expf(x)


@cuda.jit(device=True)
def _ex2(x: Any) -> Any:
    return libdevice.exp2f(x)  # which is this instruction alone


@cuda.jit(device=True)
def _ex2_ftz(x: Any) -> Any:
    return ptx.ex2_approx(x)


@cuda.jit(device=True)
def _log(x: Any) -> Any:
    return math.log(x)


@cuda.jit(device=True)
def _fast_log(x: Any) -> Any:
    return libdevice.fast_logf(x)


#: a logarithm that is a rounded product of log2 has lost its last bits near 1, where its error is absolute
FUNCTIONS = {
    "exp": Function("math.exp", _exp, libdevice.exp, **_of_exponential(104.0)),
    "fast_exp": Function("libdevice.fast_expf", _fast_exp, libdevice.exp, **_of_exponential(104.0), grows=True),
    "ex2": Function("ex2.approx.f32", _ex2, libdevice.exp2, **_of_exponential(150.0)),
    "ex2_ftz": Function("ex2.approx.ftz.f32", _ex2_ftz, libdevice.exp2, **_of_exponential(150.0)),
    "log": Function(
        "math.log", _log, libdevice.log, (Domain((1,), SMALLEST_NORMAL, LARGEST),), _ONE, _SUBNORMAL_ARGUMENTS
    ),
    "fast_log": Function(
        "libdevice.fast_logf, outside of 0.5 to 2",
        _fast_log,
        libdevice.log,
        (Domain((1,), SMALLEST_NORMAL, _next(0.5, 0)), Domain((1,), _next(2, 3), LARGEST)),
        _ONE,
        _SUBNORMAL_ARGUMENTS,
    ),
    "fast_log_near_1": Function(
        "libdevice.fast_logf, from 0.5 to 2",
        _fast_log,
        libdevice.log,
        (Domain((1,), 0.5, 2.0),),
        _ONE,
        unit=2.0**-22,
    ),
}


def _kernel(value: Any, reference: Any) -> Any:
    def errors(first: Any, last: Any, stride: Any, sign: Any, low: Any, high: Any, unit: Any, found: Any) -> None:
        run = cuda.grid(1)
        if run < found.shape[0]:
            worst, at, tried, lost = float64(0), float64(0), 0, 0
            start = first + run * RUN
            for bits in range((start + stride - 1) // stride * stride, min(start + RUN, last + 1), stride):
                x = sign * libdevice.int_as_float(int32(bits))
                true = reference(float64(x))
                if low <= abs(true) and abs(true) <= high:
                    tried += 1
                    y = float64(value(x))
                    if y != y or abs(y) == math.inf or (y == 0 and true != 0):
                        lost += 1
                        at = float64(x)
                    else:
                        exponent = max(libdevice.double_as_longlong(true) >> 52 & 0x7FF, 1023 - 126)
                        ulp = libdevice.longlong_as_double((exponent - 23) << 52)
                        error = abs(y - true) / (unit if unit > 0 else ulp)
                        if error > worst:
                            worst = error
                            if lost == 0:
                                at = float64(x)
            found[run, 0], found[run, 1], found[run, 2], found[run, 3] = worst, at, tried, lost

    return errors


def measure(machine: Machine, function: Function, stride: int) -> Errors:
    """The errors of every `stride`-th argument, counted by their bits."""
    launch = machine(_kernel(function.value, function.reference))
    found = np.concatenate([_runs(launch, domain, stride, function.unit) for domain in function.normal])
    worst, at, tried, lost = found.T
    errors = np.where(lost > 0, np.inf, worst)
    largest = int(errors.argmax())
    ulps, ulps_per_x = line(np.abs(at), errors) if function.grows else (float(errors[largest]), 0.0)
    flushes = subnormal_ulps = None
    if function.subnormal is not None:
        below = _runs(launch, function.subnormal, stride, function.unit)
        flushes, subnormal_ulps = bool(below[:, 3].any()), float(below[:, 0].max())
    return Errors(
        tried=int(tried.sum()),
        ulps=ulps,
        ulps_per_x=ulps_per_x,
        largest=float(errors[largest]),
        at=float(at[largest]),
        exact=not any(_runs(launch, one, 1, function.unit)[:, [0, 3]].any() for one in function.exact),
        flushes=flushes,
        subnormal_ulps=subnormal_ulps,
    )


def _runs(launch: Launch, domain: Domain, stride: int, unit: float) -> np.ndarray:
    """For each run of neighbours in which something was tried: the worst error and its argument, or the last lost one;
    how many were tried; how many were lost, that is 0, infinite or NaN by mistake. float64 [runs, 4].
    """
    first, last = (int(np.float32(size).view(np.uint32)) for size in (domain.first, domain.last))
    parts = []
    for sign in domain.signs:
        found = np.zeros((-(-(last - first + 1) // RUN), 4))
        grid = -(-len(found) // THREADS)
        launch(grid, THREADS, (first, last, stride, np.float32(sign), domain.low, domain.high, unit, found))
        parts.append(found[found[:, 2] > 0])
    return np.concatenate(parts)


def line(x: np.ndarray, errors: np.ndarray) -> tuple[float, float]:
    """(a, b) of a line a + b x above all errors: a is the largest of those with x <= 1 in whole ulps, b the least >= 0.

    `x`, >= 0, is where the worst error of a run of neighbours is; a smaller one may be at an x smaller by 2^-9 of it.
    (inf, 0) where an error is infinite.
    """
    if not np.all(np.isfinite(errors)):
        return math.inf, 0.0
    a = math.ceil(errors[x <= 1].max(initial=0.0))
    above = errors > a
    return float(a), float(np.max((errors[above] - a) / x[above], initial=0.0)) * (1 + 2.0**-9)
