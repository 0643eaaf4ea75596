"""docs/numba-kernels.md: its kernel runs on the emulator as it stands there, is judged, and is watched."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.refusals import refused
from workbench import Case, Unavailable, run
from workbench.cuda.gpu import gpu

PAGE = Path(__file__).parent.parent.parent.joinpath("docs/numba-kernels.md").read_text()
KERNEL, HOST, COMMAND, WATCH, RACES = re.findall(r"^```\w*\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
SECOND_BARRIER = "        cuda.syncthreads()\n    if row"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "my_numba_kernel.py").write_text(f"{KERNEL}\n\n{HOST}")
    (tmp_path / "watch.py").write_text(WATCH)
    return tmp_path


def printed(folder: Path, *words: str) -> str:
    done = subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.replace(f"{folder}/", "")


def test_the_command_judges_it(folder: Path) -> None:
    lines = printed(folder, "-c", "from workbench.cli.main import main; main()", *shlex.split(COMMAND)[1:]).splitlines()
    assert lines[0].startswith("my_numba_kernel.py:attention: float32 b=1 h=2 q=100 k=100 d=64, causal")
    assert [line.split()[:2] for line in lines if line.startswith(("out ", "lse "))] == [
        ["out", "rounding"],
        ["lse", "rounding"],
    ]
    assert len([line for line in HOST.splitlines() if line and not line.startswith(("#", "from"))]) <= 10


def test_it_is_watched_and_a_barrier_that_lacks_is_named(folder: Path) -> None:
    assert printed(folder, "watch.py") == ""
    (folder / "my_numba_kernel.py").write_text(KERNEL.replace(SECOND_BARRIER, "    if row"))
    assert SECOND_BARRIER in KERNEL and printed(folder, "watch.py") == RACES


def test_a_kernel_in_the_place_of_a_function_is_told_of_the_page(folder: Path) -> None:
    target = f"{folder}/my_numba_kernel.py:flash"
    assert refused("diff", target) == (
        f"{target} is a kernel of numba.cuda, which is launched, not called: give a function that takes q, k and v, "
        "launches it and returns out; docs/numba-kernels.md has one, on a GPU and on the emulator"
    )


@pytest.mark.skipif(gpu() is not None, reason="there is a GPU, on which it runs")
def test_a_launch_where_there_is_no_gpu_is_told_of_the_page(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from numba import cuda\n@cuda.jit\ndef kernel(x): ...\n"
        "def attention(q, k, v, *, scale, causal):\n    kernel[1, 1](q)\n"
    )
    with pytest.raises(Unavailable) as raised:
        run(f"{path}:attention", Case(seqlen=4))
    assert str(raised.value) == (
        f"{path}:attention launches a kernel in numba.cuda, and there is no GPU. docs/numba-kernels.md shows how the "
        "emulator runs it"
    )
