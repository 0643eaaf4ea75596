"""Faulty kernels whose partial results are right and whose merge is not."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from campaigns.styles import pieces
from campaigns.styles.correct_merges import flash_decoding, ring_sigmoid
from campaigns.styles.fault import Faulty
from campaigns.styles.pieces import F32, INF
from campaigns.styles.style import Array, Stages

State = tuple[Array, Array]


def split_kv(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Correct: 4 splits of tiles of 16, merged."""
    return _merge(_parts(q, k, v, scale, causal), q, lambda weight, l: weight * l, lambda weight, l: weight)


def _parts(q: Array, k: Array, v: Array, scale: float, causal: bool) -> Stages:
    x, v32 = pieces.masked_scores(q, k, v, causal, F32(scale))
    dumps = pieces.slots(x, v.shape[3], -(-k.shape[2] // 16))
    return pieces.partials(
        [pieces.online(x, v32, some, dumps, cast=q.dtype) for some in pieces.in_splits(k.shape[2], 16, 4)]
    )


def _merge(
    parts: Stages, q: Array, in_sum: Callable[[Array, Array], Array], in_out: Callable[[Array, Array], Array]
) -> Stages:
    """`in_sum` of a split's weight and sum is what it adds to the total, `in_out` what its output is weighted with."""
    m, l = parts["partial_max"], parts["partial_sum"]
    top = m.max(2)
    weight = pieces.by_exp(m, top[:, :, None])
    total = in_sum(weight, l).sum(2)
    o = (in_out(weight, l)[..., None] * parts["partial_O"]).sum(2)
    return {"out": pieces.quotient(o, total).astype(q.dtype), "lse": pieces.lse_of(top, total)}


def sum_counted_twice(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Unnormalised outputs are weighted with the sums that they hold already."""
    return _merge(_parts(q, k, v, scale, causal), q, lambda w, l: w * l, lambda w, l: w * l)


def weights_missing(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Splits are added without exp(partial_max - merge_max)."""
    return _merge(_parts(q, k, v, scale, causal), q, lambda w, l: l, lambda w, l: (l > 0).astype(F32))


def weights_in_sum_only(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """partial_O is added without its weight."""
    return _merge(_parts(q, k, v, scale, causal), q, lambda w, l: w * l, lambda w, l: np.ones_like(w))


def weights_in_4_bits(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Weights of outputs keep 4 bits, as a packed buffer of float8 stores them."""

    def coarse(w: Array, l: Array) -> Array:
        fraction, exponent = np.frexp(w)
        return np.ldexp(np.rint(fraction * F32(16)) / F32(16), exponent)

    return _merge(_parts(q, k, v, scale, causal), q, lambda w, l: w * l, coarse)


def last_split_lost(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """The merge reads all splits but the last that has keys."""
    parts = _parts(q, k, v, scale, causal)
    used = sum(len(some) > 0 for some in pieces.in_splits(k.shape[2], 16, 4))
    return _merge(
        {name: x[:, :, : max(used - 1, 1)] for name, x in parts.items()}, q, lambda w, l: w * l, lambda w, l: w
    )


def split_read_twice(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """The second split's partials are read in the first's place."""
    parts = _parts(q, k, v, scale, causal)
    for x in parts.values():
        x[:, :, 0] = x[:, :, 1]
    return _merge(parts, q, lambda w, l: w * l, lambda w, l: w)


def max_of_first_split(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """lse takes the first split's maximum in place of the merged one."""
    parts = _parts(q, k, v, scale, causal)
    stages = _merge(parts, q, lambda w, l: w * l, lambda w, l: w)
    wrong = stages["lse"] - pieces.finite(parts["partial_max"].max(2)) + pieces.finite(parts["partial_max"][:, :, 0])
    return {**stages, "lse": wrong}


def mean_of_splits(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Normalised outputs are averaged over the splits that saw a key."""
    parts = _parts(q, k, v, scale, causal)
    m, l = parts["partial_max"], parts["partial_sum"]
    count = np.maximum((l > 0).sum(2), 1).astype(F32)
    out = pieces.quotient(parts["partial_O"], l).sum(2) / count[..., None]
    top = m.max(2)
    return {"out": out.astype(q.dtype), "lse": pieces.lse_of(top, (pieces.by_exp(m, top[:, :, None]) * l).sum(2))}


def _chunk(x: Array, v: Array, cast: object) -> State:
    m = x.max(-1)
    p = pieces.by_exp(x, m[..., None])
    l = p.sum(-1)
    return pieces.quotient(pieces.nearest(p, cast) @ v, l), pieces.lse_of(m, l)


def _joined(q: Array, k: Array, v: Array, scale: float, causal: bool, join: Callable[[State, State], State]) -> Stages:
    """Chunks of 64 keys merged by `join` where both saw a key."""
    x, v32 = pieces.masked_scores(q, k, v, causal, F32(scale))
    out, lse = np.zeros(q.shape[:3] + v.shape[3:], F32), np.full(q.shape[:3], -INF)
    for _, lo, hi in pieces.tiles(k.shape[2], 64):
        new_out, new_lse = _chunk(x[..., lo:hi], v32[:, :, lo:hi], q.dtype)
        old, new = lse != -INF, new_lse != -INF
        both_out, both_lse = join((out, pieces.finite(lse)), (new_out, pieces.finite(new_lse)))
        out = np.where((old & new)[..., None], both_out, np.where(new[..., None], new_out, out))
        lse = np.where(old & new, both_lse, np.where(new, new_lse, lse))
    return {"out": out.astype(q.dtype), "lse": lse}


def _logaddexp(a: Array, b: Array) -> Array:
    top = np.maximum(a, b)
    return top + pieces.log(np.exp(a - top) + np.exp(b - top))


def ring_sign(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """The sigmoid has its argument the wrong way round."""

    def join(a: State, b: State) -> State:
        lse = _logaddexp(a[1], b[1])
        return a[0] - np.exp(a[1] - lse)[..., None] * (a[0] - b[0]), lse

    return _joined(q, k, v, scale, causal, join)


def ring_lse_is_the_larger(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """lse becomes the larger of the two, not log(exp + exp)."""

    def join(a: State, b: State) -> State:
        lse = _logaddexp(a[1], b[1])
        weight = np.exp(b[1] - lse)[..., None]
        return a[0] + weight * (b[0] - a[0]), np.maximum(a[1], b[1])

    return _joined(q, k, v, scale, causal, join)


def ring_out_before_lse(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """out is rescaled by the new lse's weight alone: the old output keeps all of its own."""

    def join(a: State, b: State) -> State:
        lse = _logaddexp(a[1], b[1])
        return a[0] + np.exp(b[1] - lse)[..., None] * b[0], lse

    return _joined(q, k, v, scale, causal, join)


def _splits(case: Mapping[str, Any]) -> bool:
    """Whether two splits have keys that some row sees, of scores that differ."""
    return bool(case["seqlen_k"] > 16 and case["input_std"] >= 1)


def _chunks(case: Mapping[str, Any]) -> bool:
    return bool(case["seqlen_k"] > 64 and case["input_std"] <= 1)


FAULTY = (
    Faulty(sum_counted_twice, split_kv, "partial sums count twice", _splits),
    Faulty(weights_missing, split_kv, "splits merged without weights", _splits),
    Faulty(weights_in_sum_only, split_kv, "partial_O merged without its weight", _splits),
    Faulty(weights_in_4_bits, split_kv, "weights of the merge lose all but 4 bits", _splits),
    Faulty(
        last_split_lost, split_kv, "the last split is not merged", lambda c: c["seqlen_k"] > 16 and c["input_std"] <= 1
    ),
    Faulty(split_read_twice, split_kv, "the second split in the place of the first", _splits),
    Faulty(
        max_of_first_split, split_kv, "lse of the first split's maximum", lambda c: _chunks(c) and c["seqlen_q"] >= 16
    ),
    Faulty(mean_of_splits, flash_decoding, "splits averaged", lambda c: c["seqlen_k"] > 32),
    Faulty(ring_sign, ring_sigmoid, "the sigmoid of ring attention's merge the wrong way round", _chunks),
    Faulty(ring_lse_is_the_larger, ring_sigmoid, "lse of a merge is the larger one", _chunks),
    Faulty(ring_out_before_lse, ring_sigmoid, "the old output is not weighted down", _chunks),
)
