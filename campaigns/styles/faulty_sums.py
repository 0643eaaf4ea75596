"""Faulty kernels whose online softmax goes wrong: maxima, corrections, sums, exponentials, casts, the last division."""

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from campaigns.styles import pieces
from campaigns.styles.correct_arithmetic import out_toward_zero
from campaigns.styles.correct_orders import descending
from campaigns.styles.correct_sequences import one_key_at_a_time
from campaigns.styles.fault import Faulty, ends
from campaigns.styles.pieces import F32, INF
from campaigns.styles.style import Array, Stages

Options = Mapping[str, Any]


def flash(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Correct: an online softmax in tiles of 32, from which the faults below depart."""
    return ends(_loop(q, k, v, scale, causal, ""))


def _loop(q: Array, k: Array, v: Array, scale: float, causal: bool, fault: str, block: int = 32) -> Stages:
    """The online softmax with one statement of it wrong."""
    x, v32 = pieces.masked_scores(q, k, v, causal, F32(scale))
    m, l, o = np.full(q.shape[:3], -INF), np.zeros(q.shape[:3], F32), np.zeros(q.shape[:3] + v.shape[3:], F32)
    added = l
    for t, lo, hi in pieces.tiles(k.shape[2], block):
        above = np.maximum(m, x[..., lo:hi].max(-1))
        scaled = pieces.by_exp(m, above)
        p = pieces.by_exp(x[..., lo:hi], above[..., None])
        if fault == "stale max in probs" and t:
            old = pieces.finite(np.where(m == -INF, above, m))
            p = np.exp(np.minimum(x[..., lo:hi] - old[..., None], F32(11)))  # e^11 is the last that float16 holds
        cast = pieces.nearest(p, ml_dtypes.float8_e4m3fn if fault == "probs in e4m3" else q.dtype)
        if fault == "lane":
            cast[..., 31::32] = 0
        added = p.sum(-1)
        l = (l if fault == "sum not rescaled" else l * scaled) + added
        if fault == "sums in bfloat16":
            l = pieces.nearest(l, ml_dtypes.bfloat16)
        o = (o if fault == "acc not rescaled" else o * scaled[..., None]) + cast @ v32[:, :, lo:hi]
        if fault == "acc in bfloat16":
            o = pieces.nearest(o, ml_dtypes.bfloat16)
        m = above
    if fault == "divided by the last tile's sum":
        return {"out": pieces.quotient(o, added).astype(q.dtype), "lse": pieces.lse_of(m, l)}
    return {"out": pieces.quotient(o, l).astype(q.dtype), "lse": pieces.lse_of(m, l), "acc": o, "max": m, "sum": l}


def correction_missing(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    return ends(_loop(q, k, v, scale, causal, "acc not rescaled"))


def sum_not_rescaled(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    return ends(_loop(q, k, v, scale, causal, "sum not rescaled"))


def stale_max(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """probs are relative to the maximum before the tile, sums and acc to the one after it."""
    return ends(_loop(q, k, v, scale, causal, "stale max in probs"))


def sums_in_bfloat16(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    return ends(_loop(q, k, v, scale, causal, "sums in bfloat16", block=8))


def acc_in_bfloat16(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    return ends(_loop(q, k, v, scale, causal, "acc in bfloat16", block=8))


def undeclared_e4m3(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """probs in float8 where 16 bits were promised."""
    return ends(_loop(q, k, v, scale, causal, "probs in e4m3"))


def lane_31_off(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """The share of one lane in 32 is lost on the way to V, not to the sum."""
    return ends(_loop(q, k, v, scale, causal, "lane"))


def divided_by_last_tile(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    return ends(_loop(q, k, v, scale, causal, "divided by the last tile's sum"))


def ragged_rows_not_divided(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """Rows of a block of 64 that is not full leave without the last division."""
    stages = _loop(q, k, v, scale, causal, "")
    whole = (np.arange(q.shape[2]) < q.shape[2] // 64 * 64)[:, None]
    return {"out": np.where(whole, stages["out"], stages["acc"].astype(q.dtype)), "lse": stages["lse"]}


def lse_in_log2(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    stages = ends(descending(q, k, v, scale=scale, causal=causal))
    return {**stages, "lse": stages["lse"] * F32(1.442695)}


def lse_without_max(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    stages = _loop(q, k, v, scale, causal, "")
    return {"out": stages["out"], "lse": pieces.log(stages["sum"])}


def lse_of_raw_max(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """The maximum of unscaled products goes into lse as it is."""
    stages = _loop(q, k, v, scale, causal, "")
    return {"out": stages["out"], "lse": pieces.lse_of(pieces.finite(stages["max"]) / F32(scale), stages["sum"])}


def _by_base(q: Array, k: Array, v: Array, scale: float, causal: bool, log2e: float) -> Stages:
    x, v32 = pieces.masked_scores(q, k, v, causal, F32(scale))
    dumps = pieces.slots(x, v.shape[3], -(-k.shape[2] // 64))

    def weigh(x: Array, m: Array) -> Array:
        return np.exp2((x - pieces.finite(m)) * F32(log2e))

    m, l, o = pieces.online(x, v32, pieces.tiles(k.shape[2], 64), dumps, weigh=weigh, cast=q.dtype)
    return {"out": pieces.quotient(o, l).astype(q.dtype), "lse": pieces.lse_of(m, l)}


def log2e_of_5_digits(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """exp by exp2 with 1.4427 for log2(e), 3.4e-6 too large: less than 16-bit outputs show."""
    return _by_base(q, k, v, scale, causal, 1.4427)


def log2e_of_3_digits(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """exp by exp2 with 1.44 for log2(e), 0.19 % too small."""
    return _by_base(q, k, v, scale, causal, 1.44)


def cut_off_undeclared(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """out rounded toward zero where rounding to nearest was meant."""
    return ends(out_toward_zero(q, k, v, scale=scale, causal=causal))


def twice_the_first_key(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """The first key is summed before the loop and in it."""
    x, v32 = pieces.masked_scores(q, k, v, causal, F32(scale))
    x, v32 = np.concatenate([x[..., :1], x], -1), np.concatenate([v32[:, :, :1], v32], 2)
    m = x.max(-1)
    p = pieces.by_exp(x, m[..., None])
    return {"out": pieces.quotient(p @ v32, p.sum(-1)).astype(q.dtype), "lse": pieces.lse_of(m, p.sum(-1))}


def rows_of_a_neighbour(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """The last row of 32 is divided by the sum of the row before it."""
    stages = _loop(q, k, v, scale, causal, "")
    l = stages["sum"].copy()
    l[..., 31::32] = stages["sum"][..., 30::32][..., : l[..., 31::32].shape[-1]]
    return {"out": pieces.quotient(stages["acc"], l).astype(q.dtype), "lse": stages["lse"]}


def _two_tiles(case: Options) -> bool:
    return bool(case["seqlen_k"] > 64 and case["input_std"] >= 1)


def _any(case: Options) -> bool:
    return bool(case["seqlen_k"] > 1)


def _spread(case: Options) -> bool:
    return bool(case["seqlen_k"] > 1 and case["input_std"] >= 1)


FAULTY = (
    Faulty(correction_missing, flash, "acc is not rescaled when the maximum grows", _two_tiles),
    Faulty(sum_not_rescaled, flash, "row_sum is not rescaled when the maximum grows", _two_tiles),
    Faulty(stale_max, flash, "probs are relative to a stale maximum", _two_tiles),
    Faulty(sums_in_bfloat16, flash, "row sums in bfloat16", lambda c: c["seqlen_k"] > 32),
    Faulty(acc_in_bfloat16, flash, "acc in bfloat16", lambda c: c["seqlen_k"] > 32),
    Faulty(undeclared_e4m3, flash, "probs in e4m3", _any),
    Faulty(lane_31_off, flash, "one lane in 32 is lost", lambda c: c["seqlen_k"] >= 32 and c["input_std"] <= 1),
    Faulty(
        divided_by_last_tile,
        flash,
        "divided by the sum of the last tile",
        lambda c: c["seqlen_k"] > 32 and c["input_std"] <= 1,
    ),
    Faulty(
        ragged_rows_not_divided,
        flash,
        "no last division in a ragged block of rows",
        lambda c: c["seqlen_k"] > 1 and c["seqlen_q"] % 64 != 0 and (not c["causal"] or c["seqlen_q"] > 1),
    ),
    Faulty(lse_in_log2, descending, "lse in units of log2", _any),
    Faulty(lse_without_max, flash, "lse without the maximum", _any),
    Faulty(lse_of_raw_max, flash, "lse of the unscaled maximum", _any),
    Faulty(log2e_of_5_digits, descending, "1.4427 for log2(e)", _spread),
    Faulty(log2e_of_3_digits, descending, "1.44 for log2(e)", _spread),
    Faulty(cut_off_undeclared, descending, "out cut off instead of rounded", _any),
    Faulty(twice_the_first_key, one_key_at_a_time, "the first key counts twice", _any),
    Faulty(
        rows_of_a_neighbour,
        flash,
        "one row in 32 has its neighbour's sum",
        lambda c: (
            c["input_std"] >= 1
            and c["seqlen_q"] >= 32
            and c["seqlen_k"] > 1
            and not (c["causal"] and c["seqlen_q"] > c["seqlen_k"])
        ),
    ),
)
