"""Functions that searches are run on: right, wrong in ways that have names, and in ways that have none."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.operations.backwards import backward
from tests.operations.norms import rmsnorm

f32 = np.float32


def _attention(**wrong: Callable[[np.ndarray], np.ndarray]) -> Callable[..., Any]:
    """Naive attention with what is done to scores, probs, out and lse besides."""
    of = {name: wrong.get(name, lambda x: x) for name in ("scores", "probs", "out", "lse")}

    def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float, causal: bool) -> Any:
        dtype = q.dtype
        q, k, v = (x.astype(f32) for x in (q, k, v))
        scores = of["scores"](q @ np.swapaxes(k, -1, -2) * f32(scale))
        if causal:
            scores = np.where(np.tri(*scores.shape[-2:], k.shape[2] - q.shape[2], dtype=bool), scores, -np.inf)
        top = scores.max(-1, keepdims=True)
        probs = of["probs"](np.exp(scores - top))
        total = probs.sum(-1, keepdims=True)
        out = of["out"](probs @ v / total)
        return out.astype(dtype), of["lse"]((top + np.log(total))[..., 0])

    return attention


def _odd(x: np.ndarray) -> np.ndarray:
    return (x + f32(0.1) * np.sin(37 * x)).astype(x.dtype)


def _odd_norm(x: np.ndarray, weight: np.ndarray, *, eps: float) -> Any:
    return {name: _odd(made) for name, made in rmsnorm()(x, weight, eps=eps).items()}


right = _attention()
scaled_twice = _attention(scores=lambda x: x / f32(4))
in_base_2 = _attention(lse=lambda x: x * f32(1.4427))
dims_rolled = _attention(out=lambda x: np.roll(x, 1, -1))
last_key_lost = _attention(probs=lambda x: x * (np.arange(x.shape[-1]) < x.shape[-1] - 1))
probs_doubled = _attention(probs=lambda x: x * (1 + (np.arange(x.shape[-1]) == 3)))
odd_probs = _attention(probs=lambda x: x * (1 + f32(0.3) * np.sin(7 * x)))
odd_out = _attention(out=_odd)
odd_lse = _attention(lse=lambda x: x + f32(0.1) * np.sin(11 * x))
odd_scores = _attention(scores=lambda x: np.cbrt(x))
odd_everything = _attention(scores=np.cbrt, out=_odd, lse=_odd)
norm, norm_wrong, norm_odd = rmsnorm(), rmsnorm("eps outside the root"), _odd_norm
backward_wrong = backward("scale left out of dq", dumps=False)
