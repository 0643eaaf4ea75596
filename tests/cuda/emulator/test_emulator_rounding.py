"""Directed roundings and `cuda.fma` against exact rational arithmetic."""

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numba import cuda
from numba.cuda import libdevice as lib

from workbench.cuda import emulator

DIRECTIONS = ("rn", "rz", "ru", "rd")
OPERATIONS = ("add", "mul", "div", "fma", "sqrt", "rcp", "sub")


def single(x, y, z, out):
    t = cuda.grid(1)
    a, b, c = x[t], y[t], z[t]
    out[0, 0, t], out[0, 1, t] = lib.fadd_rn(a, b), lib.fadd_rz(a, b)
    out[0, 2, t], out[0, 3, t] = lib.fadd_ru(a, b), lib.fadd_rd(a, b)
    out[1, 0, t], out[1, 1, t] = lib.fmul_rn(a, b), lib.fmul_rz(a, b)
    out[1, 2, t], out[1, 3, t] = lib.fmul_ru(a, b), lib.fmul_rd(a, b)
    out[2, 0, t], out[2, 1, t] = lib.fdiv_rn(a, b), lib.fdiv_rz(a, b)
    out[2, 2, t], out[2, 3, t] = lib.fdiv_ru(a, b), lib.fdiv_rd(a, b)
    out[3, 0, t], out[3, 1, t] = lib.fmaf_rn(a, b, c), lib.fmaf_rz(a, b, c)
    out[3, 2, t], out[3, 3, t] = lib.fmaf_ru(a, b, c), lib.fmaf_rd(a, b, c)
    out[4, 0, t], out[4, 1, t] = lib.fsqrt_rn(a), lib.fsqrt_rz(a)
    out[4, 2, t], out[4, 3, t] = lib.fsqrt_ru(a), lib.fsqrt_rd(a)
    out[5, 0, t], out[5, 1, t] = lib.frcp_rn(a), lib.frcp_rz(a)
    out[5, 2, t], out[5, 3, t] = lib.frcp_ru(a), lib.frcp_rd(a)
    out[6, 0, t], out[6, 1, t] = lib.fsub_rn(a, b), lib.fsub_rz(a, b)
    out[6, 2, t], out[6, 3, t] = lib.fsub_ru(a, b), lib.fsub_rd(a, b)
    out[7, 0, t] = cuda.fma(a, b, c)


def double(x, y, z, out):
    t = cuda.grid(1)
    a, b, c = x[t], y[t], z[t]
    out[0, 0, t], out[0, 1, t] = lib.dadd_rn(a, b), lib.dadd_rz(a, b)
    out[0, 2, t], out[0, 3, t] = lib.dadd_ru(a, b), lib.dadd_rd(a, b)
    out[1, 0, t], out[1, 1, t] = lib.dmul_rn(a, b), lib.dmul_rz(a, b)
    out[1, 2, t], out[1, 3, t] = lib.dmul_ru(a, b), lib.dmul_rd(a, b)
    out[2, 0, t], out[2, 1, t] = lib.ddiv_rn(a, b), lib.ddiv_rz(a, b)
    out[2, 2, t], out[2, 3, t] = lib.ddiv_ru(a, b), lib.ddiv_rd(a, b)
    out[3, 0, t], out[3, 1, t] = lib.fma_rn(a, b, c), lib.fma_rz(a, b, c)
    out[3, 2, t], out[3, 3, t] = lib.fma_ru(a, b, c), lib.fma_rd(a, b, c)
    out[4, 0, t], out[4, 1, t] = lib.dsqrt_rn(a), lib.dsqrt_rz(a)
    out[4, 2, t], out[4, 3, t] = lib.dsqrt_ru(a), lib.dsqrt_rd(a)
    out[5, 0, t], out[5, 1, t] = lib.drcp_rn(a), lib.drcp_rz(a)
    out[5, 2, t], out[5, 3, t] = lib.drcp_ru(a), lib.drcp_rd(a)
    out[7, 0, t] = cuda.fma(a, b, c)


KERNELS = {
    dtype: emulator.compile(emulator.source_of(kernel))
    for dtype, kernel in {np.float32: single, np.float64: double}.items()
}


def rounded(dtype, value, direction, root=False):
    """The float, as a Python float, to which a Fraction other than 0, or the square root of one, is rounded."""
    info = np.finfo(dtype)
    digits, least = info.nmant + 1, info.minexp - info.nmant
    size = abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent  # 2^exponent <= size < 2^(exponent + 1)
    power = 2 if root else 1
    last = max(exponent // power - digits + 1, least)  # the exponent of the last digit
    units = size / Fraction(2) ** (power * last)
    below = math.isqrt(math.floor(units)) if root else math.floor(units)
    half = (below + Fraction(1, 2)) ** power
    inexact = units != below**power
    up = {
        "rn": units > half or (units == half and below % 2 == 1),
        "rz": False,
        "ru": inexact and value > 0,
        "rd": inexact and value < 0,
    }[direction]
    found = (below + up) * Fraction(2) ** last
    if found > Fraction(float(info.max)):
        found = math.inf if direction in ("rn", "ru" if value > 0 else "rd") else info.max
    return float(found) if value > 0 else -float(found)


def expected(dtype, operation, a, b, c, direction):
    """The one right result, as a Python float; IEEE 754 says what becomes of zeros, infinities and NaN."""
    operands = {"fma": (a, b, c), "sqrt": (a,), "rcp": (1.0, a)}.get(operation, (a, b))
    zero_divided = operation in ("div", "rcp") and operands[1] == 0
    if not np.isfinite(operands).all() or zero_divided or (operation == "sqrt" and a <= 0):
        return float(exceptional(operation, *map(np.float64, operands)))
    exact = {
        "add": lambda x, y: x + y,
        "sub": lambda x, y: x - y,
        "mul": lambda x, y: x * y,
        "div": lambda x, y: x / y,
        "rcp": lambda x, y: x / y,
        "fma": lambda x, y, z: x * y + z,
        "sqrt": lambda x: x,
    }[operation](*map(Fraction, operands))
    if exact != 0:
        return rounded(dtype, exact, direction, operation == "sqrt")
    sign, *others = (math.copysign(1, operand) for operand in operands)
    if operation in ("mul", "div"):
        return math.copysign(0.0, sign * others[0])
    terms = {"add": (sign, others[0]), "sub": (sign, -others[0]), "fma": (sign * others[0], others[-1])}[operation]
    return math.copysign(0.0, terms[0] if terms[0] == terms[1] else -1 if direction == "rd" else 1)


@np.errstate(all="ignore")
def exceptional(operation, *operands):
    match operation, operands:
        case "fma", (x, y, z):
            return z if np.isfinite([x, y]).all() else x * y + z
        case (("div" | "rcp"), (x, y)):
            return x / y
        case "mul", (x, y):
            return x * y
        case "add", (x, y):
            return x + y
        case "sub", (x, y):
            return x - y
        case "sqrt", (x,):
            return np.sqrt(x)


def check(dtype, triples):
    x, y, z = np.array(triples, dtype).T
    out = np.full((8, 4, len(x)), np.pi, dtype)
    with np.errstate(all="ignore"):
        KERNELS[dtype](len(x), 1, [np.ascontiguousarray(column) for column in (x, y, z)] + [out])
    for k, operation in enumerate(OPERATIONS if dtype is np.float32 else OPERATIONS[:-1]):
        for d, direction in enumerate(DIRECTIONS):
            right = [expected(dtype, operation, *map(float, triple), direction) for triple in zip(x, y, z, strict=True)]
            bad = (out[k, d] != right) & ~(np.isnan(out[k, d]) & np.isnan(right))
            bad |= (np.signbit(out[k, d]) != np.signbit(right)) & ~np.isnan(right)
            if bad.any():
                worst = int(np.argmax(bad))
                operands = [float(column[worst]).hex() for column in (x, y, z)]
                got, wanted = float(out[k, d, worst]).hex(), right[worst].hex()
                pytest.fail(f"{operation}_{direction}({', '.join(operands)}) = {got}, not {wanted}; {bad.sum()} wrong")
    np.testing.assert_array_equal(out[7, 0], out[3, 0])


def hard(dtype):
    """Zeros, infinities, NaN, ends of the subnormal and normal ranges, neighbours of powers of two, roots of each."""
    info = np.finfo(dtype)
    ulp = float(info.eps)
    tiny, least, most = float(info.tiny), float(info.smallest_subnormal), float(info.max)
    sizes = [0.0, least, 3 * least, tiny - least, tiny, tiny * (1 + ulp), most, most * (1 - ulp), most / 2, math.inf]
    sizes += [1.0, 1 + ulp, 1 - ulp / 2, 2 - ulp, 1.5, 1 / 3, 3.0, 10.0, ulp / 2, ulp, ulp * (1 + ulp)]
    sizes += [math.sqrt(tiny), math.sqrt(least), math.sqrt(least) * (1 + 3 * ulp), math.sqrt(most), 1 / most, 2 / most]
    return [*sizes, *(-size for size in sizes), math.nan]


@pytest.mark.campaign
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
def test_hard_cases(dtype):
    values = hard(dtype)
    pairs = [(x, y, 0.0) for x, y in product(values, values[::4])]  # each of all pairs takes exact arithmetic
    index = np.random.default_rng(0).integers(0, len(values), (200, 3))
    check(dtype, pairs + [tuple(values[i] for i in row) for row in index])


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
def test_results_that_nearly_cancel_and_nearly_are_floats(dtype):
    info, random = np.finfo(dtype), np.random.default_rng(1)
    with np.errstate(all="ignore"):
        x, y = np.ldexp(random.uniform(1, 2, (2, 100)), random.integers(info.minexp - 30, 60, (2, 100))).astype(dtype)
        near = -(x * y)
        z = np.where(random.random(100) < 0.5, near, near + np.ldexp(random.uniform(-1, 1, 100), info.minexp - 20))
        z = z.astype(dtype)
        check(dtype, np.stack([x, y, z], 1))
        check(dtype, np.stack([x * y, y, x], 1))  # a quotient near x
        check(dtype, np.stack([x * x, -x, z], 1))  # a root near x
        check(dtype, np.stack([x, -np.nextafter(x, dtype(1)), -x], 1))


def floats(width):
    return st.floats(width=width) | st.floats(width=width, min_value=-4, max_value=4)


@settings(max_examples=30)
@given(st.lists(st.tuples(*[floats(32)] * 3), min_size=1, max_size=20))
def test_drawn_float32(triples):
    check(np.float32, triples)


@pytest.mark.campaign
@settings(max_examples=30)
@given(st.lists(st.tuples(*[floats(64)] * 3), min_size=1, max_size=20))
@example([(float.fromhex("0x1.0000000000001p-500"), float.fromhex("0x1.fffffffffffffp-501"), -(2.0**-1000))])
@example([(5e-324, 5e-324, -5e-324), (5e-324, 0.5, 5e-324), (2.0**-540, 2.0**-540, -0.0), (1e308, 10.0, -math.inf)])
def test_drawn_float64(triples):
    check(np.float64, triples)


def to_float(i4, u4, i8, u8, d, single, double):
    t = cuda.grid(1)
    a, b, c, e, x = i4[t], u4[t], i8[t], u8[t], d[t]
    single[0, 0, t], single[0, 1, t], single[0, 2, t], single[0, 3, t] = (
        lib.int2float_rn(a),
        lib.int2float_rz(a),
        lib.int2float_ru(a),
        lib.int2float_rd(a),
    )
    single[1, 0, t], single[1, 1, t], single[1, 2, t], single[1, 3, t] = (
        lib.uint2float_rn(b),
        lib.uint2float_rz(b),
        lib.uint2float_ru(b),
        lib.uint2float_rd(b),
    )
    single[2, 0, t], single[2, 1, t], single[2, 2, t], single[2, 3, t] = (
        lib.ll2float_rn(c),
        lib.ll2float_rz(c),
        lib.ll2float_ru(c),
        lib.ll2float_rd(c),
    )
    single[3, 0, t], single[3, 1, t], single[3, 2, t], single[3, 3, t] = (
        lib.ull2float_rn(e),
        lib.ull2float_rz(e),
        lib.ull2float_ru(e),
        lib.ull2float_rd(e),
    )
    single[4, 0, t], single[4, 1, t], single[4, 2, t], single[4, 3, t] = (
        lib.double2float_rn(x),
        lib.double2float_rz(x),
        lib.double2float_ru(x),
        lib.double2float_rd(x),
    )
    double[0, 0, t], double[1, 0, t] = lib.int2double_rn(a), lib.uint2double_rn(b)
    double[2, 0, t], double[2, 1, t], double[2, 2, t], double[2, 3, t] = (
        lib.ll2double_rn(c),
        lib.ll2double_rz(c),
        lib.ll2double_ru(c),
        lib.ll2double_rd(c),
    )
    double[3, 0, t], double[3, 1, t], double[3, 2, t], double[3, 3, t] = (
        lib.ull2double_rn(e),
        lib.ull2double_rz(e),
        lib.ull2double_ru(e),
        lib.ull2double_rd(e),
    )


TO_FLOAT = emulator.compile(emulator.source_of(to_float))


def check_to_float(integers, doubles):
    dtypes = (np.int32, np.uint32, np.int64, np.uint64)
    arrays = [np.array([number % 2**64 for number in integers], np.uint64).astype(dtype) for dtype in dtypes]
    arrays.append(np.resize(np.array(doubles, np.float64), len(integers)))
    outs = {np.float32: np.zeros((5, 4, len(integers)), np.float32), np.float64: np.zeros((4, 4, len(integers)))}
    TO_FLOAT(len(integers), 1, [*arrays, *outs.values()])
    for dtype, out in outs.items():
        for k, d in product(range(len(out)), range(4)):
            if dtype is np.float32 or k > 1 or d == 0:  # libdevice has int2double_rn only
                items = arrays[k].tolist()
                right = [rounded(dtype, Fraction(x), DIRECTIONS[d]) if x and math.isfinite(x) else x for x in items]
                np.testing.assert_array_equal(out[k, d], right)
                np.testing.assert_array_equal(np.signbit(out[k, d]), np.signbit(right))


@pytest.mark.campaign
def test_integers_between_floats_and_doubles_beyond_float32():
    powers = [2**n + k for n in (0, 23, 24, 25, 31, 32, 53, 54, 63, 64) for k in (-2, -1, 0, 1, 2, 3)]
    sizes = [0.0, 5e-324, 1e-46, 7e-46, 1e-45, 1e-38, 1 + 2**-24, 1 + 3 * 2**-24, 3.4e38, 3.40282356e38, 1e39, math.inf]
    check_to_float(powers + [-power for power in powers], sizes + [-size for size in sizes])


@pytest.mark.campaign
@settings(max_examples=30)
@given(
    st.lists(st.integers(-(2**63), 2**64 - 1), min_size=1, max_size=20),
    st.lists(st.floats(allow_nan=False), min_size=1),
)
def test_drawn_numbers_to_floats(integers, doubles):
    check_to_float(integers, doubles)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
def test_a_gpu_gives_the_same_bits(emulate, launch_on_gpu, dtype):
    kernel = single if dtype is np.float32 else double
    values = hard(dtype)
    triples = np.array([(x, y, z) for x, y in product(values, repeat=2) for z in values[::7]], dtype)
    columns = [np.ascontiguousarray(column) for column in triples.T]
    here, there = (np.zeros((8, 4, len(triples)), dtype) for _ in range(2))
    emulate(kernel, len(triples), 1, *columns, here)
    launch_on_gpu(kernel, len(triples), 1, *columns, there)
    same = (here.view(f"u{here.itemsize}") == there.view(f"u{here.itemsize}")) | (np.isnan(here) & np.isnan(there))
    assert same.all(), np.argwhere(~same)[:10]
