"""The tensor core's arithmetic against rational numbers: a second model, written from the paper, that knows no bits."""

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.cuda.emulator import tensor

FORMATS = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
}
LEAST = {"f16": -14, "bf16": -126, "f32": -126}
NAN, INF = math.nan, math.inf


def exponent_of(x, least):
    """That of the leading bit; of a subnormal that of the smallest normal number."""
    return max(math.frexp(x)[1] - 1, least)


def chopped(x, unit):
    """A fraction rounded towards zero to a multiple of 2^unit."""
    return Fraction(math.trunc(x / Fraction(2) ** unit)) * Fraction(2) ** unit


def float32_of(x, fraction_bits=23):
    """A fraction rounded towards zero to so many bits, to zero with its sign, or to infinity."""
    if x == 0:
        return 0.0
    exponent = -126
    while abs(x) >= Fraction(2) ** (exponent + 1):
        exponent += 1
    if exponent > 127:
        return math.copysign(INF, x)
    return math.copysign(float(abs(chopped(x, exponent - fraction_bits))), x)


def step(pairs, c, least, extra_bits):
    """One step on floats: products exact, cut off below the last bits of the largest exponent, added, cut off."""
    products = [x * y for x, y in pairs]  # exact in float64, which has 53 bits and a wide range
    if any(not math.isfinite(x) for x in (*products, c)):
        return sum((*products, c)) if not any(map(math.isnan, products)) else NAN
    addends = [(Fraction(x) * Fraction(y), exponent_of(x, least) + exponent_of(y, least)) for x, y in pairs]
    addends = [(value, exponent) for value, exponent in [*addends, (Fraction(c), exponent_of(c, -126))] if value]
    if not addends:
        return 0.0
    unit = max(exponent for _, exponent in addends) - 23 - extra_bits
    # of a sum of fewer bits than float32's no more are stored
    return float32_of(sum(chopped(value, unit) for value, _ in addends), min(23, 23 + extra_bits))


def model(a, b, c, kind, block, extra_bits):
    """c plus the products of two lists of floats."""
    pairs = list(zip(a, b, strict=True))
    if kind in LEAST:
        for k in range(0, len(pairs), block):
            c = step(pairs[k : k + block], c, LEAST[kind], extra_bits)
        return c
    low = [pair for k, pair in enumerate(pairs) if k % 4 < 2]
    high = [pair for k, pair in enumerate(pairs) if k % 4 >= 2]
    total = 0.0
    for half in (low, high):
        for k in range(0, 16, block):
            total = step(half[k : k + block], total, LEAST["f16"], extra_bits)
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.float32(c) + np.float32(total))


def measured(a, b, c, kinds, block, extra_bits):
    """The float32 that the emulator's model gives for arrays a [k], b [k] and a float32 c."""
    bits = [np.ascontiguousarray(x).view(f"u{x.itemsize}")[None] for x in (a, b)]
    c = np.array([[c]], np.float32).view(np.uint32).astype(np.int64)
    d = tensor.product(*bits, c, *(tensor.CODES[kind] for kind in kinds), block, extra_bits)
    return d.astype(np.uint32).view(np.float32)[0, 0]


def assert_same(a, b, c, kinds, block=16, extra_bits=2):
    found = measured(a, b, c, kinds, block, extra_bits)
    with np.errstate(invalid="ignore"):  # signalling NaN
        wide = [x.astype(np.float64).tolist() for x in (a, b)]
    expected = np.float32(model(*wide, float(np.float32(c)), kinds[0], block, extra_bits))
    if np.isnan(expected):
        assert found.view(np.uint32) == tensor.NAN
    else:
        assert found.view(np.uint32) == expected.view(np.uint32), (found, expected)


PAIRS = [("f16", "f16"), ("bf16", "bf16"), ("e4m3", "e4m3"), ("e5m2", "e5m2"), ("e4m3", "e5m2")]


@pytest.mark.campaign(but=2)
@pytest.mark.parametrize("kinds", PAIRS, ids="-".join)
@pytest.mark.parametrize(("block", "extra_bits"), [(16, 2), (8, 1), (4, 0), (16, -10)])
@settings(max_examples=30)
@given(data=st.data())
def test_bits_of_any_size_and_sign(kinds, block, extra_bits, data):
    """Bit patterns: every exponent, subnormals, zeros, infinities and NaN; a narrow range makes addends meet."""
    k = 16 if kinds[0] in LEAST else 32
    width = 8 * np.dtype(FORMATS[kinds[0]]).itemsize
    low, high = (
        (0, 2**width - 1) if data.draw(st.booleans()) else (2 ** (width - 2), 2 ** (width - 2) + 2 ** (width - 4))
    )
    vectors = []
    for kind in kinds:
        bits = np.array(data.draw(st.lists(st.integers(low, high), min_size=k, max_size=k)), f"u{width // 8}")
        if low:
            bits[data.draw(st.integers(0, k - 1)) :] ^= 1 << (width - 1)
        vectors.append(bits.view(FORMATS[kind]))
    assert_same(*vectors, data.draw(st.floats(width=32)), kinds, block, extra_bits)


def vector(values, kind="f16", k=16):
    """The values, then zeros."""
    return np.array([*values, *[0] * (k - len(values))], FORMATS[kind])


TINY = 2.0**-24  # the smallest float16


@pytest.mark.parametrize(
    ("a", "b", "c", "expected"),
    [
        # 2^-25 counts beside 1, 2^-26 is cut off: two extra bits below the last of a float32
        ([1, 2**-13, 2**-13], [1, 2**-12, 2**-12], 2**-24, 1 + 2**-23),
        ([1] + [2**-13] * 4, [1] + [2**-13] * 4, 2**-24, 1),
        # towards zero, not down
        ([-1, -(2**-12)], [1, 2**-12], 0, -1),
        # 1.5 * 1.5 has the exponent 0 while addends are aligned
        ([1.5] + [2**-13] * 8, [1.5] + [2**-12] * 8, 0, 2.25 + 2**-22),
        # subnormals, of the factors and of the sum
        ([TINY], [TINY], 0, 2.0**-48),
        ([0], [0], 2.0**-149, 2.0**-149),
        ([0], [0], -(2.0**-149), -(2.0**-149)),
        # zeros have no sign, and no exponent
        ([-0.0], [1], -0.0, 0.0),
        ([1, -1], [1, 1], 0, 0.0),
        ([0, 2**-13], [2.0**15, 2**-12], 0, 2.0**-25),
        # infinities and NaN
        ([INF], [2], 1, INF),
        ([INF], [-2], 1, -INF),
        ([INF], [0], 1, NAN),
        ([INF, 1], [1, -INF], 1, NAN),
        ([1], [1], -INF, -INF),
        ([INF], [1], -INF, NAN),
        ([NAN], [0], 1, NAN),
        ([1], [1], NAN, NAN),
        # the largest float32 stays, and is passed
        ([0], [0], np.finfo(np.float32).max, np.finfo(np.float32).max),
    ],
)
def test_by_hand_float16(a, b, c, expected):
    found = measured(vector(a), vector(b), c, ("f16", "f16"), 16, 2)
    assert np.float32(expected).view(np.uint32) == found.view(np.uint32) or (math.isnan(expected) and math.isnan(found))
    assert_same(vector(a), vector(b), c, ("f16", "f16"))


@pytest.mark.parametrize(("sign", "expected"), [(1, INF), (-1, -INF)])
def test_overflow_is_infinite_also_in_a_step(sign, expected):
    big = vector([sign * 2.0**127] * 2, "bf16"), vector([1, 1], "bf16")
    assert measured(*big, 0, ("bf16", "bf16"), 16, 2) == expected
    back = vector([2.0**127, 2.0**127, -(2.0**127)], "bf16"), vector([1, 1, 1], "bf16")
    assert measured(*back, 0, ("bf16", "bf16"), 16, 2) == 2.0**127  # one step
    for x in back:
        x[[2, 8]] = x[[8, 2]]
    assert measured(*back, 0, ("bf16", "bf16"), 8, 2) == INF  # the first of two steps


def test_the_steps_of_a_block_are_in_the_order_of_k():
    """1 and thirteen quarters of its last bit, seven beside it in the first of two steps; then 1 comes last."""
    a, b = vector([1] + [2.0**-13] * 13), vector([1] + [2.0**-12] * 13)
    assert measured(a, b, 0, ("f16", "f16"), 16, 0) == 1
    assert measured(a, b, 0, ("f16", "f16"), 16, 2) == 1 + 3 * 2.0**-23
    assert measured(a, b, 0, ("f16", "f16"), 8, 2) == 1 + 2 * 2.0**-23
    a, b = a[::-1], b[::-1]
    assert measured(a, b, 0, ("f16", "f16"), 8, 0) == 1 + 2.0**-23
    assert measured(a, b, 0, ("f16", "f16"), 8, 2) == 1 + 3 * 2.0**-23


def test_fp8_adds_c_last_and_rounds_to_nearest():
    """Three quarters of the last bit are cut off in a step and round up in an addition."""
    a, b, c = [1.5 * 2.0**-6], [2.0**-7], 2.0**11
    assert measured(vector(a, "e4m3", 32), vector(b, "e4m3", 32), c, ("e4m3", "e4m3"), 16, 2) == c + 2.0**-12
    assert measured(vector(a), vector(b), c, ("f16", "f16"), 16, 2) == c


@pytest.mark.parametrize("kind", ["e4m3", "e5m2"])
def test_every_fp8_as_float16(kind):
    bits = np.arange(256, dtype=np.uint8)
    values = bits.view(FORMATS[kind]).astype(np.float16)
    found = np.array([tensor.half_of_fp8(int(x), tensor.CODES[kind]) for x in bits], np.uint16)
    number = ~np.isnan(values)
    np.testing.assert_array_equal(found[number], values.view(np.uint16)[number])
    assert np.all(found[~number] == 0x7FFF) and np.count_nonzero(~number)


@pytest.mark.campaign
def test_declared_constants_are_those_of_mma():
    random = np.random.default_rng(0)
    c = np.zeros((16, 8), np.int64)
    for kinds, name in zip(PAIRS, ("f16", "bf16", "fp8", "fp8", "fp8"), strict=True):
        k = 16 if name != "fp8" else 32
        a, b = (random.standard_normal((n, k)).astype(FORMATS[kind]) for n, kind in zip((16, 8), kinds, strict=True))
        bits = [x.view(f"u{x.itemsize}") for x in (a, b)]
        codes = [tensor.CODES[kind] for kind in kinds]
        d = tensor.mma(*bits, c, *codes)
        assert np.array_equal(d, tensor.product(*bits, c, *codes, *tensor.ACCUMULATION[name]))
        assert not np.array_equal(d, tensor.product(*bits, c, *codes, 4, -10))
