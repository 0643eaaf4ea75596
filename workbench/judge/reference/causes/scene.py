"""A judged run as a search sees it, and whether an edit reproduces it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from workbench.judge.reference.causes.edit import Edit, edited
from workbench.judge.reference.contracts import undeclared
from workbench.judge.reference.given import Given
from workbench.judge.reference.stages import under
from workbench.judge.stage import StageDiff
from workbench.reference.graph import Contract, Graph
from workbench.refusal import Refusal


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
        except Refusal:
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
    alone: tuple[str, ...] = ()  #: for which it is done, where others are as the reference makes them


def reproduces(scene: Scene, edit: Edit) -> Reach:
    """The wrong stages that are right by the reference with an edit, which is done for all stages, or for those alone
    that it makes right, whichever explains more; none where a right stage is not right by it.
    """
    found, right = _tried(scene, edit, ())
    found = found or ()
    if not right or len(found) == len(scene.origins):
        return Reach(found)
    other = _tried(scene, edit, right)[0] or ()
    return Reach(other, right) if len(other) > len(found) else Reach(found)


def is_so(scene: Scene, edit: Edit, reach: Reach) -> bool:
    """Whether a run is as an edit says: what is wrong of its stages is right by it, and nothing that is right wrong."""
    now = [stage.name for stage in scene.origins if stage.name in reach.stages]
    found, right = _tried(scene, edit, reach.alone)
    return found is not None and {*now} <= {*right}


def _tried(scene: Scene, edit: Edit, alone: tuple[str, ...]) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """The wrong stages that an edit makes right, None where it breaks another; and those whatever it breaks."""
    only = {i for one in scene.given if one.name in alone for i in one.nodes} if alone else None
    graph, places = edited(scene.graph, edit, only, {i for one in scene.given for i in one.nodes})
    given = [replace(one, nodes=tuple(places[i] for i in one.nodes)) for one in scene.given]
    right: tuple[str, ...] = ()
    for contract in scene.contracts():
        some, broken = _right(scene.stages, under(graph, contract, given, sharp=False))
        right = right or some
        if scene.sharp and some and not broken:
            some, broken = _right(scene.stages, under(graph, contract, given))
        if not broken and (some or not scene.origins):
            return some, some
    return None, right


def _right(before: Sequence[StageDiff], now: Sequence[StageDiff]) -> tuple[tuple[str, ...], bool]:
    """The wrong stages that are right now, and whether a right one is not."""
    pairs = [*zip(before, now, strict=True)]
    right = tuple(a.name for a, b in pairs if a.role == "origin" and b.is_right)
    return right, any(a.is_right and not b.is_right for a, b in pairs)
