"""The interactive part of a page: the graph of stages, coloured by role, and a panel for each stage."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from workbench.report.page.graph import Graph, Placed
from workbench.report.page.maps import VERDICTS, Map, palette
from workbench.report.tables import Table


@dataclass(frozen=True)
class Panel:
    """What a page tells of one stage."""

    name: str
    kind: str  #: its colour: origin, victim, doubtful, clean, untestable, not judged, not given
    role: str  #: its verdict, as tables show it
    number: str  #: the one number that the graph has room for, such as x of budget
    definition: str
    lines: Sequence[str]
    facts: Table | None = None
    worst: Table | None = None  #: the worst elements
    shares: Sequence[tuple[str, float, str]] = ()  #: of its budget: source, share, in words
    map: Map | None = None
    pictures: Sequence[tuple[str, str]] = ()  #: what each shows, and it as PNG in base64
    #: the numbers of `worst` by index, axis by axis, for who points at one in the map
    exact: dict[str, list[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Flow:
    """The graph and the panels of the stages in it."""

    graph: Graph
    panels: Sequence[Panel]
    chosen: str  #: the stage that is shown first
    words: Mapping[str, str] = field(
        default_factory=dict
    )  #: kind -> what the legend calls it, where that is another word

    @property
    def boxes(self) -> list[tuple[Placed, Panel | None]]:
        """Each box, with the panel of its stage; None of an input."""
        panels = {panel.name: panel for panel in self.panels}
        return [(box, panels.get(box.name)) for box in self.graph.boxes]

    @property
    def kinds(self) -> list[str]:
        """The kinds that occur."""
        return list(dict.fromkeys(panel.kind for panel in self.panels))

    @property
    def data(self) -> dict[str, Any]:
        """What the script of the page reads, of plain Python values."""
        maps = {
            panel.name: panel.map.data | {"exact": panel.exact} for panel in self.panels if panel.map and panel.map.data
        }
        shades = {"palette": palette(), "verdicts": VERDICTS} if maps else {}
        return {"chosen": self.chosen, "maps": maps, **shades}
