"""The C++ program of docs/trace-format.md: compiled here, run, and its trace judged without anything else."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from workbench import diff, load
from workbench.cli import commands

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "examples" / "trace_writer.cpp"

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")


def written(folder: Path, before: str = "", after: str = "") -> Path:
    """The trace that the program writes, after one replacement in its source."""
    text = SOURCE.read_text()
    assert not before or text.count(before) == 1
    (folder / "writer.cpp").write_text(text.replace(before, after) if before else text)
    command = ["g++", "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "writer.cpp", "-o", "writer"]
    subprocess.run(command, cwd=folder, check=True)
    subprocess.run(["./writer", "run.safetensors"], cwd=folder, check=True)
    return folder / "run.safetensors"


def test_it_is_judged(tmp_path: Path) -> None:
    path = written(tmp_path)
    judged = diff(load(path))
    assert judged.verdict == "rounding" and [stage.name for stage in judged] == ["scores", "out", "lse"]
    assert judged.trace.case.causal and (judged.trace.case.seqlen_q, judged.trace.case.head_dim) == (24, 16)
    assert "exp_ulps" not in judged.trace.contract.assumed and "fast_math" in judged.trace.contract.assumed
    said = CliRunner().invoke(commands, ["diff", str(path)])
    assert said.exit_code == 0 and said.stdout.splitlines()[-1] == f"repeat: workbench diff {path}"


@pytest.mark.parametrize(
    ("before", "after", "origins"),
    [
        ("s / std::sqrt(float(D))", "s / float(D)", ("scores",)),
        ("sum += p;", "sum += j ? p : 0;", ("out", "lse")),
        ("largest + std::log(sum)", "largest + std::log2(sum)", ("lse",)),
    ],
)
def test_a_bug_in_it_is_found(tmp_path: Path, before: str, after: str, origins: tuple[str, ...]) -> None:
    assert diff(load(written(tmp_path, before, after))).origins == origins


def test_the_page_shows_the_writer_as_it_is() -> None:
    page = (ROOT / "docs" / "trace-format.md").read_text()
    shown = re.search(r"```cpp\n(.*?)```", page, re.DOTALL)
    assert shown is not None and shown[1] in SOURCE.read_text()
    assert len(shown[1].splitlines()) <= 20
