"""The stage that ln(P / expected) points at by itself, of weights that are wrong in one way."""

from collections.abc import Callable

import numpy as np
import pytest

from tests.readings.kernels import kernel
from workbench import Case, run
from workbench.readings.residual import residual
from workbench.readings.target import Target

CASE = Case(seqlen_q=16, seqlen_k=48, head_dim=16)
TILES = np.repeat(np.arange(3), 16)

#: what is done to right weights -> stage, and words
WAYS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], str, str]] = {
    "a factor a row": (lambda p: p * (1.1 + np.arange(16))[:, None], "row_sum", "off by one factor per row:"),
    "a factor a row and tile": (
        lambda p: p * np.exp(np.sin(np.arange(16))[:, None] * TILES),
        "correction",
        "one factor per row and tile: suspect the rescaling (tiles begin at keys 0, 16, 32",
    ),
    "a tile that is lost in half of the rows, and half in the others": (
        lambda p: p * np.where(TILES == 1, (np.arange(16) % 2)[:, None] / 2, 1.0),
        "correction",
        "one factor per row and tile",
    ),
    "a key that is lost": (
        lambda p: np.where(np.arange(48) == 7, 0, p),
        "scores",
        "only keys 7 get a wrong weight",
    ),
    "a number a key": (lambda p: p * np.exp(0.3 * np.sin(np.arange(48))), "scores", "one factor per key"),
    "another number each": (lambda p: p**1.5, "scores", "a different factor for each query and key"),
    "a row of NaN": (lambda p: np.where(np.arange(16)[:, None] == 3, np.nan, p), "out", "0 or non-finite in rows 3"),
    "a row of 0": (lambda p: np.where(np.arange(16)[:, None] == 3, 0, p), "out", "0 or non-finite in rows 3"),
}


@pytest.mark.filterwarnings("ignore:All-NaN slice")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_residuals_point_at_a_stage(way: str, dtype: str) -> None:
    change, stage, words = WAYS[way]
    target = Target(run(kernel(""), CASE.but(dtype=dtype)))
    weights = target.weights()
    found = residual(target, change(weights.read), weights.expected, weights.allowed)
    assert found[0] == stage and words in found[1]
