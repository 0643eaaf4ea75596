"""The page of runs that a plain reference judged."""

from typing import Any

import numpy as np

from workbench import diff
from workbench.judge.reference.diff import ReferenceDiff
from workbench.report.page.page import rendered
from workbench.report.page.reference import SHOWN, flow, of_several, page


def naive(x: Any, y: Any) -> Any:
    scores = x @ y
    weights = np.exp(scores)
    loss = weights.sum()
    return loss


def loop(x: Any) -> Any:
    state = x[0] * 0.0
    for t in range(len(x)):
        state = state + x[t]
    return state


def judged(off: float = 0.0, dtype: str = "float32") -> ReferenceDiff:
    def kernel(x: Any, y: Any) -> Any:
        weights = np.exp(x @ y)
        return {"weights": weights + np.float32(off), "loss": (weights + np.float32(off)).sum()}

    random = np.random.default_rng(0)
    inputs = {name: random.standard_normal((4, 4)).astype(dtype) for name in ("x", "y")}
    return diff(kernel, reference=naive, inputs=inputs)


def test_a_page_has_a_graph_of_stages_with_what_each_reads() -> None:
    found = judged(1.0)
    assert flow(found) == {"scores": ("x", "y"), "weights": ("scores",), "loss": ("weights",)}
    made = page(found)
    assert made.flow is not None and made.flow.chosen == "weights" and made.kind == "origin"
    panels = {one.name: one for one in made.flow.panels}
    assert [one.kind for one in made.flow.panels] == ["not given", "origin", "victim"]
    assert panels["loss"].map is None and panels["weights"].map is not None  # a number has no map
    assert panels["weights"].map.caption.startswith("axis 0 down, axis 1 across")
    assert len(panels["weights"].pictures) == len(panels["loss"].pictures) == 2
    text = rendered(made)
    assert "weights = np.exp(scores)" in text and "from the function&#39;s inputs" in text and "<canvas" not in text


def test_a_loop_is_one_stage_and_many_names_are_left_out() -> None:
    x = np.ones((SHOWN + 3, 2), np.float32)
    found = diff(lambda x: x.sum(0), reference=loop, inputs={"x": x})
    assert flow(found) == {"state": ("x",)}


def test_several_runs_are_rows_and_the_worst_is_the_heading() -> None:
    made = of_several([judged(), judged(1.0)])
    assert made.lines == ["1 of 2 runs fail"] and made.verdict == "bug" and len(made.parts) == 3


def test_a_notebook_shows_the_table_and_the_graph(tmp_path: Any) -> None:
    found = judged()
    shown = found._repr_html_()
    assert "<table" in shown and "<iframe sandbox" in shown and "verdict: rounding" in shown
    found.save_html(tmp_path / "one.html")
    assert (tmp_path / "one.html").read_text().startswith("<!doctype html>")
