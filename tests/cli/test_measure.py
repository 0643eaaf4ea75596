"""The command `measure`: exit codes, lines, the document, the picture, refusals."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from workbench.cli.main import commands
from workbench.refusal import Refusal

KERNEL = """
import numpy as np

def attention(q, k, v, *, scale, causal):
    scores = q @ np.swapaxes(k, -1, -2) * np.float32(scale * FACTOR)
    probs = np.exp(scores - scores.max(-1, keepdims=True))
    return probs @ v / probs.sum(-1, keepdims=True)
"""
SMALL = ("--seqlen", "32", "--head-dim", "16")


def asked(folder: Path, factor: str, *words: str) -> Any:
    (folder / "mine.py").write_text(KERNEL.replace("FACTOR", factor))
    return CliRunner().invoke(commands, ["measure", f"{folder}/mine.py:attention", *SMALL, *words])


def test_a_right_function_exits_with_0_and_nothing_is_found(tmp_path: Path) -> None:
    found = asked(tmp_path, "1")
    assert found.exit_code == 0 and "nothing found: weights and out of this run are within" in found.stdout


def test_what_is_wrong_is_said_with_its_proof_and_drawn(tmp_path: Path) -> None:
    found = asked(tmp_path, "2", "--picture", f"{tmp_path}/p.png")
    assert found.exit_code == 1
    assert "scores: scores are 2 times what they should be: the scale is 0.5, not 0.25" in found.stdout
    assert found.stdout.count("with this, float64 predicts out of seed") == 2
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_the_document(tmp_path: Path) -> None:
    one = json.loads(asked(tmp_path, "2", "--json").stdout)
    assert one["schema"] == "workbench.measure/1" and one["proved"] and one["findings"][0]["reading"] == "response"
    assert all(proof["left"] < 0.01 * proof["error"] for proof in one["proofs"]) and len(one["proofs"]) == 2
    (tmp_path / "mine.py").write_text(KERNEL.replace("FACTOR", "1"))
    words = ["measure", f"{tmp_path}/mine.py:attention", "--seqlen", "16,32", "--head-dim", "16", "--json"]
    many = json.loads(CliRunner().invoke(commands, words).stdout)
    assert many["schema"] == "workbench.measures/1" and [run["proved"] for run in many["runs"]] == [False, False]


def test_what_cannot_be_measured_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="--picture takes one case; 2 were asked for"):
        words = ["measure", f"{tmp_path}/mine.py:attention", "--seqlen", "16,32", "--picture", f"{tmp_path}/p.png"]
        asked(tmp_path, "1")
        CliRunner().invoke(commands, words, catch_exceptions=False)
