"""Numbers that are added to scores in place of a mask."""

import math

import ml_dtypes
import numpy as np
import pytest

from workbench import Case
from workbench.case.hiding import hiding, restored

CASE = Case(batch=2, heads=2, seqlen=12, head_dim=8)
#: causal, and four keys of padding before the second sequence
SEEN = np.tril(np.ones((12, 12), bool)) & (np.arange(12) >= np.array([0, 4])[:, None])[:, None, None]
#: what is added, and the dtype in which it is: transformers', of each dtype; others'; BERT's; and one that hides here
STYLES = {
    "float32's least": (float(np.finfo(np.float32).min), np.float32),
    "float16's least": (-65504.0, np.float16),
    "bfloat16's least": (float(ml_dtypes.finfo(ml_dtypes.bfloat16).min), ml_dtypes.bfloat16),
    "-1e9": (-1e9, np.float32),
    "-1e4": (-1e4, np.float16),
    "-1000": (-1000.0, np.float32),
}


def asked(bias: np.ndarray, case: Case = CASE) -> dict[str, np.ndarray]:
    """Inputs of the case with a bias."""
    return {**dict(zip("qkv", case.inputs(), strict=True)), "bias": bias}


@pytest.mark.parametrize("style", STYLES)
def test_a_number_that_leaves_a_key_no_weight_is_a_mask(style: str) -> None:
    low, dtype = STYLES[style]
    found = hiding(CASE, asked(np.where(SEEN, 0.0, low).astype(dtype)))
    assert found is not None and "bias" not in found.inputs
    assert np.array_equal(found.inputs["mask"], SEEN)
    assert found.rows == 4 and found.keys == int((~SEEN).sum())
    assert found.largest == pytest.approx(low, rel=2**-8)


@pytest.mark.parametrize("style", ["float32's least", "float16's least", "bfloat16's least", "-1e9"])
def test_a_position_bias_is_left_where_keys_are_seen(style: str) -> None:
    """T5's, in one tensor with its mask."""
    low, dtype = STYLES[style]
    position = np.random.default_rng(0).standard_normal((1, 2, 12, 12)).astype(dtype)
    found = hiding(CASE, asked((position + np.where(SEEN, 0.0, low).astype(dtype)).astype(dtype)))
    assert found is not None and np.array_equal(found.inputs["mask"], np.broadcast_to(SEEN, (2, 2, 12, 12)))
    assert np.array_equal(found.inputs["bias"], np.where(SEEN, position, 0.0).astype(dtype))


def test_infinities_alone_are_a_mask_and_beside_a_bias_they_stay() -> None:
    found = hiding(CASE, asked(np.where(SEEN, 0.0, -math.inf).astype(np.float32)))
    assert found is not None and np.array_equal(found.inputs["mask"], SEEN) and found.keys == found.rows == 0
    assert hiding(CASE, asked(np.where(SEEN, 0.5, -math.inf).astype(np.float32))) is None


def test_what_may_have_a_weight_is_a_bias() -> None:
    distances = -abs(np.arange(12)[:, None] - np.arange(12)).astype(np.float32)
    assert hiding(CASE, asked(100 * distances)) is None  # ALiBi, of which the farthest keys weigh nothing
    assert hiding(CASE, asked(np.where(SEEN, 0.0, -10.0).astype(np.float32))) is None  # a mask that leaks
    hot = asked(np.where(SEEN, 0.0, -1e4).astype(np.float32))
    hot["q"] = 1e4 * hot["q"]  # scores that -1e4 does not hide
    assert hiding(CASE, hot) is None
    assert hiding(CASE, asked(np.zeros((12, 12), np.float32))) is None


def test_masks_of_a_case_and_of_its_inputs_count_too() -> None:
    """Of a causal call padding alone is added, also where the case, or a mask, hides all other keys of a row."""
    padding = (np.arange(12) >= np.array([0, 4])[:, None])[:, None, None]
    bias = np.where(padding, 0.0, -1e9).astype(np.float32)
    for case, beside in ((CASE.but(causal=True), {}), (CASE, {"mask": np.tril(np.ones((12, 12), bool))})):
        found = hiding(case, {**asked(bias, case), **beside})
        assert found is not None and found.rows == 4
        assert np.array_equal(found.inputs["mask"] & case.mask(), SEEN)


@pytest.mark.parametrize("style", STYLES)
def test_a_mask_goes_back_to_the_numbers_that_a_function_takes(style: str) -> None:
    low, dtype = STYLES[style]
    given = asked(np.where(SEEN, 0.0, low).astype(dtype))
    found = hiding(CASE, given)
    assert found is not None
    again = restored(found.inputs, given, found.largest)
    assert "mask" not in again and np.array_equal(again["bias"], given["bias"]) and again["bias"].dtype == dtype
    other = restored({**found.inputs, "mask": ~SEEN}, given, found.largest)
    assert np.array_equal(other["bias"] < low / 2, SEEN)
