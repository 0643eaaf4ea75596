"""`workbench diff --operation`: functions of other operations."""

import json
from pathlib import Path

import pytest
from PIL import Image

from tests.refusals import invoked, refused
from workbench.operations.every import OPERATIONS

NORM = """
import numpy as np


def rmsnorm(x, weight, *, eps):
    x = x.astype(np.float32)
    squares = (x * x).sum(-1)
    rstd = 1 / np.sqrt(squares / np.float32(x.shape[-1]) + np.float32(eps))
    normed = x * rstd[:, None]
    return {"squares": squares, "rstd": rstd, "normed": normed, "out": normed * weight.astype(np.float32)}


def wrong(x, weight, *, eps):
    return {**rmsnorm(x, weight, eps=100 * eps), "out": rmsnorm(x, weight, eps=eps)["out"]}
"""


@pytest.fixture
def norm(tmp_path: Path) -> str:
    (tmp_path / "norm.py").write_text(NORM)
    return f"{tmp_path}/norm.py"


def test_a_right_function_passes(norm: str) -> None:
    words = ["diff", f"{norm}:rmsnorm", "--operation", "rmsnorm,eps=1e-5", "--axes", "rows=4,dim=40"]
    done = invoked(*words)
    assert done.exit_code == 0 and "rmsnorm, float32 rows=4 dim=40, eps=1e-05, normal inputs, seed 0" in done.stdout
    assert "verdict: rounding: every judged element is within its budget" in done.stdout
    assert [*json.loads(invoked(*words, "--json").stdout)["axes"].values()] == [4, 40]


def test_the_first_wrong_stage_is_named(norm: str, tmp_path: Path) -> None:
    words = ["--operation", "rmsnorm", "--axes", "rows=4,dim=40", "--distribution", "near-eps"]
    done = invoked("diff", f"{norm}:wrong", *words, "--out", str(tmp_path / "out"))
    assert done.exit_code == 1 and "first wrong stage: rstd, should be 1 / np.sqrt(mean + eps) (" in done.stdout
    document = json.loads((tmp_path / "out" / "diff.json").read_text())
    assert document["origin"] == "rstd" and document["schema"] == "workbench.operation/1"
    with Image.open(tmp_path / "out" / "overview.png") as picture:
        assert picture.size[0] > 100


def test_lists_make_a_run_of_every_combination(norm: str) -> None:
    words = ["--operation", "rmsnorm", "--dtype", "float16,bfloat16", "--seed", "0,1", "--json"]
    documents = json.loads(invoked("diff", f"{norm}:rmsnorm", *words).stdout)
    assert documents["schema"] == "workbench.operations/1"
    assert [(one["dtype"], one["seed"]) for one in documents["runs"]] == [
        ("float16", 0), ("float16", 1), ("bfloat16", 0), ("bfloat16", 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--operation", "softmax"],
            "--operation must be one of rmsnorm, gated_delta_rule, attention_backward, rope; got 'softmax'",
        ),
        (["--operation", "rmsnorm", "--causal"], "--operation rmsnorm takes no --causal"),
        (["--operation", "rmsnorm", "--measure"], "--operation rmsnorm takes no --measure"),
        (["--operation", "rmsnorm", "--axes", "rows"], "--axes takes NAME=VALUE, separated by commas; got 'rows'"),
        (["--operation", "rmsnorm", "--axes", "rows=few"], "--axes rows is a number; got 'few'"),
        (
            ["--operation", "rmsnorm", "--contract", "cast=late"],
            "rmsnorm: cast must be one of after weight, before weight",
        ),
        (["--axes", "rows=4"], "--axes is for other operations: pass --operation"),
    ],
    ids=["name", "option", "flag", "pair", "number", "convention", "alone"],
)
def test_what_is_refused(norm: str, words: list[str], said: str) -> None:
    assert said in refused("diff", f"{norm}:rmsnorm", *words)


def test_a_kernel_of_attention_is_no_function_of_an_operation() -> None:
    assert "give a function for rmsnorm as FILE.py:FUNCTION" in refused("diff", "flash", "--operation", "rmsnorm")


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize("kernel", ["backward", "backward_atomic"])
def test_a_kernel_of_ours(kernel: str) -> None:
    words = [kernel, "--operation", "attention_backward,causal", "--axes", "dim=8,dim_v=8"]
    right = invoked("diff", *words, "--backend", "emulator", "--probes", "output", "--dtype", "float32,bfloat16")
    assert right.exit_code == 0 and right.stdout.count("verdict: rounding") == 2
    fault = {"backward": "backward-dq-unscaled", "backward_atomic": "atomic-dq-without-atomics"}[kernel]
    wrong = invoked("diff", *words, "--backend", "emulator", "--probes", "output", "--fault", fault)
    assert wrong.exit_code == (kernel == "backward")


def test_a_watched_kernel_of_ours() -> None:
    words = [
        "--operation",
        "attention_backward,causal",
        "--axes",
        "queries=40,keys=48,dim=16,dim_v=16",
    ]
    racy = invoked("check", "backward_atomic", "--fault", "atomic-dq-without-atomics", *words)
    assert racy.exit_code == 1 and "dq_sum[b, h, first_row + c, d] += part" in racy.stdout
    asked = f"workbench check backward_atomic --fault atomic-dq-without-atomics {' '.join(words)}"
    assert racy.stdout.startswith(f"{asked}: 1 finding\n")
    assert invoked("check", "backward_atomic", *words).exit_code == 0
    assert (
        refused("check", "backward")
        == "backward is a kernel of attention_backward: pass --operation attention_backward"
    )
    assert refused("check", "backward", *words[:2], "--backend", "cuda") == (
        "--operation attention_backward is watched on the emulator; got --backend cuda"
    )
    assert refused("check", "flash", "--axes", "q=1") == "--axes is for other operations: pass --operation"
    assert refused("check", "backward", *words[:2], "--seqlen", "8").startswith(
        "--operation attention_backward takes no --seqlen; pass --axes batch=,heads=,"
    )


def test_the_help_names_all() -> None:
    shown = " ".join(invoked("diff", "--help").stdout.split())
    assert all(name in shown for name in OPERATIONS) and len(OPERATIONS) >= 4
