"""A right attention whose arithmetic is chosen: an online softmax over tiles, in float32 where nothing else is said."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

F32 = np.float32
BF16 = ml_dtypes.bfloat16
LOG2E = F32(1.4426950408889634)


def to(x: np.ndarray, dtype: Any) -> np.ndarray:
    """x rounded to a dtype, in float32."""
    return x.astype(dtype).astype(F32)


def exp2_cubic(x: np.ndarray) -> np.ndarray:
    """2^x by a cubic, off by 9e-5."""
    whole = np.floor(np.maximum(x, F32(-126)))
    f = np.maximum(x, F32(-126)) - whole
    p = ((F32(0.0770670548081398) * f + F32(0.22764497995376587)) * f + F32(0.6951168179512024)) * f + F32(1)
    return np.where(x < -126, F32(0), np.ldexp(p, whole.astype(np.int32)))


def kernel(
    *,
    block: int = 16,
    bounds: Callable[[int], list[int]] | None = None,
    backwards: bool = False,
    probs: Any = None,
    sum_of_cast: bool = False,
    normalised: bool = False,
    scores: Any = None,
    scaled_q: Any = None,
    scale_in: str = "scores",
    fma: bool = False,
    sums: Any = None,
    stored: Any = None,
    out: str = "nearest",
    by_lse: bool = False,
    cubic: bool = False,
    floor: bool = False,
    lags: float = 0.0,
    operands: Callable[[np.ndarray], np.ndarray] = lambda x: x,
    lse: bool = True,
) -> Callable[..., Any]:
    """`bounds(keys)`: where splits begin and end; `sums`: the dtype of accumulators after every 8 products; `stored`:
    that of what a split leaves; `floor`: exp2 stops at -127; `lags`: what a maximum must be larger by to be taken.
    """

    def weigh(x: np.ndarray) -> np.ndarray:
        if cubic:
            return exp2_cubic(x * LOG2E)
        return np.exp2(np.maximum(x * LOG2E, F32(-127))) if floor else np.exp(x)

    def product(a: np.ndarray, b: np.ndarray, start: np.ndarray | None = None) -> np.ndarray:
        if sums is None:
            found = operands(a) @ operands(b)
            return found if start is None else start + found
        total = np.zeros((*a.shape[:-1], b.shape[-1]), F32) if start is None else start
        for at in range(0, a.shape[-1], 8):
            total = to(total + a[..., at : at + 8] @ b[..., at : at + 8, :], sums)
        return total

    def scored(q: np.ndarray, k: np.ndarray, c: np.floating) -> np.ndarray:
        kt = np.swapaxes(k, -1, -2)
        if scaled_q is not None:
            return product(to(q * c, scaled_q), kt)
        if scale_in == "q":
            return product(q * c, kt)
        if scale_in == "k":
            return product(q, kt * c)
        s = product(q, kt)
        return s * c if scores is None else to(to(s, scores) * c, scores)

    def split(s: np.ndarray, v: np.ndarray, first: int, last: int, kind: Any) -> tuple[np.ndarray, ...]:
        m, l = np.full(s.shape[:-1], -np.inf, F32), np.zeros(s.shape[:-1], F32)
        o = np.zeros((*m.shape, v.shape[-1]), F32)
        starts = range(first, last, block)
        for at in reversed(starts) if backwards else starts:
            part = s[..., at : min(at + block, last)]
            top = np.maximum(m, part.max(-1))
            top = np.where(top - m > lags, top, m)
            safe = np.where(np.isfinite(top), top, F32(0))
            c, p = np.exp(m - safe), weigh(part - safe[..., None])
            cast = p if kind is None else to(p, kind)
            l = l * c + (cast if sum_of_cast else p).sum(-1)
            o = product(cast, v[..., at : min(at + block, last), :], o * c[..., None])
            m = top
        return m, l, o

    def whole(s: np.ndarray, v: np.ndarray, kind: Any) -> tuple[np.ndarray, np.ndarray]:
        m = s.max(-1, keepdims=True)
        p = np.exp(s - m)
        total = p.sum(-1, keepdims=True)
        lse = m + np.log(total)
        weights = np.exp(s - lse) if by_lse else p / total
        return product(weights if kind is None else to(weights, kind), v), lse[..., 0]

    def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float, causal: bool) -> Any:
        kind = q.dtype if probs == "inputs" else probs
        dtype, (q, k, v) = q.dtype, (x.astype(F32) for x in (q, k, v))
        s = scored(q, k, F32(scale))
        if causal:
            rows, keys = s.shape[-2:]
            s = np.where(np.tri(rows, keys, keys - rows, dtype=bool), s, -np.inf)
        if normalised or by_lse:
            found, of_lse = whole(s, v, kind)
        else:
            ends = [0, s.shape[-1]] if bounds is None else bounds(s.shape[-1])
            states = [split(s, v, a, b, kind) for a, b in zip(ends, ends[1:], strict=False)]
            m, l, o = (np.stack(x) for x in zip(*states, strict=True))
            o = o if stored is None else to(o, stored)
            top = m.max(0)
            w = np.exp(m - top)
            total = (w * l).sum(0)
            found, of_lse = (w[..., None] * o).sum(0) / total[..., None], top + np.log(total)
        if out == "nearest":
            ended = found.astype(dtype)
        else:
            ended = (found.view(np.uint32) & np.uint32(0xFFFF0000)).view(F32).astype(dtype)
        return {"out": ended, "lse": of_lse} if lse else ended

    return attention
