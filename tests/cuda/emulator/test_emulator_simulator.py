import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import workbench
from tests.python_path import python_path

SCRIPT = Path(__file__).with_name("simulated_kernels.py")
NAMES = "barriers coordinates dynamic constants atomics bits control grid_stride numbers".split()


@pytest.fixture(scope="module")
def results():
    """Where a kernel ran -> its name -> its arrays."""
    found = {}
    for where, variable in [("emulator", {}), ("simulator", {"NUMBA_ENABLE_CUDASIM": "1"})]:
        environment = os.environ | variable | {"PYTHONPATH": python_path(Path.cwd())}
        command = [sys.executable, str(SCRIPT), where]
        run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        found[where] = dict(item for line in run.stdout.splitlines() for item in json.loads(line).items())
    return found


@pytest.mark.campaign
def test_numbas_simulator_agrees(results):
    assert list(results["emulator"]) == list(results["simulator"]) == NAMES
    for name in NAMES:
        emulated, simulated = (results[where][name] for where in ("emulator", "simulator"))
        assert emulated == simulated, name
        written = np.unique(np.concatenate([np.ravel(array) for array in emulated]))
        assert len(written) > 5, f"{name}: not zeros throughout"


def test_its_script_puts_back_what_numpy_2_5_lacks(monkeypatch):
    """numba-cuda 0.30.4 asks for row_stack where it compiles the first kernel for a GPU."""
    monkeypatch.setattr(workbench, "cuda", workbench.cuda)  # an import binds a new one
    monkeypatch.delitem(sys.modules, "workbench.cuda")
    monkeypatch.delattr(np, "row_stack", raising=False)
    runpy.run_path(str(SCRIPT))
    assert np.row_stack is np.vstack


@pytest.mark.gpu
def test_a_gpu_agrees(results):
    command = [sys.executable, str(SCRIPT), "gpu"]
    environment = os.environ | {"PYTHONPATH": python_path(Path.cwd())}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    for line in run.stdout.splitlines():
        for name, arrays in json.loads(line).items():
            for ours, theirs in zip(results["emulator"][name], arrays, strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=2**-50, err_msg=name)  # pow is not exact on a GPU
