"""Nothing that is said depends on the clock: searches end by counted work, and few files read a clock at all."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.clock.sitecustomize import clocks
from tests.refusals import invoked

ROOT = Path(__file__).parent.parent
HERE = ROOT / "tests" / "clock"
KERNELS = HERE / "kernels.py"
#: files of the package that read a clock -> what they do with it
READERS = {
    "bench/latency.py": "measures time",
    "cuda/host/context.py": "measures time",
    "explore/acceptance/caller.py": "a limit that the user sets",
    "explore/acceptance/run.py": "a limit that the user sets",
    "explore/capturing/capture.py": "says what capture costs",
    "explore/capturing/judging.py": "says what judging costs",
    "explore/shrink/shrink.py": "a cap that the user sets, and the seconds that it took",
    "explore/sweep/store.py": "when rows are committed",
    "explore/sweep/sweep.py": "progress on stderr",
    "explore/sweep/worker.py": "a limit that the user sets",
    "foreign/isolation.py": "a limit that the user sets",
    "judge/explain/explain.py": "the seconds that it took",
    "judge/explain/symptom_search.py": "progress on stderr",
    "judge/explain/symptoms.py": "the seconds that it took",
    "process.py": "how long a process may take to end",
    "progress.py": "progress on stderr",
    "readings/contract/measured.py": "the seconds that it took",
    "readings/reader.py": "the seconds that it took",
    "work.py": "a cap that the user sets",
}
#: fields of seconds, which are left out of what is compared
SECONDS = {"seconds", "loading_seconds", "took"}

SMALL = ("--seqlen", "24", "--head-dim", "16", "--dtype", "float16")
LARGE = ("--seqlen", "128", "--head-dim", "64", "--dtype", "float16", "--causal")
NORM = ("--operation", "rmsnorm", "--axes", "rows=3,dim=16")
BACKWARD = ("--operation", "attention_backward", "--axes", "queries=12,keys=12,dim=8,dim_v=8")
TABLE = {
    "schema": "workbench.symptoms/1", "kernel": "flash", "dtype": "float32", "causal": True, "block_k": 16, "seed": 3,
    "cases": [{"seqlen": 20, "head_dim": 16, "max_abs": 0.12, "rows": {"0": 0.0, "19": 0.1}}],
}  # fmt: skip


def _of(name: str, *words: str) -> tuple[str, ...]:
    return words[0], f"{KERNELS}:{name}", *words[1:]


#: every command that searches, attention and operations, with a cause that is found and without, and cut by its effort
EACH = {
    "diff": _of("scaled_twice", "diff", *SMALL, "--effort", "0.1"),
    "explain": _of("odd_lse", "explain", "--seqlen", "12", "--head-dim", "8", "--effort", "0.01"),
    "measure": _of("dims_rolled", "measure", *SMALL),
    "contract": _of("right", "contract", "--measure", *SMALL),
    "shrink": _of("in_base_2", "shrink", *SMALL, "--effort", "0.05"),
    "symptoms": ("explain", "--symptoms", "table.json", "--effort", "0.01"),
    "explain an operation": _of("norm_odd", "explain", *NORM),
    "shrink of an operation": _of("norm_wrong", "shrink", *NORM),
    "measure a backward pass": _of("backward_wrong", "measure", *BACKWARD),
}
#: as a user runs them
WHOLE = {
    **{f"diff {name}": _of(name, "diff", *LARGE) for name in ("right", "scaled_twice", "odd_everything")},
    **{
        f"explain {name}": _of(name, "explain", *LARGE)
        for name in ("scaled_twice", "in_base_2", "dims_rolled", "last_key_lost", "odd_probs", "odd_lse", "odd_scores")
    },
    **{f"measure {name}": _of(name, "measure", *LARGE) for name in ("probs_doubled", "odd_out")},
    "contract": _of("right", "contract", "--measure", *SMALL),
    **{f"shrink {name}": _of(name, "shrink", *LARGE, "--effort", "0.3") for name in ("in_base_2", "odd_out")},
    "symptoms": ("explain", "--symptoms", "table.json"),
    **{f"explain {name}": _of(name, "explain", *NORM) for name in ("norm_wrong", "norm_odd")},
    "shrink norm_wrong": _of("norm_wrong", "shrink", *NORM),
    "explain backward_wrong": _of("backward_wrong", "explain", *BACKWARD),
}


def test_few_files_read_a_clock() -> None:
    reading = {
        str(path.relative_to(ROOT / "workbench"))
        for path in (ROOT / "workbench").rglob("*.py")
        if re.search(r"^\s*(import time|from time import)\b", path.read_text(), re.MULTILINE)
    }
    assert reading == {*READERS}


@pytest.mark.parametrize("name", EACH)
def test_every_search_says_the_same_under_every_clock(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("table.json").write_text(json.dumps(TABLE))
    found = {}
    for kind in ("real", "still", "fast"):
        with pytest.MonkeyPatch.context() as patch:
            for of, clock in {} if kind == "real" else clocks(kind).items():
                patch.setattr(time, of, clock)
            done = invoked(*EACH[name], "--json")
        assert done.exit_code in (0, 1), (done.output, done.exception)
        found[kind] = done.exit_code, _compared(json.loads(done.stdout))
    assert found["real"] == found["still"] == found["fast"]


@pytest.mark.campaign
@pytest.mark.parametrize("name", WHOLE)
def test_whole_runs_say_the_same_under_every_clock(name: str, tmp_path: Path) -> None:
    (tmp_path / "table.json").write_text(json.dumps(TABLE))
    for words in (WHOLE[name], (*WHOLE[name], "--json")):
        found = {kind: _ran(words, kind, tmp_path) for kind in ("", "still", "fast")}
        assert found[""] == found["still"] == found["fast"]


def _ran(words: tuple[str, ...], kind: str, folder: Path) -> tuple[int, Any]:
    """Exit code and what is printed, in a process with a clock of its own."""
    paths = [str(HERE), str(ROOT), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "WORKBENCH_TEST_CLOCK": kind}
    command = [sys.executable, "-c", "from workbench.cli.main import main; main()", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=folder)
    assert done.returncode in (0, 1) and done.stdout and "Traceback" not in done.stderr, done.stderr
    said = _compared(json.loads(done.stdout)) if "--json" in words else re.sub(r"\b[\d.]+ s\b", "# s", done.stdout)
    return done.returncode, said


def _compared(document: Any) -> Any:
    """Without fields of seconds."""
    if isinstance(document, Mapping):
        return {name: _compared(x) for name, x in document.items() if name not in SECONDS}
    return [_compared(x) for x in document] if isinstance(document, list) else document
