"""The gated delta rule in plain code: S_t = a_t (I - b_t k_t k_t^T) S_(t-1) + b_t k_t v_t^T, out_t = scale S_t^T q_t,
with a gate a and a step b of each token (Yang, Kautz and Hatamizadeh 2024, arXiv 2412.06464), by token and by chunk.
"""

import numpy as np

from workbench.reference.arithmetic import Arithmetic
from workbench.reference.graph import may_lose

Array = np.ndarray


def gated_delta_rule(
    q: Array, k: Array, v: Array, gate: Array, beta: Array, initial_state: Array, *, scale: float = 1.0,
    chunk: int = 1, operands: str = "float32",
) -> tuple[Array, Array]:  # fmt: skip
    """out of all tokens, in the dtype of q, and the last state, float32.

    q and k: [batch, heads, tokens, dim], v: [.., tokens, dim_v], gate and beta: [.., tokens], initial_state: [batch,
    heads, dim, dim_v]. chunk: tokens that are computed at once; 1: one after the other. In float32, as kernels compute;
    operands: whether a chunk's results may be stored in the dtype of q (`inputs`) where products read them. NaN and
    infinities go where the products take them.
    """
    state, rows = initial_state, []
    for first in range(0, q.shape[2], chunk):
        query, key, value, a, b = (x[:, :, first : first + chunk] for x in (q, k, v, gate, beta))
        if chunk == 1:
            recalled, scaled, delta, written, state, read, row = token(query, key, value, a, b, state, scale=scale)
        else:
            gates, overlap, inverse, u, w, scores, written, read, row, state = tokens(
                query, key, value, a, b, state, scale=scale, operands=operands
            )
        rows.append(row)
    out = np.concatenate(rows, axis=2)
    return out.astype(q.dtype), state


def token(
    q: Array, k: Array, v: Array, gate: Array, beta: Array, before: Array, *, scale: float = 1.0
) -> tuple[Array, ...]:
    """What one token makes of the state `before`: recalled, scaled, delta, written, the state after it, read and out.

    q and k: [..., 1, dim], v: [..., 1, dim_v], gate and beta: [..., 1], before: [..., dim, dim_v], any axes in front.
    """
    query, key, value = (x.astype(np.float32) for x in (q, k, v))
    recalled = key @ before
    scaled = gate[..., None] * recalled
    delta = value - scaled
    written = beta[..., None] * delta
    state = gate[..., None] * before + np.swapaxes(key, -1, -2) * written
    read = query @ state
    out = scale * read
    return recalled, scaled, delta, written, state, read, out


def tokens(
    q: Array, k: Array, v: Array, gate: Array, beta: Array, before: Array, *, scale: float = 1.0,
    operands: str = "float32",
) -> tuple[Array, ...]:  # fmt: skip
    """What a chunk of tokens makes of the state `before`, in the WY form of section 3.3: gates, overlap, inverse, u, w,
    scores, written, read, out and the state after it.

    q and k: [..., tokens, dim], v: [..., tokens, dim_v], gate and beta: [..., tokens]. operands: as of
    `gated_delta_rule`; what is written may then meet its gates before it is rounded.
    """
    query, key, value = (x.astype(np.float32) for x in (q, k, v))
    step = beta[..., None]
    gates = np.cumsum(np.log(gate), axis=-1)
    decay = np.exp(np.tril(gates[..., :, None] - gates[..., None, :]))
    overlap = np.tril(step * decay * (key @ np.swapaxes(key, -1, -2)), -1)
    inverse = inverted(overlap)
    kept = np.exp(gates)[..., None]
    u = inverse @ (step * value)
    w = inverse @ (step * kept * key)
    scores = np.tril(decay * (query @ np.swapaxes(key, -1, -2)))
    written = u - w @ before
    read = kept * (query @ before)
    out = scale * (read + scores @ written)
    left = np.exp(gates[..., -1:] - gates)[..., None]
    added = written
    if operands == "inputs" and q.dtype.name != "float32":
        relative, absolute = Arithmetic(q.dtype.name).cast()
        added = may_lose(written, relative * abs(written) + absolute)
    state = kept[..., -1:, :] * before + np.swapaxes(left * key, -1, -2) @ added
    return gates, overlap, inverse, u, w, scores, written, read, out, state


def inverted(overlap: Array) -> Array:
    """(I + overlap)^-1 of what is 0 on the diagonal and above it, row by row."""
    made = np.broadcast_to(np.eye(overlap.shape[-1], dtype=np.float32), overlap.shape) + 0.0
    for i in range(1, overlap.shape[-1]):
        made[..., i : i + 1, :i] = -(overlap[..., i : i + 1, :i] @ made[..., :i, :i])
    return made
