"""Attention in NumPy that returns its stages, and the same with a bug: kernels for examples to judge.

workbench diff examples/numpy_attention.py:scale_twice --causal
"""

from typing import Any

import numpy as np


def attention(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> dict[str, Any]:
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))  # heads that share keys
    scores = q @ k.swapaxes(-1, -2) * np.float32(scale)
    if causal:  # the last query sees the last key
        scores = np.where(np.tri(*scores.shape[-2:], scores.shape[-1] - scores.shape[-2]), scores, np.float32(-np.inf))
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return {"scores": scores, "out": weights @ v / weights.sum(-1, keepdims=True)}


def scale_twice(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> dict[str, Any]:
    return attention(q, k, v, scale=2 * scale, causal=causal)
