"""The command `contract --measure`: lines, the document, the file for --contract @FILE, refusals."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from workbench import Case, Refusal, diff, run
from workbench.cli.main import commands

KERNEL = """
import numpy as np

def attention(q, k, v, *, scale, causal):
    kind = q.dtype
    q, k, v = (x.astype(np.float32) for x in (q, k, v))
    scores = q @ np.swapaxes(k, -1, -2) * np.float32(scale)
    top = scores.max(-1, keepdims=True)
    probs = np.exp(scores - top).astype(kind).astype(np.float32)
    total = probs.sum(-1, keepdims=True)
    return {"out": (probs @ v / total).astype(kind), "lse": (top + np.log(total))[..., 0]}
"""
CASE = ("--seqlen", "24", "--head-dim", "16", "--dtype", "bfloat16")


@pytest.fixture
def target(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(KERNEL)
    return f"{tmp_path}/mine.py:attention"


def asked(*words: str) -> Any:
    return CliRunner().invoke(commands, ["contract", *words], catch_exceptions=False)


def test_each_field_is_told_with_what_shows_it_and_the_file_is_a_contract(target: str, tmp_path: Path) -> None:
    found = asked(target, "--measure", *CASE, "--out", f"{tmp_path}/read.json")
    assert found.exit_code == 0
    assert "row_sum_of_cast = true: lse shows" in found.stdout
    assert "block_k cannot be measured: no run of the 24 keys is rescaled separately" in found.stdout
    assert found.stdout.splitlines()[-1].startswith("--contract scores_dtype=float32,")
    told = json.loads((tmp_path / "read.json").read_text())
    assert told["schema"] == "workbench.measured-contract/1"
    assert told["fields"]["row_sum_of_cast"] is True and told["evidence"]["row_sum_of_cast"].startswith("measured: ")
    case = Case(seqlen=24, head_dim=16, dtype="bfloat16")
    judged = diff(run(target, case, contract=f"@{tmp_path}/read.json,exp_ulps=4"))
    assert judged.verdict in ("exact", "rounding")
    promise = judged.trace.contract
    assert (promise.row_sum_of_cast, promise.exp_ulps) == (True, 4.0) and "row_sum_of_cast" not in promise.assumed


def test_files_that_hold_none_are_refused(target: str, tmp_path: Path) -> None:
    (tmp_path / "none.json").write_text("[]")
    with pytest.raises(Refusal, match='must be a JSON object with "fields", as `workbench contract TARGET --measure'):
        run(target, contract=f"@{tmp_path}/none.json")
    with pytest.raises(Refusal, match="the file cannot be read: No such file"):
        run(target, contract=f"@{tmp_path}/lacking.json")
    (tmp_path / "odd.json").write_text('{"fields": 3}')
    with pytest.raises(Refusal, match='its "fields" must be an object; got 3'):
        run(target, contract=f"@{tmp_path}/odd.json")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("mine.py:attention",),
            "--measure reads the contract of mine.py:attention: workbench contract mine.py:attention --measure",
        ),
        (("--measure",), "need a TARGET: workbench contract FILE.py:FUNCTION --measure"),
        (("flash", "--measure", "--seqlen", "16,32"), "a contract is measured on one case; the case options make 2"),
        (("flash", "--measure", "--by-head"), "--by-head is not allowed"),
    ],
)
def test_refusals(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(Refusal, match=message):
        asked(*words)
