"""Launches of a foreign function where there is a GPU: the emulator is in the place of one, behind numba's dispatchers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workbench import Case, diff, run
from workbench.cuda.host import launches as host
from workbench.foreign import launches

MINE = """
import numpy as np
from numba import cuda, float32
from workbench.foreign.probes.numba_cuda import probe, probed

@cuda.jit("void(float32[:,:,:,::1], float32[:,:,:,::1], float32)")
@probed
def copied(v, out, factor):
    i = cuda.grid(1)
    if i < v.shape[2]:
        total = v[0, 0, i, 0] * factor
        probe.lse[0, 0, i] = total
        out[0, 0, i, 0] = total

def attention(q, k, v, *, scale, causal):
    out = cuda.device_array(q.shape, np.float32)
    copied[1, 8](cuda.to_device(v), out, 1)
    return out.copy_to_host()
"""
#: another result at each call
COUNTING = """CALLS.append(0)
    return out.copy_to_host() + np.float32(len(CALLS))

CALLS = []"""
CASE = Case(seqlen=6, head_dim=1)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, int]]]:
    """What numba.cuda was asked to launch: names of kernels, and with how many arguments."""
    found: list[tuple[str, int]] = []
    emulator = host.OnEmulator()

    def call(dispatcher: Any, arguments: Any, to: Any) -> None:
        found.append((dispatcher.py_func.__name__, len(arguments)))
        emulator(dispatcher, dispatcher.py_func, arguments, (), to)

    monkeypatch.setattr(launches, "gpu", lambda: "a GPU")
    monkeypatch.setattr(host, "_CALL", call)
    with emulator.standing_in():
        yield found


def test_the_probed_kernel_is_launched_and_once_more_without_its_probes(
    tmp_path: Path, launched: list[tuple[str, int]]
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    trace = run(f"{path}:attention", CASE)
    assert launched == [("copied", 4), ("copied", 3)] and trace.notes == (
        "the same bits of out and lse without its probes",
    )
    assert np.array_equal(trace.stages["lse"], trace.inputs["v"][..., 0])
    assert trace.lines["lse"].text == "total = v[0, 0, i, 0] * factor"
    launched.clear()
    assert run(f"{path}:attention", CASE, runs=2).provenance is not None
    assert launched == [("copied", 4)] * 2 + [("copied", 3)] * 2


def test_probes_that_change_the_kernel_are_told(tmp_path: Path, launched: list[tuple[str, int]]) -> None:
    path = tmp_path / "mine.py"
    path.write_text(MINE.replace("return out.copy_to_host()", COUNTING))
    judged = diff(run(f"{path}:attention", CASE))
    assert judged.trace.gates == (
        f"{path}:attention gives different bits with and without probes; the probed kernel is judged, not the "
        "plain one",
    )


def test_kernels_without_probes_are_launched_as_they_are(tmp_path: Path, launched: list[tuple[str, int]]) -> None:
    path = tmp_path / "mine.py"
    path.write_text(MINE.replace("@probed\n", "").replace("        probe.lse[0, 0, i] = total\n", ""))
    assert run(f"{path}:attention", CASE, backend="auto").notes == ()
    assert launched == [("copied", 3)]
