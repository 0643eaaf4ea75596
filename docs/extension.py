"""A Sphinx extension: pages are filled with what is generated, and docstrings read as they are written."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import roles
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.errors import SphinxError

from docs.generators import MARK, filled
from docs.generators.api import exported
from docs.generators.screens import shown

#: `diff`, `Diff.explain` or `workbench.run` in a docstring -> the public name that it begins with
PUBLIC = {name: path for path in exported() for name in (path, path.rpartition(".")[2])}

#: page -> words of its source
WRITTEN: dict[str, int] = {}


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    roles.register_local_role("named", named)
    app.connect("source-read", fill)
    app.connect("build-finished", count)
    app.connect("autodoc-process-signature", signed)
    return {"parallel_read_safe": False}  # words are counted in this process


def fill(app: Sphinx, page: str, source: list[str]) -> None:
    """The page with what is generated in it, and the commands of its screens. SphinxError where something public is
    not explained.
    """
    WRITTEN[page] = _words(source[0])
    try:
        source[0] = shown(filled(source[0]))
    except ValueError as wrong:  # what nobody explains
        raise SphinxError(str(wrong)) from None


def count(app: Sphinx, error: Exception | None) -> None:
    """Print how many words of the site are written by hand, code among them, and how many are generated."""
    if error is None:
        filled_pages = [page for page in WRITTEN if MARK.search((Path(app.srcdir) / f"{page}.md").read_text())]
        shown = sum(_words(app.env.get_doctree(page).astext()) for page in filled_pages)
        generated = shown - sum(WRITTEN[page] for page in filled_pages)
        print(f"{len(WRITTEN)} pages: {sum(WRITTEN.values()):,} words by hand, {generated:,} generated")


def _words(text: str) -> int:
    """How many words a text has: what has a letter or a digit, and no bar of a table."""
    return sum(any(c.isalnum() for c in word) for word in text.split())


def signed(app: Sphinx, kind: str, name: str, what: Any, options: Any, own: str | None, returns: str | None) -> Any:
    """The signature that is shown: none of a class, which functions make."""
    return ("", None) if kind == "class" else None


def named(
    role: str, raw: str, text: str, line: int, inliner: Any, options: Any = None, content: Sequence[str] = ()
) -> tuple[list[nodes.Node], list[nodes.system_message]]:
    """What is between single backticks of a docstring: code, with a link where it is a public name. A word in small
    letters without a dot may be an argument, and gets none.
    """
    literal = nodes.literal(raw, text, classes=["xref", "py"])
    if path := PUBLIC.get(text) if text.startswith("workbench.") or not text.islower() else None:
        link = addnodes.pending_xref(raw, literal, refdomain="py", reftype="obj", reftarget=path, refexplicit=True)
        return [link], []
    return [nodes.literal(raw, text)], []
