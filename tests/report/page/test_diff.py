"""The page of a run says what the text and the JSON document say of it, in the same words and numbers."""

from dataclasses import replace

import numpy as np

from tests.report.page.judged import FAULT, right, wrong
from tests.report.page.test_page import text_of
from workbench import Case, diff, run
from workbench.expectation.observed import Observed
from workbench.judge.table import run_row
from workbench.report.command import diff_command, watch_command
from workbench.report.document import diff_document
from workbench.report.numbers import number, ratio, value
from workbench.report.origin import of_stage
from workbench.report.page import runs
from workbench.report.page.diff import page, short
from workbench.report.page.page import rendered
from workbench.report.text import sentences, stage_table
from workbench.report.words import findings
from workbench.trace.headline import headline


def attention(q, k, v, *, scale, causal):
    scores = q @ np.swapaxes(k, -1, -2) * np.float32(scale)
    row_max = scores.max(-1)
    probs = np.exp(scores - row_max[..., None])
    row_sum = probs.sum(-1)
    return {"scores": scores, "out": probs @ v / row_sum[..., None], "lse": row_max + np.log(row_sum)}


def test_the_sentence_comes_first_and_all_of_them_are_there() -> None:
    made = page(wrong())
    first, *others = findings(wrong(), details=False)
    assert [*made.lines] == [first.removeprefix("verdict: bug; "), *others]
    assert made.lines[0].startswith("first wrong stage: merge_weight, should be ")
    assert made.about == [headline(wrong().trace)] and made.verdict == "bug" and made.kind == "origin"
    assert [*made.commands] == [
        ("repeat", diff_command(wrong())),
        ("check for races and uninitialised reads", watch_command(wrong().trace)),
    ]
    said = text_of(rendered(made))
    for line in (
        *sentences(wrong(), full=True),
        *(line for stage in wrong().stages for line in of_stage(wrong(), stage.name)),
    ):
        head = line.strip().partition(" = ")[0]  # the heading has its definition in a line of its own
        assert " ".join(head.split()) in said, line


def test_but_for_a_cause_nothing_is_said_twice() -> None:
    made = page(wrong())
    assert made.flow is not None
    panels = {line.strip() for panel in made.flow.panels for line in panel.lines}
    parts = [line for part in made.parts for line in part.lines]
    assert {line.strip() for line in made.lines if line.strip() in panels} == {
        line.strip() for line in made.lines if line.startswith("  cause")
    }
    assert parts and not {*parts} & {*made.lines} and not {line.strip() for line in parts} & panels


def test_the_numbers_are_those_of_the_document() -> None:
    told = {stage["name"]: stage for stage in diff_document(wrong())["stages"]}
    flow = page(wrong()).flow
    assert flow is not None and {panel.name for panel in flow.panels} == {*told}
    for panel in flow.panels:
        document = told[panel.name]
        sides = [side for side in (document["isolated"], document["propagated"]) if side is not None]
        assert panel.facts is not None
        facts = {row[0]: row[1:] for row in panel.facts.rows}
        assert facts["error / budget"] == [ratio(side["over_budget"]) for side in sides]
        assert facts["actual"] == [value(float(side["actual"])) for side in sides]
        assert facts["budget"] == [number(side["budget"]) for side in sides]
        assert facts["over budget"] == [f"{side['outside']}/{side['size']}" for side in sides]
        assert {source: share for source, share, _ in panel.shares} == document["budget_terms"]
        shown = document["propagated" if panel.kind == "victim" else "isolated"]
        if panel.worst is not None:
            first = dict(zip(panel.worst.columns, panel.worst.rows[0], strict=True))
            assert first["worst at"] == " ".join(f"{axis}={i}" for axis, i in shown["worst"].items())
            assert first["actual"] == value(shown["actual"]) and first["error / budget"] == ratio(shown["over_budget"])
        else:
            assert shown["over_budget"] == 0, panel.name


def test_boxes_have_the_colours_of_their_roles_and_the_origin_is_open() -> None:
    flow = page(wrong()).flow
    assert flow is not None and flow.chosen == "merge_weight"
    kinds = {panel.name: panel.kind for panel in flow.panels}
    assert kinds["merge_weight"] == "origin" and kinds["out"] == "victim" and kinds["lse"] == "clean"
    assert flow.kinds == ["clean", "origin", "victim"]


def test_of_a_function_what_it_did_not_give_is_in_the_graph_too() -> None:
    judged = diff(run(attention, Case(seqlen=32, head_dim=8)))
    flow = page(judged).flow
    assert flow is not None and flow.chosen == "lse", "the last that was judged"
    kinds = {panel.name: panel.kind for panel in flow.panels}
    assert kinds["acc"] == "not given" and kinds["out"] == "clean" and kinds["scores"] == "clean"
    (acc,) = [panel for panel in flow.panels if panel.name == "acc"]
    assert acc.lines == ["not given"] and acc.facts is acc.worst is acc.map is None
    assert page(judged).commands == [], "no command repeats a callable"


def test_a_stage_that_proves_nothing_is_no_clean_one() -> None:
    judged = right()
    stages = tuple(
        replace(stage, verdict="untestable", reason="its budget allows anything") if stage.name == "lse" else stage
        for stage in judged.stages
    )
    made = page(replace(judged, stages=stages))
    assert made.flow is not None
    kinds = {panel.name: panel.kind for panel in made.flow.panels}
    assert kinds["lse"] == "untestable" and made.kind == "untestable" and made.verdict == "untestable"


def test_a_gate_that_failed_is_never_shown_as_fine() -> None:
    made = page(replace(right(), run=Observed(replace(right().trace, gates=("the extension is stale",)))))
    assert made.gates == ["gate failed: the extension is stale"] and made.kind == "origin"


def test_case_and_contract_are_those_of_the_document() -> None:
    told = diff_document(wrong())
    parts = {part.title: part for part in page(wrong()).parts}
    assert [*parts] == ["All stages", "What else was checked", "The case", "The contract"]
    case, contract = parts["The case"].table, parts["The contract"].table
    assert case is not None and contract is not None
    assert {row[0] for row in case.rows} == {name for name, x in told["case"].items() if x is not None}
    assert ["seqlen_q", "160"] in case.rows and ["causal", "True"] in case.rows
    assert {row[0] for row in contract.rows} == {name for name, x in told["contract"].items() if x is not None}
    assert parts["All stages"].table == stage_table(wrong(), full=True)


def test_several_runs_are_a_row_each_and_what_is_said_of_each() -> None:
    both = [right(), wrong()]
    made = runs.page([run_row(one) for one in both], [short(one) for one in both])
    assert made.lines == ["2 runs: 1 without a bug, 1 with one or untestable"]
    assert made.verdict == "bug" and made.kind == "origin"
    table = made.parts[0].table
    assert table is not None and [row[1] for row in table.rows] == ["rounding", "bug"]
    assert [part.title for part in made.parts[1:]] == [f"{one.verdict}: {headline(one.trace)}" for one in both]
    assert [*made.parts[2].lines] == sentences(wrong(), full=False) and f"--fault {FAULT}" in made.parts[2].command


def test_causes_stand_among_the_sentences() -> None:
    judged = diff(replace(wrong().trace, rerun=None))  # what another case comes to is not under test
    found = replace(judged.explain(0.2), alone=True)
    assert found.judged is judged
    lines = [*page(judged, found).lines]
    assert any(line.startswith("merge_weight: weights of partial_O are multiplied by partial_sum") for line in lines)
    assert any(line.strip().startswith("proof: reproduces") for line in lines)
    assert "proof: reproduces" in found._repr_html_().split("<iframe", 1)[0]
