"""The example that judges a kernel again at each save, with a `workbench` that writes down how it was called."""

import os
import subprocess
import sys
from pathlib import Path
from threading import Timer

from workbench.cli.main import commands

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "judge_on_save.py"


def test_each_save_is_judged_once(tmp_path: Path) -> None:
    mine, called = tmp_path / "mine.py", tmp_path / "workbench"
    mine.write_text("1")
    called.write_text('#!/bin/sh\necho "$@: $(cat mine.py)"\n')
    called.chmod(0o755)
    words = ["mine.py:attention", "--seqlen", "64,65", "--causal"]
    assert commands.commands["diff"].make_context("diff", [*words]).params["seqlen"] == (64, 65)
    process = subprocess.Popen(
        [sys.executable, EXAMPLE, *words],
        cwd=tmp_path,
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        text=True,
    )
    patience = Timer(60, process.kill)  # what is not judged again would be awaited for ever
    patience.start()
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == f"diff {' '.join(words)}: 1\n"
        for second, text in enumerate("23"):
            other = mine.with_suffix(".new")  # as editors save: by a rename
            other.write_text(text)
            os.utime(other, (second, second))  # clocks of files are coarse
            other.replace(mine)
            assert process.stdout.readline() == f"diff {' '.join(words)}: {text}\n"
    finally:
        patience.cancel()
        process.kill()
        process.communicate()


def test_without_a_file_it_says_how_it_is_called(tmp_path: Path) -> None:
    for words in ([], ["flash"], ["nowhere.py:attention"]):
        refused = subprocess.run([sys.executable, EXAMPLE, *words], cwd=tmp_path, capture_output=True, text=True)
        assert refused.returncode == 1 and "judge_on_save.py mine.py:attention" in refused.stderr
