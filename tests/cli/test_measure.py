"""The command `measure`: exit codes, lines, the document, the picture, refusals."""

import json
import re
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


def asked(folder: Path, factor: str, *words: str, command: str = "measure", stage: tuple[str, ...] = ()) -> Any:
    (folder / "mine.py").write_text(KERNEL.replace("FACTOR", factor))
    return CliRunner().invoke(commands, [command, f"{folder}/mine.py:attention", *stage, *SMALL, *words])


def test_a_right_function_exits_with_0_and_nothing_is_found(tmp_path: Path) -> None:
    found = asked(tmp_path, "1")
    assert found.exit_code == 0 and "nothing found: weights and out are within budget" in found.stdout


def test_what_is_wrong_is_said_with_its_proof_and_drawn(tmp_path: Path) -> None:
    found = asked(tmp_path, "2", "--picture", f"{tmp_path}/p.png")
    assert found.exit_code == 1
    assert "scores: the scale is 0.5, not 0.25: scores are multiplied by 2" in found.stdout
    assert found.stdout.count("; the fitted model leaves ") == 2
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_the_document(tmp_path: Path) -> None:
    one = json.loads(asked(tmp_path, "2", "--json").stdout)
    assert one["schema"] == "workbench.measure/1" and one["proved"] and one["findings"][0]["reading"] == "response"
    assert all(proof["left"] < 0.01 * proof["error"] for proof in one["proofs"]) and len(one["proofs"]) == 2
    (tmp_path / "mine.py").write_text(KERNEL.replace("FACTOR", "1"))
    words = ["measure", f"{tmp_path}/mine.py:attention", "--seqlen", "16,32", "--head-dim", "16", "--json"]
    many = json.loads(CliRunner().invoke(commands, words).stdout)
    assert many["schema"] == "workbench.measures/1" and [run["proved"] for run in many["runs"]] == [False, False]


def test_the_weights_come_first(tmp_path: Path) -> None:
    lines = asked(tmp_path, "2").stdout.splitlines()
    assert re.fullmatch(
        r"weights: 1,02\d of 1,024 over budget, worst error \S+x its budget; first wrong stage: scores", lines[1]
    )
    told = json.loads(asked(tmp_path, "1", "--json").stdout)
    assert told["stage"] is None and told["weights"]["outside"] == 0 and 0 < told["weights"]["over_budget"] < 1


def test_measured_stages_beside_those_of_a_diff(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.judge.diff.QUICK", 0.0)
    page = tmp_path / "page.html"
    found = asked(tmp_path, "2", "--measure", "--html", str(page), command="diff")
    assert found.exit_code == 1 and "first wrong stage: scores (measured), should be " in found.stdout
    assert [line.split()[0] for line in found.stdout.splitlines()[2:5]] == ["scores", "weights", "out"]
    assert "calls: weights, 1,02" in found.stdout and "--measure" in found.stdout.splitlines()[-2]
    assert "scores (measured)" in page.read_text()
    right = asked(tmp_path, "1", "--measure", command="diff")
    assert right.exit_code == 0 and "calls: weights, within budget, " in right.stdout
    assert "weights" not in asked(tmp_path, "1", command="diff").stdout


def test_measured_weights_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.judge.diff.QUICK", 0.0)
    row = ("weights[q=5,k=0:3]",)
    lines = asked(tmp_path, "2", "--measure", command="show", stage=row).stdout.splitlines()
    assert lines[1].startswith("weights [b h q k] = out with columns of the identity in place of v")
    assert lines[2] == "victim (measured); expected: float64 from q, k and v" and len(lines) == 7
    told = json.loads(asked(tmp_path, "1", "--measure", "--json", command="show", stage=row).stdout)
    assert told["stage"] == "weights" and [one["index"]["k"] for one in told["elements"]] == [0, 1, 2]
    assert all(abs(one["error"]) <= one["budget"] for one in told["elements"])


@pytest.mark.parametrize(
    ("command", "words", "message"),
    [
        ("diff", ("--measure", "--against", "flash"), "--measure judges one function, but --against compares two"),
        (
            "diff",
            ("--measure", "--where", "q=0:4"),
            "only .* is judged, but measuring needs the whole run",
        ),
        (
            "show",
            ("--measure", "--expected"),
            "--expected shows only the float64 reference and measures nothing",
        ),
        ("show", (), "cannot dump weights: measure them with --measure, or diff"),
    ],
)
def test_what_measured_stages_do_not_go_with(
    command: str, words: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    stage = ("weights[q=5]",) if command == "show" else ()
    found = asked(tmp_path, "1", *words, command=command, stage=stage)
    assert isinstance(found.exception, Refusal) and re.search(message, str(found.exception))


def test_what_cannot_be_measured_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="--picture takes one case; the case options make 2"):
        words = ["measure", f"{tmp_path}/mine.py:attention", "--seqlen", "16,32", "--picture", f"{tmp_path}/p.png"]
        asked(tmp_path, "1")
        CliRunner().invoke(commands, words, catch_exceptions=False)
