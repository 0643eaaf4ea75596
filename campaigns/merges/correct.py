"""Correct merges of ranks: `merge(outs, lses)` in the manners of the wild, in NumPy's float32."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray
Stages = Mapping[str, Array]
Merge = Callable[[Array, Array], Any]
F32 = np.float32
INF = F32(np.inf)


@dataclass(frozen=True)
class Base:
    """The base of lses."""

    exp: Callable[[Array], Array]
    log: Callable[[Array], Array]
    unit: np.float32  #: of an lse in natural logarithms


NATURAL = Base(np.exp, np.log, F32(1))
BASES = {False: NATURAL, True: Base(np.exp2, np.log2, F32(np.log(2)))}


def without_keys(lses: Array) -> Array:
    """The lses, -inf where FlashAttention-2 has +inf."""
    return np.where(np.isposinf(lses), -INF, lses).astype(F32)


def finite(x: Array) -> Array:
    """x, and 0 where it is -inf: what may be subtracted of -inf."""
    return np.where(x == -INF, F32(0), x)


def over(x: Array, y: Array) -> Array:
    """x / y; 0 where y is 0."""
    return x / np.where(y == 0, F32(1), y)


def weighed(outs: Array, weight: Array) -> Array:
    """The sum of outs by weights [ranks, ...], float32."""
    total: Array = (weight[..., None] * outs.astype(F32)).sum(0)
    return total


def made(outs: Array, top: Array, weight: Array, base: Base = NATURAL) -> Stages:
    """All stages of a merge of these weights against a maximum, with one division at the end."""
    total = weight.sum(0)
    out = over(weighed(outs, weight), total[..., None]).astype(outs.dtype)
    lse = (top + base.log(total)).astype(F32)
    return {"merge_max": top, "merge_weight": weight, "merge_sum": total, "out": out, "lse": lse}


def by_division(outs: Array, lses: Array, base: Base = NATURAL) -> Stages:
    """Weights against the largest lse, one division at the end."""
    lses = without_keys(lses)
    top = lses.max(0)
    return made(outs, top, base.exp(lses - finite(top)), base)


def by_lse(outs: Array, lses: Array, base: Base = NATURAL) -> Stages:
    """FlashAttention's combine kernel: lse first, then weights exp(lse of the rank - lse)."""
    found = dict(by_division(outs, lses, base))
    weight = base.exp(without_keys(lses) - finite(found["lse"]))
    return found | {"merge_weight": weight, "out": weighed(outs, weight).astype(outs.dtype)}


def by_shares(outs: Array, lses: Array, base: Base = NATURAL) -> Stages:
    """vLLM's merge_attn_states: weights are divided by their sum, and nothing behind them."""
    found = by_division(outs, lses, base)
    share = over(found["merge_weight"], found["merge_sum"])
    return {"merge_weight": share, "out": weighed(outs, share).astype(outs.dtype), "lse": found["lse"]}


def in_turn(outs: Array, lses: Array, base: Base = NATURAL) -> tuple[Array, Array]:
    """One rank after the other, by logaddexp, as FlashInfer's merge_state does."""
    lses = without_keys(lses)
    out, lse = outs[0].astype(F32), lses[0]
    for part, own in zip(outs[1:].astype(F32), lses[1:], strict=True):
        top = finite(np.maximum(lse, own))
        both = (top + base.log(base.exp(lse - top) + base.exp(own - top))).astype(F32)
        known = finite(both)
        out = base.exp(lse - known)[..., None] * out + base.exp(own - known)[..., None] * part
        lse = both
    return out.astype(outs.dtype), lse


def by_sigmoid(outs: Array, lses: Array, base: Base = NATURAL) -> tuple[Array, Array]:
    """ring-flash-attention's update: out -= sigmoid(lse of the block - lse) * (out - block)."""
    lses = without_keys(lses) * base.unit
    out, lse = outs[0].astype(F32), lses[0]
    for part, own in zip(outs[1:].astype(F32), lses[1:], strict=True):
        new, old = own != -INF, lse != -INF
        gap = np.where(new & old, finite(own) - finite(lse), F32(0)).astype(F32)
        step = out - (F32(1) / (F32(1) + np.exp(-gap)))[..., None] * (out - part)
        out = np.where((new & old)[..., None], step, np.where(new[..., None], part, out))
        less = np.minimum(-gap, F32(0)) - np.log1p(np.exp(-abs(gap)))
        lse = np.where(new & old, finite(lse) - less, np.where(new, own, lse)).astype(F32)
    return out.astype(outs.dtype), lse / base.unit


def results_alone(outs: Array, lses: Array, base: Base = NATURAL) -> tuple[Array, Array]:
    """The first of these, of which out and lse alone are seen."""
    found = by_division(outs, lses, base)
    return found["out"], found["lse"]


MERGES = (by_division, by_lse, by_shares, in_turn, by_sigmoid, results_alone)
