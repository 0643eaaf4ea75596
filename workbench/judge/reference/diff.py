"""The judgement of what a kernel made, by a plain reference."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.expectation.elements import Element
from workbench.judge.fails import classed, failing
from workbench.judge.reference.causes.cause import Explained
from workbench.judge.reference.causes.known import unfolded
from workbench.judge.reference.causes.scene import Scene
from workbench.judge.reference.causes.search import explain
from workbench.judge.reference.contracts import Beyond, judged
from workbench.judge.reference.given import Arrays, Given, matched
from workbench.judge.reference.held import dumps_of
from workbench.judge.reference.lines import definition
from workbench.judge.stage import ASSUMPTION, EVIDENCE, SEVERITY, StageDiff, in_role
from workbench.reference.graph import Contract, Graph, Source, sources
from workbench.reference.graph.device import off_device
from workbench.reference.graph.node import Line
from workbench.refusal import Refusal, unknown
from workbench.shown import shown_by
from workbench.work import SEARCH, Work

#: trials that a report spends on causes, at most: one to two seconds
QUICK = 2500.0

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class ReferenceDiff:
    """What a kernel made, judged by a reference."""

    target: str
    reference: str  #: its name, file.py:function where it has one
    graph: Graph
    contract: Contract  #: under which the stages were judged
    stages: tuple[StageDiff, ...]  #: that were given, in the order in which the reference makes them
    given: tuple[Given, ...]
    others: tuple[str, ...] = ()  #: results that were not given
    declared: bool = False  #: whether somebody said the contract
    said: str = ""  #: the contract, as --contract takes it
    beyond_strict: Mapping[str, Beyond] = field(default_factory=dict)  #: by stage; of a contract that is the usual one
    gates: tuple[str, ...] = ()  #: what stands above the verdict
    notes: tuple[str, ...] = ()
    tried: tuple[str, ...] = ()  #: other references under which it is wrong
    case: str = ""  #: what it ran on, in words
    repeat: str = ""  #: the command that judges the same again; empty where there is none
    dtype: str = "float32"  #: of the inputs
    #: what the kernel gives on fresh inputs, of a number from 1 on, by the same reference; None where there are none
    again: Callable[[int], tuple[Graph, tuple[Given, ...]]] | None = field(default=None, repr=False)
    of_search: Explained | None = field(default=None, repr=False)  #: what a longer search found, for reports

    @property
    def headline(self) -> str:
        """What was run, in words."""
        return f"{self.target} against {self.reference}{': ' * bool(self.case)}{self.case}"

    @property
    def verdict(self) -> str:
        """Of the whole run: the worst of its stages."""
        return max((one.verdict for one in self.stages), key=SEVERITY.index, default="untestable")

    @property
    def doubt(self) -> str:
        """Of a suspicious run: evidence where that of one stage is, which fails, else assumption; empty of others."""
        if self.verdict != "suspicious":
            return ""
        return EVIDENCE if any(stage.doubt == EVIDENCE for stage in self.stages) else ASSUMPTION

    @property
    def origins(self) -> tuple[str, ...]:
        """Stages that are wrong by what they read, in order."""
        return in_role(self.stages, "origin")

    @property
    def origin(self) -> str | None:
        """The first wrong stage; None of a right run."""
        return self.origins[0] if self.origins else None

    @property
    def victims(self) -> tuple[str, ...]:
        """Stages that are wrong because of others alone."""
        return in_role(self.stages, "victim")

    @property
    def fails(self) -> bool:
        """Whether it fails: the rule of `workbench.judge.fails`."""
        return classed(self) in failing()

    @property
    def severity(self) -> tuple[bool, int]:
        """Of two runs the one with the larger is the worse."""
        return self.fails, SEVERITY.index(self.verdict)

    def line(self, name: str) -> Line:
        """The line of the reference that makes a stage. Refusal for an unknown name."""
        places = {one.name: one.nodes[-1] for one in self.given} | self.graph.places()
        if name not in places:
            raise Refusal(unknown("stage", name, places))
        return self.graph.nodes[places[name]].line

    def definition(self, name: str) -> str:
        """A stage's line of the reference, with its file and number."""
        return definition(name, self.line(name))

    def sources(self, name: str, element: Sequence[int]) -> list[Source]:
        """What the budget of an element of a given stage comes from, by line of the reference, the largest first; of a
        stage with several turns the first index is the turn.
        """
        one = next((one for one in self.given if one.name == name), None)
        if one is None:
            raise Refusal(unknown("stage", name, [one.name for one in self.given]))
        place, at = (one.places[0], element) if len(one.places) == 1 else (one.places[element[0]], element[1:])
        dumps = dumps_of(self.graph, self.given) if self[name].judged_from else {}
        return sources(self.graph, self.contract, place, tuple(at), dumps)

    def explain(self, effort: float = 1.0, *, seconds: float | None = None) -> Explained:
        """The causes of what is wrong: edits of the reference's graph that reproduce the kernel, on fresh inputs too;
        none of a right run.

        `effort`: how many times as many edits as usual are tried. `seconds`: a cap; what is found under one may depend
        on the machine.
        """
        return self._explained(Work(effort * SEARCH, seconds=seconds))

    @cached_property
    def explained(self) -> Explained:
        """What reports say: of a longer search (`explained_by`), else of QUICK trials."""
        return self.of_search or self._explained(Work(QUICK))

    def _explained(self, work: Work) -> Explained:
        return replace(Explained() if self.origin is None else explain(self.scene, work), judged=self)

    @property
    def scene(self) -> Scene:
        """What a search for causes looks at, on the CPU."""
        again = None if self.again is None else partial(_fresh, self.again)
        return Scene(
            unfolded(off_device(self.graph)), self.given, self.stages, self.contract, self.declared, self.dtype, again
        )  # fmt: skip

    def explained_by(self, found: Explained) -> "ReferenceDiff":
        """The same, of which reports say what a longer search found."""
        return replace(self, of_search=found)

    def worst(self, name: str, n: int = 1) -> list[Element]:
        """The n elements of a stage that are farthest beyond their budget."""
        return self[name].worst(n)

    def __getitem__(self, name: str) -> StageDiff:
        found = next((one for one in self.stages if one.name == name), None)
        if found is None:
            raise Refusal(unknown("stage", name, [one.name for one in self.stages]))
        return found

    def save_html(self, path: str | Path) -> None:
        """Write the page of `workbench diff --html`, one file. Refusal where nothing can be written there."""
        shown_by("page.reference.save", path, [self])

    def plot(self) -> "Figure":
        """A row for each stage with its largest errors, a matplotlib Figure."""
        return shown_by("pictures.overview.overview", self.stages, self.headline)

    def plot_sources(self, name: str, element: Sequence[int] | None = None) -> "Figure":
        """Where the budget of an element of a stage comes from, by line of the reference, a matplotlib Figure. element:
        as of `sources`; None: the one farthest beyond its budget.
        """
        return shown_by("pictures.sources.sources", self, name, element)

    def as_dict(self) -> dict[str, Any]:
        """The document of `workbench diff --reference --json`, of plain Python values."""
        return shown_by("reference.document", self)

    def __repr__(self) -> str:
        said = f"{self.verdict}, origins {list(self.origins)}, victims {list(self.victims)}"
        return f"<ReferenceDiff of {self.target} against {self.reference}: {said}>"

    def __str__(self) -> str:
        return shown_by("reference.in_short", self)

    def _repr_html_(self) -> str:
        return shown_by("page.reference.html", self)


def _fresh(again: Callable[[int], tuple[Graph, tuple[Given, ...]]], n: int) -> tuple[Graph, tuple[Given, ...]]:
    graph, given = again(n)
    return unfolded(off_device(graph)), given


def diff_arrays(
    graph: Graph,
    arrays: Arrays,
    unwritten: Arrays,
    *,
    target: str,
    reference: str,
    contract: Contract | None,
    dtype: str,
    gpu: bool = False,
    **more: Any,
) -> ReferenceDiff:
    """The judgement of `arrays`, in order or by name, of inputs in `dtype`; `unwritten`: slots of each that nobody
    wrote. contract: None where nobody declared one. gpu: whether a GPU made them. `more`: fields of the judgement.

    Refusal for what does not fit the reference, as of `matched`, and for a contract that stores a stage that there is
    not.
    """
    given = matched(graph, arrays, unwritten, target)
    found = judged(graph, given, contract, dtype, gpu)
    names = {node: graph.called(key) for key, node in graph.results.items()}
    missing = tuple(name for node, name in names.items() if not any(node in one.nodes for one in given))
    return ReferenceDiff(
        target,
        reference,
        graph,
        found.contract,
        found.stages,
        given,
        others=missing,
        declared=contract is not None,
        said=found.words,
        dtype=dtype,
        beyond_strict=found.beyond_strict,
        **more,
    )
