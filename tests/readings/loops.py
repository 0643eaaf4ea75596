"""A loop over tiles of keys in NumPy, with one of its steps wrong or none: what kernels as a whole are tried on."""

from typing import Any

import ml_dtypes
import numpy as np

TILE = 16


def _cut(x: np.ndarray) -> np.ndarray:
    return (np.ascontiguousarray(x).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def _operands(q: np.ndarray, k: np.ndarray, v: np.ndarray, bug: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    if bug == "wide rows":  # 8 dims of the next row, too
        q, k = (
            x.reshape(-1)[(np.arange(x.size // x.shape[3])[:, None] * x.shape[3] + np.arange(x.shape[3] + 8)) % x.size]
            .reshape(*x.shape[:3], -1)
            for x in (q, k)
        )  # fmt: skip
    if bug == "q by rows":  # [batch, row, head, dim] for [batch, head, row, dim]
        b, h, n, d = q.shape
        q = q.reshape(b, n, h, d).swapaxes(1, 2)
    if bug == "v of the next head":
        b, h, n, d = v.shape
        flat = v.reshape(-1)
        at = (np.arange(h)[:, None, None] * n + 2 * np.arange(n)[:, None]) * d + np.arange(d)
        v = flat[at % v.size][None]
    if bug == "cut off":
        q, k = _cut(q), _cut(k)
    group = q.shape[1] // k.shape[1]
    return q, np.repeat(k, group, 1), np.repeat(v, group, 1)


def attention(q: Any, k: Any, v: Any, *, scale: float, causal: bool, bug: str = "") -> np.ndarray:
    """out [b, h, q, d] in the dtype of q."""
    dtype = q.dtype
    q, k, v = _operands(*(x.astype(np.float32) for x in (q, k, v)), bug)
    n, m_ = k.shape[2], q.shape[2]
    raw = q @ k.swapaxes(-1, -2) * np.float32(scale)
    i, j = np.arange(n - m_, n)[:, None], np.arange(n)
    seen = (j <= i) | (not causal)
    m = np.full(raw.shape[:-1], -np.inf, np.float32)
    total, acc = np.zeros_like(m), np.zeros((*m.shape, v.shape[-1]), np.float32)
    with np.errstate(all="ignore"):
        for first in range(0, n, TILE):
            at = slice(first, first + TILE)
            whole = bool(seen[:, at].all())
            s = np.where(
                seen[:, at], raw[..., at] * (1 if whole or bug != "tiles unscaled" else 2), np.float32(-np.inf)
            )
            new = np.maximum(m, s.max(-1))
            safe = np.where(np.isfinite(new), new, np.float32(0))
            x = (s - safe[..., None]) / np.float32(np.log(2))
            p, shrink = np.exp2(x), np.exp(m - safe)
            if bug == "polynomial":
                f = x - np.floor(x)
                p = np.where(
                    np.isfinite(x), np.exp2(np.floor(x)) * (1 + f * (np.float32(0.65) + f * np.float32(0.35))), 0
                )
            of_acc = shrink[:, :, np.arange(m_) ^ 8] if bug == "row ^ 8" else shrink
            total = total * shrink + p.sum(-1)
            if bug == "fragments":  # quadrants of blocks of 8 x 8 are swapped
                cut = p.reshape(*p.shape[:2], m_ // 8, 2, 4, TILE // 8, 2, 4).copy()
                cut[..., 1, :, :, 0, :], cut[..., 0, :, :, 1, :] = (
                    cut[..., 0, :, :, 1, :].copy(),
                    cut[..., 1, :, :, 0, :].copy(),
                )
                p = cut.reshape(p.shape)
            acc = acc * of_acc[..., None] + p @ v[:, :, at]
            if bug == "narrow accumulator":
                acc = acc.astype(ml_dtypes.bfloat16).astype(np.float32)
            m = new
        if bug == "not cleared":
            for h in range(1, q.shape[1]):
                total[:, h] += total[:, h - 1]
        if bug == "lanes":
            lane = np.arange(n) // 2 % 4
            p = np.exp(np.where(seen, raw, -np.inf) - np.where(np.isfinite(m), m, 0)[..., None])
            total = np.stack([(p * (lane == x)).sum(-1) for x in range(4)], -1)[..., np.arange(v.shape[-1]) // 2 % 4]
        else:
            total = total[..., None]
        if bug == "merge":
            return _merged(np.where(seen, raw, np.float32(-np.inf)), v).astype(dtype)
        return np.where(total > 0, acc / np.where(total > 0, total, 1), 0).astype(dtype)


def _merged(s: np.ndarray, v: np.ndarray) -> np.ndarray:
    """A chain of splits, two of which have the larger lse of both."""
    out, lse = np.zeros((*s.shape[:-1], v.shape[-1])), np.full(s.shape[:-1], -np.inf)
    for first in range(0, s.shape[-1], TILE):
        at = slice(first, first + TILE)
        top = np.maximum(s[..., at].max(-1), -1e30)
        p = np.exp(s[..., at] - top[..., None])
        mine = top + np.log(p.sum(-1))
        both = np.logaddexp(lse, mine)
        part = p @ v[:, :, at] / p.sum(-1)[..., None]
        out = np.exp(lse - both)[..., None] * out + np.exp(mine - both)[..., None] * part
        lse = np.maximum(lse, mine)
    return out


def kernel(bug: str) -> Any:
    """It with a fault."""

    def function(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
        return attention(q, k, v, scale=scale, causal=causal, bug=bug)

    return function
