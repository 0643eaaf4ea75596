"""`compile(..., gpu_math=True)` and `compile(..., contract=True)`: the arithmetic that numba.cuda has by default."""

import math
import re
from fractions import Fraction

import numpy as np
import pytest
from numba import cuda, float32, float64, njit
from numba.cuda import libdevice

from workbench.cuda import emulator
from workbench.cuda.emulator import elementary


@njit(error_model="numpy")
def each(function, x, out):
    for i in range(x.size):
        out[i] = function(x[i])


def float32_between(low, high, step):
    low, high = (int(np.float32(end).view(np.uint32)) for end in (low, high))
    return np.arange(low, high, step, dtype=np.uint32).view(np.float32)


def errors(function, reference, x):
    """The errors in ulp of the results that are normal numbers, and which arguments they belong to."""
    out = np.zeros_like(x)
    each(function, x, out)
    exact = reference(x.astype(np.float64))
    normal = (np.abs(exact) >= np.finfo(np.float32).tiny) & (np.abs(exact) <= np.finfo(np.float32).max)
    ulp = np.ldexp(1.0, np.frexp(exact[normal])[1] - 24)
    return np.abs(out[normal] - exact[normal]) / ulp, x[normal]


@np.errstate(all="ignore")
def test_the_error_of_exp_and_log_is_what_the_module_says():
    sizes = float32_between(2**-6, 89, 31)
    exp, x = errors(elementary.expf, np.exp, np.concatenate([sizes, -sizes]))
    log, _ = errors(elementary.logf, np.log, float32_between(0, np.inf, 509))
    assert len(exp) > 6e6 and len(log) > 4e6
    large = x >= 88
    said = r"is (\S+) for `exp`, (\S+) from 88 on, and (\S+) for `log`:"
    numbers = re.search(said, elementary.__doc__.replace("\n", " "))
    assert [f"{worst.max():.2f}" for worst in (exp[~large], exp[large], log)] == list(numbers.groups())


SPECIAL = np.array([0.0, -0.0, 1.0, np.inf, -np.inf, np.nan, -1.0, 1e-45, 1e-40, 89.0, -104.0, -90.0, 3e38], np.float32)


def evaluates(x, out):
    t = cuda.grid(1)
    out[0, t] = math.exp(x[t])
    out[1, t] = math.log(x[t])
    out[2, t] = libdevice.expf(x[t])
    out[3, t] = libdevice.logf(x[t])
    out[4, t] = math.exp(float64(x[t])) + libdevice.exp(x[t])


@pytest.mark.parametrize("gpu_math", [False, True])
def test_kernels_choose_the_functions(gpu_math):
    x = np.concatenate([SPECIAL, np.linspace(-20, 20, 1000).astype(np.float32)])
    out = np.zeros((5, x.size))
    with np.errstate(all="ignore"):
        emulator.compile(emulator.source_of(evaluates), gpu_math=gpu_math)(1, 1013, (x, out))
        exact = np.array([np.exp(x.astype(np.float64)), np.log(x.astype(np.float64))])
        right = exact.astype(np.float32)
    inexact = np.count_nonzero(out[:2] != right, axis=1) - np.count_nonzero(np.isnan(right), axis=1)
    assert (inexact > 20).all() if gpu_math else (inexact < 20).all()
    np.testing.assert_array_equal(out[2:4], out[:2])
    special = out[:2, : SPECIAL.size]
    plain = np.isin(right[:, : SPECIAL.size], [0, 1, np.inf, -np.inf]) | np.isnan(right[:, : SPECIAL.size])
    np.testing.assert_array_equal(special[plain], right[:, : SPECIAL.size][plain])
    np.testing.assert_allclose(special, right[:, : SPECIAL.size], rtol=2**-22, atol=2.0**-149)
    np.testing.assert_allclose(out[4], 2 * exact[0], rtol=2**-50)  # float64 stays the host's


def of_elementary(x, out):
    out[0], out[1] = math.exp(x[0]), math.log(x[1])


def test_the_constants_are_those_of_numba_cudas_ptx():
    ptx, _ = cuda.compile_ptx(of_elementary, (float32[::1], float32[::1]), cc=(9, 0))
    used = [elementary._LOG2_E, elementary._LOG2_E_LOW, elementary._LOG2_E_252ND, elementary._LN_2]
    used += [getattr(elementary, f"_C{power}") for power in range(1, 10)]
    for constant in used:
        assert f"0f{constant.view(np.uint32):08X}" in ptx
    assert ptx.count("ex2.approx.ftz.f32") == 1 and ptx.count("fma.rn.f32") == 3 + 12 and ptx.count("fma.rm.f32") == 1


def products(x, y, z, out):
    t = cuda.grid(1)
    out[0, t] = x[t] * y[t] + z[t]
    out[1, t] = z[t] - x[t] * y[t]
    out[2, t] = fused_later(x[t], y[t]) - z[t]
    out[3, t] = libdevice.fmul_rn(x[t], y[t]) + z[t]
    acc = float32(0)
    for i in range(8):
        acc += x[t] * y[i]
    out[4, t] = acc


@cuda.jit(device=True)
def fused_later(x, y):
    return x * y


def chained(x, y):
    """A sum of products with one rounding for each, in exact arithmetic."""
    acc = Fraction(0)
    for i in range(8):
        acc = Fraction(float(np.float32(float(Fraction(float(x)) * Fraction(float(y[i])) + acc))))
    return float(acc)


def test_contraction_fuses_products_into_sums():
    x, y, z = np.random.default_rng(0).standard_normal((3, 1024)).astype(np.float32)
    apart, fused = np.zeros((5, 1024)), np.zeros((5, 1024))
    emulator.compile(emulator.source_of(products))(4, 256, (x, y, z, apart))
    emulator.compile(emulator.source_of(products), contract=True)(4, 256, (x, y, z, fused))
    product, exact = x * y, x.astype(np.float64) * y
    np.testing.assert_array_equal(apart[:4], [product + z, z - product, product - z, product + z])
    once = [(exact + z).astype(np.float32), (z - exact).astype(np.float32), (exact - z).astype(np.float32)]
    np.testing.assert_array_equal(fused[:3], once)
    np.testing.assert_array_equal(fused[3], product + z)  # libdevice.fmul_rn is there to prevent contraction
    np.testing.assert_array_equal(fused[4], [chained(value, y[:8]) for value in x])
    assert (np.count_nonzero(apart != fused, axis=1)[[0, 1, 2, 4]] > 100).all()


@pytest.mark.gpu
def test_a_gpu_has_the_same_log_and_an_exp_within_ex2_of_ours(launch_on_gpu):
    x = np.concatenate([SPECIAL, float32_between(0, np.inf, 4099), -float32_between(2**-6, 104, 331)])
    blocks = -(-x.size // 256)
    x = np.resize(x, 256 * blocks)
    here, there = np.zeros((5, x.size)), np.zeros((5, x.size))
    emulator.compile(emulator.source_of(evaluates), gpu_math=True)(blocks, 256, (x, here))
    launch_on_gpu(evaluates, blocks, 256, x, there)
    np.testing.assert_array_equal(here[[1, 3]], there[[1, 3]])
    ours, theirs = here[[0, 2]].astype(np.float32), there[[0, 2]].astype(np.float32)
    np.testing.assert_array_max_ulp(np.nan_to_num(ours, nan=-1), np.nan_to_num(theirs, nan=-1), 3)  # 2 of ex2, 1 of mul
