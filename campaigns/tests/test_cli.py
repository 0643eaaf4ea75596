"""The campaign `score`: which campaign an option takes, and what it prints."""

import json

import pytest
from click.testing import CliRunner

from campaigns import left_out, pairs, score, symptoms
from campaigns.cli import commands
from workbench.refusal import Refusal

CAMPAIGNS = [
    ((), score, "measure", (5, 0, 1, (), ())),
    (
        ("--kernel", "flash", "--kernel", "fp8", "--known", "out and lse"),
        *(score, "measure", (5, 0, 1, ("flash", "fp8"), ("out and lse",))),
    ),
    (("--independent", "--per-fault", "2"), score, "measure_independent", (2, 0, 1)),
    (("--pairs", "7", "--seed", "3"), pairs, "measure", (7, 3, 1)),
    (("--left-out", "--per-fault", "1", "--jobs", "2"), left_out, "measure", (1, 0, 2)),
    (("--symptoms", "--jobs", "2"), symptoms, "measure", (0, 2)),
]


@pytest.mark.parametrize(("words", "module", "name", "expected"), CAMPAIGNS, ids=[" ".join(x[0]) for x in CAMPAIGNS])
def test_each_option_is_a_campaign(monkeypatch, words, module, name, expected):
    asked = []
    monkeypatch.setattr(module, name, lambda *args: asked.append(args) or {"rows": [{"a": 1}]})
    monkeypatch.setattr(module, "tables", lambda results: [results["rows"]])
    printed = CliRunner().invoke(commands, ["score", *words])
    document = CliRunner().invoke(commands, ["score", *words, "--json"])
    assert printed.exit_code == document.exit_code == 0 and asked == [expected] * 2
    assert printed.stdout.split() == ["a", "1"] and json.loads(document.stdout) == {"rows": [{"a": 1}]}


def test_two_campaigns_are_refused():
    refused = CliRunner().invoke(commands, ["score", "--left-out", "--symptoms"])
    assert isinstance(refused.exception, Refusal)
    assert str(refused.exception) == (
        "--independent, --pairs, --left-out and --symptoms are separate campaigns; give one of them"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--left-out", "--kernel", "flash"),
            "--kernel and --known work only without --independent, --pairs, --left-out and --symptoms",
        ),
        (
            ("--kernel", "flsh"),
            "--kernel takes flash, flash_tensor, flash_mma, flash_wgmma, split_k, split_mma, fp8, fp8_mma, fp8_wgmma; "
            "got flsh",
        ),
        (("--known", "out"), "--known takes full, lean, out and lse, out alone; got out"),
    ],
)
def test_what_is_not_there_is_refused(words, message):
    refused = CliRunner().invoke(commands, ["score", *words])
    assert isinstance(refused.exception, Refusal) and str(refused.exception) == message
