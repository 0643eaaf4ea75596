"""Markdown of text that is none: what help texts and tables of the code say, for a page."""

import re
from collections.abc import Iterable, Sequence

#: what Markdown would read as a mark
_MARKS = re.compile(r"([\\*_<>\[\]|#~$])")
_CODE = re.compile(r"(`[^`]+`)")


def escaped(text: str) -> str:
    """Text that is shown as it stands; what is between backticks is code, with bars that a table may hold."""
    parts = _CODE.split(text)
    return "".join(one.replace("|", "\\|") if i % 2 else _MARKS.sub(r"\\\1", one) for i, one in enumerate(parts))


def code(text: str) -> str:
    """Code within a line or a table."""
    return f"`{text}`".replace("|", "\\|") if text else ""


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells in Markdown; empty without rows."""
    lines = [f"| {' | '.join(cells)} |" for cells in rows]
    return "\n".join([f"| {' | '.join(heads)} |", "|---" * len(heads) + "|", *lines]) + "\n" if lines else ""
