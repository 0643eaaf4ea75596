"""The cost of a verdict: a small case, and how two verdicts on one trace are compared."""

import json

import pytest
from click.testing import CliRunner

from campaigns import verdict_cost
from campaigns.cli import commands
from campaigns.verdict_cost import PEERS, agreement, measure, tables
from workbench import Case, diff, run

SMALL = Case(seqlen=48, head_dim=8, block_q=16, block_k=16)


def of_costs(row: dict) -> None:
    """What holds of every row."""
    assert row["verdict"] == "rounding" and Case(**row["case"]).block_k == 16
    assert all(row[name] > 0 for name in ("first_s", "median_s", "cpu_s", "expectation_s", "assert_allclose_s"))
    assert 0 < row["trace_bytes"] < row["peak_bytes"]
    assert row["assert_allclose_ratio"] == round(row["median_s"] / row["assert_allclose_s"], 2)


@pytest.fixture(scope="module")
def results() -> dict:
    two = SMALL.but(heads=2, kv_heads=2)
    result = Case(seqlen=48, heads=2, head_dim=8, dtype="bfloat16", causal=True)
    return measure(head=SMALL, heads=two, both=SMALL.but(causal=True), result=result)


@pytest.mark.campaign
def test_the_document_is_json_with_a_row_for_the_cpu(results) -> None:
    assert json.loads(json.dumps(results)) == results
    assert list(results) == ["schema", "versions", "machine", "costs", "results", "agreement"]
    assert results["schema"] == "workbench.bench-diff/1"
    row = results["costs"][0]
    of_costs(row)
    assert (row["device"], row["device_peak_bytes"], row["repeats"], row["peer_repeats"]) == ("cpu", None, 5, 5)
    # the trace that is judged, and not the one that the parent ran: q, k, v, out 48 x 8, lse 48, three states 48 x 3,
    # acc 48 x 3 x 8, and qk, scores, probs, probs_cast 48 x 48
    assert row["trace_bytes"] == 4 * (4 * 48 * 8 + 48 + 3 * 48 * 3 + 48 * 3 * 8 + 4 * 48 * 48)


@pytest.mark.campaign
def test_a_result_alone_is_judged_once_where_torch_is(results) -> None:
    rows = results["results"]
    assert [row["device"] for row in rows][:1] == (["cpu"] if "torch" in results["versions"] else [])
    for row in rows:
        assert (row["verdict"], row["repeats"], row["case"]["dtype"]) == ("rounding", 1, "bfloat16")
        # q, k, v and out
        assert row["trace_bytes"] == 2 * 4 * 2 * 48 * 8 < row["peak_bytes"]
        assert row["first_s"] == row["median_s"] > 0 and "assert_close_s" not in row


@pytest.mark.campaign
def test_assert_close_is_measured_where_torch_is(results) -> None:
    row = results["costs"][0]
    if "torch" in results["versions"]:
        assert row["assert_close_ratio"] == round(row["median_s"] / row["assert_close_s"], 2)
    else:
        assert row["assert_close_s"] is row["assert_close_ratio"] is None


@pytest.mark.campaign
def test_tables_have_equal_columns(results) -> None:
    for rows in tables(results):
        assert len({tuple(row) for row in rows}) == 1
    row = tables(results)[0][0]
    assert (row["tiles"], row["device_peak GB"]) == ("16x16", None) and row["peak GB"] > 0.02
    assert all(row[f"{peer} ratio"] == results["costs"][0][f"{peer}_ratio"] for peer in PEERS)


@pytest.mark.campaign
def test_the_command_prints_one_table_or_the_document(results, monkeypatch) -> None:
    monkeypatch.setattr(verdict_cost, "measure", lambda: results)
    assert json.loads(CliRunner().invoke(commands, ["diff", "--json"]).stdout) == results
    shown = CliRunner().invoke(commands, ["diff"]).stdout.splitlines()
    assert shown[0].startswith("heads  seqlen k  head dim  tiles  device  first s  median s")
    others = sum(1 + len(results[name]) for name in ("results", "agreement") if results[name])
    assert len([line for line in shown if line]) == 1 + len(results["costs"]) + others


def test_verdicts_of_one_trace_agree_and_of_another_do_not() -> None:
    one, again = (diff(run("flash", SMALL, backend="emulator")) for _ in range(2))
    same = agreement(one, again)
    assert (same["verdict"], same["verdicts_differ"], same["moved"]) == ("rounding", [], 0)
    # out and lse have one comparison, or two: the same for both
    assert same["stages"] == 10 and same["elements"] > 4 * 48 * 48
    wrong = diff(run("flash", SMALL, faults=["flash-no-correction"], backend="emulator"))
    other = agreement(wrong, one)
    assert other["verdict"] == "bug" and other["origins"] == ["acc"]
    assert other["verdicts_differ"] == ["acc", "out"]
    assert other["moved"] >= wrong["acc"].decisive.summary.outside > 0


@pytest.mark.gpu
def test_on_a_gpu_the_verdicts_are_the_same(results) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    assert [row["device"] for row in results["costs"]] == ["cpu", "cuda", "cuda"]
    for row in results["costs"]:
        of_costs(row)
        assert (row["device_peak_bytes"] is None) == (row["device"] == "cpu")
    assert [(row["fault"], row["verdict"]) for row in results["agreement"]] == [
        ("", "rounding"),
        ("flash-no-correction", "bug"),
    ]
    for row in results["agreement"]:
        assert row["verdicts_differ"] == [] and row["moved"] <= 1e-3 * row["elements"]
    assert len(tables(results)) == 3
