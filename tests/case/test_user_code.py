"""Files of users: loaded once, with the modules beside them, and what they return, print and end is not the workbench's."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tests.refusals import refusal
from workbench import Case, diff, run
from workbench.cli.main import commands
from workbench.foreign.find import find

CASE = Case(seqlen=8, head_dim=8)
#: what every file below begins with
ATTENTION = """
import numpy as np
def plain(q, k, v, scale, causal):
    s = q @ k.swapaxes(-1, -2) * np.float32(scale)
    p = np.exp(s - s.max(-1, keepdims=True))
    return p @ v / p.sum(-1, keepdims=True)
"""
SIMPLE = ATTENTION + "def attention(q, k, v, *, scale, causal):\n    return plain(q, k, v, scale, causal)\n"


def written(folder: Path, **files: str) -> str:
    """A folder with these files; the target in mine.py."""
    folder.mkdir(exist_ok=True, parents=True)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return f"{folder / 'mine.py'}:attention"


# ---- what a function returns


def test_a_function_that_returns_its_own_workspace_keeps_no_hold_on_a_trace() -> None:
    workspace: dict[str, Any] = {}

    def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float, causal: bool) -> dict[str, Any]:
        scores = q @ k.swapaxes(-1, -2) * np.float32(scale)
        probs = np.exp(scores - scores.max(-1, keepdims=True))
        out = probs @ v / probs.sum(-1, keepdims=True)
        if not workspace:
            part = {"indices": np.zeros((1, 4), int), "values": np.zeros(1, np.float32)}
            workspace.update(scores=np.empty_like(scores), out=np.empty_like(out), qk=part, contract={"block_k": 0})
        workspace["scores"][...], workspace["out"][...] = scores, out
        workspace["qk"]["indices"][0] = 0, 0, 1, len(workspace["contract"])
        workspace["qk"]["values"][0] = (q @ k.swapaxes(-1, -2))[0, 0, 1, 1]
        workspace["contract"]["block_k"] = 8
        return workspace

    first = run(attention, CASE)
    kept = {name: stage.copy() for name, stage in first.stages.items()}
    again = run(attention, CASE.but(seed=1))
    assert set(kept) == {"scores", "out", "qk"}
    assert all(np.array_equal(first.stages[name], stage, equal_nan=True) for name, stage in kept.items())
    assert not np.array_equal(first.stages["out"], again.stages["out"])
    assert diff(first).verdict == diff(again).verdict == "rounding"


# ---- how often a file is loaded

COUNTED = (
    ATTENTION
    + """
import pathlib
log = pathlib.Path(__file__).with_name("loads.log")
log.write_text((log.read_text() if log.exists() else "") + "load\\n")
from beside import factor
def attention(q, k, v, *, scale, causal):
    import later
    return later.same(plain(q, k, v, scale, causal)) * np.float32(factor)
"""
)
LATER = "def same(x):\n    return x\n"


def loads(folder: Path) -> int:
    return len((folder / "loads.log").read_text().splitlines())


def test_a_command_loads_a_file_once(tmp_path: Path) -> None:
    target = written(tmp_path, mine=COUNTED, beside="factor = 1\n", later=LATER)
    words = ["diff", target, "--head-dim", "8", "--seqlen", "4,5,6", "--block-k", "16"]
    refused = CliRunner().invoke(commands, words)  # looks at the function before the first case
    assert "block-k" in str(refused.exception) and loads(tmp_path) == 1
    done = CliRunner().invoke(commands, words[:-2])
    assert done.exit_code == 0 and "3 runs: 3 without a bug" in done.stdout and loads(tmp_path) == 1


def test_a_file_is_loaded_again_where_it_or_a_module_beside_it_changed(tmp_path: Path) -> None:
    target = written(tmp_path, mine=COUNTED, beside="factor = 1\n", later=LATER)
    (tmp_path / "mine.cu").write_text("// a kernel\n")
    assert diff(run(target, CASE)).verdict == "rounding" == diff(run(target, CASE)).verdict and loads(tmp_path) == 1
    written(tmp_path, beside="factor = 2\n")
    assert diff(run(target, CASE)).verdict == "bug" and loads(tmp_path) == 2
    written(tmp_path, beside="factor = 1\n", later="def same(x):\n    return -x\n")
    assert diff(run(target, CASE)).verdict == "bug" and loads(tmp_path) == 3
    written(tmp_path, later=LATER)
    (tmp_path / "mine.cu").write_text("// another\n")
    assert diff(run(target, CASE)).verdict == "rounding" and loads(tmp_path) == 4


def test_a_function_whose_folder_is_gone_runs_as_it_was_loaded(tmp_path: Path) -> None:
    function = find(written(tmp_path / "gone", mine=SIMPLE))
    shutil.rmtree(tmp_path / "gone")
    assert diff(run(function, CASE)).verdict == "rounding"


def test_a_gate_is_told_where_a_row_says_that_it_fails(tmp_path: Path) -> None:
    drifting = ATTENTION + "calls = 0\ndef attention(q, k, v, *, scale, causal):\n    global calls\n    calls += 1\n"
    drifting += "    return plain(q, k, v, scale, causal) * np.float32(1 + calls * 2.0**-23)\n"
    target = written(tmp_path, mine=drifting)
    words = ["diff", target, "--head-dim", "8", "--seqlen", "4,5", "--runs", "2"]
    done = CliRunner().invoke(commands, words)
    rows = [" ".join(line.split()) for line in done.stdout.splitlines() if "mine.py:attention --seqlen" in line]
    assert done.exit_code == 1 and len(rows) == 2, done.stdout
    assert "gate failed" in rows[0] and "<- first failing" in rows[0] and "gate failed" in rows[1]


# ---- modules beside a file


def test_two_files_may_each_have_a_module_of_one_name_beside_them(tmp_path: Path) -> None:
    helper = "import helper, package.inner\ndef attention(q, k, v, *, scale, causal):\n    import lazy\n"
    helper += "    factor = helper.FACTOR * package.inner.FACTOR * lazy.FACTOR\n"
    helper += "    return plain(q, k, v, scale, causal) * np.float32(factor)\n"
    targets = []
    for name, factor in (("a", 1), ("b", 3)):
        folder = tmp_path / name
        targets.append(written(folder, mine=ATTENTION + helper, helper=f"FACTOR = {factor}\n", lazy="FACTOR = 1\n"))
        written(folder / "package", __init__="", inner="FACTOR = 1\n")
    before, modules = [*sys.path], {*sys.modules}
    right, wrong = (diff(run(target, CASE)) for target in targets)
    assert (right.verdict, wrong.verdict) == ("rounding", "bug")
    assert diff(run(targets[0], CASE)).verdict == "rounding"
    assert wrong.trace.rerun is not None and not np.allclose(wrong.trace.rerun(CASE).stages["out"], right["out"].dumped)
    told = {Path(file.path) for file in right.trace.provenance.files if file.loaded}  # type: ignore[union-attr]
    assert {tmp_path / "a" / name for name in ("mine.py", "helper.py", "lazy.py", "package/inner.py")} <= told
    assert not {path for path in told if path.is_relative_to(tmp_path / "b")}
    assert sys.path == before and {*sys.modules} - modules <= {"workbench_target_mine"}


def test_modules_that_somebody_else_imported_do_not_stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = written(tmp_path / "other", helper="FACTOR = 7\n")
    monkeypatch.syspath_prepend(Path(other).parent)
    import helper  # type: ignore[import-not-found]

    source = ATTENTION + "import helper\ndef attention(q, k, v, *, scale, causal):\n"
    source += "    return plain(q, k, v, scale, causal) * np.float32(helper.FACTOR)\n"
    target = written(tmp_path / "mine", mine=source, helper="FACTOR = 1\n")
    assert diff(run(target, CASE)).verdict == "rounding"
    assert sys.modules.pop("helper") is helper and helper.FACTOR == 7


def test_a_file_may_have_the_name_of_a_library_that_it_imports(tmp_path: Path) -> None:
    mine = SIMPLE + "import colorsys\nassert colorsys.rgb_to_hsv\n"
    written(tmp_path, colorsys=mine)
    assert diff(run(f"{tmp_path}/colorsys.py:attention", CASE)).verdict == "rounding"
    del sys.modules["colorsys"]
    beside = SIMPLE + "import colorsys\nassert colorsys.mine\n"  # as with `python mine.py`
    assert diff(run(written(tmp_path / "b", mine=beside, colorsys="mine = True\n"), CASE)).verdict == "rounding"
    import colorsys

    assert colorsys.rgb_to_hsv


# ---- ends and prints

ENDS = (
    ATTENTION
    + """
import sys
def leaves(q, k, v, *, scale, causal):
    sys.exit(0)
def says(q, k, v, *, scale, causal):
    sys.exit("no")
class Own(BaseException):
    pass
def own(q, k, v, *, scale, causal):
    raise Own("mine")
def stopped(q, k, v, *, scale, causal):
    raise KeyboardInterrupt
"""
)


def test_the_exit_of_a_function_is_not_ours(tmp_path: Path) -> None:
    written(tmp_path, mine=ENDS, exits="import sys\nsys.exit(0)\n")
    for name, end in (("leaves", "SystemExit: 0\n"), ("says", "SystemExit: no\n"), ("own", "mine.Own: mine\n")):
        said = refusal(run, f"{tmp_path}/mine.py:{name}", CASE)
        assert said.startswith(f"{tmp_path}/mine.py:{name} raised on numpy arrays:\nTraceback ")
        assert said.endswith(end.replace("mine.Own", "workbench_target_mine.Own"))
    said = refusal(find, f"{tmp_path}/exits.py:attention")
    assert said.startswith(f"{tmp_path}/exits.py could not be imported:\n") and said.endswith("SystemExit: 0\n")
    with pytest.raises(KeyboardInterrupt):
        run(f"{tmp_path}/mine.py:stopped", CASE)


LOUD = (
    ATTENTION
    + """
import ctypes, os
libc = ctypes.CDLL(None)
print("while imported")
libc.printf(b"by C while imported\\n")
def attention(q, k, v, *, scale, causal):
    print("while called")
    libc.printf(b"by C while called\\n")
    os.system("echo by a process")
    return plain(q, k, v, scale, causal)
"""
)
PRINTS = ["while imported", "by C while imported", "while called", "by C while called", "by a process"]


def test_what_a_kernel_prints_is_not_in_the_document(tmp_path: Path) -> None:
    target = written(tmp_path, mine=LOUD)
    program = [
        sys.executable,
        "-c",
        "from workbench.cli.main import main; main()",
        "diff",
        target,
        "--seqlen",
        "8",
        "--json",
    ]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and json.loads(done.stdout)["schema"] == "workbench.diff/1"
    assert sorted(line for line in done.stderr.splitlines() if line in PRINTS) == sorted(PRINTS)


def test_prints_of_python_are_the_callers_unless_it_is_the_command_line(tmp_path: Path, capsys: Any) -> None:
    target = written(tmp_path, mine=LOUD.replace("os.system", "len"))
    run(target, CASE)
    assert capsys.readouterr().out == "while imported\nwhile called\n"
    done = CliRunner().invoke(commands, ["show", target, "out[0,0,0,0]", "--seqlen", "8", "--json"])
    assert json.loads(done.stdout) and done.stderr.startswith("while called\n")
