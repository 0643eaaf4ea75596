"""Stages of which only statistics were given: what is impossible is a bug, what is possible proves nothing."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from tests.stored import stored
from workbench import Case, Refusal, Trace, diff, load, run, save
from workbench.cli.main import commands
from workbench.expectation.observed import Observed
from workbench.floats import to_float64
from workbench.judge.from_statistics import allowed
from workbench.trace.narrow import narrowed
from workbench.trace.statistics import Statistics

CASE = Case(batch=2, heads=2, seqlen_q=40, seqlen_k=30, head_dim=16, causal=True, block_k=16, block_q=16)


def of(stage: np.ndarray) -> Statistics:
    x = to_float64(stage)
    finite = x[np.isfinite(x)]
    return Statistics(
        str(stage.dtype), x.size, int(np.isnan(x).sum()), int((x == np.inf).sum()), int((x == -np.inf).sum()),
        float(finite.min()), float(finite.max()), float(finite.mean()),
    )  # fmt: skip


def reduced(trace: Trace, *names: str) -> Trace:
    """The trace with statistics in place of some stages."""
    kept = {name: stage for name, stage in trace.stages.items() if name not in names}
    return replace(trace, stages=kept, statistics={name: of(trace.stages[name]) for name in names}, requested=())


@pytest.fixture(scope="module", params=["flash", "split_k"])
def trace(request: pytest.FixtureRequest) -> Trace:
    return run(request.param, CASE, backend="emulator")


def test_those_of_a_correct_kernel_are_never_green(trace: Trace) -> None:
    judged = diff(reduced(trace, *trace.stages))
    assert judged.verdict == "untestable" and judged.stages == ()
    reasons = {stage.reason for stage in judged.not_judged}
    assert reasons == {"its statistics are those of a kernel within its budgets; nobody saw its elements"}


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("distribution", ["normal", "large", "near-cancelling", "tiny", "zero-head"])
def test_correct_kernels_are_within(dtype: str, distribution: str) -> None:
    found = run("split_k", CASE.but(dtype=dtype, distribution=distribution), backend="emulator")
    for name in found.stages:
        what = allowed(Observed(reduced(found, name)), name)
        assert not isinstance(what, str) and what.broken(of(found.stages[name])) == []


@pytest.mark.parametrize("name", ["nan", "pos_inf", "neg_inf", "min", "max", "mean"])
def test_what_is_impossible_is_a_bug(trace: Trace, name: str) -> None:
    """Of each statistic, one that is a little too large."""
    small = reduced(trace, "row_sum")
    right = getattr(small.statistics["row_sum"], name)
    wrong = replace(small.statistics["row_sum"], **{name: right + 1 if isinstance(right, int) else right + 1e-3})
    judged = diff(replace(small, statistics={"row_sum": wrong}))
    assert judged.origins == ("row_sum",)
    assert judged["row_sum"].reason.startswith(
        f"{name} is {getattr(wrong, name):.6g}, and of a kernel within its budgets "
    )


def test_a_victim_is_told_from_an_origin() -> None:
    """scores that are wrong: given whole, what follows is right on them; all in statistics, the first is the origin."""
    broken = stored("flash", CASE, faults=["flash-causal-off-by-one"])
    assert diff(reduced(broken, "out")).origins == ("scores",)
    judged = diff(reduced(broken, *broken.stages))
    assert judged.origins == ("scores",) and "row_sum" in judged.victims
    assert judged["scores"].reason.startswith("neg_inf is ")


def test_bounds_are_sharp(trace: Trace) -> None:
    """The ranges are as narrow as budgets are: a thousandth of the values' own."""
    for name in ("row_sum", "acc", "out"):
        given, what = of(trace.stages[name]), allowed(Observed(reduced(trace, name)), name)
        assert not isinstance(what, str)
        for low, high in (what.min, what.max, what.mean):
            assert high - low < 1e-3 * (given.max - given.min)  # type: ignore[operator]


def test_at_rest_and_on_the_command_line(trace: Trace, tmp_path: Path) -> None:
    small = reduced(trace, "acc")
    wrong = replace(small, statistics={"acc": replace(small.statistics["acc"], nan=3)})
    save(wrong, tmp_path / "x.safetensors")
    assert load(tmp_path / "x.safetensors").statistics == wrong.statistics
    said = CliRunner().invoke(commands, ["diff", str(tmp_path / "x.safetensors")])
    assert said.exit_code == 1
    assert "first wrong stage: acc = " in said.stdout
    assert "  nan is 3, and of a kernel within its budgets 0\n" in said.stdout
    document = json.loads(CliRunner().invoke(commands, ["diff", str(tmp_path / "x.safetensors"), "--json"]).stdout)
    assert document["origins"] == ["acc"]


def test_they_tell_of_no_window(trace: Trace) -> None:
    with pytest.raises(Refusal, match="^statistics of acc are of the whole run, and tell of no part of it$"):
        narrowed(reduced(trace, "acc"), "b=0")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"median": 1},
            "statistics of acc: unknown are median; known are dtype, count, nan, pos_inf, neg_inf, min, max, mean",
        ),
        ({"count": None}, "statistics of acc: 'count' is missing"),
        ({"count": 3}, "statistics of acc must count its 5120 elements (b=2, h=2, q=40, t=2, d=16); got 3"),
        ({"dtype": "int8"}, "statistics of acc: dtype must be one of float32, float16, bfloat16; got 'int8'"),
        ({"nan": -1}, "statistics of acc: nan must be a whole number of at least 0; got -1"),
        ({"nan": True}, "statistics of acc: nan must be a whole number of at least 0; got True"),
        ({"mean": math.inf}, "statistics of acc: mean must be a finite number; got inf"),
        ({"max": "9"}, "statistics of acc: max must be a finite number; got '9'"),
    ],
)
def test_wrong_ones_are_refused(trace: Trace, tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "x.safetensors"
    save(reduced(trace, "acc"), path)
    with safe_open(path, framework="numpy") as file:
        manifest = json.loads(file.metadata()["workbench"])
    del manifest["checksum"]
    given = manifest["stages"]["acc"]["statistics"] | change
    manifest["stages"]["acc"]["statistics"] = {name: x for name, x in given.items() if x is not None}
    save_file(load_file(path), path, {"workbench": json.dumps(manifest)})
    with pytest.raises(Refusal) as refused:
        load(path)
    assert str(refused.value) == f"{path}: {message}"
