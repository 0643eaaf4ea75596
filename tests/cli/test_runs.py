"""`workbench diff --values` as a user meets it: what runs where, and which options do not go together."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from workbench import Case, Refusal
from workbench.cli.main import commands

CASE = Case(seqlen=24, head_dim=16)
OPTIONS = ["--seqlen", "24", "--head-dim", "16"]


@pytest.fixture
def log(tmp_path: Path) -> str:
    """Three products of q and k, of which the last is wrong."""
    q, k, _ = CASE.inputs()
    right = (q @ k.swapaxes(-1, -2))[0, 0]
    path = tmp_path / "run.log"
    path.write_text(f"launch\nWB qk 0 0 1 2 {right[1, 2]:g}\nWB qk 0 0 3 4 {right[3, 4]:g}\nWB qk 0 0 5 6 100\n")
    return str(path)


def diff(*words: str) -> Result:
    return CliRunner().invoke(commands, ["diff", *words])


def test_a_log_is_judged_and_can_be_judged_again(log: str) -> None:
    result = diff("--values", log, *OPTIONS)
    lines = result.stdout.splitlines()
    assert (
        result.exit_code == 1 and lines[0] == f"{log}: float32 b=1 h=1 q=24 k=24 d=16, no mask, normal inputs, seed 0"
    )
    assert lines[2].split()[:6] == ["qk", "bug", "<-", "origin", lines[2].split()[4], "1/3"]
    assert "3 lines give 3 elements; other lines, ignored: 1" in lines
    assert lines[-1] == f"repeat: workbench diff --seqlen 24 --head-dim 16 --values {log}"
    assert diff(*lines[-1].split()[3:]).stdout == result.stdout
    document = json.loads(diff("--values", log, *OPTIONS, "--block-k", "8", "--json").stdout)
    assert document["origin"] == "qk" and document["stages"][0]["isolated"]["size"] == 3
    assert document["notes"] == ["3 lines give 3 elements; other lines, ignored: 1"]
    assert document["contract"]["block_k"] == 8


def test_a_log_of_right_values_exits_with_0(log: str) -> None:
    Path(log).write_text("\n".join(Path(log).read_text().splitlines()[:3]))
    assert diff("--values", log, *OPTIONS).exit_code == 0


@pytest.mark.campaign
def test_pictures_and_the_trace_of_a_log(log: str, tmp_path: Path) -> None:
    assert diff("--values", log, *OPTIONS, "--out", str(tmp_path / "o")).exit_code == 1
    again = json.loads(diff(str(tmp_path / "o" / "trace.safetensors"), "--json").stdout)
    assert again["origin"] == "qk" and again["stages"][0]["isolated"]["outside"] == 1
    assert (tmp_path / "o" / "01-qk-heatmap.png").exists()


def test_a_kernel_that_masks_with_a_number_says_so(log: str) -> None:
    Path(log).write_text("WB scores 0 0 1 2 -10000\n")
    words = ["--values", log, *OPTIONS, "--causal"]
    assert diff(*words).exit_code == 0  # it is read off the scores
    assert diff(*words, "--contract", "mask_sentinel=-inf").exit_code == 1
    result = diff(*words, "--contract", "mask_sentinel=-1e4,scores_dtype=float32,empty_out=nan,base2=false")
    assert result.exit_code == 0
    again = " ".join(result.stdout.partition("repeat: ")[2].split())
    assert again == (
        f"workbench diff --seqlen 24 --head-dim 16 --causal --values {log} "
        "--contract mask_sentinel=-1e4,scores_dtype=float32,empty_out=nan,base2=false"
    )
    assert diff(*again.split()[2:]).stdout == result.stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            [],
            "TARGET is missing: a built-in kernel, FILE.py:FUNCTION or a trace; `diff` and `explain` also take --values LOG",
        ),
        (["flash", "--values", "LOG"], "--values replaces TARGET; got 'flash'"),
        (
            ["--values", "LOG", "--fault", "flash-scale-twice"],
            "--values takes only case options, --inputs and --contract, since the kernel ran elsewhere; got --fault",
        ),
        (
            ["--values", "LOG", "--backend", "emulator"],
            "--values takes only case options, --inputs and --contract, since the kernel ran elsewhere; got --backend",
        ),
        (
            ["--values", "LOG", "--probes", "lean"],
            "--values takes only case options, --inputs and --contract, since the kernel ran elsewhere; got --probes",
        ),
        (
            ["--values", "LOG", "--arrays", "layout=bshd"],
            "--values takes only case options, --inputs and --contract, since the kernel ran elsewhere; got --arrays layout",
        ),
        (["--values", "LOG", "--seqlen", "24,25"], "a log has one case; the case options make 2"),
        (["--values", "LOG", "--causal", "no,yes"], "a log has one case; the case options make 2"),
        (["--values", "LOG", "--codes", "e4m3"], "--codes is for built-in kernels; LOG comes from another kernel"),
        (["--values", "LOG", "--seqlen", "5"], "LOG, line 4: stage qk: query q must be 0 to 4; got 5"),
        (["--values", "none.log"], "none.log: no such file"),
        (
            ["--values", "LOG", "--contract", "base2"],
            "--contract takes FIELD=VALUE, @FILE or a preset; unknown preset 'base2'; use one of flash-attention-2, "
            "torch-eager, torch-sdpa, triton",
        ),
        (
            ["--values", "LOG", "--contract", "base2=yes"],
            "\"contract\" field base2 must be true or false; got 'yes'",
        ),
        (
            ["flash", "--contract", "base2=true"],
            "--contract is for your own kernels; flash is built in",
        ),
    ],
)
def test_wrong_usage_is_refused(words: list[str], expected: str, log: str) -> None:
    result = diff(*(log if word == "LOG" else word for word in words))
    assert isinstance(result.exception, Refusal) and result.stdout == ""
    assert str(result.exception).replace(log, "LOG") == expected
