"""Factors of normalisation that a stage holds once too often, or lacks; and constant ones."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from workbench.case.stages import STAGES
from workbench.judge.explain.hypothesis import Change, Hypothesis, Unfit, altered, read_as
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


def hypotheses() -> Iterator[Hypothesis]:
    """All of the family, the plainest first."""
    for stage in _STAGES:
        for factor in _FACTORS:
            if not _before(factor, stage):
                continue
            for power, verb in ((1, "multiplied"), (-1, "divided")):
                text = f"{stage} is {verb} by {factor} once too often"
                yield Hypothesis(
                    f"factor.{stage}-{verb}-by-{factor}", text, (altered(stage, _times(stage, factor, power), factor),)
                )
    for stage, refs in _read().items():
        for ref in refs:
            for factor in _FACTORS:
                if factor == ref or not _before(factor, stage):
                    continue
                for power, verb in ((1, "multiplied"), (-1, "divided")):
                    edit = read_as(stage, ref, _times(ref.lstrip("-"), factor, power))
                    text = f"in {stage} {_said(ref)} is {verb} by {factor}"
                    yield Hypothesis(f"factor.{ref}-in-{stage}-{verb}-by-{factor}", text, (edit,))
            lacking = read_as(stage, ref, lambda at, x: np.where(np.isfinite(x), 1.0, x))
            yield Hypothesis(f"factor.{ref}-in-{stage}-missing", f"in {stage} {_said(ref)} is not applied", (lacking,))
    for stage in _STAGES:
        for name, value in _CONSTANTS.items():
            edit = altered(stage, lambda at, x, v=value: x * v)
            yield Hypothesis(f"factor.{stage}-times-{name}", f"{stage} is multiplied by {name}", (edit,))


def _read() -> dict[str, tuple[str, ...]]:
    """What sums and quotients read, by stage."""
    return {
        "row_sum": ("correction", "-row_sum", "summed"),
        "acc": ("correction", "-acc", "probs_cast"),
        "merge_sum": ("partial_sum",),
        "numerator": ("merge_weight", "partial_O"),
    }


def _said(ref: str) -> str:
    return f"the previous {ref[1:]}" if ref[0] == "-" else ref


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
