"""A small form of the campaign: faults are where the catalogue says, and an entry that is wrong is told."""

import json
from dataclasses import replace

from campaigns import bits
from campaigns.bits import fault_row, measure, roots, tables, wrong
from workbench import Case, run
from workbench.cuda.faults.benign import BENIGN
from workbench.cuda.faults.catalogue import CATALOGUE

CASE = Case(seqlen=96, head_dim=32, block_q=32, block_k=32)


def test_the_document_is_json_and_its_tables_have_equal_columns(monkeypatch):
    monkeypatch.setattr(bits, "FAULTS", ("flash-no-correction", "flash-mask-finite"))
    monkeypatch.setattr(bits, "BENIGN", {"tiles-descending": BENIGN["tiles-descending"]})
    results = measure(per_fault=2)
    assert json.loads(json.dumps(results)) == results and not wrong(results)
    assert [(row["fault"], row["shown"], row["roots"]) for row in results["faults"]] == [
        ("flash-no-correction", 2, {"acc": 2}),
        ("flash-mask-finite", 2, {"scores": 2}),
    ]
    (row,) = results["benign"]
    assert row["changed"] == 2 and "row_max" in row["roots"]
    for rows in tables(results):
        assert len({tuple(row) for row in rows}) == 1
    assert wrong({"faults": [], "benign": [row | {"wrong": ["bug at acc"]}]})


def test_a_benign_change_that_is_none_is_told(monkeypatch):
    """The same change, without what the contract promises in its place."""
    monkeypatch.setitem(BENIGN, "broken", replace(BENIGN["tiles-descending"], id="broken", promises=lambda case: {}))
    (said,) = bits.benign_row("broken", runs=1, seed=0)["wrong"]
    assert said.startswith("bug at ")


def test_a_wrong_entry_is_told(monkeypatch):
    """Of its stage, of the cases that show it, and of there being a difference at all."""
    known = CATALOGUE["flash-no-correction"]
    monkeypatch.setitem(CATALOGUE, known.id, replace(known, stages=("row_sum",), shows=lambda case: case.causal))
    stage, condition = fault_row(known.id, runs=1, seed=1)["wrong"]
    assert stage.startswith("acc on Case(") and condition.startswith("shows at acc on Case(")
    monkeypatch.setitem(CATALOGUE, known.id, replace(known, after="acc[i] = correction * acc[i]"))
    assert fault_row(known.id, runs=1, seed=0)["wrong"] == ["never shows"]


def test_roots_are_the_first_that_differ_on_every_way():
    clean = run("flash", CASE, backend="emulator")

    def moved(*names):
        return roots(replace(clean, stages={n: x + 1 if n in names else x for n, x in clean.stages.items()}), clean)

    assert moved() == [] and moved("lse", "out") == ["out", "lse"]
    assert moved("scores", "out", "acc") == ["scores"] and moved("correction", "probs", "acc") == [
        "correction",
        "probs",
    ]
