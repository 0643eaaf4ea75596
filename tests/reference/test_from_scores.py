"""Bounds of out straight from scores, of keys that have no weight."""

from typing import Any

import numpy as np

from workbench import Case, diff, run


def test_keys_without_a_weight_widen_no_bound() -> None:
    """A bias so low that keys weigh 0 in float64 costs no more than a mask of these keys, however weights are
    normalised. These are of all sizes, and no mask.
    """
    case = Case(heads=2, seqlen=64, head_dim=16)
    distances = np.abs(np.arange(64)[:, None] - np.arange(64))
    seen = distances <= 20
    bias = np.where(seen, -0.1 * distances, -100.0 * (distances - 8)).astype(np.float32)

    def attend(q: Any, k: Any, v: Any, *, scale: float, causal: bool, bias: Any, mask: Any = True) -> Any:
        scores = np.where(mask, q @ k.swapaxes(-1, -2) * np.float32(scale) + bias, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return (weights / weights.sum(-1, keepdims=True) @ v).astype(np.float32)

    def masked(q: Any, k: Any, v: Any, *, scale: float, causal: bool, bias: Any, mask: Any) -> Any:
        return attend(q, k, v, scale=scale, causal=causal, bias=bias, mask=mask)

    inputs = dict(zip("qkv", case.inputs(), strict=True))
    near = np.where(seen, bias, 0).astype(np.float32)
    low = diff(run(attend, case, inputs={**inputs, "bias": bias}))
    cut = diff(run(masked, case, inputs={**inputs, "bias": near, "mask": seen}))
    assert "mask" not in low.trace.inputs
    assert np.all(low["out"].judged.expected == cut["out"].judged.expected)
    assert np.all(low["out"].judged.budget <= 1.01 * cut["out"].judged.budget)
