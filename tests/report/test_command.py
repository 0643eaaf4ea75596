"""The command that repeats a run is the command that made it."""

import shlex
from pathlib import Path

import numpy as np

from workbench import Case, diff, run
from workbench.report.command import diff_command


def test_a_foreign_run_is_repeated_with_the_arrays_and_the_layout_it_was_called_with(tmp_path: Path) -> None:
    path = tmp_path / "my kernel.py"
    path.write_text("def attention(q, k, v, *, scale, causal):\n    return v\n")
    case = Case(seqlen=8, head_dim=4, dtype="float16")
    usual = diff(run(f"{path}:attention", case, arrays="numpy", layout="bhsd"))
    assert shlex.split(diff_command(usual))[2:] == [
        f"{path}:attention", "--seqlen", "8", "--head-dim", "4", "--dtype", "float16"
    ]  # fmt: skip
    other = diff(run(f"{path}:attention", case, layout="bshd"))
    assert shlex.split(diff_command(other))[-2:] == ["--layout", "bshd"]
    assert np.array_equal(other.trace.stages["out"], usual.trace.stages["out"])
