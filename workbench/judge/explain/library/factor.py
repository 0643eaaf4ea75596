"""Stages multiplied or divided by a scale, correction, sum or weight once too often or never."""

import math
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from workbench.case.stages import STAGES
from workbench.judge.explain.hypothesis import Change, Hypothesis, Unfit, altered, of_family, read_as
from workbench.judge.explain.library.arithmetic import LN2, LOG2E
from workbench.reference.attention import FLASH, SPLIT_K

#: what may be a factor: the scale, and stages that softmax multiplies or divides by
_FACTORS = (
    "scale",
    "correction",
    "row_sum",
    "partial_sum",
    "merge_weight",
    "merge_sum",
    "partial_max",
    "merge_max",
    "row_max",
)
_CONSTANTS = {
    "2": 2.0, "1/2": 0.5, "-1": -1.0, "0": 0.0, "ln 2": LN2, "log2(e)": LOG2E, "4": 4.0, "1/4": 0.25,
    "sqrt(2)": math.sqrt(2), "NaN": math.nan,
}  # fmt: skip
_STAGES = (
    "qk",
    "capped",
    "scores",
    "correction",
    "probs",
    "probs_cast",
    "summed",
    "row_sum",
    "acc",
    "partial_sum",
    "partial_O",
    "partial_max",
    "merge_max",
    "merge_weight",
    "merge_sum",
    "out",
    "lse",
    "row_max",
)

#: what sums and quotients read, by stage
_READ = {
    "row_sum": ("correction", "-row_sum", "summed"),
    "acc": ("correction", "-acc", "probs_cast"),
    "merge_sum": ("partial_sum",),
    "numerator": ("merge_weight", "partial_O"),
}
_of = of_family("factor")


def hypotheses() -> Iterator[Hypothesis]:
    """All of the family, the plainest first."""
    verbs = ((1, "multiplied"), (-1, "divided"))
    for stage, factor, (power, verb) in product(_STAGES, _FACTORS, verbs):
        if _before(factor, stage):
            edit = altered(stage, _times(stage, factor, power), factor)
            yield _of(f"{stage}-{verb}-by-{factor}", f"{stage} is wrongly {verb} by {factor}", edit)
    for stage, refs in _READ.items():
        for ref in refs:
            said = f"the previous {ref[1:]}" if ref[0] == "-" else ref
            for factor, (power, verb) in product(_FACTORS, verbs):
                if factor != ref and _before(factor, stage):
                    edit = read_as(stage, ref, _times(ref.lstrip("-"), factor, power))
                    yield _of(
                        f"{ref}-in-{stage}-{verb}-by-{factor}", f"in {stage} {said} is wrongly {verb} by {factor}", edit
                    )
            lacking = read_as(stage, ref, lambda at, x: np.where(np.isfinite(x), 1.0, x))
            yield _of(f"{ref}-in-{stage}-missing", f"in {stage} {said} is not applied", lacking)
    for stage, (name, value) in product(_STAGES, _CONSTANTS.items()):
        edit = altered(stage, lambda at, x, v=value: x * v)
        yield _of(f"{stage}-times-{name}", f"{stage} is multiplied by {name}", edit)


#: axes of what no kernel dumps; of a sum over splits those of its terms
_PARAMETERS = {"scale": "", "summed": "bhqk", "numerator": "bhsqd"}


def _axes(name: str) -> str:
    found = _PARAMETERS[name] if name in _PARAMETERS else STAGES[name].axes
    return found.replace("t", "")


def _before(factor: str, stage: str) -> bool:
    """Whether the factor can be one of the stage: known before it, and with no axis that it lacks."""
    order = list(SPLIT_K) if factor in SPLIT_K else list(FLASH)
    if stage not in order or order.index(factor) >= order.index(stage):
        return False
    return {*_axes(factor)} <= {*_axes(stage)}


def _times(stage: str, factor: str, power: int) -> Change:
    def change(at: Any, x: np.ndarray) -> np.ndarray:
        if factor not in at.table:
            raise Unfit
        f = at(factor)
        if factor != "scale":
            axes, own = _axes(factor), _axes(stage)
            if np.ndim(f) != len(axes):  # all tiles of it, where this stage has none: the last one is meant
                f = f[..., at.tiling.last]
            if any(axis not in own for axis in axes):
                raise Unfit
            f = f[tuple(slice(None) if axis in axes else None for axis in own)]
        with np.errstate(all="ignore"):
            y = x * f if power == 1 else x / f
        return np.where((x == 0) & ~np.isnan(f), 0.0, y)

    return change
