"""The gated delta rule in NumPy's float32, right and with one fault."""

from collections.abc import Callable
from typing import Any

import numpy as np

#: fault -> the first stage that is wrong
FAULTS = {
    "state transposed": "recalled",
    "initial state ignored": "recalled",
    "recall without the gate": "scaled",
    "gate of the next token": "scaled",
    "gate on values": "delta",
    "beta twice": "written",
    "beta of the next head": "written",
    "gate after the update": "state",
    "gate left out of the state": "state",
    "state in bfloat16": "state",
    "chunk boundary off by one": "state",
    "out of the state before": "read",
    "scale left out": "out",
}
CHUNK = 16


def gated_delta_rule(fault: str = "", *, dumps: bool = True) -> Callable[..., Any]:
    """The function."""
    from ml_dtypes import bfloat16

    f32 = np.float32

    def function(q: Any, k: Any, v: Any, gate: Any, beta: Any, initial_state: Any, *, scale: float) -> Any:
        q, k, v = (x.astype(f32) for x in (q, k, v))
        state = initial_state.copy() * (0 if fault == "initial state ignored" else 1)
        earlier = state
        made: dict[str, list[np.ndarray]] = {
            name: [] for name in ("recalled", "scaled", "delta", "written", "state", "read", "out")
        }
        tokens = q.shape[2]
        for i in range(tokens):
            key, g = k[:, :, i], gate[:, :, i, None]
            if fault == "gate of the next token":
                g = gate[:, :, min(i + 1, tokens - 1), None]
            b = beta[:, :, i, None]
            b = {"beta twice": b * b, "beta of the next head": np.roll(b, 1, 1)}.get(fault, b)
            seen = state.swapaxes(-1, -2) if fault == "state transposed" else state
            recalled = np.einsum("bhd,bhde->bhe", key, seen)
            scaled = recalled if fault == "recall without the gate" else g * recalled
            delta = g * v[:, :, i] - scaled if fault == "gate on values" else v[:, :, i] - scaled
            written = b * delta
            before, more = state, key[..., None] * written[..., None, :]
            decayed = g[..., None] * state
            if fault == "gate after the update":
                state = g[..., None] * (state + more)
            elif fault == "gate left out of the state":
                state = state + more
            elif fault == "chunk boundary off by one" and i and i % CHUNK == 0:
                state = g[..., None] * earlier + more
            else:
                state = decayed + more
            if fault == "state in bfloat16":
                state = state.astype(bfloat16).astype(f32)
            earlier = before
            read = np.einsum("bhd,bhde->bhe", q[:, :, i], before if fault == "out of the state before" else state)
            out = read if fault == "scale left out" else f32(scale) * read
            values = (recalled, scaled, delta, written, state, read, out)
            for name, x in zip(made, values, strict=True):
                made[name].append(x)
        stages = {name: np.stack(x, 2) for name, x in made.items()}
        return stages if dumps else stages["out"]

    return function


def chunked(q: Any, k: Any, v: Any, gate: Any, beta: Any, initial_state: Any, *, scale: float) -> np.ndarray:
    """The same in chunks of tokens: what a chunk writes at once, by the inverse of I + tril(beta K K^T)."""
    f32 = np.float32
    dtype, state, outs = q.dtype, initial_state, []
    q, k, v = (x.astype(f32) for x in (q, k, v))
    for first in range(0, q.shape[2], CHUNK):
        at = slice(first, first + CHUNK)
        query, key, g, b = q[:, :, at], k[:, :, at], np.cumsum(np.log(gate[:, :, at]), -1), beta[:, :, at, None]
        ratio, kept = np.exp(g[..., :, None] - g[..., None, :]), np.exp(g)[..., None]
        among = np.tril(key @ key.swapaxes(-1, -2) * b * ratio, -1)
        inverse = np.linalg.inv(np.eye(among.shape[-1], dtype=f32) + among)
        written = inverse @ (b * v[:, :, at]) - inverse @ (b * kept * key) @ state
        weights = np.tril(query @ key.swapaxes(-1, -2) * ratio)
        outs.append(f32(scale) * (kept * (query @ state) + weights @ written))
        left = np.exp(g[..., -1:] - g)[..., None]
        state = kept[..., -1:, :] * state + (left * key).swapaxes(-1, -2) @ written
    return np.concatenate(outs, 2).astype(dtype)
