import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.python_path import python_path
from workbench.cuda.emulator import EmulatorError, cache

SCRIPT = """
    import json, sys
    import numpy as np
    from numba import cuda, float32
    from workbench.cuda import emulator

    def kernel(x, out):
        s = cuda.shared.array(4, float32)
        t = cuda.threadIdx.x
        s[t] = x[t]
        cuda.syncthreads()
        out[t] = s[3 - t] + cuda.shfl_xor_sync(15, x[t], 1)

    x, out = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    emulated = emulator.compile(emulator.source_of(kernel))
    emulated(1, 4, (x, out))
    (entry,) = emulated._entries.values()
    print(json.dumps({"out": out.tolist(), "hits": entry.function.cache_hits}))
"""


@pytest.fixture
def start(tmp_path):
    """Start the script in a fresh process with its own cache."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))

    def process():
        environment = os.environ | {"WORKBENCH_CACHE": str(tmp_path / "cache"), "PYTHONPATH": python_path(Path.cwd())}
        return subprocess.Popen([sys.executable, script], env=environment, stdout=subprocess.PIPE, text=True)

    return process


def result(process):
    output, _ = process.communicate()
    assert process.returncode == 0
    return json.loads(output)


@pytest.mark.campaign
def test_processes_share_what_was_compiled(start, tmp_path):
    expected = [3 + 1, 2 + 0, 1 + 3, 0 + 2]
    racers = [result(racer) for racer in (start(), start())]
    assert [racer["out"] for racer in racers] == [expected, expected]
    assert sorted(racer["hits"] for racer in racers) == [0, 1]  # one compiled while the other waited
    files = sorted((tmp_path / "cache" / "emulator").glob("*"))
    assert [path.suffix for path in files].count(".py") == 2  # the kernel and the scheduler
    assert not [path for path in files if path.suffix == ".tmp"]
    assert result(start()) == {"out": expected, "hits": 1}


def test_one_text_is_one_module_and_a_broken_one_is_not_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path))
    first = cache.load("stem", "value = 1\n")
    assert cache.load("stem", "value = 1\n") is first and first.value == 1
    assert cache.load("stem", "value = 2\n").value == 2
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            cache.load("stem", "1 / 0\n")
    assert len(list((tmp_path / "emulator").glob("stem_*.py"))) == 3


def test_a_folder_that_cannot_be_written_is_named(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "file"))
    with pytest.raises(EmulatorError, match=r"^cannot write to .*/file/emulator: .*; set WORKBENCH_CACHE to another"):
        cache.load("stem", "value = 3\n")
