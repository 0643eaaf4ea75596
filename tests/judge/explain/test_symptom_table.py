"""Tables of largest errors are read with their digits, and refused in whole sentences."""

import json
import math

import pytest

from tests.refusals import refusal
from workbench.judge.explain.symptom_table import Entry, read

TABLE = {
    "schema": "workbench.symptoms/1",
    "kernel": "split_k",
    "dtype": "float16",
    "causal": True,
    "unknown": ["input_std"],
    "cases": [
        {"seqlen": 64, "head_dim": 32, "max_abs": 0.12, "rows": {"0": 0.0, "32": 1.5e-05}},
        {"seqlen_q": 3, "seqlen_k": 9, "rows": {"2": "nan"}},
    ],
}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "table.json"


def test_numbers_keep_their_digits(path):
    path.write_text(json.dumps(TABLE))
    found = read(path)
    assert found.entries[:3] == (
        Entry(0, None, 0.12, 0.005),
        Entry(0, 0, 0.0, 0.05),
        Entry(0, 32, 1.5e-5, pytest.approx(5e-7)),
    )
    assert (found.entries[3].case, found.entries[3].row, math.isnan(found.entries[3].value)) == (1, 2, True)
    assert found.finest == pytest.approx(5e-7)
    assert [(x.seqlen_q, x.seqlen_k, x.head_dim, x.dtype, x.causal) for x in found.cases] == [
        (64, 64, 32, "float16", True),
        (3, 9, 64, "float16", True),
    ]


def test_what_is_not_told_is_unknown(path):
    path.write_text(json.dumps(TABLE | {"block_k": 64}))
    assert [*read(path).unknown] == ["input_std", "splits"] and not read(path).seeded
    path.write_text(json.dumps(TABLE | {"unknown": [], "input_std": 0.5, "splits": 3, "block_k": 64, "seed": 1}))
    found = read(path)
    assert (found.unknown, found.seeded, found.stage) == ({}, True, "out")
    assert [(x.input_std, x.splits, x.block_k, x.seed) for x in found.cases] == [(0.5, 3, 64, 1)] * 2


def of(**fields):
    return TABLE | fields


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (of(schema="x"), ": schema must be one of workbench.symptoms/1; got 'x'"),
        (of(kernel="fp8"), ": kernel must be one of flash, split_k; got 'fp8'"),
        (of(stage="acc"), ": stage must be one of out, lse; got 'acc'"),
        (of(unknown=["scale"]), ": unknown may list input_std, splits, block_k; got ['scale']"),
        (of(input_std=2.0), ": input_std is listed as unknown but also given as 2.0; drop one"),
        (of(cases=[]), ": cases must be a list of at least one case; got []"),
        (of(kernel="flash", splits=2), ": only split_k takes splits; got splits=2 for kernel flash"),
        (of(distribution="given"), ": distribution given needs inputs, and a table has none"),
        (of(cases=[{"seqlen": 4}]), ": no case has max_abs or rows, so there is nothing to explain"),
        (of(cases=[{"seqlen": 0}]), ": cases[0]: seqlen must be a whole number of at least 1; got 0"),
        (of(cases=[7]), ": cases[0] must be an object of names and values; got 7"),
        (of(cases=[{"seqlen": 4, "rows": [1]}]), ': cases[0]: rows must be {"query": error}; got [1]'),
        (
            of(cases=[{"seqlen": 4, "rows": {"4": 0.1}}]),
            ": cases[0]: rows must be query indices, 0 to 3; got '4'",
        ),
        (
            of(cases=[{"seqlen": 4, "max_abs": -0.1}]),
            ': cases[0]: max_abs must be a number of at least 0, "nan" or "inf"; got -0.1',
        ),
        (
            of(cases=[{"seqlen": 4, "rows": {"1": "0.1"}}]),
            ": cases[0]: rows['1'] must be a number of at least 0, \"nan\" or \"inf\"; got '0.1'",
        ),
    ],
)
def test_what_breaks_a_rule_is_refused(path, document, message):
    path.write_text(json.dumps(document))
    assert refusal(read, path) == f"{path}{message}"


def test_unknown_fields_and_other_files_are_refused(path):
    path.write_text(json.dumps(of(max_error=1)))
    assert refusal(read, path).startswith(
        f"{path} may have only the fields schema, kernel, stage, unknown, cases, batch"
    )
    path.write_text(json.dumps(of(cases=[{"seqlen": 4, "input_std": 1.0}])))
    assert refusal(read, path) == (
        f"{path}: cases[0] may have only the fields max_abs, rows, batch, heads, kv_heads, seqlen, seqlen_q, "
        "seqlen_k, head_dim, causal, scale; got 'input_std'"
    )
    path.write_text("{")
    assert refusal(read, path).startswith(f"{path}: a table of symptoms must be a JSON document; Expecting")
    path.unlink()
    assert refusal(read, path) == f"{path} cannot be read: No such file or directory"
