"""Attention in tiles of keys, in NumPy, with one fault or none: what readings are tried on."""

from typing import Any

import numpy as np

TILE = 16


def attention(q: Any, k: Any, v: Any, *, scale: float, causal: bool, bug: str = "") -> tuple[np.ndarray, np.ndarray]:
    """out [b, h, q, d] in the dtype of q, and lse [b, h, q] float32."""
    dtype = q.dtype
    q, k, v = (x.astype(np.float32) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    own = np.arange(q.shape[1]) // group
    of_k = np.arange(q.shape[1]) % k.shape[1] if bug in ("heads", "heads of k") else own
    of_v = np.arange(q.shape[1]) % k.shape[1] if bug == "heads" else own
    k, v = k[:, of_k], v[:, of_v]
    b, h, n, d = k.shape
    if "k transposed" in bug:
        k = k.reshape(b, h, n // 8, 8, d // 8, 8).transpose(0, 1, 2, 5, 4, 3).reshape(b, h, n, d)
    if "v swizzled" in bug:
        v = v[:, :, np.arange(n)[:, None], np.arange(d)[None] ^ (np.arange(n)[:, None] % 2 * 8)]
    if bug == "last dims":
        q = np.where(np.arange(d) < d - 8, q, np.float32(0))
    scores = q @ k.swapaxes(-1, -2) * np.float32(scale * (1.01 if "1 % off" in bug else 1))
    if bug == "capped":
        scores = np.float32(5) * np.tanh(scores / np.float32(5))
    i, j = np.indices(scores.shape[-2:])
    if causal:
        scores = np.where(j <= i + n - q.shape[2] - (bug == "strict"), scores, np.float32(-np.inf))
    if bug == "last key":
        scores = np.where(j < n - 1, scores, np.float32(-np.inf))
    m = np.full(scores.shape[:-1], -np.inf, np.float32)
    total, acc = np.zeros_like(m), np.zeros((*m.shape, v.shape[-1]), np.float32)
    with np.errstate(all="ignore"):
        for first in range(0, n, TILE):
            s = scores[..., first : first + TILE]
            new = np.maximum(m, s.max(-1))
            safe = np.where(np.isfinite(new), new, np.float32(0))
            p, shrink = np.exp(s - safe[..., None]), np.exp(m - safe)
            total = total * (1 if "sum not rescaled" in bug else shrink) + p.sum(-1)
            acc = acc * (1 if "no correction" in bug else shrink[..., None]) + p @ v[:, :, first : first + TILE]
            m = new
    if bug == "phantom":
        total = total + np.exp(-m)
    out = acc / np.where(total > 0, total, np.float32(1))[..., None]
    if bug == "undivided":
        out = acc
    if "rows moved" in bug:
        out = np.roll(out, 1, 2)
    if bug == "added":
        out = out + np.float32(0.25)
    with np.errstate(divide="ignore"):
        lse = m + np.log(total)
    return out.astype(dtype), (lse * np.float32(np.log2(np.e)) if "base 2" in bug else lse).astype(np.float32)


def kernel(bug: str, *, lse: bool = False) -> Any:
    """It with a fault; `lse`: whether it returns lse."""

    def function(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
        out, log = attention(q, k, v, scale=scale, causal=causal, bug=bug)
        return (out, log) if lse else out

    return function
