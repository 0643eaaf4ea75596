"""Errors of functions: the kernel's against those of `workbench.floats`, and of functions with a known defect."""

import math
from dataclasses import replace

import numpy as np
import pytest
from numba import cuda, float32, int32
from numba.cuda import libdevice

from workbench.cuda.calibrate import ulps
from workbench.cuda.calibrate.backends import on_emulator
from workbench.cuda.calibrate.record import EXPONENTIALS, LOGARITHMS
from workbench.floats import ulp_error

STRIDE = 20011  # a prime: 100 thousand arguments
TINY = float32(2.0**-126)


def measured(value, name="exp", stride=STRIDE):
    """The errors of a device function in place of one of `ulps.FUNCTIONS`."""
    return ulps.measure(on_emulator, replace(ulps.FUNCTIONS[name], value=value), stride)


def evaluates(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = math.exp(x[i])


@pytest.mark.campaign
def test_errors_are_those_of_the_module_errors():
    sizes = np.arange(0, int(np.float32(104).view(np.uint32)) + 1, STRIDE, dtype=np.uint32).view(np.float32)
    x = np.concatenate([sizes, -sizes])
    y = np.zeros_like(x)
    on_emulator(evaluates)(-(-x.size // 128), 128, (x, y))
    true = np.exp(x.astype(np.float64))
    normal = (true >= ulps.SMALLEST_NORMAL) & (true <= ulps.LARGEST)
    expected = np.abs(ulp_error(y, true, "float32"))
    found = ulps.measure(on_emulator, ulps.FUNCTIONS["exp"], STRIDE)
    assert found.tried == np.count_nonzero(normal) > 100_000
    assert found.largest == pytest.approx(expected[normal].max(), rel=1e-9)
    assert found.at == x[normal][expected[normal].argmax()]
    assert (found.ulps, found.ulps_per_x, found.exact, found.flushes) == (found.largest, 0.0, True, False)
    assert 0.5 <= found.largest < 1
    subnormal = (true >= ulps.SMALLEST_SUBNORMAL) & (true < ulps.SMALLEST_NORMAL)
    assert found.subnormal_ulps == pytest.approx(expected[subnormal].max(), rel=1e-9) and subnormal.any()


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize("name", ulps.FUNCTIONS)
def test_the_emulators_functions_have_the_errors_of_their_formulas(name):
    """exp and log are the host's, 2^x and log2 are rounded once: fast_exp rounds a product before, fast_log one after."""
    found = ulps.measure(on_emulator, ulps.FUNCTIONS[name], STRIDE)
    assert found.exact
    assert found.flushes == {"ex2_ftz": True, "fast_log_near_1": None}.get(name, False)
    if name in ("exp", "ex2", "ex2_ftz"):
        assert 0.49 < found.ulps < 0.51
    if name == "log":
        assert 0.5 < found.ulps < 0.85
    if name == "fast_log":
        assert 1 < found.ulps < 1.5
    if name == "fast_log_near_1":  # 2^-25 of log2 times ln 2, the product's 2^-25, and what ln 2 is off
        assert 0.125 < found.ulps < 0.25
    if name == "fast_exp":
        # x log2(e) is off by an ulp of up to 2^-18, and by 0.22 * 2^-24 of itself as log2(e) is; 2^x makes that relative
        assert found.ulps == 2 and 1 < found.ulps_per_x < 1.173
        assert 55 < found.largest < 0.5 + (64 + 0.224 * 88)
    else:
        assert found.ulps_per_x == 0 and found.largest == found.ulps


@pytest.mark.campaign
def test_every_float32_is_tried_with_stride_1():
    near_1 = ulps.measure(on_emulator, ulps.FUNCTIONS["fast_log_near_1"], 1)
    assert near_1.tried == 2 * 2**23 + 1  # from 0.5 to 2, both included


@cuda.jit(device=True)
def without_two_bits(x):
    return libdevice.int_as_float(int32(libdevice.float_as_int(math.exp(x)) & -4))


def test_cut_off_bits_are_seen():
    found = measured(without_two_bits)
    assert 3.4 < found.ulps < 3.51 and found.exact  # 3 of what is cut off, and half of one of exp


@cuda.jit(device=True)
def flushing(x):
    y = math.exp(x)
    return y if y >= TINY else float32(0)


def test_flushed_subnormals_are_seen():
    found = measured(flushing)
    assert found.flushes is True and found.ulps < 0.51 and found.subnormal_ulps == 0


@cuda.jit(device=True)
def flushing_log(x):
    return math.log(x) if x >= TINY else float32(-math.inf)


def test_arguments_that_count_as_zero_are_seen():
    found = measured(flushing_log, "log")
    assert found.flushes is True and found.ulps < 0.85


@cuda.jit(device=True)
def nan_from_50(x):
    return math.exp(x) if x < float32(50) else float32(math.nan)


@cuda.jit(device=True)
def infinite_from_50(x):
    return math.exp(x) if x < float32(50) else float32(math.inf)


@cuda.jit(device=True)
def zero_from_50(x):
    return math.exp(x) if x < float32(50) else float32(0)


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize("value", [nan_from_50, infinite_from_50, zero_from_50], ids=["nan", "inf", "zero"])
@pytest.mark.parametrize("name", ["exp", "fast_exp"])
def test_a_wrong_class_is_an_infinite_error(name, value):
    found = measured(value, name)
    assert (found.ulps, found.ulps_per_x, found.largest) == (math.inf, 0.0, math.inf) and 50 <= found.at < 89


@cuda.jit(device=True)
def almost_one(x):
    return math.exp(x) * float32(1 - 2.0**-24)


def test_exp_of_zero_must_be_one():
    found = measured(almost_one)
    assert found.exact is False and found.ulps < 2


def test_line_starts_with_whole_ulps_and_is_above_every_error():
    x = np.array([0.0, 0.5, 1.0, 2.0, 8.0])
    errors = np.array([0.5, 1.2, 1.0, 2.5, 9.0])
    a, b = ulps.line(x, errors)
    assert (a, b) == (2.0, 7 / 8 * (1 + 2**-9))
    assert np.all(errors <= a + b * x)
    assert ulps.line(x, np.minimum(errors, 2)) == (2.0, 0.0)
    assert ulps.line(x, np.where(x == 8, np.inf, errors)) == (np.inf, 0.0)


def test_names_are_those_of_calibrations():
    assert tuple(ulps.FUNCTIONS) == EXPONENTIALS + LOGARITHMS
