"""Bounds of decoding hold for float32 arithmetic done in NumPy, and are no wider than they have to be."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from workbench.case import formats
from workbench.case.case import Case
from workbench.case.stages import stages_of
from workbench.reference import dense, quantize
from workbench.reference.forward import PLAIN, forward
from workbench.reference.problem import Codes
from workbench.reference.steps.codes import as_operands, decoding_error

#: formats with a scale a head
OF_HEADS = [name for name, one in formats.FORMATS.items() if "head" in one.scales]
SCALES = np.float32(10.0) ** np.random.default_rng(0).uniform(-6, 2, 2000).astype(np.float32)


def in_float32(codes: str) -> np.ndarray:
    """Every code decoded with every scale in float32, [scale, 256]."""
    if codes == "simulated":
        value = (np.arange(256) - 128).astype(np.float32) / np.float32(127) * np.float32(448)
    else:
        value = formats.FORMATS[codes].values.astype(np.float32)
    return value * SCALES[:, None]


@pytest.mark.parametrize("codes", OF_HEADS)
def test_decoding_in_float32_is_within_its_error(codes: str) -> None:
    found, value = in_float32(codes), quantize.table(SCALES, codes)
    known = np.isfinite(value)
    error, allowed = np.abs(found[known] - value[known]), decoding_error(value, codes)[known]
    assert error.size and np.all(error <= allowed)
    assert 0.5 < np.max(error[error > 0] / allowed[error > 0])  # a kernel that loses twice as much would be seen
    np.testing.assert_array_equal(found[~known], value[~known])
    assert np.all(decoding_error(value, codes)[~known] == 0)


@pytest.mark.parametrize("codes", OF_HEADS)
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


@pytest.mark.parametrize("codes", OF_HEADS)
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


@pytest.mark.parametrize("codes", OF_HEADS)
@pytest.mark.parametrize("algorithm", ["fp8", "fp8_split_k"])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_attention_on_codes_is_the_referee_on_decoded_rows(algorithm: str, codes: str, softcap: float | None) -> None:
    case = Case(batch=2, heads=4, kv_heads=2, seqlen_q=11, seqlen_k=40, head_dim=8, causal=True)
    inputs = dict(zip("qkv", (x.astype(np.float64) for x in case.inputs()), strict=True))
    contract = replace(PLAIN, block_k=7, splits=3 if algorithm == "fp8_split_k" else None)
    options = dict(scale=case.scale, mask=case.mask(), softcap=softcap)
    made = forward(algorithm, **inputs, **options, contract=contract, codes=Codes(codes))  # type: ignore[arg-type]
    assert list(made) == list(stages_of(algorithm, () if softcap is None else {"softcap"}))
    rows = {}
    for name, x in inputs.items():
        scale = quantize.scale(x, codes, scaling="dynamic")
        found = quantize.decoded(quantize.codes(x, scale, codes), quantize.table(scale, codes))
        np.testing.assert_array_equal(made[f"dequant_{name}"], found)
        # some of it is lost, and no more than such a format loses
        assert 0 < np.abs(found - x).max() <= np.abs(x).max() / 8
        rows[name] = found
    for name, wanted in dense.attention(**rows, **options).items():  # type: ignore[arg-type]
        np.testing.assert_allclose(made[name], wanted, rtol=1e-13, atol=1e-13)
    # what was quantised by another scale is another kernel's
    static = Codes(codes, scaling="static")
    other = forward(algorithm, **inputs, **options, contract=contract, codes=static)  # type: ignore[arg-type]
    np.testing.assert_allclose(other["scale_k"], made["scale_k"] / 2, rtol=1e-15)
