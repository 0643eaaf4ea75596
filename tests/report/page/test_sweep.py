"""The page of a sweep: the groups in the words of the text, every case, and no tag of what a target says."""

from pathlib import Path

from workbench import Case
from workbench.explore.sweep.plan import Plan
from workbench.explore.sweep.row import Row
from workbench.explore.sweep.sweep import Sweep
from workbench.report.page.page import rendered
from workbench.report.page.sweep import page
from workbench.report.sweep import lines

CASES = [Case(seqlen=n, causal=causal) for n in (32, 63, 64, 65, 100, 128) for causal in (False, True)]
HOSTILE = "<script>alert(1)</script>"


def of(rows: list[Row]) -> Sweep:
    return Sweep(Path("sweep.sqlite"), Plan("flash", tuple(CASES)), tuple(rows))


def judged(case: Case) -> Row:
    if case.seqlen_k % 64:
        return Row(case, "bug", origins=("lse",), causes={"lse": None}, stages={"lse": ("bug", 9.0)}, seconds=0.125)
    return Row(case, "rounding", stages={"lse": ("rounding", 0.5)})


def test_groups_rules_and_cases_are_on_the_page():
    found = of([judged(case) for case in CASES])
    made, shown = page(found), rendered(page(found))
    assert (made.verdict, made.kind, made.lines[0]) == ("fails", "origin", "8 of 12 cases fail, in 1 group")
    group, cases = made.parts
    # in the words of the text, but for the command, which is there to copy
    told = [group.title, *group.lines, f"  repeat: {group.command}"]
    assert told == lines(found)[2:-2] and any("seqlen % 64 != 0" in line for line in group.lines)
    (fields,) = group.parts
    assert fields.table is not None and ["seqlen", "63", "2", "2"] in [[*row] for row in fields.table.rows]
    assert cases.table is not None and len(cases.table.rows) == 12
    assert [kind for kind in cases.table.kinds] == ["origin"] * 8 + ["clean"] * 4
    for line in (made.title, "--seqlen 63 --causal", "All cases, those that fail first", "0.12"):
        assert line in shown


def test_a_sweep_without_failures():
    made = page(of([Row(case, "rounding", stages={"out": ("rounding", 0.5)}) for case in CASES]))
    assert (made.verdict, made.kind, made.lines) == ("clean", "clean", ["0 of 12 cases fail"])


def test_what_a_target_says_is_text(tmp_path):
    found = of([Row(CASES[0], "raised", reason=f"ValueError: {HOSTILE}")])
    found.save_html(tmp_path / "page.html")
    for text in ((tmp_path / "page.html").read_text(), found._repr_html_()):
        assert HOSTILE not in text and "alert(1)" in text


def test_a_cell_has_the_whole_page():
    """There is no graph that would stand for it."""
    cell = of([judged(case) for case in CASES])._repr_html_()
    assert cell.startswith("<iframe sandbox='allow-scripts'") and "8 of 12 cases fail, in 1 group" in cell
    assert len(cell) < 200 * 2**10
