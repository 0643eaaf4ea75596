"""The C++ program of docs/reference/trace-format.md: compiled here, run, and its trace judged without anything else."""

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from workbench import Case, diff, load
from workbench.cli.main import commands

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "examples" / "trace_writer.cpp"

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed"),
    pytest.mark.usefixtures("without_causes"),
]


def written(folder: Path, before: str = "", after: str = "", *read: str) -> Path:
    """The trace that the program writes, after one replacement in its source, on inputs that it reads where any are
    given.
    """
    text = SOURCE.read_text()
    assert not before or text.count(before) == 1
    (folder / "writer.cpp").write_text(text.replace(before, after) if before else text)
    command = ["g++", "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "writer.cpp", "-o", "writer"]
    subprocess.run(command, cwd=folder, check=True)
    subprocess.run(["./writer", "run.safetensors", *read], cwd=folder, check=True)
    return folder / "run.safetensors"


def test_it_is_judged(tmp_path: Path) -> None:
    path = written(tmp_path)
    judged = diff(load(path))
    assert judged.verdict == "rounding" and [stage.name for stage in judged] == ["scores", "out", "lse"]
    assert judged.trace.case.causal and (judged.trace.case.seqlen_q, judged.trace.case.head_dim) == (24, 16)
    assert "exp_ulps" not in judged.trace.contract.assumed and "fast_math" in judged.trace.contract.assumed
    said = CliRunner().invoke(commands, ["diff", str(path)])
    assert said.exit_code == 0 and said.stdout.splitlines()[-1] == f"repeat: workbench diff {path}"


@pytest.mark.campaign
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


def test_it_reads_the_inputs_that_the_workbench_writes(tmp_path: Path) -> None:
    case = Case(seqlen=24, head_dim=16, causal=True, seed=5)
    words = ["inputs", "--out", str(tmp_path / "in.safetensors"), "--seqlen", "24", "--head-dim", "16", "--causal"]
    assert CliRunner().invoke(commands, [*words, "--seed", "5"]).exit_code == 0
    trace = load(written(tmp_path, "", "", "in.safetensors"))
    assert all(np.array_equal(trace.inputs[x], drawn) for x, drawn in zip("qkv", case.inputs(), strict=True))
    assert diff(trace).verdict == "rounding"


def test_the_page_shows_the_reader_and_the_writer_as_they_are() -> None:
    page = (ROOT / "docs/reference/trace-format.md").read_text()
    shown = re.findall(r"```cpp\n(.*?)```", page, re.DOTALL)
    assert len(shown) == 2 and all(code in SOURCE.read_text() for code in shown)
    assert all(len(code.splitlines()) <= 20 for code in shown)
