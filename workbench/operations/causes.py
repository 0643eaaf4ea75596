"""Causes of what is wrong in a run of an operation: edits of the graph of its plain function that make the run's
numbers, and those of fresh runs.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from workbench.judge.reference.causes import search
from workbench.judge.reference.causes.cause import Cause, Explained
from workbench.judge.reference.causes.edit import fits
from workbench.judge.reference.causes.scene import Scene, is_so
from workbench.judge.reference.given import Given
from workbench.judge.reference.lines import short
from workbench.judge.reference.stages import under
from workbench.operations.expected import Reference
from workbench.operations.run import OperationRun, size_of
from workbench.reference.graph import Graph
from workbench.shown import shown_by
from workbench.work import ENDED, Work

#: numbers that inputs have in all: the stages of more would take GBs, a hundred times
LARGEST = 2**22
#: turns of a loop, at most: a search of 64 takes 18 s, since budgets of its whole graph are drawn for what fits
TURNS = 64
#: turns of the runs that are searched in the place of a longer one: the first in which something is wrong
FEWER = (16, TURNS)
#: withdrawn edits that are said
MOST = 4


@dataclass(frozen=True)
class OperationCause:
    """What gives the wrong numbers of some stages: an edit of the plain function; several that no run tells apart."""

    of: Cause
    axes: Mapping[str, tuple[str, ...]] = field(repr=False)  #: of inputs and stages, their names
    graph: Graph = field(repr=False)  #: of the run
    alone: bool  #: whether the results were made by a chain of their own, of no stage that was dumped

    @property
    def stages(self) -> tuple[str, ...]:
        """Wrong ones that it gives, in data-flow order."""
        return self.of.stages

    @property
    def texts(self) -> list[str]:
        """What the function does instead of what it should, with the plain function's line, the likeliest first."""
        return [f"{_with_axes(one.text, self.axes)} ({short(one.line)})" for one in self.of.names]

    @property
    def text(self) -> str:
        """The likeliest."""
        return self.texts[0]

    @property
    def proved(self) -> bool:
        """Whether fresh runs were as predicted, in enough elements."""
        return self.of.proved

    def predicts(self, run: OperationRun) -> bool:
        """Whether it gives what is wrong of its stages in another run of the function, and they are as it says."""
        scene = scene_of(run, self.alone)
        return fits(self.graph, scene.graph) and is_so(scene, self.of.edit, self.of.reach)

    def as_dict(self) -> dict[str, Any]:
        """Of plain Python values."""
        return {
            "id": f"{self.of.edit.family}.{self.of.edit.name}",
            "text": self.text,
            "same": self.texts[1:],
            "stages": list(self.stages),
            "left": self.of.left,
            "moved": self.of.moved,
            "fresh_runs": self.of.fresh,
            "proved": self.proved,
        }


@dataclass(frozen=True)
class OperationExplained:
    """What explains a run; nothing of a right one."""

    causes: tuple[OperationCause, ...] = ()  #: those of the first wrong stage first
    withdrawn: tuple[str, ...] = ()  #: what fitted the run, and not a fresh one
    tried: int = 0  #: edits
    ended_by: str = ""  #: what ended the search before all were tried: effort, the user's seconds, size
    shorter: str = ""  #: what was searched in its place, where the run is too long: such as 16 tokens
    #: the OperationDiff that was explained, which shows it
    judged: Any = field(default=None, repr=False, compare=False)

    @property
    def complete(self) -> bool:
        """Whether all edits were tried."""
        return not self.ended_by

    @property
    def sentences(self) -> list[str]:
        """The cause in a line, what else it may be, and what a fresh run contradicted."""
        said, apart = [], len({one.stages for one in self.causes}) > 1
        for one in self.causes:
            word = f"cause in {', '.join(one.stages)}" if apart else "cause"
            sure = "" if one.proved else "perhaps "
            fresh = f"confirmed on {one.of.fresh} fresh cases" if one.of.fresh else "not tried on a fresh case"
            fresh += f", of {self.shorter}" * bool(self.shorter)
            said.append(f"{word}: {sure}{one.text}; {fresh}")
            if same := one.texts[1:]:
                said.append(f"  same result: {'; '.join(same)}")
        if not self.causes and (self.tried or self.ended_by):
            said.append(f"cause unknown: {self.tried} edits tried{ENDED[self.ended_by]}")
        return said + [f"withdrawn: {text} (a fresh case contradicts it)" for text in self.withdrawn[:MOST]]

    def as_dict(self) -> dict[str, Any]:
        """The part of the document of `workbench explain --operation NAME --json` that says what explains it."""
        return {
            "causes": [one.as_dict() for one in self.causes],
            "withdrawn": list(self.withdrawn),
            "tried": self.tried,
            "complete": self.complete,
            "ended_by": self.ended_by,
            "shorter": self.shorter,
        }

    def __str__(self) -> str:
        return repr(self) if self.judged is None else shown_by("operation.in_short", self.judged, self)

    def _repr_html_(self) -> str | None:
        return None if self.judged is None else shown_by("operation.html", self.judged, self)


@np.errstate(all="ignore")
def explain(run: OperationRun, work: Work) -> OperationExplained:
    """The causes of what is wrong in a run, searched for until `work` is over; what fits is tried on fresh runs.
    Nothing is searched of runs with more than LARGEST numbers as inputs. Of a loop with more than TURNS turns, a run
    with fewer is.

    A result may be made by a chain of its own, of none of the stages that were dumped. Where no edit explains it from
    these, those that make it from the inputs are tried.
    """
    turns = size_of(run.case, "t") if run.case.operation.walked else 1
    if turns > TURNS:
        return _of_fewer_turns(run, work)
    if sum(x.size for x in run.inputs.values()) > LARGEST:
        return OperationExplained(ended_by="size")
    whole = scene_of(run)
    found = [(whole, search.explain(whole, work), False)]
    unknown = {*found[0][1].unexplained} & {*run.case.operation.results}
    if unknown and not {*run.stages} <= {*run.case.operation.results}:
        alone = scene_of(run, alone=True)
        found.append((alone, search.explain(alone, work), True))
    axes = _axes(run)
    causes = tuple(OperationCause(one, axes, scene.graph, alone) for scene, some, alone in found for one in some.causes)
    withdrawn = dict.fromkeys(_with_axes(one.text, axes) for _, some, _ in found for one in some.withdrawn)
    return OperationExplained(causes, tuple(withdrawn), _tried(found), next((e for e in _ends(found) if e), ""))


def _of_fewer_turns(run: OperationRun, work: Work) -> OperationExplained:
    """The causes of what is wrong in a run of the same function with fewer turns, the last one as long."""
    case, axis = run.case, run.case.operation.walked
    tile, tokens, tried = case.operation.tile(run.setting), case.sizes[axis], 0
    for turns in FEWER if run.again is not None else ():
        assert run.again is not None
        fewer = (turns - 1) * tile + (tokens - 1) % tile + 1
        made = run.again(replace(case, sizes={**case.sizes, axis: fewer}))
        stages = {name: x for name, x in made.stages.items() if name in run.stages}
        found = explain(replace(made, stages=stages), work)
        tried += found.tried
        if found.causes:
            return replace(found, tried=tried, shorter=f"{fewer} {case.operation.axes[axis]}")
    return OperationExplained(tried=tried, ended_by="size")


def _tried(found: list[tuple[Scene, Explained, bool]]) -> int:
    return sum(some.tried for _, some, _ in found)


def _ends(found: list[tuple[Scene, Explained, bool]]) -> list[str]:
    return [some.ended_by for _, some, _ in found]


def scene_of(run: OperationRun, alone: bool = False) -> Scene:
    """A run as a search sees it; `alone`: its results alone."""
    case, reference = run.case, Reference(run)
    shown = [name for name in run.stages if not alone or name in case.operation.results]
    free = case.operation.free(run.setting, reference.inputs)
    made = reference.values({}, [name for name in shown if name in free])
    given = []
    for name in shown:
        x, blank = run.stages[name], None
        if name in free:
            blank = np.broadcast_to(free[name], x.shape)
            # a fault may read what nobody need write; as it should be only where nobody wrote it
            x = np.where(blank & ~np.isfinite(x), made[name], x).astype(x.dtype)
        given += reference.given(name, x, blank)
    given.sort(key=lambda one: (one.nodes[-1], -len(one.nodes)))
    contract = case.operation.contract(run.setting)
    stages = under(reference.graph, contract, given, sharp=reference.loops)

    def again(n: int) -> tuple[Graph, tuple[Given, ...]]:
        assert run.again is not None
        other = run.again(replace(case, seed=case.seed + n))
        kept = {name: x for name, x in other.stages.items() if name in run.stages}
        scene = scene_of(replace(other, stages=kept), alone)
        return scene.graph, scene.given

    return Scene(
        reference.graph, tuple(given), stages, contract, True, case.dtype, again if run.again else None, reference.loops
    )


def _axes(run: OperationRun) -> dict[str, tuple[str, ...]]:
    """Those of inputs and stages, by name."""
    of = run.case.operation
    letters = {**of.axes, "t": "tiles", "c": "tile"}
    found = {**run.case.takes, **of.stages(run.setting)}
    return {name: tuple(letters[axis] for axis in axes) for name, axes in found.items()}


def _with_axes(text: str, axes: Mapping[str, tuple[str, ...]]) -> str:
    """Words in which the axes of an input or a stage have their names."""
    own = axes.get(text.split(" ", 1)[0], ())

    def name(at: re.Match[str]) -> str:
        return " and ".join(own[int(i)] for i in at.groups()) if all(int(i) < len(own) for i in at.groups()) else at[0]

    named = re.sub(r"axis (\d+)", name, re.sub(r"axes (\d+) and (\d+)", name, text))
    return re.sub(r"\b(along|of) it\b", rf"\1 {own[0]}", named) if len(own) == 1 else named
