"""The referee: two-pass softmax attention in float64, straight from the definition.

It shares no line with the online references, so that a mistake in one cannot hide in the other.
"""

from collections.abc import Callable

import numpy as np


@np.errstate(all="ignore")
def attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *,
    scale: float,
    mask: np.ndarray,
    attn_bias: np.ndarray | None = None,
    softcap: float | None = None,
    score_mod: Callable[[np.ndarray], np.ndarray] | None = None,
    sinks: np.ndarray | None = None,
    dropout_p: float = 0.0,
    dropout_mask: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """Softmax attention: "out" [b, heads, q, dim of v] and "lse" [b, heads, q], the natural log of sum_k exp(scores).

    q [b, heads, q, d], k [b, kv_heads, k, d], v [b, kv_heads, k, any d]; mask (True: visible) and attn_bias, added to
    scaled scores, [q, k] or [b, heads, q, k]; with a softcap scores are softcap * tanh(scaled / softcap) before
    attn_bias, and score_mod takes and gives such scores, [b, heads, q, k]. sinks [heads], natural logits, are one more
    key for each row, whose value is 0; dropout_mask, bool [b, heads, q, k], keeps weights, which are divided by 1 -
    dropout_p. A row that sees no key has out 0 and lse -inf, or the sink; a NaN or infinity in the inputs comes out as
    IEEE arithmetic makes it.
    """
    batch, heads, seqlen_q, dim = q.shape
    kv_heads = k.shape[1]
    grouped_q = np.asarray(q, np.float64).reshape(batch, kv_heads, heads // kv_heads, seqlen_q, dim)
    keys, values = (np.asarray(x, np.float64)[:, :, None] for x in (k, v))

    grouped = (batch, kv_heads, heads // kv_heads, seqlen_q, k.shape[2])
    whole = (batch, heads, *grouped[-2:])
    added = 0.0 if attn_bias is None else np.broadcast_to(attn_bias, whole).reshape(grouped)
    visible = np.broadcast_to(mask, whole).reshape(grouped)
    products = scale * (grouped_q @ keys.swapaxes(-1, -2))
    capped = products if softcap is None else np.tanh(products / softcap) * softcap
    if score_mod is not None:
        capped = score_mod(capped.reshape(whole)).reshape(grouped)
    scores = np.where(visible, capped + added, -np.inf)
    if sinks is not None:
        of_rows = np.asarray(sinks, np.float64).reshape(kv_heads, -1)[None, :, :, None, None]
        scores = np.concatenate([scores, np.broadcast_to(of_rows, (*grouped[:-1], 1))], axis=-1)
        values = np.concatenate([values, np.zeros_like(values[..., :1, :])], axis=-2)
    largest = scores.max(axis=-1, keepdims=True)
    has_keys = largest != -np.inf
    # subtracting the maximum keeps exp within [0, 1]; a row without keys has none, and subtracts 0: exp(-inf) = 0
    weights = np.exp(scores - np.where(has_keys, largest, 0.0))
    total = weights.sum(axis=-1, keepdims=True)
    softmax = np.where(has_keys, weights / total, 0.0)
    if dropout_mask is not None:
        kept = np.broadcast_to(dropout_mask, whole).reshape(grouped) / (1 - dropout_p)
        softmax[..., : k.shape[2]] *= kept

    out = (softmax @ values).reshape(batch, heads, seqlen_q, v.shape[3])
    lse = (largest + np.log(total)).reshape(batch, heads, seqlen_q)
    return {"out": out, "lse": lse}
