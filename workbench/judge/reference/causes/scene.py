"""A judged run as a search sees it, and whether an edit reproduces it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from workbench.expectation.elements import State
from workbench.judge.reference.causes.edit import Edit, edited
from workbench.judge.reference.contracts import undeclared
from workbench.judge.reference.given import Given
from workbench.judge.reference.stages import under
from workbench.judge.stage import StageDiff
from workbench.reference.graph import Contract, Graph
from workbench.refusal import Refusal, Unavailable

#: share of the wrong elements that may be NaN by an edit, where a kernel may have anything
UNDEFINED = 0.1


@dataclass(frozen=True, eq=False)
class Scene:
    """What a kernel gave, and how it was judged."""

    graph: Graph
    given: tuple[Given, ...]
    stages: tuple[StageDiff, ...]
    contract: Contract  #: under which it was judged
    declared: bool  #: whether that is the kernel's own
    dtype: str  #: of the inputs
    #: the run on the fresh inputs of a number, from 1 on; None where there are none
    again: Callable[[int], tuple[Graph, tuple[Given, ...]]] | None = None
    sharp: bool = True  #: whether results were judged in reverse mode, too

    @property
    def origins(self) -> tuple[StageDiff, ...]:
        """The stages that are wrong by what they read, in order."""
        return tuple(stage for stage in self.stages if stage.role == "origin")

    def contracts(self) -> Iterator[Contract]:
        """Those under which a kernel that does what an edit says may be right: its own; else what needs no
        declaration.
        """
        yield self.contract
        if not self.declared:
            yield from (one for one in (Contract(), *undeclared(self.graph, self.given, self.dtype))
                        if one != self.contract)  # fmt: skip

    def fresh(self, n: int) -> "Scene | None":
        """The same kernel on fresh inputs; None where it cannot be run on them."""
        if self.again is None:
            return None
        try:
            graph, given = self.again(n)
        except (Refusal, Unavailable):
            return None
        stages = under(graph, self.contract, given, sharp=False)
        made = replace(self, graph=graph, given=given, stages=stages, sharp=False)
        if {stage.name for stage in made.origins} >= {stage.name for stage in self.origins}:
            return made
        return replace(made, stages=under(graph, self.contract, given), sharp=True)


@dataclass(frozen=True)
class Reach:
    """Which wrong stages an edit makes right."""

    stages: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()  #: stages to which the edit is restricted; empty: it applies to all
    undefined: int = 0  #: wrong elements of which the edited reference is NaN


@dataclass(frozen=True)
class _Tried:
    """What a run is by an edited reference."""

    right: tuple[str, ...] = ()  #: wrong stages that are right by it
    broken: bool = True  #: whether a right stage is wrong by it
    undefined: int = 0


def reproduces(scene: Scene, edit: Edit) -> Reach:
    """The wrong stages that an edit of the reference explains: of all stages, or only of those that it makes right,
    whichever explains more. None where it makes a right stage wrong.
    """
    found = _tried(scene, edit, ())
    reach = Reach() if found.broken else Reach(found.right, (), found.undefined)
    if not found.right or len(reach.stages) == len(scene.origins):
        return reach
    other = _tried(scene, edit, found.right)
    more = not other.broken and len(other.right) > len(reach.stages)
    return Reach(other.right, found.right, other.undefined) if more else reach


def is_so(scene: Scene, edit: Edit, reach: Reach) -> bool:
    """Whether a run is as an edit says: what is wrong of its stages is right by it, and nothing that is right wrong."""
    now = {stage.name for stage in scene.origins if stage.name in reach.stages}
    found = _tried(scene, edit, reach.alone)
    return not found.broken and now <= {*found.right}


def _tried(scene: Scene, edit: Edit, alone: tuple[str, ...]) -> _Tried:
    """A run by the reference with an edit that is done for some stages alone, for all where none are said; under the
    first contract by which it is right, else under the strict one.
    """
    only = {i for one in scene.given if one.name in alone for i in one.nodes} if alone else None
    graph, places = edited(scene.graph, edit, only, {i for one in scene.given for i in one.nodes})
    given = [replace(one, nodes=tuple(places[i] for i in one.nodes)) for one in scene.given]
    best = _Tried()
    for contract in scene.contracts():
        found = _compared(scene.stages, under(graph, contract, given, sharp=False))
        if scene.sharp and found.right and not found.broken:
            found = _compared(scene.stages, under(graph, contract, given))
        if not found.broken and (found.right or not scene.origins):
            return found
        best = best if best.right else found
    return best


def _compared(before: Sequence[StageDiff], now: Sequence[StageDiff]) -> _Tried:
    pairs = [*zip(before, now, strict=True)]
    right = [(a, b) for a, b in pairs if a.role == "origin" and (b.is_right or _is_undefined(a, b))]
    broken = any(a.is_right and not b.is_right for a, b in pairs)
    nan = sum(int((_nan(b) & a.decisive.outside).sum()) for a, b in right if a.decisive is not None)
    return _Tried(tuple(a.name for a, _ in right), broken, nan)


def _is_undefined(before: StageDiff, now: StageDiff) -> bool:
    """Whether a wrong stage is right but where the edited reference alone is NaN, as of a row without keys: a few of
    the wrong elements.
    """
    if before.decisive is None or now.decisive is None:
        return False
    was, nan = np.asarray(before.decisive.outside), _nan(now)
    wrong = np.asarray(now.decisive.outside) | (np.asarray(now.decisive.state) == State.SUSPICIOUS)
    return bool(nan.sum() <= UNDEFINED * was.sum() and not (wrong & ~nan).any())


def _nan(stage: StageDiff) -> np.ndarray:
    """Where a reference is NaN and a kernel is not."""
    assert stage.decisive is not None
    return np.isnan(stage.decisive.expected) & np.isfinite(stage.decisive.actual)
