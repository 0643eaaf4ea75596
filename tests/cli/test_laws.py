"""The command `laws`: exit codes, what is printed, documents, refusals."""

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
    if q.shape[1] != k.shape[1]:
        raise ValueError("as many kv heads as heads")
    scores = q @ np.swapaxes(k, -1, -2) * np.float32(scale)
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    top = scores.max(-1)
    probs = np.exp(scores - top[..., None])
    total = probs.sum(-1)
    return {"out": probs @ v / total[..., None], "lse": (top + np.log(total)) * np.float32(FACTOR)}
"""


def asked(folder: Path, factor: str, *words: str) -> Any:
    (folder / "mine.py").write_text(KERNEL.replace("FACTOR", factor))
    return CliRunner().invoke(commands, ["laws", f"{folder}/mine.py:attention", *words])


SMALL = ("--seqlen", "12", "--head-dim", "16")


def test_a_right_kernel_exits_with_0_and_a_wrong_one_with_1_and_a_sentence(tmp_path: Path) -> None:
    right, wrong = asked(tmp_path, "1", *SMALL), asked(tmp_path, "1.4427", *SMALL)
    assert right.exit_code == 0 and " 0 broken, " in right.stdout
    assert wrong.exit_code == 1
    assert (
        "exact-inputs: On inputs that leave a right kernel nothing to round, out is exact.\n  lse at " in wrong.stdout
    )
    assert f"repeat: workbench laws {tmp_path}/mine.py:attention --seqlen 12 --head-dim 16\n" in wrong.stdout


def test_broken_laws_come_first_and_those_that_were_not_asked_in_a_line(tmp_path: Path) -> None:
    printed = asked(tmp_path, "1.4427", *SMALL).stdout.splitlines()
    rows = printed[1 : 1 + sum(line.rstrip().endswith(("BROKEN", "held")) for line in printed)]
    verdicts = [row.split()[-1] for row in rows]
    assert verdicts == sorted(verdicts) and {*verdicts} == {"BROKEN", "held"}
    (line,) = (line for line in printed if " laws not applicable: " in line)
    count = int(line.split()[0])
    assert f", {count} not applicable" in printed[printed.index(line) - 1]
    assert "keys are not in pages (pages-in-another-order)" in line
    several = asked(tmp_path, "1.4427", *SMALL, "--random", "2", "--heads", "1,kv=1").stdout.splitlines()
    first = next(i for i, row in enumerate(several) if row.split()[3] == "0")  # broken in no case
    assert first > 1 and all(row.split()[3] != "0" for row in several[1:first])
    assert any("laws not applicable: on any case (" in line for line in several)


def test_the_document(tmp_path: Path) -> None:
    result = asked(tmp_path, "1.4427", *SMALL, "--json")
    document = json.loads(result.stdout)
    assert result.exit_code == 1 and document["schema"] == "workbench.laws/1" and document["broken"] > 0
    assert document["case"]["seqlen_q"] == 12 and not document["claims_invariance"]


def test_of_a_function_without_grouped_heads_the_option_that_spares_it_them_is_named(tmp_path: Path) -> None:
    hint = "all cases of grouped heads were refused: --heads 2,kv=2 gives K as many heads as Q"
    limits = ("--random", "3", "--seqlen", "8", "--head-dim", "16", "--distribution", "normal", "--causal", "no")
    none = asked(tmp_path, "1", *limits, "--heads", "4,kv=2")
    assert isinstance(none.exception, Refusal)
    assert str(none.exception).endswith(f"refused every case: ValueError: as many kv heads as heads; {hint}")
    assert hint not in asked(tmp_path, "1", *limits, "--heads", "2,kv=2").stdout
    some = asked(tmp_path, "1", *limits, "--heads", "2,kv=1/2").stdout
    assert some.splitlines()[-2:] == ["1 case refused: ValueError: as many kv heads as heads", hint]


@pytest.mark.campaign
def test_random_cases_give_a_row_a_law_with_the_command_that_repeats_the_first(tmp_path: Path) -> None:
    limits = (
        "--seqlen",
        "9",
        "--heads",
        "2",
        "--head-dim",
        "16",
        "--dtype",
        "float32",
        "--scale",
        "0.25",
        "--causal",
        "no",
    )
    document = json.loads(asked(tmp_path, "1.4427", *limits, "--random", "2", "--json").stdout)
    assert document["schema"] == "workbench.laws-table/1"
    # softcaps and windows are among what is drawn, and refused
    assert document["cases"] > 0 and document["refused"] and document["cases"] + sum(document["refused"].values()) == 2
    (row,) = [row for row in document["laws"] if row["law"] == "exact-inputs"]
    assert row["broken"] == document["cases"] and row["repeat"].startswith(
        f"workbench laws {tmp_path}/mine.py:attention"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "TARGET is missing"),
        (("flash", "--by-head"), "--by-head is not allowed"),
        (("flash", "--where", "b=0"), "where is not for laws"),
        (("flash", "--random", "2", "--inputs", "x.npz"), "--random draws inputs"),
    ],
)
def test_what_is_refused(words: tuple[str, ...], said: str) -> None:
    result = CliRunner().invoke(commands, ["laws", *words])
    assert isinstance(result.exception, Refusal) and said in str(result.exception)
