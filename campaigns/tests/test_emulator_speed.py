import json

import pytest

from campaigns.emulator_speed import measure

#: its fixture compiles in fresh processes what others have compiled, for 36 s
pytestmark = pytest.mark.campaign

TINY = {"head_dim": 8, "block_q": 16, "block_k": 16}


@pytest.fixture(scope="module")
def results():
    """One measurement of two ragged tiles in each direction; only the second length goes to the simulator."""
    return measure(kernels=("flash",), seqlens=(8, 24), simulated={"flash": (24,)}, **TINY)


def test_the_document_is_plain_json_with_schema_versions_and_machine(results):
    assert json.loads(json.dumps(results)) == results
    assert list(results) == ["schema", "versions", "machine", "case", "runs", "starts"]
    assert results["schema"] == "workbench.bench-emulator/1"
    assert {"python", "numpy", "numba", "numba-cuda"} <= set(results["versions"])
    assert results["machine"]["cores"] >= 1
    assert results["case"] == {"dtype": "float32", "causal": True, "batch": 1, "heads": 1, "head_dim": 8}


def test_each_length_has_a_row_and_all_rows_have_the_same_columns(results):
    assert [(row["kernel"], row["seqlen"]) for row in results["runs"]] == [("flash", 8), ("flash", 24)]
    assert len({tuple(row) for row in results["runs"]}) == 1, "a table takes its columns from the first row"
    assert all((row["tiles"], row["threads"], row["repeats"]) == ("16x16", 64, 9) for row in results["runs"])
    assert all(row[field] > 0 for row in results["runs"] for field in ("plain_s", "probed_s", "watched_s"))
    assert all(row["watched_ratio"] == round(row["watched_s"] / row["plain_s"], 1) for row in results["runs"])


def test_lengths_that_the_simulator_does_not_get_say_so(results):
    fields = ("edited_s", "simulator_s", "simulator_repeats", "ratio", "max_abs_difference", "edited_equals_plain")
    assert [results["runs"][0][field] for field in fields] == [None] * 6


def test_emulator_and_simulator_ran_the_same_work(results):
    row = results["runs"][1]
    # The simulator's exp and log are float64 and rounded after: a few units in the last place of values around 1.
    assert row["max_abs_difference"] <= 8 * 2**-23  # false for NaN too, which every output holds before the runs
    assert row["edited_equals_plain"]
    assert row["simulator_repeats"] >= 1
    assert row["ratio"] == round(row["simulator_s"] / row["edited_s"], 1)


def test_the_first_run_of_a_fresh_process_is_measured_cold_and_cached(results):
    assert [(start["kernel"], start["watched"]) for start in results["starts"]] == [("flash", False), ("flash", True)]
    for start in results["starts"]:
        for cache in ("cold", "cached"):
            assert 0 < start[f"{cache}_run_s"] < start[f"{cache}_process_s"]
