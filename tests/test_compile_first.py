"""Builds that are planned are compiled before the tests, and a plan that is out of date says so."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests import compile_first as plans
from tests.compile_first import compile_first, recording
from workbench import Case, run
from workbench.cuda import emulator, flash_build
from workbench.cuda import run as runs
from workbench.cuda.emulator import launch
from workbench.cuda.faults.catalogue import CATALOGUE

CASE = Case(seqlen=8, head_dim=8, block_q=16, block_k=16)


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(plans, "SHARED", ())  # 15 s of compiling
    runs.launcher.cache_clear()  # a build of this process may be made already
    with recording(lambda: "tests/cuda/test_x.py") as found:
        run("flash", CASE, backend="emulator")
    ((build, row),) = found.items()
    return {"build": {**vars(build)}, "seconds": row["seconds"], "tests": sorted(row["tests"])}


@pytest.mark.campaign
def test_a_build_is_compiled_where_its_tests_are_asked_for(
    planned: dict[str, Any], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path))
    assert compile_first([planned], ["tests/judge", "tests/cuda/test"], jobs=1) == (0, [])
    assert not emulator.cache_dir().exists()
    assert compile_first([planned], ["tests/cuda"], jobs=1) == (1, [])
    assert [path.name.rpartition("_")[0] for path in emulator.cache_dir().glob("*.py")] == ["flash_forward"]


def test_a_build_of_a_fault_that_is_gone_is_told(planned: dict[str, Any]) -> None:
    build = {**planned["build"], "faults": ["no-such-fault"]}
    assert compile_first([{**planned, "build": build}], ["tests"], jobs=1) == (1, ["KeyError: 'no-such-fault'"])


def test_a_fault_that_a_test_adds_is_not_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "entry_of", lambda program, parameters: None)  # nothing is compiled
    known = CATALOGUE["flash-scale-twice"]
    own = replace(known, id="fault-of-a-test")
    file = Path(runs.__file__).with_name("flash.py")
    with recording(lambda: "tests/cuda/test_x.py") as found:
        monkeypatch.setitem(CATALOGUE, own.id, own)
        for fault in (known, own):
            made = runs.build(file, "flash_forward", flash_build.constants(CASE), (), (fault,))
            launch.entry_of(made.for_emulator().program, ())
    assert [one.faults for one in found] == [(known.id,)]
