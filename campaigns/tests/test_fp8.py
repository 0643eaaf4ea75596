"""The kernel on codes in a pairwise subset of its variants, and a small form of the measurement of all of them."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from campaigns import fp8 as bench_fp8
from campaigns.cli import commands
from campaigns.fp8 import SHAPES, VARIANTS, Called, measure, tables
from tests.cuda.test_fp8 import VARIANTS as COMPILED
from workbench import Case, Refusal, diff, run
from workbench.case.fields import QUANTISED
from workbench.case.stages import stages_of
from workbench.cuda.kernels import KERNELS
from workbench.cuda.plan import resolve
from workbench.judge.stage import RIGHT_VERDICTS

FACTORS = {
    **VARIANTS,
    "quantiser_scale": QUANTISED["quantiser_scale"],
    "causal": (False, True),
    "shape": (0, 1, 3),  # the longest takes 3 seconds a row, which `python -m campaigns fp8` takes
}


def chosen(row):
    """The case of a row, a value for each factor."""
    options = dict(zip(FACTORS, row, strict=True))
    return SHAPES[options.pop("shape")].but(**options)


def pairs(row):
    return set(itertools.combinations(enumerate(row), 2))


def build(row):
    """What is compiled on its own: each variant, for each padded head_dim."""
    return row[: len(VARIANTS)], SHAPES[row[-1]].head_dim


def covering():
    """Rows that hold every pair of values between them, the row with the most new pairs first, of the variants that
    other tests compile at head_dim 64; another head_dim costs 8 pairs.
    """
    rows, builds = [], set()
    resolved = [resolve(KERNELS["fp8"], Case(**options)) for options in COMPILED.values()]
    variants = [tuple(getattr(case, name) for name in VARIANTS) for case in resolved]
    others = itertools.product(*list(FACTORS.values())[len(VARIANTS) :])
    candidates = [(*variant, *other) for variant, other in itertools.product(variants, others)]
    left = set().union(*map(pairs, candidates))

    def gain(row):
        new, compiled = pairs(row) & left, build(row)
        return len(new) - 8 * (compiled[1] != 64 and compiled not in builds) if new else -np.inf

    while left:
        rows.append(max(candidates, key=gain))
        builds.add(build(rows[-1]))
        left -= pairs(rows[-1])
    return rows


ROWS = covering()


def test_the_rows_hold_every_pair_of_values():
    for (i, ones), (j, others) in itertools.combinations(enumerate(FACTORS.values()), 2):
        assert {(row[i], row[j]) for row in ROWS} == set(itertools.product(ones, others))
    assert len({build(row) for row in ROWS if build(row)[1] != 64}) <= 3, "each takes seconds to compile"


@pytest.mark.parametrize("backend", ["emulator", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(map(str, row)))
def test_a_correct_kernel_is_called_right(row, backend):
    case = chosen(row)
    found = Called.of(diff(run("fp8", case, backend=backend)))
    assert found.verdict in RIGHT_VERDICTS and found.not_right == ""
    tables_of_it = {"lut_k", "lut_v"} if case.decode == "table" else set()
    assert {name for name, _, _ in found.stages} == set(stages_of("fp8")) - {
        "lut_k",
        "lut_v",
    } | tables_of_it


def test_what_is_not_right_is_said():
    trace = run("fp8", Case(seqlen=32), backend="emulator")
    moved = {**trace.stages, "lse": trace.stages["lse"] + np.float32(1)}
    found = Called.of(diff(replace(trace, stages=moved)))
    again = "workbench diff fp8 --seqlen 32 --dtype probs=float16 --block-q 64 --block-k 32"
    assert (found.verdict, found.not_right) == ("bug", f"lse bug: {again}") and found.over_budget > 1e3
    assert replace(found, victims=("out",)).not_right == f"lse bug, out victim: {again}"


@pytest.fixture(scope="module")
def results():
    pytest.importorskip("torch", reason="PyTorch is not installed")
    return measure("emulator", variants={"codes": ("simulated",)}, shapes=[Case(seqlen=32)])


def test_the_document_counts_the_verdicts_of_a_variant(results):
    assert json.loads(json.dumps(results)) == results
    assert (results["schema"], results["backend"]) == ("workbench.bench-fp8/1", "emulator")
    assert {"numba", "torch"} <= results["versions"].keys()
    (row,) = results["variants"]
    assert row == {"codes": "simulated"} | results["all_variants"]
    # causal and full, dynamic and static
    assert row["runs"] == sum(row["verdicts"].values()) == 4 and set(row["verdicts"]) <= set(RIGHT_VERDICTS)
    assert 0.9 < row["over_budget"] <= 1 and row["not_right"] == []
    stages = {row["stage"]: row for row in results["stages"]}
    assert list(stages) == list(stages_of("fp8"))
    assert (
        row["over_budget"] == max(row["over_budget"] for row in stages.values()) == stages[row["stage"]]["over_budget"]
    )
    assert row["case"] == stages[row["stage"]]["case"]
    assert stages["qk"]["variant"] == "simulated mma table float16"
    assert all(row["runs"] == sum(row["verdicts"].values()) == 4 for row in stages.values())


def test_out_is_within_0_02_of_attention_on_what_was_quantised(results):
    full, causal, few = results["accuracy"]
    assert [row["mask"] for row in (full, causal, few)] == ["full", "causal", "causal"]
    assert (full["count"], causal["count"], few["count"]) == (512, 449, 63)
    for row in (full, causal):
        assert 0.001 < row["max_abs"] < row["limit"] == 0.02
    assert few["limit"] is None and few["max_abs"] > causal["max_abs"]
    for row in (full, causal, few):
        parts = row["of_quantisation"] + row["of_kernel"]
        assert 0 < row["of_kernel"] < row["of_quantisation"] < row["max_abs"] + row["of_kernel"] <= 2 * parts
        assert row["peers"] < 1e-13


def test_a_warm_run_takes_less_than_3_seconds(results):
    times = results["times"]
    assert (times["case"], times["repeats"], times["limit_s"]) == ("1x4x128x64", 7, 3)
    assert 0 < times["run_s"] < times["limit_s"] and times["judge_s"] > 0


def test_tables_have_equal_columns_and_list_what_is_not_right(results):
    variants, stages, accuracy, times = tables(results)
    assert [row["codes"] for row in variants] == ["simulated", "all"]
    assert len(stages) == len(stages_of("fp8")) and len(accuracy) == 3 and len(times) == 1
    for rows in tables(results):
        assert len({tuple(row) for row in rows}) == 1
    total = results["all_variants"] | {"not_right": ["lse bug of a case"]}
    assert tables(results | {"all_variants": total})[2] == [{"not right": "lse bug of a case"}]


def test_the_command_prints_tables_or_the_document(results, monkeypatch):
    asked = []
    monkeypatch.setattr(bench_fp8, "measure", lambda *given: asked.append(given) or results)
    printed = CliRunner().invoke(commands, ["fp8", "--json", "--backend", "emulator", "--jobs", "2"])
    assert json.loads(printed.stdout) == results
    shown = CliRunner().invoke(commands, ["fp8"]).stdout.splitlines()
    assert asked == [("emulator", 2), ("auto", 1)]
    assert shown[0].startswith("codes      runs  exact  rounding") and len(shown) == sum(map(len, tables(results))) + 4


def test_an_unknown_backend_is_refused():
    pytest.importorskip("torch", reason="PyTorch is not installed")
    with pytest.raises(Refusal) as refused:
        measure("gpu")
    assert str(refused.value) == "backend must be one of auto, emulator, cuda; got 'gpu'"
