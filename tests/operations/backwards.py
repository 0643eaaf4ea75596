"""The backward pass of attention in NumPy, as FlashAttention-2 computes it in float32, right and with one fault."""

from collections.abc import Callable
from typing import Any

import numpy as np

#: fault -> the first stage that is wrong
FAULTS = {
    "lse of base 2": "probs",
    "scale twice in the scores": "scores",
    "mask left out": "probs",
    "delta of the next head": "delta",
    "delta of dout alone": "delta",
    "V transposed back": "dprobs",
    "delta added": "dscores",
    "delta left out": "dscores",
    "scale left out of dq": "dq",
    "scale twice in dk": "dk",
    "last tile of queries left out of dk": "dk",
    "heads of a group overwritten": "dk",
    "strides of out for dout": "delta",
    "P of the row before in dv": "dv",
}
TILE = 16


def backward(fault: str = "", *, dumps: bool = True) -> Callable[..., Any]:
    """The function."""
    f32 = np.float32

    @np.errstate(over="ignore", invalid="ignore")  # of keys that a fault shows
    def function(
        q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, *, scale: float, causal: bool
    ) -> dict[str, np.ndarray] | tuple[np.ndarray, ...]:
        dtype, group = q.dtype, q.shape[1] // k.shape[1]
        q, k, v, out, dout = (x.astype(f32) for x in (q, k, v, out, dout))
        wide_k, wide_v = (np.repeat(x, group, 1) for x in (k, v))
        rows, keys = q.shape[2], k.shape[2]
        visible = np.tri(rows, keys, keys - rows, dtype=bool) if causal else np.ones((rows, keys), bool)
        if fault == "mask left out":
            visible = np.ones_like(visible)
        qk = q @ wide_k.swapaxes(-1, -2)
        scores = qk * f32(scale * scale if fault == "scale twice in the scores" else scale)
        known = np.where(np.isfinite(lse), lse, f32(0))[..., None]
        probs = np.exp(scores - (known * f32(np.log(2)) if fault == "lse of base 2" else known))
        probs = np.where(visible, probs, f32(0))
        read = dout
        if fault == "strides of out for dout":
            read = dout.swapaxes(1, 2).reshape(dout.shape)
        delta = (read * out).sum(-1)
        if fault == "delta of the next head":
            delta = np.roll(delta, -1, 1)
        if fault == "delta of dout alone":
            delta = dout.sum(-1)
        values = wide_v.swapaxes(-1, -2)
        if fault == "V transposed back":
            values = wide_v.reshape(*wide_v.shape[:2], wide_v.shape[3], wide_v.shape[2])
        dprobs = dout @ values
        used = {"delta added": -delta, "delta left out": 0 * delta}.get(fault, delta)
        dscores = probs * (dprobs - used[..., None])
        stored_p, stored_ds = (x.astype(dtype).astype(f32) for x in (probs, dscores))
        dq = (stored_ds @ wide_k) * f32(1 if fault == "scale left out of dq" else scale)
        some = slice(0, rows - rows % TILE or rows - TILE)
        of_rows = some if fault == "last tile of queries left out of dk" else slice(None)
        dk = stored_ds[:, :, of_rows].swapaxes(-1, -2) @ q[:, :, of_rows]
        dk = dk * f32(scale * scale if fault == "scale twice in dk" else scale)
        p = np.roll(stored_p, 1, 2) if fault == "P of the row before in dv" else stored_p
        dv = p.swapaxes(-1, -2) @ dout
        dk, dv = (x.reshape(x.shape[0], -1, group, *x.shape[2:]) for x in (dk, dv))
        dk = dk[:, :, -1] if fault == "heads of a group overwritten" else dk.sum(2)
        results = dq.astype(dtype), dk.astype(dtype), dv.sum(2).astype(dtype)
        if not dumps:
            return results
        names = ("qk", "scores", "probs", "delta", "dprobs", "dscores", "dq", "dk", "dv")
        return dict(zip(names, (qk, scores, probs, delta, dprobs, dscores, *results), strict=True))

    return function
