import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).with_name("simulated_kernels.py")
PYTHONPATH = os.pathsep.join([str(Path.cwd()), *filter(None, [os.environ.get("PYTHONPATH")])])
NAMES = "barriers coordinates dynamic constants atomics bits control grid_stride numbers".split()


@pytest.fixture(scope="module")
def results():
    """Where a kernel ran -> its name -> its arrays."""
    found = {}
    for where, variable in [("emulator", {}), ("simulator", {"NUMBA_ENABLE_CUDASIM": "1"})]:
        environment = os.environ | variable | {"PYTHONPATH": PYTHONPATH}
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


@pytest.mark.gpu
def test_a_gpu_agrees(results):
    command = [sys.executable, str(SCRIPT), "gpu"]
    environment = os.environ | {"PYTHONPATH": PYTHONPATH}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    for line in run.stdout.splitlines():
        for name, arrays in json.loads(line).items():
            for ours, theirs in zip(results["emulator"][name], arrays, strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=2**-50, err_msg=name)  # pow is not exact on a GPU
