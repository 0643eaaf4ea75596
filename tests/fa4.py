"""Attention in NumPy's float32 as FlashAttention-4 computes it, right and with one fault: a maximum that is raised only
where it would grow by a threshold (flash_attn/cute/softmax.py), exp2 by a polynomial on a share of the elements
(flash_attn/cute/utils.py), and probs larger by a power of two before an 8-bit cast.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.floats import round_to

F32 = np.float32
Array = Any
#: fault -> the first stage that is wrong, where it has no offset or one in the cast, and where it has one in exp
FAULTS = {
    "threshold in natural units": "row_max",
    "growth of one tile alone": "row_max",
    "correction where it lags": "correction",
    "no correction where it is raised": "correction",
    "probs below the running maximum": "probs",
    "polynomial of the rounded argument": "probs",
    "polynomial without its last term": "probs",
    "row_sum not rescaled": "row_sum",
    "acc not rescaled": "acc",
    "sum of the running maximum": "out",
    "lse of the running maximum": "lse",
}
FAULTS_OF_OFFSETS = {
    ("cast twice as large", "cast"): "probs_cast",
    ("probs without it", "exp"): "probs",
    ("out with it", "cast"): "out",
    ("lse with it", "exp"): "lse",
}
#: degree -> coefficients, the highest first
POLYNOMIALS = {
    1: (0.9224971, 1.0),
    2: (0.33010703, 0.66578507, 1.0),
    3: (0.07711909, 0.22756439, 0.69514614, 1.0),
    4: (0.013434938, 0.052225359, 0.24129125, 0.6930427, 1.0),
    5: (0.0018681015, 0.0090145227, 0.055802189, 0.24016361, 0.69315141, 1.0),
}


@dataclass(frozen=True)
class Style:
    """What such a kernel chooses."""

    block_k: int = 16
    lag: float = 8.0  #: in units of log2
    offset: int = 0
    offset_in: str = "exp"
    degree: int | None = 3
    share: int = 2  #: of so many elements one takes the polynomial
    probs_dtype: str = "float32"
    row_sum_of_cast: bool = False

    @property
    def contract(self) -> dict[str, Any]:
        """What it declares."""
        return {
            **{"block_k": self.block_k, "scores_dtype": "float32", "partials_dtype": "float32", "out_rounding": "nearest"},
            **{"probs_dtype": self.probs_dtype, "probs_rounding": "nearest", "row_sum_of_cast": self.row_sum_of_cast},
            **{"accumulation": "nearest", "normalisation": "division", "fast_math": False, "scores_scaled": False},
            **{"exp_ulps": 1.0, "exp_ulps_per_x": 0.0, "exp_argument": "fma", "exp_floor": -127.0, "exp_flushes": False},
            **{"row_max": "lagging", "row_max_lag": self.lag, "exp_polynomial": self.degree},
            **({"probs_offset": self.offset, "offset_in": self.offset_in} if self.offset else {}),
        }  # fmt: skip


def _exp2(x: Array, style: Style, fault: str = "") -> Array:
    """2^x of float32: rounded once, but for the elements whose turn it is."""
    exact = np.exp2(x.astype(np.float64)).astype(F32)
    if style.degree is None:
        return exact
    held = np.maximum(x, F32(-127))
    whole = np.rint(held) if fault == "polynomial of the rounded argument" else np.floor(held)
    part, y = (held - whole).astype(F32), F32(0)
    for factor in POLYNOMIALS[style.degree][fault == "polynomial without its last term" :]:
        y = (y * part.astype(np.float64) + np.float64(F32(factor))).astype(F32)
    made = np.ldexp(y, whole.astype(int)).astype(F32)
    taken = np.arange(x.shape[-1]) % style.share == 0
    return np.where(taken & (x > -np.inf), made, exact)


def fa4(style: Style = Style(), fault: str = "", names: tuple[str, ...] = ()) -> Callable[..., Mapping[str, Any]]:
    """The function; it dumps `names`, all stages where there are none."""

    @np.errstate(all="ignore")
    def attention(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> dict[str, Any]:
        dtype = q.dtype
        q, k, v = (x.astype(F32) for x in (q, k, v))
        k, v = (np.repeat(x, q.shape[1] // k.shape[1], 1) for x in (k, v))
        qk, tokens = q @ k.swapaxes(-1, -2), k.shape[2]
        hidden = np.tril(np.ones(qk.shape[-2:]), tokens - q.shape[2]) == 0
        scores = np.where(hidden, F32(-np.inf), qk) if causal else qk
        c = F32(scale) * F32(np.log2(np.e))
        threshold = F32(style.lag * (np.log2(np.e) if fault == "threshold in natural units" else 1))
        in_exp = F32(style.offset if style.offset_in == "exp" and fault != "probs without it" else 0)
        in_cast = F32(2.0 ** (style.offset if style.offset_in == "cast" else 0))
        m, true = np.full((2, *q.shape[:3]), -np.inf, F32)
        l, acc = np.zeros(q.shape[:3], F32), np.zeros((*q.shape[:3], v.shape[3]), F32)
        made: dict[str, list[Array]] = {name: [] for name in ("row_max", "correction", "row_sum", "acc")}
        probs, cast = np.zeros((2, *scores.shape), F32)
        for first in range(0, tokens, style.block_k):
            keys = slice(first, first + style.block_k)
            tile = scores[..., keys]
            top = np.maximum(m, tile.max(-1))
            before, true = true, np.maximum(true, top)
            safe = np.where(top == -np.inf, F32(0), top)
            gap = (m - safe) * c
            stays = ((before - safe) * c if fault == "growth of one tile alone" else gap) >= -threshold
            raised = np.where(stays, F32(1), np.exp2(gap.astype(np.float64)).astype(F32))
            alpha = raised
            if fault == "correction where it lags":
                alpha = np.exp2(gap.astype(np.float64)).astype(F32)
            elif fault == "no correction where it is raised":
                alpha = np.where(m > -np.inf, F32(1), raised)
            m = np.where(stays, m, top)
            under = true if fault == "probs below the running maximum" else m
            scaled = np.where(under == -np.inf, F32(0), under) * c - in_exp
            x = (tile.astype(np.float64) * np.float64(c) - scaled[..., None]).astype(F32)
            p = _exp2(x, style, fault)
            of_cast = in_cast * F32(2 if fault == "cast twice as large" else 1)
            pc = round_to((p * of_cast).astype(np.float64), style.probs_dtype).astype(F32)
            added = (pc if style.row_sum_of_cast else p).sum(-1, dtype=F32)
            l = (F32(1) if fault == "row_sum not rescaled" else alpha) * l + added
            acc = (F32(1) if fault == "acc not rescaled" else alpha)[..., None] * acc + pc @ v[:, :, keys]
            probs[..., keys], cast[..., keys] = p, pc
            for name, one in zip(made, (m, alpha, l, acc), strict=True):
                made[name].append(one)
        left = np.exp2((m - true) * c) if fault == "sum of the running maximum" else F32(1)
        kept = style.offset_in == "exp" or style.row_sum_of_cast or fault == "out with it"
        out = np.where(l[..., None] == 0, F32(0), acc / (l * left)[..., None] / (1 if kept else in_cast))
        top = true if fault == "lse of the running maximum" else m
        in_sum = style.offset_in == "exp" or style.row_sum_of_cast
        extra = F32(style.offset * np.log(2) if in_sum and fault != "lse with it" else 0)
        lse = np.where(l == 0, F32(-np.inf), top * F32(scale) + np.log(l) - extra)
        stages = {"qk": qk, "scores": scores, "probs": probs, "probs_cast": cast, "lse": lse.astype(F32)}
        stages |= {name: np.stack(one, 3) for name, one in made.items()} | {"out": out.astype(dtype)}
        return {name: x for name, x in stages.items() if not names or name in names} | {"contract": style.contract}

    return attention
