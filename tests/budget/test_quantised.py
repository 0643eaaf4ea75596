"""Bounds of decoding hold for float32 arithmetic done in NumPy, and are no wider than they have to be."""

import numpy as np
import pytest

from workbench.budget.quantised import bound, decoded_interval, decoding_error
from workbench.reference import quantize

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
    low, high = decoded_interval(value, codes)
    known = ~np.isnan(value)
    assert known.any() and np.all((low <= found)[known] & (found <= high)[known])
    # a tie is rare: elsewhere there is one right float16
    assert 0 < np.mean(low[known] < high[known]) < 0.005
    assert np.all(np.isnan(low) == ~known)


def test_stages_of_one_rounding_are_exact_and_a_table_takes_the_roundings_before_the_cast() -> None:
    value = np.array([1.0, -3.0, 0.0, np.inf])
    for name in ("scale_q", "codes_k"):
        np.testing.assert_array_equal(bound(name, value, "e4m3", False), 0.0)
    np.testing.assert_array_equal(bound("dequant_k", value, "e4m3", True), 0.0)
    np.testing.assert_array_equal(bound("lut_k", value, "e4m3", False), decoding_error(value, "e4m3"))
    half_ulps = np.array([2.0**-11, 2.0**-10, 2.0**-25, 0.0])  # of float16
    np.testing.assert_allclose(bound("dequant_k", value, "e4m3", False), half_ulps + decoding_error(value, "e4m3"))
