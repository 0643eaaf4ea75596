"""A page: sentences, tables, what folds away, a command to copy, and the graph of a run; made into one file of HTML
that needs nothing else.

All that comes from traces, sources and logs is escaped (jinja2 does it everywhere), and what a script reads is JSON in
which no tag can end. A policy in the page lets nothing run or load but the script and the style sheet that are in it.
"""

import hashlib
import html
import json
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.files import write_atomically
from workbench.report.page import maps
from workbench.report.page.flow import Flow
from workbench.report.page.graph import HEIGHT, WIDTH
from workbench.report.pictures.shades import CALM_RAMP, HIGH, HOT_RAMP, LOW
from workbench.report.tables import Table

if TYPE_CHECKING:
    from jinja2 import Environment

#: the files of the page's parts
_FOLDER = Path(__file__).parent
#: pixels of a cell of a notebook, in which the page scrolls
CELL_HEIGHT = 620


@dataclass(frozen=True)
class Part:
    """A part of a page, which folds away."""

    title: str
    lines: Sequence[str] = ()  #: sentences; one that begins with spaces is set in
    table: Table | None = None
    command: str = ""  #: what repeats it
    parts: "Sequence[Part]" = ()
    opened: bool = False


@dataclass(frozen=True)
class Page:
    """What a page says, from the top."""

    title: str  #: of the window
    verdict: str  #: in a word
    kind: str  #: of the verdict, of `tables.KINDS`: its colour
    lines: Sequence[str]  #: the judgement in sentences, the first of which is the heading
    about: Sequence[str] = ()  #: what was run
    gates: Sequence[str] = ()  #: what stands above the verdict
    commands: Sequence[tuple[str, str]] = ()  #: each with what it is for
    flow: Flow | None = None
    parts: Sequence[Part] = ()


def rendered(page: Page) -> str:
    """The page as a document of HTML."""
    return _document(page, whole=True)


def cell(page: Page) -> str:
    """The graph of a page, or all of a page without one, in a frame of its own, for a cell of Jupyter: nothing in it
    reaches the notebook.
    """
    document = _document(page, whole=page.flow is None)
    document = document.replace("&", "&amp;").replace("'", "&#39;")  # quotes stay: half the size
    style = f"width:100%;height:{CELL_HEIGHT}px;border:0"
    about = f"sandbox='allow-scripts' title='{html.escape(page.title)}' style='{style}'"
    return f"<iframe {about} srcdoc='{document}'></iframe>"


def save(page: Page, path: str | Path) -> None:
    """Write the page to a file, or nothing at all. Refusal where nothing can be written there."""
    write_atomically(Path(path), rendered(page).encode())


def _document(page: Page, *, whole: bool) -> str:
    style, script = _asset("page.css"), _asset("page.js")
    policy = "; ".join(
        [
            *("default-src 'none'", "img-src data:", "base-uri 'none'", "form-action 'none'"),
            f"style-src '{_hash(style)}'",
            f"script-src '{_hash(script)}'",
        ]
    )
    data = {} if page.flow is None else page.flow.data
    template = _environment().get_template("page.html")
    return template.render(page=page, whole=whole, policy=policy, style=style, script=script, data=data)


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    made = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["data"] = lambda found: Markup(_json(found))
    made.filters["ours"] = Markup  # a style sheet or a script of this folder
    made.globals |= {"calm": CALM_RAMP, "hot": HOT_RAMP, "low": LOW, "high": HIGH}
    made.globals |= {"box_width": WIDTH, "box_height": HEIGHT, "map_width": maps.WIDTH}
    return made


def _json(found: Any) -> str:
    """JSON in which no tag of HTML begins or ends."""
    text = json.dumps(found, allow_nan=False, separators=(",", ":"))
    return text.translate({ord(character): f"\\u{ord(character):04x}" for character in "<>&"})


@cache
def _asset(name: str) -> str:
    return (_FOLDER / name).read_text()


def _hash(source: str) -> str:
    """A source in the words of a Content-Security-Policy."""
    return f"sha256-{b64encode(hashlib.sha256(source.encode()).digest()).decode()}"
