"""The two halves of a run on 8-bit codes judged: the stages before attention, and attention on the decoded inputs.

Scales span batches, so that the first half is compared whole. Propagated errors start at the dumped codes and scales:
what q, k and v lost when they were quantised is `quantisation.Loss`, and no error of a stage.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from workbench import parts
from workbench.budget.problem import Budget
from workbench.budget.quantised import bound
from workbench.comparison import Comparison, Elements, compare, summary
from workbench.quantisation import attention
from workbench.reference import fp8, quantize
from workbench.stages import ALGORITHMS, INPUTS, QUANTISED_INPUTS
from workbench.trace import Trace, to_float64, unwritten

#: the stages before attention, in data-flow order
BEFORE_ATTENTION = tuple(name for name in ALGORITHMS["fp8"] if name not in ALGORITHMS["flash"])

Pair = tuple[Comparison | None, Comparison | None]


def comparisons(trace: Trace, names: Sequence[str], device: str) -> dict[str, Pair]:
    """As `parts.comparisons`, of a trace of the fp8 algorithm; propagated is against the dumped codes and scales."""
    before = [name for name in names if name in BEFORE_ATTENTION]
    isolated = _compared(trace, before, BEFORE_ATTENTION)
    # with nothing between them and the codes both comparisons are the same
    apart = [name for name in before if name.replace("dequant", "lut") in trace.stages and "dequant" in name]
    propagated = isolated | _compared(trace, apart, QUANTISED_INPUTS)
    found: dict[str, Pair] = {name: (isolated[name], propagated[name]) for name in before}
    if after := [name for name in names if name not in BEFORE_ATTENTION]:
        found |= _of_attention(trace, after, device)
    return found


def _of_attention(trace: Trace, names: Sequence[str], device: str) -> dict[str, Pair]:
    """The stages from qk on: isolated on what the kernel decoded, propagated on the nearest to it that is right."""
    read, right = attention(trace), attention(trace, from_codes=True)
    own = parts.comparisons(read, names, device)
    same = all(np.array_equal(read.inputs[name], right.inputs[name]) for name in INPUTS)
    from_codes = own if same else parts.comparisons(right, names, device)
    return {name: (own[name][0] or own[name][1], from_codes[name][1]) for name in names}


def _compared(trace: Trace, names: Iterable[str], given: Iterable[str]) -> dict[str, Comparison]:
    """The comparison of each stage of `names` with what it should be, given those of `given` that were dumped."""
    case = trace.case
    assert case.codes is not None and case.quantiser_scale is not None
    read = {name: to_float64(trace.stages[name]) for name in given if name in trace.stages}
    q, k, v = (to_float64(trace.inputs[name]) for name in INPUTS)
    expected = fp8.decoding(q, k, v, codes=case.codes, scaling=case.quantiser_scale, given=read)
    return {name: _comparison(trace, name, expected[name], read) for name in names}


@np.errstate(over="ignore")  # x of budget may be too large for float32
def _comparison(trace: Trace, name: str, expected: np.ndarray, read: Mapping[str, np.ndarray]) -> Comparison:
    stage, codes, x = trace.stages[name], str(trace.case.codes), name[-1]
    actual = to_float64(stage)
    if name.startswith("codes"):
        # of two codes that a tie may give either is right
        low, high = quantize.codes_interval(to_float64(trace.inputs[x]), read[f"scale_{x}"], codes)
        expected = np.clip(actual, low, high)
    allowed = bound(name, expected, codes, looked_up=f"lut_{x}" in read)
    # the entry of a code that is NaN must be NaN, which equals nothing: 0 stands for it while they are compared
    is_nan = np.isnan(expected) if name.startswith("lut") else np.zeros(expected.shape, bool)
    is_nan &= np.isnan(quantize.VALUES[codes]) if name.startswith("lut") else False
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
