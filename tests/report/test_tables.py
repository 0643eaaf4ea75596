"""Cells and lines are escaped, words stand at the left and numbers at the right."""

import pytest

from workbench.report.tables import lines, table


def test_cells_are_escaped_and_aligned() -> None:
    page = table(["stage", "size"], [["a<b", "1"]], left=("stage",), styles=["color:red"])
    cell = "text-align:{};white-space:nowrap"
    assert page == (
        "<table style='margin-left:0'><tr style=''>"
        f"<th style='{cell.format('left')}'>stage</th><th style='{cell.format('right')}'>size</th></tr>"
        "<tr style='color:red'>"
        f"<td style='{cell.format('left')}'>a&lt;b</td><td style='{cell.format('right')}'>1</td></tr></table>"
    )


def test_a_row_has_a_cell_for_each_column() -> None:
    with pytest.raises(ValueError, match="shorter"):
        table(["stage", "size"], [["qk"]])


def test_lines_keep_their_leading_spaces() -> None:
    assert lines(["a", "  b & c"]) == "".join(
        f"<div style='white-space:pre-wrap'>{text}</div>" for text in ("a", "  b &amp; c")
    )
