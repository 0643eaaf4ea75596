"""Elements as HTML, for Jupyter; tables, matrices and JSON are tested by `test_cli_show`."""

import numpy as np

from workbench import Case, diff, run
from workbench.truth import truth

CASE = Case(seqlen=20, head_dim=8, block_q=16, block_k=16)


def test_html() -> None:
    judged = diff(run("flash", CASE, faults=["flash-scale-twice"], backend="emulator"))
    page = judged["scores"][0, 0, 3, 0:2]._repr_html_()
    columns = ("b", "h", "q", "k", "actual", "expected", "error", "budget", "x of budget", "verdict")
    assert page.startswith("<div>scores</div><table><tr>" + "".join(f"<th>{name}</th>" for name in columns))
    assert page.count("<tr>") == 3 and page.count("<td>bug</td>") == 2
    value = judged["scores"].judged.actual[0, 0, 3, 1]
    assert f"<td>{np.float64(value):.9g}</td>" in page
    everything = judged["scores"][...]._repr_html_()
    assert everything.endswith("</table><div>400 elements; at most 256 are shown</div>")
    alone = truth(judged.trace, "scores", {"q": 3, "k": 0})._repr_html_()
    assert "<th>expected</th></tr>" in alone and "actual" not in alone and alone.count("<tr>") == 2
