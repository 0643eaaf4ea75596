"""What the usual rules say of an output, beside the verdict: three tolerances that are common in tests of attention.

None of them knows what a correct kernel may lose, and none says which stage is wrong: they are shown, never judged by.
"""

from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass

import numpy as np
from numpy.typing import ArrayLike

from workbench.case.box import Box
from workbench.case.stages import INPUTS, OUT
from workbench.expectation.observed import Observed
from workbench.floats import round_to, to_float64

#: rtol and atol of torch.testing.assert_close, by the dtype of what it compares (PyTorch 2.13, torch/testing)
ASSERT_CLOSE: Mapping[str, tuple[float, float]] = {
    "float64": (1e-7, 1e-7),
    "float32": (1.3e-6, 1e-5),
    "float16": (1e-3, 1e-5),
    "bfloat16": (1.6e-2, 1e-5),
}
ATOL = 1e-2


@dataclass(frozen=True)
class Rule:
    """What one rule says; it passes where value <= limit, so that a NaN fails."""

    name: str
    value: float  #: the number that it looks at
    limit: float

    @property
    def passes(self) -> bool:
        """Whether the output keeps within the rule."""
        return bool(self.value <= self.limit)


@dataclass(frozen=True)
class Deviation:
    """How far a part of out is from what float64 makes of q, k, v; the deviations of parts add up to the whole's."""

    close: float  #: the largest |out - ref| / (atol + rtol |ref|)
    largest: float  #: |out - ref| in float64
    stored: float  #: the same, of ref in the dtype of out
    plain: float  #: of attention computed in the storage dtype
    shifted: float  #: of one addition in the dtype of out

    def __add__(self, other: "Deviation") -> "Deviation":
        return Deviation(*map(float, np.maximum(astuple(self), astuple(other))))  # which keeps a NaN

    @property
    def rules(self) -> tuple[Rule, ...]:
        """assert_close, atol 1e-2 and FlashAttention 2x."""
        return (
            Rule("assert_close", self.close, 1.0),
            Rule("atol 1e-2", self.largest, ATOL),
            Rule("FlashAttention 2x", self.stored, 2 * self.plain + 2 * self.shifted),
        )


def deviation(run: Observed, part: Box, expected: np.ndarray) -> Deviation:
    """That of a part of `out`, whose float64 is `expected` [b, h, q, d], before any cast. As in a test that uses these
    rules, the first and the last compare with `expected` rounded to the dtype of out.
    """
    case, trace = run.case, run.trace
    inputs, out = trace.inputs, part.of(run.dumped[OUT], "bhqd")
    q, k, v = (part.of_input(case, name, inputs[name]) for name in INPUTS)
    added, sinks = trace.added(part), case.sink_logits
    plain = plain_attention(
        q, k, v, **case.numbers, mask=part.visible(case, inputs), attn_bias=None if added is None else added.bias,
        sinks=None if sinks is None else sinks[part.h], kept=trace.kept(part), score_mod=trace.modified(part),
    )  # fmt: skip
    stored, plain_stored, shifted = flash_attention(out, expected, plain)
    return Deviation(assert_close(out, expected), max_abs(out, expected), stored, plain_stored, shifted)


def assert_close(out: np.ndarray, expected: np.ndarray) -> float:
    """torch.testing.assert_close: the largest |out - ref| / (atol + rtol |ref|), of which it allows 1.

    Error and tolerance are rounded to the dtype of out at each operation, atol before its sum too: so does torch on a
    CPU, and in 16 bits it decides of some elements.
    """
    rtol, atol = ASSERT_CLOSE.get(out.dtype.name, (0.0, 0.0))
    wide, ref = _wide(out.dtype), _stored(expected, out.dtype)
    with np.errstate(all="ignore"):
        allowed = _rounded(_stored(atol, out.dtype) + _rounded(np.abs(wide(rtol) * ref), out.dtype), out.dtype)
        # equal infinities are close; an infinite tolerance allows no infinite error (inf / inf is NaN, which fails)
        value = out.astype(wide)
        excess = np.where(value == ref, 0.0, _difference(value, ref, out.dtype).astype(np.float64) / allowed)
    return float(excess.max())


def max_abs(out: np.ndarray, expected: np.ndarray) -> float:
    """The largest |out - expected| in float64."""
    with np.errstate(invalid="ignore"):
        return float(np.abs(to_float64(out) - expected).max())


def flash_attention(out: np.ndarray, expected: np.ndarray, plain: np.ndarray) -> tuple[float, float, float]:
    """The maxima of FlashAttention's own rule: max|out - ref| <= 2 max|plain - ref| + 2 max|(ref + 0.3 - 0.3) - ref|.

    `plain` [b, h, q, d] is attention computed in the storage dtype. The last term is what one addition loses in the
    dtype of out, in which all of it is computed. (github.com/Dao-AILab/flash-attention, hopper/test_flash_attn.py)
    """
    dtype = out.dtype
    wide, ref = _wide(dtype), _stored(expected, dtype)

    def worst(x: np.ndarray) -> float:
        return float(_difference(x.astype(wide), ref, dtype).max())

    with np.errstate(all="ignore"):
        shifted = _rounded(_rounded(ref + wide(0.3), dtype) - wide(0.3), dtype)
        return worst(out), worst(plain), worst(shifted)


def plain_attention(
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
    kept: np.ndarray | None = None,
) -> np.ndarray:
    """Attention with every operation rounded to the dtype of q, k and v, [b, heads, q, d] in that dtype.

    k * scale, its products with q (summed in float32), softmax (in float32) and the products with v are rounded, as in
    the `attention_ref` of FlashAttention's tests with upcast=False and reorder_ops=True. A row without keys is 0.
    """
    dtype, group = q.dtype, q.shape[1] // k.shape[1]
    queries = q.astype(np.float32)
    keys, values = (np.repeat(x, group, axis=1).astype(np.float32) for x in (k, v))
    with np.errstate(all="ignore"):
        scaled = _rounded(keys * np.float32(scale), dtype)
        scores = _rounded(queries @ scaled.swapaxes(-1, -2), dtype)
        if softcap is not None:
            capped = _rounded(np.tanh(_rounded(scores / np.float32(softcap), dtype)), dtype)
            scores = _rounded(capped * np.float32(softcap), dtype)
        if score_mod is not None:
            scores = _rounded(score_mod(scores).astype(np.float32), dtype)
        if attn_bias is not None:
            scores = _rounded(scores + attn_bias.astype(np.float32), dtype)
        scores = np.where(mask, scores, np.float32(-np.inf))
        if sinks is not None:
            column = np.broadcast_to(sinks.astype(np.float32)[:, None, None], (*scores.shape[:3], 1))
            scores = np.concatenate([scores, column], axis=-1)
        largest = scores.max(axis=-1, keepdims=True)
        weights = np.exp(scores - np.where(np.isneginf(largest), np.float32(0), largest))
        total = weights.sum(axis=-1, keepdims=True)
        softmax = np.where(total == 0, np.float32(0), _rounded(weights / total, dtype))[..., : keys.shape[2]]
        if kept is not None:
            softmax = _rounded(np.where(kept, softmax / np.float32(1 - dropout_p), np.float32(0)), dtype)
        return (softmax @ values).astype(dtype)


def _wide(dtype: np.dtype) -> type[np.float32] | type[np.float64]:
    """In which one operation on `dtype` is computed before it is rounded to it."""
    return np.float64 if dtype == np.float64 else np.float32


def _rounded(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Float32 `x` (float64 for a float64 `dtype`) after it is stored in `dtype`."""
    return _in_half(x) if dtype == np.float16 else x.astype(dtype).astype(_wide(dtype))


def _in_half(x: np.ndarray) -> np.ndarray:
    """Float32 `x` rounded to float16, as `astype` does it in 100 ns for each number below 2^-14 there, such as most
    weights of a long row; this takes 1 ns. Spacings are powers of two, so that only rint rounds.
    """
    power = (x.view(np.int32) & 0x7F800000).view(np.float32)
    spacing = np.maximum(power, np.float32(2.0**-14)) * np.float32(2.0**-10)
    rounded = np.rint(x / spacing) * spacing
    beyond = ~(np.abs(rounded) <= np.float32(65504))  # an infinity has become a NaN
    return np.where(beyond & ~np.isnan(x), np.copysign(np.float32(np.inf), x), rounded) if beyond.any() else rounded


def _stored(x: ArrayLike, dtype: np.dtype) -> np.ndarray:
    """Float64 `x` rounded to `dtype` once."""
    return round_to(x, dtype).astype(_wide(dtype))


def _difference(x: np.ndarray, ref: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """|x - ref| rounded to `dtype`."""
    return _rounded(np.abs(x - ref), dtype)
