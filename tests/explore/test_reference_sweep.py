"""Sweeps and shrinks by a plain reference."""

import json
from pathlib import Path

import pytest

from tests.refusals import invoked

SOURCES = """
import numpy as np


def naive(x, y):
    total = x.cumsum(0)
    out = total * y
    return out


def inputs(seed, dtype, T=40, D=8):
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal((T, D)).astype(dtype) for name in ("x", "y")}


def tail(x, y):
    if x.shape[1] == 3:
        raise ValueError("no 3")
    wide = x.astype(np.float32)
    total = wide.cumsum(0)
    if len(x) > 32:
        total[32:] -= wide[32]
    return {"total": total, "out": (total * y).astype(x.dtype)}


def only_large(x, y):
    return (x.astype(np.float32).cumsum(0) * np.minimum(y, np.float32(8))).astype(x.dtype)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own.py").write_text(SOURCES)
    monkeypatch.chdir(tmp_path)


ASKED = ["--reference", "own.py:naive", "--inputs", "own.py:inputs"]


def test_every_combination_is_a_row() -> None:
    ran = invoked("sweep", "own.py:tail", *ASKED, "--axes", "T=32/33,D=1/3", "--json")
    told = json.loads(ran.stdout)
    assert ran.exit_code == 1 and told["schema"] == "workbench.reference-sweep/1"
    assert [one["verdict"] for one in told["rows"]] == ["rounding", "raised", "bug", "raised"]
    assert told["rows"][2]["origin"] == "total" and "x.cumsum(0) (own.py:6)" in told["rows"][2]["cause"]
    assert "no 3" in told["rows"][1]["cause"] and told["fail"] == 3
    assert told["repeat"].endswith("--axes T=33,D=1")
    right = invoked("sweep", "own.py:tail", *ASKED, "--axes", "T=4/8", "--distribution", "large,signs")
    assert right.exit_code == 0 and "0 of 4 cases fail" in right.stdout and "signs inputs" in right.stdout


def test_the_smallest_case_that_fails() -> None:
    ran = invoked("shrink", "own.py:tail", *ASKED, "--axes", "T=70", "--distribution", "large")
    assert ran.exit_code == 1 and ran.stdout.startswith("smallest of ")
    assert "own.py:tail against own.py:naive: T=33, D=1, float32, signs inputs, seed 0" in ran.stdout
    assert "--distribution signs --axes T=33,D=1" in ran.stdout
    told = json.loads(invoked("shrink", "own.py:tail", *ASKED, "--json").stdout)
    assert told["complete"] and told["origin"] == "total"


def test_values_that_matter_stay() -> None:
    ran = invoked("shrink", "own.py:only_large", *ASKED, "--distribution", "outliers")
    assert "D=2, float32, outliers inputs" in ran.stdout, ran.stdout


def test_refusals() -> None:
    said = str(invoked("shrink", "own.py:tail", *ASKED, "--axes", "T=4").exception)
    assert "shrink needs a run that fails; this one is rounding" in said
    said = str(invoked("shrink", "own.py:tail", *ASKED, "--axes", "T=4/8").exception)
    assert said == "shrink takes one case; TARGET and options make 2"
    said = str(invoked("sweep", "own.py:tail", "--inputs", "own.py:inputs").exception)
    assert said == "--inputs of a sweep needs --reference"
    said = str(invoked("sweep", "own.py:tail", *ASKED, "--random", "3").exception)
    assert said == "--reference takes no --random"
