"""Correct kernels of group arithmetic whose exponential is a polynomial, or another fast one."""

from collections.abc import Callable
from typing import Any

import numpy as np

from campaigns.styles import pieces
from campaigns.styles.pieces import F32, LOG2E
from campaigns.styles.style import ALL, SIXTEEN, Array, Stages, of_arithmetic

# Least squares on 2^f, 0 <= f < 1, weighted until the relative errors alternate: 8.6e-5.
_CUBIC = tuple(F32(x) for x in (1.0, 0.6951168179512024, 0.22764497995376587, 0.0770670548081398))


def exp2_cubic(x: Array) -> Array:
    """2^x from a cubic in the fraction of x, by Horner's rule in float32; x is clamped at -127."""
    x = np.maximum(x, F32(-127))
    whole = np.floor(x)
    f = x - whole
    p = ((_CUBIC[3] * f + _CUBIC[2]) * f + _CUBIC[1]) * f + _CUBIC[0]
    return np.ldexp(p, whole.astype(np.int32))


# The cubic's 8.6e-5 is 720 ulps where an ulp is 2^-23 of the value, 1440 where it is 2^-24; rounding adds a few.
# Below 2^-126 the exponent that is built from the integer part is that of 0.
CUBIC_ULPS = {"exp_ulps": 1600.0, "exp_flushes": True}


def cubic_exp2(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """exp2 by a cubic where its result counts, and 0 below 2^-126."""
    return _polynomial(q, k, v, scale, causal, lambda x: np.where(x < -126, F32(0), exp2_cubic(x)), 64)


# As _CUBIC, of degree 2 (2.1e-3) and 4 (2.9e-6).
_QUADRATIC = tuple(F32(x) for x in (1.0, 0.6659609079360962, 0.32993245124816895))
_QUARTIC = tuple(
    F32(x) for x in (1.0, 0.6930448412895203, 0.2412802129983902, 0.052242472767829895, 0.013426685705780983)
)


def _exp2_by(coefficients: tuple[np.floating, ...], x: Array) -> Array:
    """2^x from a polynomial in the fraction of x; 0 below 2^-126."""
    kept = np.maximum(x, F32(-126))
    whole = np.floor(kept)
    f = kept - whole
    p = np.full_like(f, coefficients[-1])
    for c in coefficients[-2::-1]:
        p = p * f + c
    return np.where(x < -126, F32(0), np.ldexp(p, whole.astype(np.int32)))


def quadratic_exp2(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """exp2 by a quadratic, half an ulp of bfloat16; tiles of 32."""
    return _polynomial(q, k, v, scale, causal, lambda x: _exp2_by(_QUADRATIC, x), 32)


def quartic_exp2(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """exp2 by a polynomial of degree 4; tiles of 16."""
    return _polynomial(q, k, v, scale, causal, lambda x: _exp2_by(_QUARTIC, x), 16)


def _polynomial(
    q: Array, k: Array, v: Array, scale: float, causal: bool, exp2: Callable[[Array], Array], block: int
) -> Stages:
    x, v32 = pieces.masked_scores(q, k, v, causal, F32(scale) * LOG2E)
    visits = pieces.tiles(k.shape[2], block)
    dumps = pieces.slots(x, v.shape[3], len(visits))
    how: dict[str, Any] = {"weigh": lambda x, m: exp2(x - pieces.finite(m)), "correct": pieces.by_exp2, "cast": q.dtype}
    m, l, o = pieces.online(x, v32, visits, dumps, **how)
    return {"scores": x, **dumps, "out": pieces.quotient(o, l).astype(q.dtype), "lse": pieces.lse_of_base2(m, l)}


def fast_expf(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Stages:
    """exp(x) as exp2 of the rounded x * log2(e), results below 2^-126 flushed to 0, like __expf."""
    x, v32 = pieces.masked_scores(q, k, v, causal, F32(scale))
    visits = pieces.tiles(k.shape[2], 64)
    dumps = pieces.slots(x, v.shape[3], len(visits))

    def weigh(x: Array, m: Array) -> Array:
        p = np.exp2((x - pieces.finite(m)) * LOG2E)
        return np.where(p < F32(2.0**-126), F32(0), p)

    m, l, o = pieces.online(x, v32, visits, dumps, weigh=weigh, cast=q.dtype)
    return {"scores": x, **dumps, "out": pieces.quotient(o, l).astype(q.dtype), "lse": pieces.lse_of(m, l)}


STYLES = (
    of_arithmetic(
        cubic_exp2, ALL, {"block_k": 64, "base2": True}, CUBIC_ULPS, "FlashAttention-4's software exp2 of degree 3."
    ),
    of_arithmetic(
        quadratic_exp2,
        SIXTEEN,
        {"block_k": 32, "base2": True},
        # 2.06e-3 where an ulp is 2^-24 of the value.
        {"exp_ulps": 36000.0, "exp_flushes": True},
        "Schraudolph-like exponentials with a quadratic correction, enough for bfloat16 probs.",
    ),
    of_arithmetic(
        quartic_exp2,
        ALL,
        {"block_k": 16, "base2": True},
        # 2.9e-6 is 49 ulps where an ulp is 2^-24 of the value.
        {"exp_ulps": 60.0, "exp_flushes": True},
        "Cephes-like polynomials cut to degree 4, as CPU kernels vectorise exp (PyTorch's exp_u20).",
    ),
    of_arithmetic(
        fast_expf,
        ALL,
        {"block_k": 64},
        {"exp_ulps_per_x": 2.0, "exp_flushes": True},
        "CUDA's __expf under -use_fast_math -ftz=true, most hand-written kernels.",
    ),
)
