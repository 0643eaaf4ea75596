"""A hypothesis: what may be wrong in a kernel, as edits of the table of stages.

An edit changes one step, and a table with changed steps is computed and bounded like any other: so a hypothesis
predicts every stage that a kernel with this fault has, and how far it may be from that by rounding.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from workbench.reference.dataflow import upstream
from workbench.reference.stage import Stage, Step, Table, named, reads
from workbench.reference.steps.altered import Altered, Reading

#: what a step's result becomes, of `Context` and the result, at one tile or at none
Change = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Edit:
    """A change of the step of one stage or parameter."""

    stage: str
    change: Callable[[Step], Step]


@dataclass(frozen=True, eq=False)
class Hypothesis:
    """What may be wrong, in words and as edits."""

    id: str  #: family.what, with the parameters of loops behind it
    text: str  #: of a sentence "<text>": what the kernel does instead of what it should
    edits: tuple[Edit, ...]
    across: bool = False  #: whether it mixes batches or heads, so that a part of them cannot show it

    @property
    def family(self) -> str:
        """Of the library."""
        return self.id.split(".")[0]

    @cached_property
    def stages(self) -> tuple[str, ...]:
        """Stages and parameters that it changes."""
        return tuple(dict.fromkeys(edit.stage for edit in self.edits))


def of_family(family: str) -> Callable[..., Hypothesis]:
    """What makes the hypotheses of a family, of a name, a sentence and edits; and `across`."""
    return lambda name, text, *edits, across=False: Hypothesis(f"{family}.{name}", text, edits, across)


def altered(stage: str, change: Change, *also: str) -> Edit:
    """`change` on top of what the step of `stage` makes; `also` are what it reads beside."""
    return Edit(stage, lambda step: Altered(step, change, also))


def read_as(stage: str, ref: str, change: Change, *also: str) -> Edit:
    """The step of `stage` with `change` on top of what it reads as `ref`; Unfit where it reads no such thing."""

    def changed(step: Step) -> Step:
        if ref not in named(step, near=False).values():
            raise Unfit
        return Reading(step, ref, change, also)

    return Edit(stage, changed)


class Unfit(Exception):
    """Raised by an edit of a step of another kind."""


def across(hypotheses: Iterable[Hypothesis]) -> Iterator[Hypothesis]:
    """Hypotheses that mix batches or heads."""
    return (replace(one, across=True) for one in hypotheses)


def together(*hypotheses: Hypothesis) -> Hypothesis:
    """All of them at once, the edits of the later ones on top."""
    return Hypothesis(
        " + ".join(one.id for one in hypotheses),
        ", and ".join(one.text for one in hypotheses),
        tuple(edit for one in hypotheses for edit in one.edits),
        any(one.across for one in hypotheses),
    )


def edited(table: Table, hypothesis: Hypothesis) -> Table | None:
    """The table of a kernel with this fault, for values; None where it has no such steps."""
    found = dict(table)
    for edit in hypothesis.edits:
        if edit.stage not in found:
            return None
        stage = found[edit.stage]
        try:
            found[edit.stage] = replace(stage, step=edit.change(stage.step))
        except Unfit:
            return None
    return found


def unfused(table: Table, hypothesis: Hypothesis) -> Table:
    """The same for bounds: one of several steps together (`Stage.fused`) goes where one of these is changed."""
    changed = {*hypothesis.stages}

    def kept(name: str, stage: Stage) -> bool:
        return stage.fused is None or not changed & {name, *upstream(table, name, reads(stage.fused))}

    return {name: stage if kept(name, stage) else replace(stage, fused=None) for name, stage in table.items()}
