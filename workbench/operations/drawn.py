"""Stages of a loop whose worst case explodes, held against drawn roundings, as those of any plain reference."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from workbench.expectation.elements import Comparison, Elements, State, whole
from workbench.judge.reference.held import Held, held
from workbench.judge.reference.stages import drawn
from workbench.operations.expected import Reference
from workbench.operations.run import OperationRun
from workbench.reference.bound import Budget


def compared(reference: Reference) -> dict[str, tuple[Comparison, Comparison, str]]:
    """Of each stage of a run, isolated and propagated, and what samples decided, in words."""
    run, contract = reference.run, reference.run.case.operation.contract(reference.run.setting)
    given = {name: reference.given(name, x, None) for name, x in run.stages.items()}
    every = sorted((one for some in given.values() for one in some), key=lambda one: one.nodes[-1])
    found = {one.given.name: one for one in held(reference.graph, contract, every)}
    made = dict[str, tuple[Comparison, Comparison, str]]()
    for name, some in given.items():
        parts = [found[one.name] for one in some]
        said = dict.fromkeys(drawn(one.isolated, one.drawn) for one in parts if one.drawn is not None)
        isolated, propagated = ({place: x for one in parts for place, x in _of_places(one, of).items()}
                                for of in ("isolated", "propagated"))  # fmt: skip
        own, from_inputs = (_joined(reference, name, turns) for turns in (isolated, propagated))
        made[name] = own, from_inputs, "; ".join(filter(None, said))
    return made


def otherwise(run: OperationRun) -> dict[str, Budget]:
    """Budgets of the results of a run by the conventions by which it may have computed, too, though it says none of
    them and gives results alone; none where it may not.
    """
    case, turn = run.case, run.case.operation.turn(run.setting)
    if turn is None or not turn.otherwise or {*turn.otherwise} & {*run.told}:
        return {}
    stages = case.operation.stages(run.setting)
    if any(name not in case.operation.results or {*stages[name]} & {*"tc"} for name in run.stages):
        return {}
    case = replace(case, conventions={**case.conventions, **turn.otherwise})
    wide = {name: x.astype(np.float32) for name, x in run.stages.items()}  # what storing rounds is no part of these
    found = compared(Reference(replace(run, case=case, stages=wide)))
    return {name: Budget(one.budget, one.budget * one.statistical, np.inf) for name, (one, _, _) in found.items()}


def _of_places(one: Held, of: str) -> dict[str, Elements]:
    """The elements at each place of the graph."""
    elements = getattr(one, of).elements
    arrays = vars(elements)
    if len(one.given.places) == 1:
        return {one.given.places[0]: elements}
    return {place: Elements(**{name: x[i] for name, x in arrays.items()}) for i, place in enumerate(one.given.places)}


def _joined(reference: Reference, name: str, turns: Mapping[str, Elements]) -> Comparison:
    """A stage of its turns; what no turn has, behind the end of a chunk, is absent."""
    x = reference.run.stages[name]
    found = Elements(
        x, np.zeros(x.shape), np.full(x.shape, np.inf), np.ones(x.shape, np.float32),
        np.full(x.shape, np.nan, np.float32), np.full(x.shape, State.ABSENT, np.uint8),
    )  # fmt: skip
    for place, at in reference.places(name).items():
        for array, part in zip(list(vars(found).values())[1:], list(vars(turns[place]).values())[1:], strict=True):
            array[at] = part
    return whole(found)
