"""Elements, stages and profiles as HTML, for Jupyter; tables, matrices and JSON are tested by `test_cli_show`."""

import re
from typing import Any

import numpy as np

from tests.stored import stored
from workbench import Case, diff, run

CASE = Case(seqlen=20, head_dim=8, block_q=16, block_k=16)


def html(shown: Any) -> str:
    """What Jupyter shows, without styles."""
    return re.sub(r" style='[^']*'", "", shown._repr_html_())


def test_html() -> None:
    judged = diff(stored("flash", CASE, faults=["flash-scale-twice"]))
    page = html(judged["scores"][0, 0, 3, 0:2])
    columns = ("b", "h", "q", "k", "actual", "expected", "error", "budget", "error / budget", "verdict")
    assert page.startswith("<div>scores</div><table><tr>" + "".join(f"<th>{name}</th>" for name in columns))
    assert page.count("<tr>") == 3 and page.count("<td>bug</td>") == 2
    value = judged["scores"].judged.actual[0, 0, 3, 1]
    assert f"<td>{np.float64(value):.9g}</td>" in page
    everything = html(judged["scores"][...])
    assert everything == "<div>scores</div><div>400 elements; at most 256 are shown</div>"
    alone = html(judged.truth("scores", q=3, k=0))
    assert "<th>expected</th></tr>" in alone and "actual" not in alone and alone.count("<tr>") == 2


def test_html_of_many_elements_along_two_axes_is_a_matrix_of_each_quantity() -> None:
    judged = diff(stored("flash", CASE, faults=["flash-scale-twice"]))
    page = html(judged["scores"].select(q=slice(0, 5), k=slice(2, 9)))
    titles = ("actual (* over budget) at batch b=0, head h=0", "error / budget at batch b=0, head h=0")
    assert all(f"<div>{title}</div><table>" in page for title in titles)
    assert page.count("<tr><th>q \\ k</th><th>2</th>") == 2 and page.count("<tr>") == 2 * 6
    assert f"<td>4</td><td>{judged['scores'].judged.actual[0, 0, 4, 2]:.4g}*</td>" in page
    assert "<div>expected at" in html(judged.truth("scores", q=slice(0, 2), k=slice(0, 2)))


def test_html_of_a_stage_has_its_worst_elements() -> None:
    judged = diff(stored("flash", CASE, faults=["flash-scale-twice"]))
    page, worst = html(judged["scores"]), judged["scores"].worst(5)
    assert page.startswith("<div>scores [b h q k]: bug &lt;- origin, 400 of 400 elements over budget; the worst:")
    assert page.count("<td>bug</td>") == 5 == len(worst)
    assert "".join(f"<td>{i}</td>" for i in worst[0].index.values()) + f"<td>{worst[0].actual:.9g}</td>" in page
    outside = judged["lse"].propagated.summary.outside
    assert html(judged["lse"]).startswith(
        f"<div>lse [b h q]: rounding (victim), {outside} of 20 elements over budget, from q, k and v; the worst:"
    )
    right = diff(stored("flash", CASE))
    assert html(right["row_max"]) == "<div>row_max [b h q t]: exact, 0 of 40 elements over budget</div>"
    lean = diff(stored("flash", CASE, probes="output"))
    assert html(lean["probs"]) == "<div>probs [b h q k]: not judged (not given)</div>"


def test_html_of_a_profile() -> None:
    judged = diff(stored("flash", CASE, faults=["flash-scale-twice"]))
    page = html(judged["scores"].profile("q"))
    columns = "over budget", "share over budget", "error / budget", "mean error", "mean abs", "sign disagreements"
    assert page.startswith("<table><tr><th>q</th>" + "".join(f"<th>{name}</th>" for name in columns))
    assert page.count("<tr>") == 1 + 20 and "<tr><td>19</td><td>20</td><td>1</td>" in page
    window = diff(stored("flash", CASE, where="q=8:10"))
    assert "<tr><td>8</td>" in html(window["scores"].profile("q")) and page.count("<tr><td>0</td>") == 1
    long = diff(run("flash", CASE.but(seqlen=257), backend="emulator"))
    assert html(long["scores"].profile("k")).endswith("</table><div>257 rows; 256 are shown</div>")


def test_texts_have_no_arrays() -> None:
    judged = diff(stored("flash", CASE, faults=["flash-scale-twice"]))
    stage = judged["scores"]
    assert repr(stage) == "<StageDiff of scores [b h q k]: bug, origin>"
    chosen = stage.select(q=5, k=slice(None, None, -7))
    assert repr(chosen) == "<Selection of scores[b=0, h=0, q=5, k=19::-7]>"
    assert repr(stage[..., 2:4]) == "<Selection of scores[b=0, h=0, q=0:20, k=2:4]>"
    worst = stage.worst(1)[0]
    place = " ".join(f"{axis}={i}" for axis, i in worst.index.items())
    assert repr(worst).startswith(f"<Element {place}: actual {worst.actual:.9g}, expected")
    assert repr(worst).endswith("x its budget, outside>")


def test_elements_in_print() -> None:
    judged = diff(stored("flash", CASE, faults=["flash-scale-twice"]))
    head, titles, *rows = str(judged["scores"].select(q=5, k=slice(0, 3))).splitlines()
    assert head == "scores" and titles.split()[:6] == ["b", "h", "q", "k", "actual", "expected"]
    assert [row.split()[:4] for row in rows] == [["0", "0", "5", str(k)] for k in range(3)]
    assert "actual (* over budget) at batch b=0, head h=0\n" in str(judged["scores"][0, 0, :6, :6])
    assert str(judged["scores"][...]) == "scores\n400 elements; at most 256 are shown"
