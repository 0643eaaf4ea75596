"""Verdicts that hang on a field which a preset alone says: they would be others without it."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import NamedTuple

from workbench.case.assumptions import Choice, usual
from workbench.case.case import Case
from workbench.case.contract import Contract, of_foreign
from workbench.expectation.observed import Observed
from workbench.judge.recognised import CONVENTIONS
from workbench.judge.sensitivity import fits, right_under
from workbench.judge.stage import RIGHT_VERDICTS, StageDiff


class Presumed(NamedTuple):
    """A stage whose verdict hangs on what a preset says."""

    stage: str
    right: bool  #: whether it is right, and would not be without the preset; else it is wrong, and would not be
    said: tuple[Choice, ...]  #: the fields of the preset, each of which decides alone; all together where none does
    otherwise: tuple[Choice, ...]  #: the same as of a kernel of which nobody says anything


def presumed(run: Observed, stages: Sequence[StageDiff]) -> list[Presumed]:
    """Of the judged stages those whose verdict hangs on a preset, by the rows of their worst elements and some more: a
    wrong one that is right with the weakest choice in the preset's place; and a right one that is wrong of a usual
    kernel of which no preset is said.
    """
    promise = run.contract
    if not promise.of_preset:
        return []
    weak = _without(promise, run.case)
    strict = usual(weak)
    wrong = [x for x in stages if x.verdict == "bug" and x.decisive is not None and x.decisive.summary.outside]
    right = [x for x in stages if x.verdict in RIGHT_VERDICTS and x.decisive is not None]
    loosened = _right(run, wrong, weak)
    tightened = {stage.name for stage in right} - _right(run, right, strict)
    found = []
    for names, whole, is_right in ((loosened, (promise, weak), False), (tightened, (strict, promise), True)):
        hanging = [stage for stage in (*wrong, *right) if stage.name in names]
        changed = [x for x in promise.of_preset if getattr(whole[0], x) != getattr(whole[1], x)] if hanging else []
        alone = {x: _right(run, hanging, replace(whole[0], **{x: getattr(whole[1], x)})) for x in changed}
        for stage in hanging:
            deciding = [x for x in changed if stage.name in alone[x]] or changed
            said, otherwise = (tuple(Choice(x, of) for x in deciding) for of in (promise, strict if is_right else weak))
            found.append(Presumed(stage.name, is_right, said, otherwise))
    return found


def _right(run: Observed, stages: Sequence[StageDiff], contract: Contract) -> set[str]:
    """Those of the stages that are right of a kernel with that contract, by a budget that says something."""
    names = [stage.name for stage in stages]
    if not stages or not fits(run, names, contract):
        return set()
    return {name for name, says in right_under(run, stages, contract).items() if says}


def _without(promise: Contract, case: Case) -> Contract:
    """The contract with what is assumed where nobody says it in the place of what the preset does, but for what dumps
    show.
    """
    of_preset = [name for name in promise.of_preset if name not in CONVENTIONS]
    declared = {
        one.name: value
        for one in fields(promise)
        if one.metadata and one.name not in promise.open and (value := getattr(promise, one.name)) != one.default
    }
    weak = of_foreign(declared, case)
    assumed = (*promise.assumed, *of_preset)
    return replace(promise, **{x: getattr(weak, x) for x in of_preset}, assumed=assumed, of_preset=())
