"""Tables and lines of text as HTML, for Jupyter."""

import html
from collections.abc import Collection, Sequence


def table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, left: Collection[str] = (), styles: Sequence[str] = ()
) -> str:
    """A table of cells; columns are aligned at the right but for those of words (`left`). `styles`: CSS, a row each."""
    sides = ["left" if column in left else "right" for column in columns]

    def line(tag: str, cells: Sequence[str], style: str) -> str:
        each = (
            f"<{tag} style='text-align:{side};white-space:nowrap'>{html.escape(cell)}</{tag}>"
            for side, cell in zip(sides, cells, strict=True)
        )
        return f"<tr style='{style}'>{''.join(each)}</tr>"

    body = (line("td", cells, style) for cells, style in zip(rows, styles or [""] * len(rows), strict=True))
    return f"<table style='margin-left:0'>{line('th', columns, '')}{''.join(body)}</table>"


def lines(texts: Sequence[str]) -> str:
    """A line for each text, whose leading spaces stay."""
    return "".join(f"<div style='white-space:pre-wrap'>{html.escape(text)}</div>" for text in texts)


def folded(title: str, page: str) -> str:
    """HTML that is shown when one opens it."""
    return f"<details><summary>{html.escape(title)}</summary>{page}</details>"
