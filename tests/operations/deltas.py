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
