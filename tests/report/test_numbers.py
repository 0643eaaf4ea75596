"""What text, JSON and pictures say of one run are the same numbers."""

import json

import pytest

from tests.stored import stored
from workbench import Case, diff
from workbench.report import text
from workbench.report.document import diff_document
from workbench.report.numbers import number, ratio, value
from workbench.report.pictures.overview import errors, heatmap, histogram, overview
from workbench.trace.headline import headline

CASE = Case(seqlen=20, heads=3, head_dim=8, block_q=16, block_k=16, dtype="float16", causal=True)


@pytest.fixture(scope="module")
def judged():
    return diff(stored("split_k", CASE, faults=["reduce-double-counts-sum"]))


def texts(figure):
    return [one.get_text() for holder in (figure, *figure.axes) for one in holder.texts]


def test_every_row_of_the_table_is_what_json_says_of_what_is_shown(judged):
    document = json.loads(json.dumps(diff_document(judged)))
    assert len(document["stages"]) == len(judged.stages) > 10
    for stage, said in zip(judged, document["stages"], strict=True):
        row = text.cells(stage)
        shown = said["propagated" if stage.role == "victim" else "isolated"] or said["propagated"]
        assert (said["name"], said["role"]) == (row["stage"], stage.role)
        assert row["error / budget"] == ratio(shown["over_budget"])
        assert row["over budget"] == f"{shown['outside']}/{shown['size']}"
        assert row["max abs error"] == number(shown["max_abs"]) and row["max ulp"] == number(shown["max_ulp"])
        assert row["mean error"] == number(shown["mean_signed"])
        if row["worst at"]:
            assert row["worst at"] == " ".join(f"{axis}={i}" for axis, i in shown["worst"].items())
            assert (row["actual"], row["expected"]) == (value(shown["actual"]), value(shown["expected"]))


@pytest.mark.campaign
def test_every_picture_shows_the_numbers_of_the_table(judged):
    for stage in judged:
        row = text.cells(stage)
        outside, size = (int(part) for part in row["over budget"].split("/"))
        worst = f"error {row['error / budget']}x its budget"
        for figure in (histogram(stage), errors(stage), heatmap(stage, case=judged.trace.case)):
            said = [line for one in texts(figure) for line in one.split("\n")]
            if row["worst at"]:
                values = f"actual {row['actual']}, expected {row['expected']}"
                assert f"worst at {row['worst at']}: {values}, {worst}" in said
            assert any(line == headline(judged.trace) for line in (one.replace("\n", " ") for one in texts(figure)))
        drawn = texts(histogram(stage))
        assert {f"worst {row['error / budget']}", f"{outside:,} over budget"} <= {*drawn}
        assert any(one.startswith(f"{size:,} elements, ") for one in drawn)


def test_the_overview_shows_them_too(judged):
    said = texts(overview(judged.stages, headline(judged.trace)))
    for stage in judged:
        for comparison in (stage.isolated, stage.propagated):
            assert ratio(comparison.summary.worst.over_budget) in said
        assert text.cells(stage)["over budget"].replace("/", " / ") in [one.replace(",", "") for one in said]


def test_words_say_the_same_numbers(judged):
    row, lines = text.cells(judged["merge_weight"]), "\n".join(text.sentences(judged, full=True))
    outside, size = row["over budget"].split("/")
    assert f"over budget: {outside} of {size} (" in lines
    assert (
        f"actual {row['actual']}, expected {row['expected']}, " in lines
        and f"error {row['error / budget']}x its budget" in lines
    )
    out = text.cells(judged["out"])
    assert f"effect on out: {out['over budget'].replace('/', ' of ')} elements over budget" in lines
    assert f"largest error {out['max abs error']}\n" in lines
    exact = judged["out"].propagated.summary
    assert f"correctly rounded: out {exact.states[0] / exact.size:.1%}" in lines
