"""A small form of the campaign: kernels in the styles of the wild are not called wrong, and their faults are not green."""

import json

import pytest

from campaigns.styles import measure as bench_styles
from campaigns.styles.measure import FAR, LEVELS, measure, tables

#: a style of each group, and faults that the weakest contract covers
STYLES = (
    "fa2_forward",
    "sums_cast_probs",
    "clamped_exp2",
    "added_1e9_splits",
    "ring_sigmoid",
    "tf32",
    "workspace_flash",
)
STYLES += ("skips_to_diagonal", "torch_eager")
FAULTS = ("drops_last_key", "scale_half_percent_off", "softcap_50", "sums_in_bfloat16", "undeclared_e4m3")


@pytest.fixture(scope="module")
def results():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench_styles, "CORRECT", [style for style in bench_styles.CORRECT if style.name in STYLES])
        patch.setattr(bench_styles, "FAULTY", [fault for fault in bench_styles.FAULTY if fault.name in FAULTS])
        return measure(per_style=2)


def test_correct_kernels_are_no_bug_whatever_they_tell(results):
    assert sorted(row["style"] for row in results["correct"]) == sorted(STYLES)
    for row in results["correct"]:
        assert set(row["verdicts"]) == set(LEVELS) and all(sum(x.values()) == 2 for x in row["verdicts"].values())
        wrong = [one for one in row["wrong"] if row["group"] != "arithmetic" or one["level"] == "full"]
        assert wrong == [] and all(one["named"] for one in row["wrong"]), row


def test_what_only_undeclared_choices_excuse_is_counted_and_fails_in_no_style_outside_arithmetic(results):
    by_style = {row["style"]: row for row in results["correct"]}
    assert max(by_style["sums_cast_probs"]["over_usual"]["units"]) > 100
    assert [one for row in results["correct"] for one in row["fails"] if row["group"] != "arithmetic"] == []
    assert by_style["tf32"]["fails"] != []
    *_, excused, _ = tables(results)
    assert [row["group"] for row in excused[-2:]] == ["all but arithmetic"] * 2
    assert all(row["runs"] == 2 * (len(STYLES) - 1) and row["fails"] == 0 for row in excused[-2:])


def test_faults_of_kernels_that_tell_nothing_are_not_plainly_green(results):
    assert sorted(row["fault"] for row in results["faulty"]) == sorted(FAULTS)
    for row in results["faulty"]:
        assert row["runs"] == 2 and all(max(one["out"], one["lse"]) < FAR for one in row["green"]), row


def test_the_document_is_json_and_its_tables_have_equal_columns(results):
    assert json.loads(json.dumps(results)) == results
    for rows in tables(results):
        assert rows and len({tuple(row) for row in rows}) == 1
