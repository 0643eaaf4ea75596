"""Bounds of decoding hold for float32 arithmetic done in NumPy, and are no wider than they have to be."""

import ml_dtypes
import numpy as np
import pytest

from workbench.reference import quantize
from workbench.reference.steps.codes import as_operands, decoding_error

SCALES = np.float32(10.0) ** np.random.default_rng(0).uniform(-6, 2, 2000).astype(np.float32)


def in_float32(codes: str) -> np.ndarray:
    """Every code decoded with every scale in float32, [scale, 256]."""
    if codes == "simulated":
        value = (np.arange(256) - 128).astype(np.float32) / np.float32(127) * np.float32(448)
    else:
        value = quantize.VALUES[codes].astype(np.float32)
    return value * SCALES[:, None]


@pytest.mark.parametrize("codes", quantize.VALUES)
def test_decoding_in_float32_is_within_its_error(codes: str) -> None:
    found, value = in_float32(codes), quantize.table(SCALES, codes)
    known = np.isfinite(value)
    error, allowed = np.abs(found[known] - value[known]), decoding_error(value, codes)[known]
    assert error.size and np.all(error <= allowed)
    assert 0.5 < np.max(error[error > 0] / allowed[error > 0])  # a kernel that loses twice as much would be seen
    np.testing.assert_array_equal(found[~known], value[~known])
    assert np.all(decoding_error(value, codes)[~known] == 0)


@pytest.mark.parametrize("codes", quantize.VALUES)
def test_what_is_cast_to_float16_lies_in_the_interval(codes: str) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        found = in_float32(codes).astype(np.float16).astype(np.float64)
    value = quantize.table(SCALES, codes)
    error = decoding_error(value, codes)
    low, high = as_operands(value - error, value + error, "float16")
    known = ~np.isnan(value)
    assert known.any() and np.all((low <= found)[known] & (found <= high)[known])
    # a tie is rare: elsewhere there is one right float16
    assert 0 < np.mean(low[known] < high[known]) < 0.005
    assert np.all(np.isnan(low) == ~known)


@pytest.mark.parametrize("codes", quantize.VALUES)
def test_where_nobody_told_the_dtype_each_of_them_lies_in_the_interval(codes: str) -> None:
    found, value = in_float32(codes), quantize.table(SCALES, codes)
    error = decoding_error(value, codes)
    low, high = as_operands(value - error, value + error, None)
    known = np.isfinite(value)
    with np.errstate(all="ignore"):
        for dtype in (np.float32, np.float16, ml_dtypes.bfloat16):
            cast = found.astype(dtype).astype(np.float64)
            held = known & np.isfinite(cast)  # a dtype that overflows is not the kernel's
            assert held.any() and np.all((low <= cast)[held] & (cast <= high)[held])
    assert np.all(np.isfinite(low) == known) and np.all(np.isfinite(high) == known)
    normal = known & (np.abs(value) > 2.0**-14)
    width = (high[normal] - low[normal]) / np.abs(value[normal])
    assert np.all(width <= 2.0**-7) and np.median(width) < 2.0**-8  # an ulp of bfloat16 at a tie, half elsewhere


def test_an_error_of_the_scale_adds_to_that_of_the_decoding() -> None:
    value = np.array([1.0, -3.0, np.inf])
    np.testing.assert_allclose(
        decoding_error(value, "e4m3", 2.0**-20), [2.0**-20 + 2.0**-24, 3 * (2.0**-20 + 2.0**-24), 0], rtol=1e-5
    )
