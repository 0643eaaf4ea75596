"""Softmax in two passes over whole rows: masked scores, then probabilities, then their product with v."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np

from campaigns.independent.online import contract
from campaigns.independent.shape import Array, Shape, Stages, blocks, divided, float32, log_sum, unwritten

ROWS = 48
SENTINEL = np.float32(-1e30)


@dataclass(frozen=True)
class Passes:
    """The lines of both passes, each of which a kernel may have another of."""

    score: Callable[[Array, float, Array], Array] = lambda qk, scale, i: qk * np.float32(scale)
    prob: Callable[[Array, Array, Array], Array] = lambda s, m, keep: np.exp(s - m[:, None]) * keep
    product: Callable[[Array, Array, Array], Array] = lambda p, v, before: p @ v


def two_pass(q: Array, k: Array, v: Array, scale: float, causal: bool, passes: Passes | None = None) -> Stages:
    """Blocks of 48 queries against all keys; a masked score is -1e30, and its probability is multiplied by 0."""
    passes, shape = passes or Passes(), Shape.of(q, k, causal)
    dtype = q.dtype
    q, k, v = float32(q, k, v)
    rows, j = (shape.batch, shape.heads, shape.seqlen_q), np.arange(shape.seqlen_k)
    scores, probs = unwritten(*rows, shape.seqlen_k), unwritten(*rows, shape.seqlen_k)
    maxima, sums, acc = unwritten(*rows, 1), unwritten(*rows, 1), unwritten(*rows, 1, shape.head_dim)
    for b, h in product(range(shape.batch), range(shape.heads)):
        kv, before = h // shape.group, np.zeros((ROWS, shape.head_dim), np.float32)
        for i in blocks(shape.seqlen_q, ROWS):
            keep = shape.visible(i, j)
            s = np.where(keep, passes.score(q[b, h, i] @ k[b, kv].T, scale, i), SENTINEL)
            m = s.max(-1)
            p = passes.prob(s, m, keep)
            before[: len(i)] = passes.product(p, v[b, kv], before[: len(i)])
            scores[b, h, i], probs[b, h, i], acc[b, h, i, 0] = s, p, before[: len(i)]
            maxima[b, h, i, 0], sums[b, h, i, 0] = m, p.sum(-1)
    stages = {"scores": scores, "row_max": maxima, "probs": probs, "row_sum": sums, "acc": acc}
    out = {"out": divided(acc[..., 0, :], sums[..., 0], dtype), "lse": log_sum(maxima, sums)[..., 0]}
    told = contract(shape.seqlen_k, "float32") | {"mask_sentinel": float(SENTINEL)}
    return stages | out | {"contract": told}


def eager(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Softmax in two passes over whole rows."""
    return two_pass(q, k, v, scale, causal)
