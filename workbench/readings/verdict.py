"""Weights that were read as a stage: held against what they should be, and the stages that are to blame."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from workbench.case.stages import STAGES
from workbench.expectation.elements import Compared, Comparison, compare, kept
from workbench.readings.finding import Finding
from workbench.readings.model import Model
from workbench.readings.of_scores import room
from workbench.readings.of_values import unclosed
from workbench.readings.residual import residual
from workbench.readings.target import Target, Weights
from workbench.reference.bound import Budget

#: what is to blame where weights that nothing explains are not those that out of the user's own run has
ELSEWHERE = (
    "out",
    "out is not the measured weights times V: suspect how V is read or how out is stored",
    (),
)
#: the stage of a finding -> where what it found may be made, in data-flow order; the last where all others are right
_MADE_IN = {
    "scores": ("scores", "probs", "acc"),
    "probs": ("probs", "acc"),
    "correction": ("correction", "acc", "partial_O", "merge_weight", "out"),
    "acc": ("acc", "partial_O", "out"),
    "row_sum": ("row_sum", "partial_sum", "merge_sum", "out"),
}
#: what is no weight, of what a comparison has of each element
_SHARES = ("statistical", "over_budget", "state")


@dataclass(frozen=True, eq=False)
class Blame:
    """A stage that is wrong by what was measured."""

    stage: str
    text: str  #: what is wrong there, in words
    edges: tuple[int, ...] = ()  #: where tiles of keys begin, of steps along these
    proved: bool = False  #: whether that predicts runs on unseen inputs

    @property
    def made_in(self) -> tuple[str, ...]:
        """Where what was found may be made, in data-flow order; the last where all others are right."""
        return _MADE_IN.get(self.stage, (self.stage,))

    @property
    def of_scores(self) -> bool:
        """Whether a later stage could hardly make it: where scores and probs are right as dumped, a probe may be wrong.
        Of them lse tells nothing, which need not be made of the probs that V meets.
        """
        return self.stage in ("scores", "probs")

    @property
    def rescales(self) -> bool:
        """Whether it is of what is multiplied where tiles or splits meet."""
        return self.stage == "correction"


@dataclass(frozen=True, eq=False)
class Verdict:
    """What was measured, as stages are judged."""

    weights: Comparison  #: P, [b, h, q, k], within the budgets of out of the experiments that read it
    blames: tuple[Blame, ...]  #: in data-flow order; none of a right function

    @property
    def stage(self) -> str | None:
        """The first wrong stage; None of a right function."""
        return self.blames[0].stage if self.blames else None

    @property
    def ratio(self) -> float:
        """The largest error of a weight in units of its budget."""
        worst = self.weights.summary.worst
        return 0.0 if worst is None else worst.over_budget


def verdict(
    target: Target,
    model: Model,
    read: Weights,
    weights: np.ndarray,
    findings: Sequence[Finding],
    *,
    held: bool,
    lse_held: bool,
) -> Verdict:
    """The verdict on the `weights` that were made of those `read`, V being read as the `model` says, and on what was
    found; `held`, `lse_held`: whether all runs on unseen inputs are as predicted.

    Budgets are those of a usual kernel; where some weights are beyond them and nothing was proved, those of any kernel
    that keeps the contract, as of any stage.
    """
    of_out = [one for one in findings if one.stage != "lse"]
    proved = bool(of_out) and held
    found = of_usual = compared(read, weights)
    if found.summary.outside and not proved:
        own = tuple(replace(one, usual=False) for one in read.answers)
        found = compared(replace(read, answers=own), weights)
    # what is told and not proved is to blame all the same: no pattern of weights may contradict it
    blames = [Blame(one.stage, one.text, one.data.get("edges", ()), proved=proved) for one in of_out]
    if not blames and found.summary.outside:
        # of the narrower budgets, which show more of a pattern
        apart = unclosed(target, model, weights, of_usual.budget).max()
        told = ELSEWHERE if apart > 1 else residual(target, weights, of_usual.expected, of_usual.budget)
        blames = [Blame(*told)]
    elif not blames and target.is_wrong:
        suspect = "P @ V or how out is stored" if target.whole is None else "the dims that V shares with K"
        blames = [Blame("out", f"the weights are right: suspect {suspect}")]
    if lse_held:
        blames += [Blame(one.stage, one.text, proved=True) for one in findings if one.stage == "lse"]
    order = [*STAGES]
    return Verdict(found, tuple(sorted(blames, key=lambda one: order.index(one.stage))))


def compared(read: Weights, weights: np.ndarray) -> Comparison:
    """The weights, which are those that were read but for what was known to be wrong of V and out, element by element,
    each within the budget of the element of out that it was read of.
    """
    if np.array_equal(weights, read.read, equal_nan=True):
        of_out = read.whole.compared["out"]
        unit = {name: 1.0 if name in _SHARES else read.unit for name in (one.name for one in fields(Compared))}
        found = Compared(**{name: getattr(of_out, name) / n for name, n in unit.items()})
    else:
        unit_, dtype = read.unit, read.answers[0].trace.stages["out"].dtype
        bound = room(read, read.expected)
        budget = Budget(bound * unit_, bound * unit_, np.inf)
        made = compare(weights * unit_, np.zeros(weights.shape, bool), read.expected * unit_, budget, dtype)
        scaled = {name: getattr(made, name) / unit_ for name in ("actual", "expected", "budget", "spacing")}
        found = replace(made, **scaled)
    return kept(found.actual.astype(np.float32), found)
