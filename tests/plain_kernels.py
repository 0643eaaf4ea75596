"""Plain references, and kernels of the same in float32, right and wrong, for tests of judging by a reference."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

T, D = 48, 32


def inputs(seed: int, dtype: str, T: int = T, D: int = D) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal((T, D)).astype(dtype) for name in ("q", "k", "v")}


def naive(q, k, v):
    scores = q @ k.T / np.sqrt(q.shape[-1])
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    probs = weights / weights.sum(-1, keepdims=True)
    out = probs @ v
    return out


def naive_scan(x, decay):
    state = np.zeros_like(x[0])
    rows = []
    for t in range(x.shape[0]):
        state = state * decay[t] + x[t]
        rows.append(state * 2.0)
    return np.stack(rows)


def naive_norm(x, weight):
    squares = (x * x).mean(-1, keepdims=True)
    out = x / np.sqrt(squares + 1e-6) * weight
    return out, squares


def scan_inputs(seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((6, 8)).astype(np.float32)
    return {"x": x, "decay": rng.uniform(0.5, 1, 6).astype(np.float32)}


def bfloat16(x: np.ndarray) -> np.ndarray:
    """Rounded to bfloat16, in float32."""
    return x.astype(ml_dtypes.bfloat16).astype(np.float32)


def cut(x: np.ndarray) -> np.ndarray:
    """What TF32 keeps of float32."""
    return (x.view(np.int32) & ~0x1FFF).view(np.float32)


def same(x: np.ndarray) -> np.ndarray:
    return x


def attention(
    q,
    k,
    v,
    *,
    log2e: float = 1.4426950408889634,
    keys: int | None = None,
    operand: Callable[..., Any] = same,
    stored: Callable[..., Any] = same,
    stages: bool = False,
):
    """In float32 by base 2, in blocks of 16 keys; the faults and roundings are arguments."""
    q32, k32, v32 = (operand(x.astype(np.float32)) for x in (q, k, v))
    scores = q32 @ k32.T * np.float32(1 / np.sqrt(q.shape[-1]))
    by_two = scores * np.float32(log2e)
    weights = np.exp2(by_two - by_two.max(-1, keepdims=True))
    total = sum(weights[:, at : at + 16].sum(-1, keepdims=True) for at in range(0, weights.shape[1], 16))
    probs = stored(weights / total)
    read = operand(probs)[:, :keys]
    out = sum(read[:, at : at + 16] @ v32[:keys][at : at + 16] for at in range(0, read.shape[1], 16))
    out = out.astype(q.dtype)
    return {"scores": scores, "weights": weights, "probs": probs, "out": out} if stages else out


def drawn(**shapes: tuple[int, ...]) -> Callable[[int, str], dict[str, np.ndarray]]:
    """inputs(seed, dtype): arrays of these shapes, normal with a deviation of 1/4."""

    def of(seed: int, dtype: str) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(seed)
        return {name: (rng.standard_normal(shape) / 4).astype(dtype) for name, shape in shapes.items()}

    return of
