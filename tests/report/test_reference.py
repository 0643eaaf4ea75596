"""Reports of a judgement by a reference: short, in full, as HTML and as a document."""

import json
from functools import partial

import numpy as np

from tests.plain_kernels import attention, bfloat16, inputs, naive
from workbench.operations.reference.call import diff_reference
from workbench.report.reference import document, html, report
from workbench.report.text import plain


def many(x):
    a = x + 1.0
    b = a * 2.0
    c = b - x
    d = c * c
    e = d + b
    f = e * 0.5
    out = f + 1.0
    return out


def kernel(x, wrong=False):
    a = x + np.float32(1)
    b = a * np.float32(2)
    c = b - x
    d = c * c * np.float32(1.001 if wrong else 1)
    e = d + b
    f = e * np.float32(0.5)
    return {"a": a, "b": b, "c": c, "d": d, "e": e, "f": f, "out": f + np.float32(1)}


GIVEN = {"x": np.linspace(-1, 1, 8, dtype=np.float32)}


def full(diff) -> str:
    return plain(report(diff, unicode=False, width=200, full=True))


def test_a_short_report_folds_what_is_right_and_names_what_is_wrong() -> None:
    diff = diff_reference(partial(kernel, wrong=True), many, GIVEN)
    lines = str(diff).splitlines()
    assert len(lines) <= 12
    assert any(line.startswith("d ") and "bug <- origin" in line for line in lines)
    assert any(line.startswith("out ") and "victim" in line for line in lines)
    assert any("more stages  right" in line for line in lines)
    assert any(
        line.startswith("verdict: bug; first wrong stage: d, should be c * c (tests/report/test_reference.py:")
        for line in lines
    )
    assert len(full(diff).splitlines()) > len(lines) and all(f"\n{name} " in full(diff) for name in "abcdef")


def test_a_right_one_folds_all_but_its_results() -> None:
    lines = str(diff_reference(kernel, many, GIVEN)).splitlines()
    assert [line.split()[0] for line in lines[2:4]] == ["out", "6"] and "verdict: " in lines[4]
    assert "every judged element" in lines[4]


def test_only_results_given_asks_for_stages() -> None:
    wrong = diff_reference(partial(attention, keys=47), naive, inputs)
    assert "only out was given: return stages by name" in str(wrong)
    right = diff_reference(partial(attention, operand=bfloat16), naive, inputs, dtype="bfloat16")
    assert "contract: operands=bfloat16 (default); strict float32 does not explain" in str(right)
    declared = diff_reference(attention, naive, inputs, contract="operands=tf32")
    assert "contract: operands=tf32 (declared)" in str(declared)


def test_a_document_holds_plain_values_and_a_page_the_same_words() -> None:
    def broken(x):
        return {**kernel(x), "out": np.where(x > 0.5, np.float32(np.nan), kernel(x)["out"])}

    diff = diff_reference(broken, many, GIVEN)
    made = json.loads(json.dumps(document(diff)))
    (stage,) = (one for one in made["stages"] if one["stage"] == "out")
    assert stage["worst"]["actual"] == "nan" and stage["worst"]["over_budget"] == "inf" and made["fails"]
    assert made["origin"] == "out" and "non-finite mismatches" in str(diff)
    assert "first wrong stage: out" in html(diff) and "<table" in html(diff) and repr(diff).startswith("<ReferenceDiff")
