"""Judging is NumPy: where numba cannot be imported, all works but what compiles kernels, which says so in a sentence."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.python_path import python_path

#: as of an environment without numba, for every process that is started
BLOCKED = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("numba", "numba_cuda"):
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Blocked())
"""
ATTENTION = """
import numpy as np
def attention(q, k, v, *, scale, causal):
    scores = q @ np.swapaxes(k, -1, -2) * np.float32(scale)
    if causal: scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, np.float32(-np.inf))
    top = scores.max(-1)
    probs = np.exp(scores - top[..., None])
    total = probs.sum(-1)
    return {"scores": scores, "out": probs @ v / total[..., None], "lse": top + np.log(total)}
def twice(q, k, v, *, scale, causal):
    return attention(q, k, v, scale=2 * scale, causal=causal)
"""
SCRIPT = """
from pathlib import Path
import workbench
from workbench import Case, Refusal
from workbench.testing import assert_attention
from workbench.testing.settings import Settings, current
from mine import attention, twice

if __name__ == "__main__":
    case = Case(seqlen=32, head_dim=8, causal=True)
    trace = workbench.run(attention, case)
    assert workbench.diff(trace).verdict == "rounding"
    workbench.save(trace, "mine.safetensors")
    assert workbench.diff(workbench.load("mine.safetensors")).verdict == "rounding"
    assert_attention(attention, case)
    current.set(Settings(shrink_effort=0))
    try:
        assert_attention(twice, case)
    except AssertionError as error:
        assert "the scale is doubled" in str(error), error
    else:
        raise SystemExit("nothing was asserted")
    found = workbench.sweep("mine.py:twice", [case, case.but(causal=False)], out="script.sqlite", jobs=1)
    assert found.outcomes == {"bug": 2} and len(found.groups) == 1
    for call in (lambda: workbench.run("flash"), lambda: workbench.kernel("flash"), lambda: workbench.check("flash")):
        try:
            call()
        except Refusal as refusal:
            assert "numba" in str(refusal)
        else:
            raise SystemExit("compiled by nobody")
"""
SIZES = ("--seqlen", "32", "--head-dim", "8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("without")
    for name, text in (("sitecustomize", BLOCKED), ("mine", ATTENTION), ("script", SCRIPT)):
        made.joinpath(f"{name}.py").write_text(text)
    return made


def python(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    path = python_path(folder, Path(__file__).parents[1])
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)


def workbench(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return python(folder, "-c", "from workbench.cli.main import main; main()", *words)


@pytest.mark.campaign
def test_what_python_asks(folder: Path) -> None:
    run = python(folder, "script.py")
    assert run.returncode == 0, run.stderr


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("diff", "mine.py:attention", *SIZES), 0, "verdict: rounding"),
        (("explain", "mine.py:twice", *SIZES), 1, "the scale is doubled"),
        (("sweep", "mine.py:twice", *SIZES), 1, "2 of 3 cases fail, in 1 group"),
        (("doctor",), 3, "ImportError: numba is blocked"),
    ],
    ids=lambda x: x[0] if isinstance(x, tuple) else None,
)
def test_what_judges_does_without(folder: Path, words: tuple[str, ...], code: int, said: str) -> None:
    run = workbench(folder, *words)
    assert (run.returncode, said in run.stdout) == (code, True), run.stdout + run.stderr


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize(
    "words",
    [("diff", "flash"), ("check", "mine.py:attention"), ("sweep", "flash", "--out", "flash.sqlite"), ("calibrate",)],
    ids=lambda words: words[0],
)
def test_what_compiles_kernels_says_what_is_missing_and_how_to_mend_it(folder: Path, words: tuple[str, ...]) -> None:
    run = workbench(folder, *words)
    assert (run.returncode, run.stdout) == (2, "")
    assert re.fullmatch(
        r"workbench: built-in kernels and numba\.cuda kernels need numba and numba-cuda, which cannot be "
        r"imported \(ImportError: numba(_cuda)? is blocked\): `workbench doctor` says what to install\n",
        run.stderr,
    )
    assert not (folder / "flash.sqlite").exists()
