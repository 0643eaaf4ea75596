"""The campaign of backward passes from bug reports in small."""

from typing import Any

import numpy as np
import pytest

from campaigns.backward_reports import measure
from campaigns.backward_reports.every import BY_NAME
from campaigns.backward_reports.search import drawn, origin, search, shrunk
from workbench.refusal import Refusal

SHAPES = [name for name, one in BY_NAME.items() if not one.by_values]


@pytest.mark.parametrize("name", SHAPES)
def test_a_report_is_named_at_its_stage_and_its_right_twin_is_right(name: str) -> None:
    row = measure.row(name, seeds=1)
    assert row["runs"] == row["shown"] == row["at_stage"] == 6
    # of equal scores dQ is 0, in whatever row it is read from
    assert row["alone"] == (5 if name == "pitch-of-sums" else 6)
    assert row["twin"] == 0 and row["elsewhere"] == []


def test_what_shapes_do_not_show_is_found_and_shrunk() -> None:
    """A row whose lse is below -88.7 beside a half-empty tile, of scores that are not scaled, K with a mean."""
    report = BY_NAME["padded-half-tile"]
    found = search(report, 60)
    assert found.case is not None and found.normal > 0 and found.case["distribution"] != "normal"
    small = shrunk(report, found.case)
    axes = small["axes"]
    assert axes["keys"] % 128 == 64 and small["optional"] == ("mask",) and axes["heads"] * axes["dim_v"] == 1
    assert origin(report.kernel(), small) == report.stage
    assert origin(report.kernel(bug=False), small) is None


def test_a_search_of_a_right_twin_finds_nothing() -> None:
    report = BY_NAME["delta-in-16-bits"]
    cases = [drawn(report, np.random.default_rng([0, n])) for n in range(8)]
    assert [origin(report.kernel(bug=False, dumps=False), case) for case in cases] == [None] * 8


def test_in_small() -> None:
    results = measure.measure(seeds=1, names=["no-window"])
    assert not measure.wrong(results)
    [rows] = measure.tables(results)
    assert rows[-1]["report"] == "1 reports" and rows[-1]["runs"] == rows[-1]["at_stage"] == 6
    row = measure.search_row("delta-in-16-bits", cases=10)
    assert row["stage"] == "delta" and "dim=256" in row["small"] and 0 < row["tried"] <= 10


@pytest.mark.parametrize(
    "change",
    [{"shown": 0, "at_stage": 0}, {"at_stage": 1}, {"elsewhere": ["dv: ..."]}, {"twin": 1}, {"found": None}],
    ids=["never", "elsewhere", "named elsewhere", "twin", "not found"],
)
def test_what_is_wrong(change: dict[str, Any]) -> None:
    row = {"report": "one", "stage": "dq", "shown": 2, "at_stage": 2, "elsewhere": [], "twin": 0}
    searched = {"report": "one", "stage": "dq"}
    assert not measure.wrong({"reports": [row], "searches": [searched]})
    missed = searched | ({"stage": None} if "found" in change else {})
    assert measure.wrong({"reports": [row | change], "searches": [missed]})


def test_as_many_rows_as_heads_is_a_shape_error_elsewhere() -> None:
    kernel = BY_NAME["transposed-twice"].kernel()
    case = {"axes": {"heads": 4, "kv_heads": 4, "queries": 8, "keys": 8}}
    with pytest.raises(Refusal):
        measure.diff_operation(kernel, "attention_backward", **case)
