"""Precision at the wrong place: casts, truncation, flushes, saturation, overflow."""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np

from workbench.floats import round_to
from workbench.judge.explain.hypothesis import Edit, Hypothesis, altered, of_family, read_as
from workbench.reference.stage import Step
from workbench.reference.steps.altered import Altered
from workbench.reference.steps.cast import Cast

#: what is cast, in words
_WHERE = {
    "q_rows": "q", "k_rows": "k", "v_rows": "v", "qk": "qk", "capped": "capped scores", "scores": "scores",
    "row_max": "row_max", "subtracted": "the max that probs subtract", "correction": "the correction",
    "probs": "probs", "probs_cast": "probs in the product with v", "summed": "probs in row_sum",
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
#: whether digits are cut off, in words, and in ids
_HOW = ((False, "rounded", ""), (True, "truncated", "-cut"))
_SIXTEEN = ("float16", "bfloat16")
_EIGHT = ("float8_e4m3fn", "float8_e5m2")
_DTYPES = (*_SIXTEEN, *_EIGHT)
#: fractions that products of tensor cores keep, of tf32 and in some accumulators; and those of 8-bit floats, which a
#: kernel that cuts bits off has without their range
_BITS = {"tf32": 10, "13 bits": 13, "3 bits": 3, "2 bits": 2}

#: what becomes of numbers beyond some size
_LIMITS: dict[str, tuple[str, Callable[[Any, np.ndarray], np.ndarray]]] = {
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
    "relu": ("below 0 are set to 0", lambda at, x: np.where(x < 0, 0.0, x)),
}
#: softmax in a narrow dtype: what of it is rounded
_SOFTMAX = {
    "whole": ("the softmax is computed in {}: scores and weights are rounded to it", ("scores", "weights")),
    "steps": (
        "every step of the softmax is computed in {}: differences, exp, sum and quotient",
        ("scores", "differences", "exp", "sum", "weights"),
    ),
    "weights": ("weights are rounded to {} after normalisation", ("weights",)),
}
_of = of_family("precision")


def hypotheses() -> Iterator[Hypothesis]:
    """All of the family, the plainest first."""
    for stage, words in _WHERE.items():
        said = f"{words} {'are' if words.endswith('s') or 'probs' in words else 'is'}"
        for dtype, (cut, how, end) in product(_DTYPES, _HOW):
            cast = Edit(stage, lambda step, d=dtype, z=cut: _cast(step, d, z))
            yield _of(f"{stage}-{dtype}{end}", f"{said} {how} to {dtype}", cast)
        for (name, bits), (cut, how, end) in product(_BITS.items(), _HOW):
            edit = altered(stage, lambda at, x, n=bits, z=cut: _to_bits(x, n, z))
            yield _of(f"{stage}-{name}{end}", f"{said} {how} to {name}", edit)
    for stage, refs in _READ.items():
        for ref, dtype, (cut, how, end) in product(refs, _SIXTEEN, _HOW):
            edit = read_as(stage, ref, lambda at, x, d=dtype, z=cut: _rounded(x, d, z))
            words = f"the previous {ref[1:]}" if ref[0] == "-" else ref
            yield _of(f"{ref}-in-{stage}-{dtype}{end}", f"{stage} reads {words} {how} to {dtype}", edit)
    for dtype in _SIXTEEN:
        qk = altered("qk", lambda at, x, d=dtype: _one_by_one(None, at("q_rows"), at("k_rows").swapaxes(-1, -2), d))
        yield _of(f"qk-accumulated-{dtype}", f"dot products are accumulated in {dtype}", qk)
        acc = altered("acc", lambda at, x, d=dtype: _accumulated(at, d), "correction", "-acc", "probs_cast", "v_rows")
        yield _of(f"acc-accumulated-{dtype}", f"acc is accumulated in {dtype}", acc)
        for stage in ("acc", "row_sum"):
            rescaled = altered(stage, lambda at, x, d=dtype, s=stage: _rescaled(at, x, s, d), "correction", f"-{stage}")
            yield _of(f"{stage}-rescaled-{dtype}", f"{stage} is rounded to {dtype} when it is rescaled", rescaled)
        for end, also in (("", False), ("-and-product", True)):
            operands = altered("qk", lambda at, x, d=dtype, a=also: _of_operands(at, d, a), "q_rows", "k_rows")
            words = "q, k and their product are" if also else "q and k are"
            yield _of(f"operands-{dtype}{end}", f"{words} rounded to {dtype}", operands)
    for dtype in _EIGHT:
        narrow = altered("out", lambda at, x, d=dtype: _softmax(at, d, ("weights",)), "scores", "v_rows")
        yield _of(f"softmax-weights-{dtype}", _SOFTMAX["weights"][0].format(dtype), narrow)
    for dtype, (name, (text, steps)) in product(_SIXTEEN, _SOFTMAX.items()):
        narrow = altered("out", lambda at, x, d=dtype, s=steps: _softmax(at, d, s), "scores", "v_rows")
        yield _of(f"softmax-{name}-{dtype}", text.format(dtype), narrow)
    for top in (0.5, 0.75, 0.875, 0.9375, 1 - 2.0**-8):
        clipped = altered("probs_cast", lambda at, x, c=top: np.minimum(x, c))
        yield _of(f"probs_cast-at-most-{top:g}", f"the cast of probs saturates at {top:g}", clipped)
    uncast = altered("probs_cast", lambda at, x: at("probs"), "probs")
    yield _of("probs_cast-none", "probs are not cast before the product with v", uncast)
    for (stage, words), (name, (text, change)) in product(_WHERE.items(), _LIMITS.items()):
        yield _of(f"{stage}-{name}", f"values of {words} {text}", altered(stage, change))


def _cast(step: Step, dtype: str, toward_zero: bool) -> Step:
    """The result of a step in another dtype; of a cast, what it casts in another dtype than it should be."""
    if isinstance(step, Cast):
        return Altered(step, lambda at, x: _rounded(at(step.of), dtype, toward_zero), (step.of,))
    return Altered(step, lambda at, x: _rounded(x, dtype, toward_zero))


def _softmax(at: Any, dtype: str, rounded: tuple[str, ...]) -> np.ndarray:
    """out of a softmax that rounds at some of its steps."""

    def of(x: np.ndarray, step: str) -> np.ndarray:
        return _rounded(x, dtype, False) if step in rounded else x

    s = at.whole("scores")
    if (sinks := at.p.inputs.get("sinks")) is not None:  # a key more, of which nothing is added up
        s = np.concatenate([s, np.broadcast_to(sinks[..., None], (*s.shape[:-1], 1))], -1)
    s = of(s, "scores")
    top = s.max(-1, keepdims=True)
    e = of(np.exp(of(s - np.where(np.isfinite(top), top, 0.0), "differences")), "exp")
    total = of(e.sum(-1, keepdims=True), "sum")
    v = at.whole("v_rows")
    return np.asarray(of(e / np.where(total == 0, 1.0, total), "weights")[..., : v.shape[-2]] @ v)


def _of_operands(at: Any, dtype: str, product_too: bool) -> np.ndarray:
    """q k^T of rounded q and k."""
    q, k = (_rounded(at(name), dtype, False) for name in ("q_rows", "k_rows"))
    made = q @ k.swapaxes(-1, -2)
    return _rounded(made, dtype, False) if product_too else made


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
