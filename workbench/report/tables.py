"""Tables, for a terminal and as HTML for Jupyter; lines of text as HTML."""

import html
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Screen

#: kind of a row -> its style on a terminal, and its CSS
KINDS = {
    "origin": ("bold red", "color:#b00020;font-weight:bold"),
    "victim": ("yellow", "color:#946200"),
    "doubtful": ("yellow", "color:#946200"),
    "clean": ("green", ""),
    "not judged": ("dim", ""),
    "": ("", ""),
}


@dataclass(frozen=True)
class Table:
    """Cells of words and numbers."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]  #: a cell for each column
    kinds: Sequence[str]  #: of each row, of KINDS
    left: Collection[str] = ()  #: columns of words, which are aligned at the left
    folds: Collection[str] = ()  #: columns that take several lines where a screen is narrow
    spare: Sequence[str] = ()  #: columns that a narrow screen does without, the most telling first

    def screen(self, *, unicode: bool, width: int | None = None) -> Screen:
        """The table for a terminal; where `width` characters are too few for all columns, of those of `spare` only as
        many as fit, so that no number is ever cut.
        """
        if width is None:
            return self._of(self.columns, unicode)
        chosen = [column for column in self.columns if column not in self.spare]
        for column in self.spare:
            more = [one for one in self.columns if one in (*chosen, column)]
            if column in self.columns and _width(self._of(more, unicode)) <= width:
                chosen = more
        return self._of(chosen, unicode)

    def html(self) -> str:
        """The table for Jupyter."""
        return table(self.columns, self.rows, left=self.left, styles=[KINDS[kind][1] for kind in self.kinds])

    def _of(self, chosen: Sequence[str], unicode: bool) -> Screen:
        """Some of the columns, for a terminal."""
        made = new_screen(unicode)
        for column in chosen:
            justify, folds = "left" if column in self.left else "right", column in self.folds
            made.add_column(column, justify=justify, overflow="fold", no_wrap=not folds)  # type: ignore[arg-type]
        for cells, kind in zip(self.rows, self.kinds, strict=True):
            named = dict(zip(self.columns, cells, strict=True))
            made.add_row(*(escape(named[column]) for column in chosen), style=KINDS[kind][0])
        return made


def new_screen(unicode: bool) -> Screen:
    """An empty table; plain columns where no terminal shows it, so that other programs can read them."""
    return Screen(box=box.SIMPLE_HEAD if unicode else None, header_style="bold", pad_edge=False)


def _width(table: Screen) -> int:
    """Characters that a table takes where there are enough."""
    return Console(width=10**4).measure(table).maximum


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
