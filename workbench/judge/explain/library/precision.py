"""Precision at the wrong place: casts, truncation, flushes, saturation, overflow."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from workbench.floats import round_to
from workbench.judge.explain.hypothesis import Edit, Hypothesis, altered, read_as
from workbench.reference.stage import Step
from workbench.reference.steps.altered import Altered
from workbench.reference.steps.cast import Cast

#: what is cast, in words
_WHERE = {
    "q_rows": "q", "k_rows": "k", "v_rows": "v", "qk": "qk", "capped": "capped scores", "scores": "scores",
    "row_max": "row_max", "subtracted": "the max that probs subtract", "correction": "the correction",
    "probs": "probs", "probs_cast": "probs as they meet v", "summed": "probs as row_sum adds them",
    "row_sum": "row_sum", "acc": "acc", "partial_max": "partial_max", "partial_sum": "partial_sum",
    "partial_O": "partial_O", "merge_max": "merge_max", "merge_weight": "merge_weight", "merge_sum": "merge_sum",
    "out": "out", "lse": "lse",
}  # fmt: skip
#: what steps read that may be rounded for them alone
_READ = {
    "scores": ("qk",), "probs": ("scores", "subtracted"), "correction": ("-row_max", "row_max"),
    "row_sum": ("summed", "correction", "-row_sum"), "acc": ("probs_cast", "correction", "-acc"),
    "merge_weight": ("partial_max", "merge_max"), "numerator": ("merge_weight", "partial_O"),
    "merge_sum": ("partial_sum", "partial_max"),
}  # fmt: skip
_DTYPES = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
#: fractions that products of tensor cores keep, of tf32 and in some accumulators; and those of 8-bit floats, which a
#: kernel that cuts bits off has without their range
_BITS = {"tf32": 10, "13 bits": 13, "3 bits": 3, "2 bits": 2}


def hypotheses() -> Iterator[Hypothesis]:
    """All of the family, the plainest first."""
    for stage, words in _WHERE.items():
        for dtype in _DTYPES:
            for toward_zero in (False, True):
                how = "truncated" if toward_zero else "rounded"
                cast = Edit(stage, lambda step, d=dtype, z=toward_zero: _cast(step, d, z))
                text = f"{words} {_verb(words)} {how} to {dtype}"
                yield Hypothesis(f"precision.{stage}-{dtype}{'-cut' if toward_zero else ''}", text, (cast,))
        for name, bits in _BITS.items():
            for toward_zero in (False, True):
                how = "truncated" if toward_zero else "rounded"
                cut = lambda at, x, n=bits, z=toward_zero: _to_bits(x, n, z)  # noqa: E731
                text = f"{words} {_verb(words)} {how} to {name}"
                yield Hypothesis(
                    f"precision.{stage}-{name}{'-cut' if toward_zero else ''}", text, (altered(stage, cut),)
                )
    for stage, refs in _READ.items():
        for ref in refs:
            for dtype in ("float16", "bfloat16"):
                for toward_zero in (False, True):
                    how = "truncated" if toward_zero else "rounded"
                    change = lambda at, x, d=dtype, z=toward_zero: _rounded(x, d, z)  # noqa: E731
                    said = f"the previous {ref[1:]}" if ref[0] == "-" else ref
                    text = f"{stage} reads {said} {how} to {dtype}"
                    id_ = f"precision.{ref}-in-{stage}-{dtype}{'-cut' if toward_zero else ''}"
                    yield Hypothesis(id_, text, (read_as(stage, ref, change),))
    for dtype in ("float16", "bfloat16"):
        qk = altered("qk", lambda at, x, d=dtype: _one_by_one(None, at("q_rows"), at("k_rows").swapaxes(-1, -2), d))
        yield Hypothesis(f"precision.qk-accumulated-{dtype}", f"dot products are accumulated in {dtype}", (qk,))
        acc = altered("acc", lambda at, x, d=dtype: _accumulated(at, d), "correction", "-acc", "probs_cast", "v_rows")
        yield Hypothesis(f"precision.acc-accumulated-{dtype}", f"acc is accumulated in {dtype}", (acc,))
        for stage in ("acc", "row_sum"):
            rescaled = altered(stage, lambda at, x, d=dtype, s=stage: _rescaled(at, x, s, d), "correction", f"-{stage}")
            text = f"{stage} is rounded to {dtype} where it is rescaled"
            yield Hypothesis(f"precision.{stage}-rescaled-{dtype}", text, (rescaled,))
    for top in (0.5, 0.75, 0.875, 0.9375, 1 - 2.0**-8):
        clipped = altered("probs_cast", lambda at, x, c=top: np.minimum(x, c))
        yield Hypothesis(
            f"precision.probs_cast-at-most-{top:g}", f"probs saturate at {top:g} in their cast", (clipped,)
        )
    uncast = altered("probs_cast", lambda at, x: at("probs"), "probs")
    yield Hypothesis("precision.probs_cast-none", "probs are not cast before they meet v", (uncast,))
    yield from _limits()


def _cast(step: Step, dtype: str, toward_zero: bool) -> Step:
    """The result of a step in another dtype; of a cast, what it casts in another dtype than it should be."""
    if isinstance(step, Cast):
        return Altered(step, lambda at, x: _rounded(at(step.of), dtype, toward_zero), (step.of,))
    return Altered(step, lambda at, x: _rounded(x, dtype, toward_zero))


def _verb(words: str) -> str:
    return "are" if words.endswith("s") or "probs" in words else "is"


def _limits() -> Iterator[Hypothesis]:
    forms: dict[str, tuple[str, Callable[[Any, np.ndarray], np.ndarray]]] = {
        "saturates-65504": ("saturate at 65504", lambda at, x: np.clip(x, -65504.0, 65504.0)),
        "overflows": ("overflow beyond 65504", lambda at, x: np.where(abs(x) > 65504.0, np.copysign(np.inf, x), x)),
        "saturates-448": ("saturate at 448", lambda at, x: np.clip(x, -448.0, 448.0)),
        "saturates-240": ("saturate at 240", lambda at, x: np.clip(x, -240.0, 240.0)),
        "no-subnormals-16": ("below 2^-14 are flushed to 0", lambda at, x: np.where(abs(x) < 2.0**-14, 0.0, x)),
        "flushed-6": ("below 2^-6 are flushed to 0", lambda at, x: np.where(abs(x) < 2.0**-6, 0.0, x)),
        "flushed-9": ("below 2^-9 are flushed to 0", lambda at, x: np.where(abs(x) < 2.0**-9, 0.0, x)),
        "flushed-1e-3": ("below 2^-10 are flushed to 0", lambda at, x: np.where(abs(x) < 2.0**-10, 0.0, x)),
        "clamped-30": ("are clamped to +-30", lambda at, x: np.clip(x, -30.0, 30.0)),
        "clamped-80": ("are clamped to +-80", lambda at, x: np.clip(x, -80.0, 80.0)),
        "clamped-88": ("are clamped to +-88", lambda at, x: np.clip(x, -88.0, 88.0)),
        "clamped-11": ("are clamped to +-11", lambda at, x: np.clip(x, -11.0, 11.0)),
        "whole": ("are rounded to whole numbers", lambda at, x: np.rint(x)),
        "absolute": ("lose their sign", lambda at, x: abs(x)),
        "relu": ("below 0 are 0", lambda at, x: np.where(x < 0, 0.0, x)),
    }
    for stage in _WHERE:
        for name, (text, change) in forms.items():
            yield Hypothesis(
                f"precision.{stage}-{name}", f"values of {_WHERE[stage]} {text}", (altered(stage, change),)
            )


def _one_by_one(start: np.ndarray | None, a: np.ndarray, b: np.ndarray, dtype: str) -> np.ndarray:
    """start + a @ b, rounded to a dtype after each product, which float32 adds."""
    total = np.zeros((*a.shape[:-1], b.shape[-1]), np.float32) if start is None else start.astype(np.float32)
    a, b = a.astype(np.float32), b.astype(np.float32)
    for i in range(a.shape[-1]):
        total = _rounded(total + a[..., i, None] * b[..., i, None, :], dtype, False).astype(np.float32)
    return total.astype(np.float64)


def _accumulated(at: Any, dtype: str) -> np.ndarray:
    start = at("correction")[..., None] * at("-acc")
    return _one_by_one(start, at("probs_cast"), at("v_rows"), dtype)


def _rescaled(at: Any, x: np.ndarray, stage: str, dtype: str) -> np.ndarray:
    c = at("correction") if stage == "row_sum" else at("correction")[..., None]
    before = c * at(f"-{stage}")
    return x - before + _rounded(before, dtype, False)


def _rounded(x: np.ndarray, dtype: str, toward_zero: bool) -> np.ndarray:
    with np.errstate(all="ignore"):
        return round_to(np.asarray(x, np.float64), dtype, toward_zero=toward_zero)


def _to_bits(x: np.ndarray, bits: int, toward_zero: bool) -> np.ndarray:
    """x with so many bits of fraction behind the leading one."""
    with np.errstate(all="ignore"):
        fraction, exponent = np.frexp(x)
        scaled = np.ldexp(fraction, bits + 1)
        cut = np.trunc(scaled) if toward_zero else np.rint(scaled)
        return np.where(np.isfinite(x), np.ldexp(cut, exponent - bits - 1), x)
