"""The gated delta rule in chunks, right and with one fault: in NumPy's float32, and in torch with 16-bit operands."""

from collections.abc import Callable
from typing import Any

import numpy as np

#: fault -> the first stage that is wrong
FAULTS = {
    "gates summed over all tokens": "gates",
    "gates without the token's own": "gates",
    "decay off by one token": "overlap",
    "no decay in the overlap": "overlap",
    "beta left out of the overlap": "overlap",
    "beta of the other token": "overlap",
    "overlap with its diagonal": "overlap",
    "inverse of three terms": "inverse",
    "inverse of I - A": "inverse",
    "u without beta": "u",
    "w without the gates": "w",
    "scores without their diagonal": "scores",
    "no decay in the scores": "scores",
    "initial state ignored": "written",
    "state transposed": "written",
    "state written before it is read": "read",
    "read without the gates": "read",
    "scale left out": "out",
    "state not decayed": "state",
    "keys not decayed to the end": "state",
    "last token left out of the state": "state",
    "last chunk decayed as a whole one": "state",
}
STAGES = ("gates", "overlap", "inverse", "u", "w", "scores", "written", "read", "out", "state")


def _inverse(lower: Any, fault: str) -> Any:
    """(I + A)^-1 by forward substitution."""
    eye = np.zeros_like(lower) + np.eye(lower.shape[-1], dtype=lower.dtype)
    if fault == "overlap with its diagonal":
        return np.linalg.inv(eye + lower)
    if fault == "inverse of three terms":
        return np.asarray(eye - lower + lower @ lower)
    lower, made = -lower if fault == "inverse of I - A" else lower, eye
    for i in range(1, lower.shape[-1]):
        made[..., i, :i] = -(lower[..., i, None, :i] @ made[..., :i, :i])[..., 0, :]
    return made


def in_numpy(
    chunk: int, fault: str = "", *, names: tuple[str, ...] = STAGES, inverse: Any = _inverse
) -> Callable[..., Any]:
    """The function, which dumps `names`."""
    f32 = np.float32

    def function(q: Any, k: Any, v: Any, gate: Any, beta: Any, initial_state: Any, *, scale: float) -> Any:
        dtype = q.dtype
        q, k, v = (x.astype(f32) for x in (q, k, v))
        state = initial_state * f32(0 if fault == "initial state ignored" else 1)
        made: dict[str, list[Any]] = {name: [] for name in STAGES}
        logs, summed = np.log(gate), np.zeros((*gate.shape[:2], 1), f32)
        for first in range(0, q.shape[2], chunk):
            at = slice(first, first + chunk)
            query, key, b, log = q[:, :, at], k[:, :, at], beta[:, :, at, None], logs[:, :, at]
            g = np.cumsum(log, -1, dtype=f32)
            if fault == "gates summed over all tokens":
                g, summed = g + summed, g[..., -1:] + summed
            elif fault == "gates without the token's own":
                g = g - log
            n, ends = g.shape[-1], g[..., -1:]
            if fault == "last chunk decayed as a whole one":
                ends = ends * f32(chunk / n)
            before = g - log if fault == "decay off by one token" else g
            lower = np.tril(np.ones((n, n), bool))
            decay = np.exp(np.where(lower, g[..., :, None] - g[..., None, :], f32(-np.inf)))
            off = np.exp(np.where(lower, before[..., :, None] - g[..., None, :], f32(-np.inf)))
            off = lower.astype(f32) if fault == "no decay in the overlap" else off
            by = {"beta left out of the overlap": f32(1), "beta of the other token": b.swapaxes(-1, -2)}.get(fault, b)
            overlap = np.tril(key @ key.swapaxes(-1, -2) * by * off, 0 if fault == "overlap with its diagonal" else -1)
            solved = inverse(overlap, fault)
            kept, left = np.exp(g)[..., None], np.exp(ends - g)[..., None]
            u = solved @ (v[:, :, at] if fault == "u without beta" else b * v[:, :, at])
            w = solved @ (b * key if fault == "w without the gates" else b * kept * key)
            scores = np.tril(query @ key.swapaxes(-1, -2) * (1 if fault == "no decay in the scores" else decay))
            scores = np.tril(scores, -1) if fault == "scores without their diagonal" else scores
            written = u - w @ (state.swapaxes(-1, -2) if fault == "state transposed" else state)
            left = left * f32(0 if fault == "keys not decayed to the end" else 1) + f32(
                fault == "keys not decayed to the end"
            )
            if fault == "last token left out of the state":
                left = left * (np.arange(n) < n - 1)[:, None].astype(f32)
            whole = np.exp(ends)[..., None] if fault != "state not decayed" else f32(1)
            after = whole * state + (left * key).swapaxes(-1, -2) @ written
            seen = after if fault == "state written before it is read" else state
            read = (f32(1) if fault == "read without the gates" else kept) * (query @ seen)
            out = f32(1 if fault == "scale left out" else scale) * (read + scores @ written)
            state = after
            wide = [(0, 0), (0, 0), (0, 0), (0, chunk - n)]
            overlap, solved, scores = (np.pad(x, wide) for x in (overlap, solved, scores))
            values = (g, overlap, solved, u, w, scores, written, read, out.astype(dtype), state)
            for name, x in zip(STAGES, values, strict=True):
                made[name].append(x)
        found = {name: (np.stack if name == "state" else np.concatenate)(x, 2) for name, x in made.items()}
        return {name: found[name] for name in names} | {"contract": {"chunk": chunk}}

    return function


def in_torch(chunk: int, *, names: tuple[str, ...] = STAGES) -> Callable[..., Any]:
    """The same as Triton kernels have it: products in float32 of operands that are cast to the dtype of q, among them the
    inverse, u, w, what is written and the state, decay on what is written (fla/ops/gated_delta_rule).
    """
    import torch

    def function(q: Any, k: Any, v: Any, gate: Any, beta: Any, initial_state: Any, *, scale: float) -> Any:
        dtype, state = q.dtype, initial_state
        tokens, made = q.shape[2], {name: [] for name in STAGES}  # type: ignore[var-annotated]

        def cast(x: Any) -> Any:
            return x.to(dtype).float()

        q, k, v = q.float(), k.float(), v.float()
        for first in range(0, tokens, chunk):
            at = slice(first, first + chunk)
            query, key, b, g = q[:, :, at], k[:, :, at], beta[:, :, at, None], gate[:, :, at].log().cumsum(-1)
            n = g.shape[-1]
            lower = torch.ones(n, n, dtype=torch.bool).tril()
            decay = (g[..., :, None] - g[..., None, :]).masked_fill(~lower, -torch.inf).exp()
            overlap = (key @ key.mT * b * decay).tril(-1)
            solved = torch.linalg.solve_triangular(overlap + torch.eye(n), torch.eye(n).expand_as(overlap), upper=False)
            inverse = solved.to(dtype)
            u = (inverse.float() @ cast(b * v[:, :, at])).to(dtype)
            w = (inverse.float() @ cast(b * g.exp()[..., None] * key)).to(dtype)
            scores = (query @ key.mT * decay).tril()
            written = u.float() - w.float() @ cast(state)
            read = g.exp()[..., None] * (query @ cast(state))
            out = (scale * (read + cast(scores) @ cast(written))).to(dtype)
            left = (g[..., -1:] - g).exp()[..., None]
            state = g[..., -1:].exp()[..., None] * state + key.mT @ cast(left * written)
            wide = (0, chunk - n)
            overlap, inverse, scores = (torch.nn.functional.pad(x, wide) for x in (overlap, inverse, scores))
            values = (g, overlap, inverse, u, w, scores, written.to(dtype), read, out, state)
            for name, x in zip(STAGES, values, strict=True):
                made[name].append(x)
        found = {name: (torch.stack if name == "state" else torch.cat)(x, 2) for name, x in made.items()}
        return {name: found[name] for name in names} | {"contract": {"chunk": chunk, "operands": "inputs"}}

    return function
