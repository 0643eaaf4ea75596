"""Functions of libdevice and of `math` against float64 references, and what numba.cuda compiles against what runs here."""

import importlib.util
import math

import numpy as np
import pytest
from numba import cuda, float32, float64
from numba.cuda import libdevice

from workbench.cuda.emulator.libdevice import FUNCTIONS

MATH = (
    "acos acosh asin asinh atan atanh cos cosh erf erfc exp exp2 expm1 fabs lgamma log log10 log1p log2 sin sinh sqrt tan tanh"
).split()
UNARY = {name: getattr(math, name) for name in MATH}
LIBDEVICE = UNARY | {
    "cbrt": np.cbrt,
    "exp10": lambda x: 10.0**x,
    "rsqrt": lambda x: x**-0.5,
    "tgamma": math.gamma,
    "ceil": np.ceil,
    "floor": np.floor,
    "trunc": np.trunc,
    "rint": np.rint,
    "nearbyint": np.rint,
    "round": lambda x: math.floor(x + 0.5),
}
PAIRS = {
    "atan2": math.atan2,
    "copysign": math.copysign,
    "fmod": math.fmod,
    "hypot": math.hypot,
    "pow": math.pow,
    "fmax": max,
    "fmin": min,
    "fdim": lambda x, y: max(x - y, 0.0),
}
X = (np.arange(1, 64) / 64).astype(np.float32)
SHIFT = {"acosh": 1, "lgamma": 3}  # into the domain, and away from a zero, where errors are absolute; exact
Y = np.float32(0.4)


@pytest.fixture
def kernel_of(tmp_path):
    """A kernel that stores the values of expressions in a and b, one per row of its last argument."""

    def make(expressions):
        path = tmp_path / "generated.py"
        rows = [f"    out[{row}, t] = {text}" for row, text in enumerate(expressions)]
        lines = ["import math", "from numba import cuda, float32, float64", "from numba.cuda import libdevice as lib"]
        lines += ["def kernel(x, y, out):", "    t = cuda.grid(1)", "    a, b = x[t], y", *rows, ""]
        path.write_text("\n".join(lines))
        spec = importlib.util.spec_from_file_location("generated", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.kernel

    return make


def argument(name):
    return f"a + float32({SHIFT.get(name, 0)})"


def references(unary, pairs):
    rows = [[function(float(x) + SHIFT.get(name, 0)) for x in X] for name, function in unary.items()]
    rows += [[function(float(x), float(Y)) for x in X] for function in pairs.values()]
    return np.array(rows)


def check(dtype, out, right):
    # glibc's functions are within 2 ulp ("Errors in Math Functions" of its manual), but for gamma's, within 5; to 4 of
    # these float64 references, which are host functions themselves.
    assert (out.astype(dtype) == out).all()
    np.testing.assert_allclose(out, right, rtol=8 * np.finfo(dtype).eps, atol=0)


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize(("suffix", "dtype"), [("f", np.float32), ("", np.float64)], ids=["float32", "float64"])
def test_functions_of_libdevice(emulate, kernel_of, suffix, dtype):
    names = [f"{name}{suffix}" for name in (*LIBDEVICE, *PAIRS)]
    assert set(names) <= FUNCTIONS.keys()
    calls = [f"lib.{name}{suffix}({argument(name)})" for name in LIBDEVICE]
    calls += [f"lib.{name}{suffix}(a, b)" for name in PAIRS]
    out = np.zeros((len(calls), X.size))
    emulate(kernel_of(calls), 1, X.size, X, Y, out)
    check(dtype, out, references(LIBDEVICE, PAIRS))


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
def test_functions_of_math_keep_the_type(emulate, kernel_of, dtype):
    pairs = {name: function for name, function in PAIRS.items() if hasattr(math, name)}
    calls = [f"math.{name}({argument(name)})" for name in UNARY] + [f"math.{name}(a, b)" for name in pairs]
    out = np.zeros((len(calls), X.size))
    emulate(kernel_of(calls), 1, X.size, X.astype(dtype), dtype(Y), out)
    check(dtype, out, references(UNARY, pairs))


def test_the_emulator_runs_the_math_that_numba_cuda_compiles(kernel_of):
    calls = [f"math.{name}({argument(name)})" for name in UNARY]
    ptx, _ = cuda.compile_ptx(kernel_of(calls), (float32[::1], float32, float64[:, ::1]), cc=(9, 0))
    assert ptx.count("st.global.f64") == len(UNARY)


SPECIAL = [
    "cuda.cbrt(a)",
    "lib.saturatef(a + a)",
    "lib.fast_expf(a)",
    "lib.fast_exp10f(a)",
    "lib.fast_logf(a)",
    "lib.fast_log2f(a)",
    "lib.fast_log10f(a)",
    "lib.fast_powf(a, b)",
    "lib.fast_fdividef(a, b)",
    "lib.fast_sinf(a)",
    "lib.fast_cosf(a)",
    "lib.fast_tanf(a)",
    "lib.frsqrt_rn(a)",
    "lib.half2float(lib.float2half_rn(a))",
    "lib.longlong_as_double(lib.double_as_longlong(a))",
]


def test_fast_functions_and_reinterpretations(emulate, kernel_of):
    out = np.zeros((len(SPECIAL), X.size))
    emulate(kernel_of(SPECIAL), 1, X.size, X, Y, out)
    x, y = X.astype(float), float(Y)
    right = [np.cbrt(x), np.clip(2 * x, 0, 1), np.exp(x), 10**x, np.log(x), np.log2(x)]
    right += [np.log10(x), x**y, x / y, np.sin(x), np.cos(x), np.tan(x), x**-0.5, X.astype(np.float16), x]
    # The argument of ex2 (at most 5 in size) and the result of lg2 are rounded: 2^-24 * 5 * ln 2 < 4 * 2^-23.
    np.testing.assert_allclose(out, right, rtol=8 * 2**-23)
    assert (out[:12].astype(np.float32) == out[:12]).all()


def test_tests_of_bits(emulate, kernel_of):
    calls = ["lib.isnanf(a)", "lib.isinff(a)", "lib.finitef(a)", "lib.isnand(a)", "lib.isinfd(a)", "lib.isfinited(a)"]
    calls += [f"lib.{name}(lib.float_as_int(a))" for name in ("popc", "clz", "ffs", "brev")]
    calls += [f"lib.{name}(lib.double_as_longlong(a))" for name in ("popcll", "clzll", "ffsll")]
    x = np.array([0.0, -0.0, 1.5, np.nan, np.inf, -np.inf], np.float32)
    out = np.zeros((len(calls), 6))
    emulate(kernel_of(calls), 1, 6, x, Y, out)
    np.testing.assert_array_equal(out[:6], [np.isnan(x), np.isinf(x), np.isfinite(x)] * 2)
    words, longs = (
        (f"{bits:032b}" for bits in x.view(np.uint32)),
        (f"{bits:064b}" for bits in x.astype(float).view(np.uint64)),
    )
    words, longs = list(words), list(longs)

    def tests(texts):
        lowest = [len(text) - text.rindex("1") if "1" in text else 0 for text in texts]
        return [[text.count("1") for text in texts], [len(text) - len(text.lstrip("0")) for text in texts], lowest]

    np.testing.assert_array_equal(out[6:9], tests(words))
    np.testing.assert_array_equal(out[9].astype(np.int64) & 0xFFFFFFFF, [int(text[::-1], 2) for text in words])
    np.testing.assert_array_equal(out[10:], tests(longs))


def permutes(words, selectors, out):
    t = cuda.threadIdx.x
    out[t] = libdevice.byte_perm(words[0], words[1], selectors[t])


def test_bytes_are_permuted(emulate):
    both = np.array([0xF3, 0x02, 0x81, 0x10, 0xA7, 0x66, 0x00, 0xFF], np.uint8)
    selectors = np.array([0x3210, 0x5140, 0x7362, 0x0007, 0x7777], np.int32)
    out = np.zeros(len(selectors), np.uint32)
    emulate(permutes, 1, len(selectors), both.view(np.uint32), selectors, out)
    expected = [both[[x >> 4 * i & 7 for i in range(4)]] for x in selectors]
    np.testing.assert_array_equal(out.view(np.uint8).reshape(-1, 4), expected)
