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
    again: "Callable[[int], tuple[Graph, tuple[Given, ...]]] | None" = None

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
        return replace(self, graph=graph, given=given, stages=under(graph, self.contract, given))


def reproduces(scene: Scene, edit: Edit) -> tuple[str, ...]:
    """The wrong stages that are right by the reference with an edit; none where a right one is not right by it."""
    graph, places = edited(scene.graph, edit)
    given = [replace(one, nodes=tuple(places[i] for i in one.nodes)) for one in scene.given]
    for contract in scene.contracts():
        found = _right(scene.stages, under(graph, contract, given, sharp=False))
        if found and (found := _right(scene.stages, under(graph, contract, given))):
            return found
    return ()


def _right(before: Sequence[StageDiff], now: Sequence[StageDiff]) -> tuple[str, ...]:
    pairs = [*zip(before, now, strict=True)]
    if any(a.is_right and not b.is_right for a, b in pairs):
        return ()
    return tuple(a.name for a, b in pairs if a.role == "origin" and b.is_right)
