"""A small form of the campaign: no correct run is called wrong, and faults that change out or lse are found."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from campaigns import verdicts as bench_verdicts
from campaigns.known import reduced
from campaigns.tally import LIMITS
from campaigns.verdicts import measure, tables
from tests.builds import FEW_BUILDS, ONE_BUILD, draw_few_builds
from workbench import Case, diff, run
from workbench.cuda.kernels import KERNELS
from workbench.explore.draw import Among
from workbench.explore.sample import sample

#: a few, each a compile: of each kernel, some that the usual rules find and some that they miss; the command takes all
FAULTS = (
    *("reduce-double-counts-sum", "partial-offset-wrong-split", "flash-stale-max"),
    *("flash-scale-float16", "flash-lse-base-2"),
)
#: with scalars, of two launches, on tensor cores; the command takes all kernels
MEASURED = ("flash", "split_k", "flash_mma")
#: truncated sums: a product's, a lane's, and those of a split
TRUNCATING = ("flash-qk-truncated", "flash-row-sum-truncated", "partial-acc-truncated")
#: as ONE_BUILD, on tensor cores, where most of a case are switches of the build
ONE_ON_TENSOR_CORES: Mapping[str, Any] = {
    **{"dtype": FEW_BUILDS[2].dtype, "head_dim": 40, "causal": True},
    "scale": Among((None, 1.0, 0.125, 0.3)),
}


def draw_one_build(patch: pytest.MonkeyPatch) -> None:
    """Have the random cases of the campaign on correct kernels drawn on one build of each."""

    def one(random: np.random.Generator, kernel: str) -> Case:
        return sample(random, kernel, **(ONE_BUILD if "float32" in KERNELS[kernel].dtypes else ONE_ON_TENSOR_CORES))

    draw_few_builds(patch)
    patch.setattr(bench_verdicts, "sample", one)


@pytest.fixture(scope="module")
def results():
    with pytest.MonkeyPatch.context() as patch:
        draw_one_build(patch)
        patch.setattr(bench_verdicts, "MEASURED", MEASURED)
        patch.setattr(bench_verdicts, "FAULTS", FAULTS)
        patch.setattr(bench_verdicts, "TRUNCATING", TRUNCATING)
        return measure(correct=120, per_fault=1)


def test_correct_kernels_are_not_called_wrong_more_often_than_allowed(results):
    correct = results["correct"]
    assert correct["runs"] == 120 == sum(correct["verdicts"].values())
    assert set(correct["verdicts"]) <= {"exact", "rounding", *LIMITS}, correct["not_right"]
    for verdict, share in results["limits"].items():
        assert correct["verdicts"].get(verdict, 0) <= share * 120, correct["not_right"]
    assert correct["rules"]["assert_close"] > 0, "the usual rule fails correct kernels"


def test_faults_are_bugs_at_their_stage_with_a_full_and_a_lean_dump(results):
    assert [row["fault"] for row in results["faults"]] == list(FAULTS)
    sums = results["all_faults"]
    assert sums["runs"] == len(FAULTS) and sums["effective"] >= 0.8 * sums["runs"]
    for dump in ("full", "lean"):
        assert sums[dump]["bug"] == sums["effective"]
        assert sums[dump]["origin"] == sums[dump]["bug"], "a flagged run names the faulty stage first"
    assert sums["rules"]["atol 1e-2"] < sums["full"]["bug"]


def test_truncated_sums_are_biased_or_worse(results):
    """One run of each: on the data drawn here two of three sums lean beyond doubt, and none is called exact."""
    rows = results["truncating"]
    found = sum(row["verdicts"].get("biased", 0) + row["verdicts"].get("bug", 0) for row in rows)
    assert sum(row["effective"] for row in rows) == len(TRUNCATING) and found >= len(TRUNCATING) - 1
    assert all("exact" not in row["verdicts"] for row in rows)


def test_the_document_is_json_and_its_tables_have_equal_columns(results):
    assert json.loads(json.dumps(results)) == results
    for rows in tables(results):
        assert len({tuple(row) for row in rows}) == 1
    verdicts, faults, truncating = tables(results)[0], tables(results)[-2], tables(results)[-1]
    assert [row["fault"] for row in truncating] == list(TRUNCATING)
    assert [row["of"] for row in verdicts] == ["correct kernels", "at most"]
    assert verdicts[1] | {"suspicious": 0, "biased": 1, "missing": 0, "bug": 0} == verdicts[1]
    assert faults[-1]["fault"] == "all"


@pytest.mark.parametrize("probes", ["lean", "output"])
def test_a_reduced_trace_is_what_fewer_probes_give(probes):
    case = Case(seqlen=20, head_dim=8, block_q=16, block_k=16)
    cut = reduced(run("flash", case, backend="emulator"), probes)
    asked = run("flash", case, probes=probes, backend="emulator")
    assert cut.requested == asked.requested and list(cut.stages) == list(asked.stages)
    assert diff(cut).verdict == diff(asked).verdict == "rounding"
    assert list(cut.rerun(case.but(seed=1)).stages) == list(asked.stages)
