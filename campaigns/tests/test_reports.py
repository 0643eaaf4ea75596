"""The campaign of kernels from bug reports: one of them, and how its names are counted."""

import pytest

from campaigns.reports import measure
from campaigns.reports.names import READ
from campaigns.reports.records import CORRECT, REPORTS

NAME = "gqa_heads_modulo"


def test_what_was_read_is_of_kernels_that_are_there():
    wrong = {one.name for one in REPORTS}
    assert len(wrong) == 150 and sum(one.faults == 2 for one in REPORTS) == 20 and len(CORRECT) == 25
    assert READ.keys() <= wrong and all(texts for texts in READ.values())


def test_a_kernel_is_named_from_out_and_lse():
    found = measure.row((NAME, "out and lse"))
    assert (found["verdict"], found["said"], found["unexplained"]) == ("bug", "named", [])
    totals, *others = measure.tables({"kernels": [found]})
    assert others == [] and [one["named"] for one in totals] == [0, 1]


@pytest.mark.parametrize(
    ("causes", "faults", "said"),
    [
        ([], 1, "unknown"),
        ([("it is so", [])], 1, "named"),
        ([("it is so", [])], 2, "half"),
        ([("it is so", ["or so"])], 1, "several"),
        ([("it is so", []), ("it is not", [])], 2, "false"),
        ([("nobody read it", [])], 1, "unread"),
    ],
)
def test_names_are_counted_by_what_was_read(causes, faults, said, monkeypatch):
    monkeypatch.setattr(measure, "READ", {"mine": {"it is so": True, "it is not": False}})
    told = [{"id": "x", "text": text, "rivals": rivals} for text, rivals in causes]
    assert measure._said("mine", faults, told) == said


def test_what_was_measured_is_so_beside_what_was_read(monkeypatch):
    monkeypatch.setattr(measure, "READ", {"mine": {"it is so": True}})
    told = [{"id": "x", "text": "it is so", "rivals": []}, {"id": "measured.start", "text": "so", "rivals": []}]
    assert measure._said("mine", 2, told) == "named"
