"""The two halves of a run on 8-bit codes judged: the stages before attention, and attention on the decoded inputs.

Scales span batches, so that the first half is compared whole. Propagated errors start at the dumped codes and scales:
what q, k and v lost when they were quantised is `loss.Loss`, and no error of a stage.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from workbench.case.stages import ALGORITHMS, INPUTS, nearest_dumped
from workbench.floats import to_float64
from workbench.judge import blocks as parts
from workbench.judge.codes.decoded import coarsest, codes_of, computed_scale, decoded, scale_error, scale_of, slack
from workbench.judge.codes.loss import attention
from workbench.judge.elements import Comparison, Elements, compare, summary
from workbench.judge.expectation import readable
from workbench.reference import quantize
from workbench.reference.budget.problem import Budget
from workbench.reference.budget.quantised import decoding_error
from workbench.trace.trace import Trace, unwritten

#: the stages before attention, in data-flow order
BEFORE_ATTENTION = tuple(name for name in ALGORITHMS["fp8"] if name not in ALGORITHMS["flash"])

Pair = tuple[Comparison | None, Comparison | None]


def comparisons(trace: Trace, names: Sequence[str], device: str) -> dict[str, Pair]:
    """As `blocks.comparisons`, of a trace of algorithm fp8; propagated is against the dumped codes and scales, where
    there are any.
    """
    dumped = readable(trace)
    found: dict[str, Pair] = {}
    for name in names:
        if name in BEFORE_ATTENTION:
            one = _comparison(trace, name, by_table=True)
            # with no table between it and the codes both comparisons are the same
            other = _comparison(trace, name, by_table=False) if f"lut_{name[-1]}" in dumped and "deq" in name else one
            found[name] = (one, other) if _has_ancestor(name, dumped) else (None, other)
    if after := [name for name in names if name not in BEFORE_ATTENTION]:
        of_attention = _of_attention(trace, after, device)
        found |= {name: pair if _has_ancestor(name, dumped) else (None, pair[1]) for name, pair in of_attention.items()}
    return found


def _has_ancestor(name: str, dumped: Iterable[str]) -> bool:
    """Whether a stage was judged from something that the kernel dumped or was given, or reads nothing but q, k, v."""
    return bool(nearest_dumped("fp8", name, dumped)) or set(ALGORITHMS["fp8"][name].reads) <= set(INPUTS)


def _of_attention(trace: Trace, names: Sequence[str], device: str) -> dict[str, Pair]:
    """The stages from qk on: isolated on what the kernel decoded, propagated on the nearest to it that is right."""
    read, right = attention(trace), attention(trace, from_codes=True)
    own = parts.comparisons(read, names, device)
    same = all(np.array_equal(read.inputs[name], right.inputs[name]) for name in INPUTS)
    from_codes = own if same else parts.comparisons(right, names, device)
    return {name: (own[name][0] or own[name][1], from_codes[name][1]) for name in names}


@np.errstate(all="ignore")  # x of budget may be too large for float32
def _comparison(trace: Trace, name: str, *, by_table: bool) -> Comparison:
    """A stage before attention held against what it should be, given what was dumped; a decoded one by the dumped
    table, or by codes and scales alone.
    """
    stage, kind, x = trace.stages[name], str(trace.case.codes), name[-1]
    actual = to_float64(stage)
    is_nan = np.zeros(stage.shape, bool)
    if name.startswith("scale"):
        expected = computed_scale(trace, x)
        allowed = expected * slack(trace)
    elif name.startswith("codes"):
        # of two codes that a tie may give either is right
        expected = np.clip(actual, *codes_of(trace, x))
        allowed = np.zeros(stage.shape)
    elif trace.case.codes is None:
        expected, low, high = coarsest(trace.inputs[x])
        allowed = np.maximum(high - expected, expected - low)
    elif name.startswith("lut"):
        expected = quantize.table(scale_of(trace, x), kind)
        allowed = decoding_error(expected, kind, scale_error(trace, x))
        # the entry of a code that is NaN must be NaN, which equals nothing: 0 stands for it while they are compared
        is_nan = np.isnan(expected) & np.isnan(quantize.VALUES[kind])
    else:
        expected, low, high = decoded(trace, x, by_table=by_table)
        allowed = np.where(np.isfinite(expected), np.maximum(high - expected, expected - low), 0.0)
    found = compare(
        np.where(is_nan, np.where(np.isnan(actual), 0.0, np.nan), actual),
        unwritten(stage),
        np.where(is_nan, 0.0, expected),
        Budget(allowed, allowed, np.inf),
        stage.dtype,
    )
    found = replace(found, actual=actual, expected=expected)
    elements = Elements(
        stage, expected, found.budget, found.statistical.astype(np.float32), found.over_budget.astype(np.float32),
        found.state,
    )  # fmt: skip
    return Comparison(summary(found, (0,) * stage.ndim), lambda: elements)
