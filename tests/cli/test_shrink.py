"""The command `shrink`: what it prints, the test that it writes, refusals."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from workbench.case.case import Case
from workbench.cli.main import commands
from workbench.explore.shrink.shrink import shrink
from workbench.foreign.run import run
from workbench.judge.diff import diff
from workbench.refusal import Refusal

KERNEL = """
import numpy as np

def attention(q, k, v, *, scale, causal):
    scores = q @ np.swapaxes(k, -1, -2) * np.float32(scale)
    top = scores.max(-1)
    probs = np.exp(scores - top[..., None])
    total = probs.sum(-1)
    wrong = np.float32(FACTOR if k.shape[2] > 2 else 1)
    return {"scores": scores, "out": probs @ v / total[..., None], "lse": (top + np.log(total)) * wrong}
"""


def kernel(folder: Path, factor: str) -> str:
    (folder / "mine.py").write_text(KERNEL.replace("FACTOR", factor))
    return f"{folder}/mine.py:attention"


def asked(*words: str) -> Any:
    return CliRunner().invoke(commands, ["shrink", *words])


def check(source: str) -> None:
    """Run the only test of a file."""
    names: dict[str, Any] = {}
    exec(compile(source, "test_it.py", "exec"), names)
    (test,) = (found for name, found in names.items() if name.startswith("test_"))
    test()


@pytest.mark.campaign
def test_the_smallest_case_is_printed_and_its_test_fails_with_the_bug_alone(tmp_path: Path) -> None:
    words = ("--seqlen", "6", "--head-dim", "2", "--heads", "2", "--dtype", "float16")
    out = tmp_path / "test_mine.py"
    target = kernel(tmp_path, "1.4426950408889634")
    result = asked(target, *words, "--contract", "block_k=64", "--out", str(out))
    assert result.exit_code == 1, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith(f"start: {target}: float16 b=1 h=2 q=6 k=6 d=2")
    assert lines[2].endswith(" elements in q, k and v, down from 72")
    assert any(line.startswith("  both cases: first wrong stage lse; cause: lse is in base 2") for line in lines)
    assert any(line.startswith("  seqlen_k, with block_k 64: fails at 3 to 6; passes at 1, 2") for line in lines)
    source = out.read_text()
    assert 'contract="block_k=64"' in source and "base 2" in source
    assert all(len(line) <= 120 for line in source.splitlines() if str(tmp_path) not in line)
    with pytest.raises(AssertionError):
        check(source)
    fixed = tmp_path / "fixed"
    fixed.mkdir()
    check(source.replace(target, kernel(fixed, "1")))


@pytest.mark.campaign
def test_without_a_file_the_test_is_printed_and_a_document_holds_it(tmp_path: Path) -> None:
    target = kernel(tmp_path, "-1")
    document = json.loads(asked(target, "--seqlen", "4", "--head-dim", "1", "--json").stdout)
    assert document["schema"] == "workbench.shrink/1" and document["origin"] == "lse" and document["complete"]
    assert document["cause"]["id"].startswith("output.") and document["smallest"]["seqlen_k"] == 3
    (at,) = (one for one in document["boundaries"] if one["name"] == "seqlen_k")
    assert at["passes"] == [1, 2] and at["fails"] == [3, 4, 5] and at["monotone"]
    assert "def test_mine_py_attention_lse() -> None:" in document["test"]
    assert {name: np.shape(x) for name, x in document["inputs"].items()}["k"] == (1, 1, 3, 1)
    with pytest.raises(AssertionError):
        check(document["test"])


def test_what_it_cannot_take_is_refused(tmp_path: Path) -> None:
    target = kernel(tmp_path, "-1")
    several = asked(target, "--seqlen", "4,8")
    assert str(several.exception) == "shrink takes one case; TARGET and options make 2"
    (tmp_path / "test_it.py").write_text("")
    there = asked(target, "--seqlen", "4", "--out", f"{tmp_path}/test_it.py")
    assert "exists; name a new file, or remove it" in str(there.exception)
    right = asked(kernel(tmp_path, "1"), "--seqlen", "4")
    assert "this run has none (verdict: rounding)" in str(right.exception)
    assert all(isinstance(one.exception, Refusal) for one in (several, there, right))


@pytest.mark.campaign
def test_a_callable_has_no_name_that_a_file_can_say() -> None:
    def mine(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
        return {"out": v[..., : q.shape[2], :] + np.float32(1)}

    found = shrink(diff(run(mine, Case(seqlen=3, head_dim=1))), 0.3)
    with pytest.raises(Refusal, match="a test names its kernel, as path.py:function; mine is a callable"):
        found.test()
    assert found.as_dict()["test"] is None
