"""The process of a command line: Ctrl-C ends it wherever it is, with nothing half-written."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

#: C code that lets other threads run, takes hours, and does not look at signals
HOURS = "hashlib.pbkdf2_hmac('sha256', b'', b'', 2**31 - 1)"
THREADS = f"""
import hashlib, pathlib
from concurrent.futures import ThreadPoolExecutor
def attention(q, k, v, *, scale, causal):
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(lambda _: {HOURS}, range(2))
        pathlib.Path("running").touch()
        return list(found)
"""
WRITER = f"""
import hashlib, os
from pathlib import Path
from workbench import process
from workbench.files import write_atomically
def replace(*_):
    Path("running").touch()
    {HOURS}
os.replace = replace
with process.interruptible():
    write_atomically(Path("trace.safetensors"), b"half")
"""
STUBBORN = """
import pathlib, time
def attention(q, k, v, *, scale, causal):
    pathlib.Path("running").touch()
    while True:
        try:
            time.sleep(60)
        except BaseException:
            pass
"""
LOCKED = """
import ctypes, pathlib
def attention(q, k, v, *, scale, causal):
    pathlib.Path("running").touch()
    ctypes.PyDLL(None).sleep(3600)
"""
COMMAND = [
    sys.executable,
    "-c",
    "from workbench.cli.main import main; main()",
    "diff",
    "mine.py:attention",
    "--seqlen",
    "8",
]


def interrupted(folder: Path, command: list[str]) -> tuple[int, str]:
    """Exit code and stderr of a command that gets SIGINT once it runs."""
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        while running.poll() is None and not (folder / "running").exists():
            time.sleep(0.01)
        running.send_signal(signal.SIGINT)
        try:
            out, err = running.communicate(timeout=60)
        finally:
            running.kill()
    assert out == ""
    return running.returncode, err


@pytest.mark.campaign
def test_ctrl_c_in_threads_of_compiled_code(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(THREADS)
    code, said = interrupted(tmp_path, [*COMMAND, "--out", "out"])
    assert code == 130 and said.endswith("\nworkbench: stopped\n") and "Traceback" not in said
    assert not [*(tmp_path / "out").iterdir()]


def test_ctrl_c_in_code_that_catches_everything(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(STUBBORN)
    assert interrupted(tmp_path, COMMAND)[0] == 130


@pytest.mark.campaign
def test_ctrl_c_where_a_function_holds_the_lock_in_a_process_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(LOCKED)
    assert interrupted(tmp_path, [*COMMAND, "--isolate"])[0] == 130


def test_ctrl_c_while_a_file_is_written_leaves_nothing_of_it(tmp_path: Path) -> None:
    assert interrupted(tmp_path, [sys.executable, "-c", WRITER]) == (130, "\nworkbench: stopped\n")
    assert [path.name for path in tmp_path.iterdir()] == ["running"]
