"""A formula as a cause: what a wrong stage holds, of what it should hold, found again on fresh cases.

A formula that reproduces all that is wrong says what is wrong, also where no hypothesis of the library does. It is told
where the same formula is found anew, from nothing, in other runs of the kernel.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from workbench.case.case import Case
from workbench.case.stages import RESULTS
from workbench.expectation.observed import Observed
from workbench.judge import blocks as parts
from workbench.judge.codes import decoding
from workbench.judge.explain.cause import Cause, Trial
from workbench.judge.explain.counter_cases import beyond, cases
from workbench.judge.explain.fit import Fit
from workbench.judge.explain.formulas import formulas
from workbench.judge.explain.hypothesis import Hypothesis
from workbench.judge.explain.trial import TRIALS
from workbench.judge.explain.unknown.difference import of_stage
from workbench.judge.explain.unknown.formula import INDEPENDENT, SHARE, Formula
from workbench.judge.explain.unknown.sums import summed
from workbench.judge.explain.unknown.tensors import Tensors
from workbench.judge.stage import StageDiff
from workbench.refusal import Refusal, Unavailable

#: kinds of formulas that name nothing: that a stage is one number, or numbers of this run alone; and what is no change
NO_CAUSE, NO_CHANGE = ("constant", "learned"), "actual = expected"


def by_formula(run: Observed, stage: StageDiff, found: Sequence[Formula]) -> Cause | None:
    """The first of the formulas of a wrong stage that reproduces nearly all of it and holds on fresh cases; None where
    none does, or the kernel cannot be run again.
    """
    if run.trace.rerun is None or run.trace.box is not None:
        return None
    for formula in found:
        if formula.kind in NO_CAUSE or formula.text == NO_CHANGE or formula.of < SHARE * formula.wrong:
            continue
        trial = _tried(run, stage, formula)
        if trial is not None and trial.held:
            text = f"where {stage.name} is wrong, {formula.text}"
            made = Hypothesis(f"formula.{stage.name}", text, ())
            fit = Fit(
                made, (stage.name,), formula.residual, formula.residual, formula.unexplained,
                formula.wrong - formula.of, formula.wrong, formula.of, 0,
            )  # fmt: skip
            return Cause((made,), fit, trial=trial)
    return None


def by_sums(run: Observed, stages: Sequence[StageDiff]) -> list[Cause]:
    """The cause where row sums in 16 bits make all that is wrong of out and lse, [] elsewhere: it takes no search."""
    causes: list[Cause] = []
    text = ""
    for stage in stages:
        found = summed(of_stage(stage), Tensors(run, stage)) if stage.name in RESULTS and stage.decisive else []
        cause = by_formula(run, stage, found)
        if cause is None:
            return []
        causes, text = [*causes, cause], found[0].text
    if not causes:
        return []
    made = Hypothesis("formula.row_sum", text, ())
    fits = [one.fit for one in causes]
    fit = replace(
        fits[0], hypothesis=made, stages=tuple(one.stages[0] for one in fits), off=sum(one.off for one in fits),
        over_budget=max(one.over_budget for one in fits), of=sum(one.of for one in fits),
        values=sum(one.values for one in fits), unexplained=max(one.unexplained for one in fits),
    )  # fmt: skip
    return [replace(causes[0], members=(made,), fit=fit)]


def _tried(run: Observed, stage: StageDiff, formula: Formula) -> Trial | None:
    """The formula looked for on fresh cases, until it was found in TRIALS of them: the first, or the one where it is
    not; None where none could be run. A foreign kernel may take no more than what the run shows.
    """
    trials: list[Trial] = []
    further: list[str] = []
    for case in cases(run.case):
        again = _judged(run, case, stage)
        if again is None:
            continue
        if int(again[1].judged.outside.sum()) < INDEPENDENT and formula.kind == "map":
            continue  # other indices may be the same in a smaller case, another number is none
        same = next((one for one in formulas(*again) if one.text == formula.text), None)
        seen = "the same" if same else "no such formula"
        one = Trial(case, formula.text, seen, same is not None, 0 if same is None else same.of)
        outside = beyond(run.case, case)
        if same is None and trials and outside and run.trace.backend == "foreign":
            further += outside
            continue
        trials.append(one)
        if same is None or len(trials) == TRIALS:
            break
    decisive = min(trials, key=lambda one: one.held, default=None)
    if decisive is None:
        return None
    return replace(decisive, of=len(trials), beyond=", or ".join(dict.fromkeys(further)))


def _judged(run: Observed, case: Case, stage: StageDiff) -> tuple[Observed, StageDiff] | None:
    """The kernel on another case, and the stage there; None where it cannot be run or the stage is not as it was."""
    assert run.trace.rerun is not None
    try:
        again = Observed(run.trace.rerun(case))
    except (Refusal, Unavailable):  # a case that this kernel does not take
        return None
    if stage.name not in again.dumped:
        return None
    with np.errstate(all="ignore"):
        found = (decoding.comparisons if again.before_attention else parts.comparisons)(again, [stage.name], "cpu")
    isolated, propagated = found.get(stage.name, (None, None))
    if (isolated is None) != (stage.isolated is None) or (isolated or propagated) is None:
        return None
    return again, replace(stage, isolated=isolated, propagated=propagated, dumped=again.dumped[stage.name])
