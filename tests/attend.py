"""Attention of one sequence in NumPy, with what kernels of packages take; nothing of it is the reference's."""

import numpy as np


def attend(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *,
    scale: float,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    slopes: np.ndarray | None = None,
    column: bool = False,
    top_left: bool = False,
    mask: np.ndarray | None = None,
    bias: np.ndarray | None = None,
    sinks: np.ndarray | None = None,
    empty_lse: float = -np.inf,
) -> tuple[np.ndarray, np.ndarray]:
    """out [s, h, d] and lse [h, s], float32, of one sequence: q [s, h, d], k and v [t, kv heads, d]; the mask and the
    bias [h, s, t], sinks [h].
    """
    q, k, v = (np.asarray(x, np.float32) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = (np.repeat(x, group, axis=1) for x in (k, v))
    scores = np.einsum("qhd,khd->hqk", q, k) * np.float32(scale)
    scores = np.float32(softcap) * np.tanh(scores / np.float32(softcap)) if softcap else scores
    rows, keys = np.arange(len(q))[:, None], np.arange(len(k))
    beyond = keys - rows - (0 if top_left else len(k) - len(q))
    if bias is not None:
        scores = scores + bias.astype(np.float32)
    if slopes is not None:
        scores = scores + slopes.astype(np.float32)[:, None, None] * (keys if column else -abs(beyond))
    left, right = window[0], 0 if causal else window[1]
    seen = ((beyond >= -left) | (left < 0)) & ((beyond <= right) | (right < 0))
    seen = np.broadcast_to(seen if mask is None else seen & mask, scores.shape)
    scores = np.where(seen, scores, np.float32(-np.inf))
    largest = np.max(scores, axis=-1, initial=np.float32(-1e30))
    probs = np.exp(scores - largest[..., None])
    total = probs.sum(axis=-1)
    if sinks is not None:
        with np.errstate(over="ignore"):
            total = total + np.where(total > 0, np.exp(sinks.astype(np.float32)[:, None] - largest), 0)
    empty = total == 0
    out = np.einsum("hqk,khd->hqd", probs, v) / np.where(empty, 1, total)[..., None]
    with np.errstate(divide="ignore"):
        lse = np.where(empty, np.float32(empty_lse), largest + np.log(total))
    return np.moveaxis(out, 0, 1), lse
