"""Two runs held against each other in words: a table, sentences, a document, and the command that repeats them."""

import json
import re
from typing import Any

import pytest

from tests.stored import stored
from workbench import Case, Diff, diff, run
from workbench.judge.against.pair import Against, against
from workbench.report import text
from workbench.report.against import COLUMNS, document, documents, findings, report, summary

CASE = Case(seqlen=64, head_dim=8, causal=True, block_q=16, block_k=16)


def judged(kernel: str, case: Case = CASE, *faults: str) -> Diff:
    return diff(stored(kernel, case, faults=faults))


@pytest.fixture(scope="module")
def pairs() -> dict[str, Against]:
    broken, flash, split_k = judged("split_k", CASE, "reduce-double-counts-sum"), judged("flash"), judged("split_k")
    return {
        "diverges": against(broken, flash),
        "rounding": against(split_k, flash),
        "splits": against(split_k, judged("split_k", CASE.but(splits=4))),
        "identical": against(flash, flash),
        "codes": against(judged("fp8", CASE.but(head_dim=16)), judged("flash", CASE.but(head_dim=16))),
    }


def printed(what: Any) -> list[str]:
    screen = text.console()
    with screen.capture() as capture:
        screen.print(what)
    return [line.rstrip() for line in capture.get().splitlines()]


def test_where_they_part(pairs: dict[str, Against]) -> None:
    pair = pairs["diverges"]
    lines, out = findings(pair), pair["out"]
    assert out.worst is not None
    assert lines[:4] == [
        "A against float64: bug, first wrong stage merge_weight; victims out",
        "B against float64: rounding",
        "first divergence at out = sum_s merge_weight * partial_O / merge_sum, cast to the output dtype; 0 where merge_sum is 0",
        "  in B: acc / row_sum after the last tile, cast to the output dtype; 0 where row_sum is 0",
    ]
    place = f"batch 0, head 0, query {out.worst.index['q']}, dim {out.worst.index['d']}"
    assert lines[4].startswith(f"  worst at {place}: A {out.worst.a:.6g}, expected {out.worst.expected_a:.6g}; B ")
    assert lines[5] == (
        f"  over both budgets: {out.outside} of 512 ({out.outside / 512:.1%}); "
        f"A is wrong at {out.outside} of them, B at 0"
    )
    assert lines[6:] == [
        "  judged from scores, the nearest stages that both dumped",
        "  bit-identical before out: qk, scores, row_max, correction, probs, probs_cast, row_sum, acc",
        "  compared in part: row_max, correction, probs, probs_cast, row_sum, acc (tiles 0-1 only: in later tiles the running states cover different keys)",
        "  not comparable: partial_max, partial_sum, partial_O, merge_max, merge_weight, merge_sum (B has no such stage)",
    ]


def test_what_explains_that_they_do_not_part(pairs: dict[str, Against]) -> None:
    pair = pairs["splits"]
    first = pair[str(pair.differs_at)]
    lines = findings(pair)
    assert lines[2] == "no divergence: summation order explains every difference"
    assert lines[3] == (
        f"  first difference: {first.name}, {first.differing} of {first.size} elements, "
        f"max abs diff {first.max_abs:.3g}, max {first.max_ulp:.3g} ulp, difference / budgets {first.over_budgets:.3g}"
    )
    assert findings(pairs["identical"])[2:] == ["no divergence: every compared stage is bit-identical"]
    other_log = against(judged("flash"), diff(run(_foreign, CASE)))
    assert findings(other_log)[2] == "no divergence: rounding explains every difference"


def _foreign(q, k, v, *, scale, causal):
    return stored("flash", CASE, inputs=(q, k, v)).stages["out"] * (1 + 2.0**-22)


def test_a_loss_of_quantisation_is_said(pairs: dict[str, Against]) -> None:
    pair = pairs["codes"]
    by = ", ".join(f"{x} by at most {pair.moved[x]:.3g}" for x in "qkv")
    lines = findings(pair)
    assert lines[2:5] == [
        f"the inputs of A and B differ: {by}",
        "  each run is judged from its own inputs, so this difference counts against neither",
        "no divergence: their inputs and rounding explain every difference",
    ]
    assert f"{pair['qk'].max_own:.3g} of it from this stage" in lines[5]


def test_a_bug_within_both_budgets_is_not_called_rounding() -> None:
    pair = against(judged("split_k", CASE, "reduce-max-first-split"), judged("flash"))
    assert pair.parts_at is None
    assert findings(pair)[2] == "no divergence over both budgets, but wrong against float64: A at merge_max"


def test_the_table_has_a_row_for_every_stage(pairs: dict[str, Against]) -> None:
    lines = printed(report(pairs["diverges"], unicode=False, width=200))
    assert lines[0].startswith(
        "A: split_k with reduce-double-counts-sum on emulator: float32 b=1 h=1 q=64 k=64 d=8, causal"
    )
    assert lines[1].startswith("B: flash on emulator: float32 b=1 h=1 q=64 k=64 d=8, causal bottom-right, tiles 16x16,")
    assert lines[2].split("  ")[0] == "stage" and all(column in lines[2] for column in COLUMNS)
    rows = {line.split()[0]: line for line in lines[3:19]}
    assert "bug <- origin  -         not comparable" in rows["merge_weight"]
    assert "identical (tiles 0-1)" in rows["acc"] and "diverges" in rows["out"] and "victim" in rows["out"]
    narrow = printed(report(pairs["diverges"], unicode=False, width=100))[2]
    assert "A against B" in narrow and "own difference" not in narrow and "max ulp" not in narrow


def test_several_pairs_get_a_row_each(pairs: dict[str, Against]) -> None:
    lines = printed(summary([pairs["diverges"], pairs["rounding"]], unicode=False))
    assert lines[0].split() == "A B verdict of A verdict of B part at difference / budgets".split()
    assert lines[1].split()[:-2] == "split_k --seqlen 64 --head-dim 8 --causal flash bug rounding".split()
    assert lines[1].split()[-2] == "out" and lines[2].split()[-2] == "-"
    assert lines[3] == "2 pairs: 1 diverge by more than both budgets"


def test_the_document_is_json(pairs: dict[str, Against]) -> None:
    made = json.loads(json.dumps(document(pairs["diverges"]), allow_nan=False))
    assert made["schema"] == "workbench.against/1"
    assert (made["verdict"], made["parts_at"], made["differs_at"]) == ("diverges", "out", "out")
    assert made["a"]["schema"] == "workbench.diff/1" and made["a"]["origin"] == "merge_weight"
    assert made["b"]["target"] == "flash" and made["b"]["origin"] is None
    stages = {stage["name"]: stage for stage in made["stages"]}
    assert stages["out"]["verdict"] == "diverges" and stages["out"]["worst"]["index"].keys() == {"b", "h", "q", "d"}
    assert stages["acc"]["tiles"] == [0, 1] and stages["qk"]["tiles"] is None
    assert {"name": "merge_sum", "reason": "B has no such stage"} in made["not_comparable"]
    both = json.loads(json.dumps(documents([pairs["codes"]] * 2), allow_nan=False))
    assert both["schema"] == "workbench.againsts/1" and both["pairs"][0]["inputs_differ_by"].keys() == set("qkv")


def test_html(pairs: dict[str, Against]) -> None:
    page = pairs["diverges"]._repr_html_()
    assert page.count("<tr") == 1 + 16 and page.count("color:#b00020") == 1
    said = re.sub(r" style='[^']*'", "", page)
    assert "<div>first divergence at out = sum_s merge_weight" in said and "<td>bug &lt;- origin</td>" in said
    assert pairs["diverges"].as_dict() == document(pairs["diverges"])
