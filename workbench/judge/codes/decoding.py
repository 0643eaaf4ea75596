"""The stages of a run on codes before its attention, held against what they should be.

Scales span batches, so that these stages are computed whole. What q, k and v lost when they were quantised is
`loss.Loss`, and no error of a stage.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from workbench.case.formats import FORMATS
from workbench.case.stages import INPUTS
from workbench.expectation.elements import Comparison, compare, kept
from workbench.expectation.observed import Observed
from workbench.floats import to_float64
from workbench.judge import blocks as parts
from workbench.reference.bound import Budget
from workbench.reference.dataflow import direct, nearest_dumped
from workbench.reference.problem import Problem
from workbench.reference.walk import budgets, intervals, values
from workbench.trace.trace import unwritten

Pair = tuple[Comparison | None, Comparison | None]


def scale_of(run: Observed, x: str) -> np.ndarray:
    """The scale of `x`, float64 [head]: the dumped one where there is one."""
    p, name = run.decoding(), f"scale_{x}"
    return p.given[name] if name in p.given else values(p, [name])[name]


def comparisons(run: Observed, names: Sequence[str], device: str) -> dict[str, Pair]:
    """As `parts.comparisons`, of a kernel on codes; propagated is against the dumped codes and scales, where
    there are any.
    """
    found: dict[str, Pair] = {}
    for name in names:
        if name in run.before_attention:
            one = _comparison(run, name, run.decoding())
            # with no table between it and the codes both comparisons are the same
            by_table = f"lut_{name[-1]}" in run.readable and name.startswith("dequant")
            other = _comparison(run, name, run.by_scale) if by_table else one
            found[name] = (one, other) if _has_ancestor(run, name) else (None, other)
    if after := [name for name in names if name not in found]:
        of_attention = _of_attention(run, after, device)
        found |= {name: pair if _has_ancestor(run, name) else (None, pair[1]) for name, pair in of_attention.items()}
    return found


def _has_ancestor(run: Observed, name: str) -> bool:
    """Whether a stage was judged from something that the kernel dumped or was given, or reads nothing but q, k, v."""
    return bool(nearest_dumped(run.table, name, run.readable)) or set(direct(run.table, name)) <= set(INPUTS)


def _of_attention(run: Observed, names: Sequence[str], device: str) -> dict[str, Pair]:
    """The stages from qk on: isolated on what the kernel decoded, propagated on the nearest to it that is right."""
    read = run.dequantised
    own = from_codes = parts.comparisons(read, names, device)
    if any(f"dequant_{name}" in run.dumped for name in run.case.coded):  # else both were decoded here, alike
        right = run.right_attention
        if not all(np.array_equal(read.trace.inputs[name], right.trace.inputs[name]) for name in INPUTS):
            from_codes = parts.comparisons(right, names, device)
    return {name: (own[name][0] or own[name][1], from_codes[name][1]) for name in names}


@np.errstate(all="ignore")  # x of budget may be too large for float32
def _comparison(run: Observed, name: str, p: Problem) -> Comparison:
    """A stage before attention compared with what it should be, given what was dumped."""
    stage = run.dumped[name]
    actual, computed = to_float64(stage), values(p, [name])
    expected, is_nan = computed[name], np.zeros(stage.shape, bool)
    budget = budgets(p, computed, [name])[name]
    if name.startswith(("codes", "scale", "zero")):
        # of two that a tie, or two rules, may give either is right
        _, low, high = intervals(p, [name])[name]
        expected = np.where(abs(actual - low) <= abs(high - actual), low, high)
    elif name.startswith("lut"):
        # the entry of a code that is NaN must be NaN, which equals nothing: 0 stands for it while they are compared
        is_nan = np.isnan(expected) & np.isnan(FORMATS[str(run.case.codes)].values)
    found = compare(
        np.where(is_nan, np.where(np.isnan(actual), 0.0, np.nan), actual),
        unwritten(stage),
        np.where(is_nan, 0.0, expected),
        Budget(budget.bound, budget.bound, np.inf),
        stage.dtype,
    )
    return kept(stage, replace(found, actual=actual, expected=expected))
