"""The page of two runs: where they part comes first, the graph is coloured by it, each run's own judgement is below."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.report.page.judged import right, wrong
from tests.report.page.test_page import text_of
from workbench.expectation.observed import Observed
from workbench.judge.against.pair import Against, against
from workbench.report import against as words
from workbench.report.numbers import number, value
from workbench.report.page.against import page, summary
from workbench.report.page.page import rendered


@pytest.fixture(scope="module")
def pair() -> Against:
    return against(wrong(), right())


def test_where_they_part_comes_first(pair: Against) -> None:
    made = page(pair)
    assert made.lines[0].startswith("first divergence at merge_weight = ") and made.verdict == "diverges"
    assert sorted(made.lines) == sorted(words.findings(pair)) and made.kind == "origin"
    said = text_of(rendered(made))
    for line in words.findings(pair)[:2] + words.headlines(pair):
        assert " ".join(line.split()) in said


def test_the_graph_is_coloured_by_where_they_part(pair: Against) -> None:
    flow = page(pair).flow
    assert flow is not None and flow.chosen == "merge_weight"
    kinds = {panel.name: panel.kind for panel in flow.panels}
    assert kinds["merge_weight"] == "origin" and kinds["out"] == "victim" and kinds["qk"] == "clean"
    (panel,) = [one for one in flow.panels if one.name == "merge_weight"]
    worst = pair["merge_weight"].worst
    assert worst is not None and panel.facts is not None
    facts = dict(panel.facts.rows)
    assert facts["value in A"] == value(worst.a) and facts["value in B"] == value(worst.b)
    assert facts["expected in A"] == value(worst.expected_a)
    assert facts["budget of the difference"] == number(worst.budget)
    assert "diverges" in text_of(rendered(page(pair)))


def test_a_gate_of_either_run_stands_above(pair: Against) -> None:
    trace = replace(pair.b.trace, gates=("the extension is stale",))
    assert page(replace(pair, b=replace(pair.b, run=Observed(trace)))).gates == ["gate failed: the extension is stale"]


def test_several_pairs_are_a_row_each(pair: Against) -> None:
    made = summary([pair, against(right(), right())])
    assert made.lines == ["2 pairs: 1 diverge by more than both budgets"] and made.kind == "origin"
    assert [part.title for part in made.parts][0] == "All pairs" and len(made.parts) == 3


def test_it_is_saved_and_shown_in_a_cell(pair: Against, tmp_path: Path) -> None:
    pair.save_html(tmp_path / "pair.html")
    assert (tmp_path / "pair.html").read_text() == rendered(page(pair))
    shown = pair._repr_html_()
    assert "<table" in shown.split("<iframe", 1)[0] and len(shown.encode()) < 200 * 1024
