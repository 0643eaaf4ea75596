"""Online softmax in base 2, of the query heads of a group packed into one matrix, which skips tiles without a key."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np

from campaigns.independent.online import contract
from campaigns.independent.shape import (
    LN2,
    LOG2E,
    NO_KEY,
    Array,
    Shape,
    Stages,
    blocks,
    cdiv,
    divided,
    float32,
    log_sum,
    shifted,
    unwritten,
)

BLOCK_M = 64
BLOCK_N = 32


@dataclass(frozen=True)
class Packed:
    """The lines of the kernel, each of which may be another one."""

    scaled: Callable[[Array, float], Array] = lambda q, scale: q * (np.float32(scale) * LOG2E)
    tiles: Callable[[Array, Shape], int] = lambda r, shape: cdiv(r[-1] // shape.group + 1 + shape.offset, BLOCK_N)
    rescale: Callable[[Array], Array] = np.exp2
    prob: Callable[[Array], Array] = np.exp2


def base_two(q: Array, k: Array, v: Array, scale: float, causal: bool, lines: Packed | None = None) -> Stages:
    """Rows r = query * group + head of a group, in tiles of 64 rows and 32 keys, with log2(e) in the scale.

    What a row did not visit is left unwritten in the stages of its scores.
    """
    lines, shape = lines or Packed(), Shape.of(q, k, causal)
    dtype, cast = q.dtype, q.dtype == np.float16
    q, k, v = float32(q, k, v)
    total, tiles = shape.seqlen_q * shape.group, list(blocks(shape.seqlen_k, BLOCK_N))
    heads = shape.batch, shape.kv_heads
    q = np.swapaxes(q.reshape(*heads, shape.group, shape.seqlen_q, -1), 2, 3).reshape(*heads, total, -1)
    pairs = {name: unwritten(*heads, total, shape.seqlen_k) for name in ("scores", "probs", "probs_cast")}
    rows = {name: unwritten(*heads, total, len(tiles)) for name in ("row_max", "correction", "row_sum")}
    accs, maxima = unwritten(*heads, total, len(tiles), shape.head_dim), unwritten(*heads, total)
    sums, last = unwritten(*heads, total), unwritten(*heads, total, shape.head_dim)
    for b, h, r in product(range(shape.batch), range(shape.kv_heads), blocks(total, BLOCK_M)):
        m, l = np.full(len(r), NO_KEY), np.zeros(len(r), np.float32)
        acc = np.zeros((len(r), shape.head_dim), np.float32)
        count = min(max(lines.tiles(r, shape), 0), len(tiles)) if causal else len(tiles)
        for t, j in enumerate(tiles[:count]):
            s = lines.scaled(q[b, h, r], scale) @ k[b, h, j].T
            s = np.where(shape.visible(r // shape.group, j), s, NO_KEY)
            new = np.maximum(m, s.max(-1))
            alpha, p = lines.rescale(shifted(m[:, None], new)[:, 0]), lines.prob(shifted(s, new))
            met = p.astype(np.float16).astype(np.float32) if cast else p
            m, l, acc = new, l * alpha + p.sum(-1), acc * alpha[:, None] + met @ v[b, h, j]
            for name, part in zip(pairs, (s, p, met), strict=True):
                pairs[name][b, h][np.ix_(r, j)] = part
            for name, part in zip(rows, (m, alpha, l), strict=True):
                rows[name][b, h, r, t] = part
            accs[b, h, r, t] = acc
        maxima[b, h, r], sums[b, h, r], last[b, h, r] = m, l, acc
    out = {"out": divided(last, sums, dtype), "lse": log_sum(maxima * LN2, sums)}
    stages = pairs | rows | {"acc": accs} | out
    told = contract(BLOCK_N, str(dtype)) | {"base2": True, "skips_masked_tiles": True}
    return {name: unpacked(part, shape) for name, part in stages.items()} | {"contract": told}


def unpacked(part: Array, shape: Shape) -> Array:
    """An array of packed rows with an axis of heads and one of queries."""
    apart = part.reshape(shape.batch, shape.kv_heads, shape.seqlen_q, shape.group, *part.shape[3:])
    return np.swapaxes(apart, 2, 3).reshape(shape.batch, shape.heads, shape.seqlen_q, *part.shape[3:])


def packed(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """FlashAttention with exp2 and packed groups."""
    return base_two(q, k, v, scale, causal)
