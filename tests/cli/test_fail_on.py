"""Which judgements exit with 1: a bug and evidence of one, unless another verdict is said."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from workbench import Case, run, save
from workbench.cli.main import commands
from workbench.explore.acceptance.run import accept

KERNELS = '''
import ml_dtypes
import numpy as np


def attention(q, k, v, *, scale, causal, sums=np.float32, block=64, factor=1.0):
    """A kernel whose row sum, from block to block, is in the dtype `sums`."""
    storage = q.dtype
    q, k, v = (np.repeat(x, q.shape[1] // x.shape[1], 1).astype(np.float32) for x in (q, k, v))
    scores = q @ k.swapaxes(-1, -2) * np.float32(scale)
    if causal:
        rows, keys = scores.shape[-2:]
        scores = np.where(np.tri(rows, keys, keys - rows, dtype=bool), scores, -np.inf)
    top = scores.max(-1, keepdims=True)
    probs = np.exp(scores - top)
    total = np.zeros_like(top)
    for first in range(0, scores.shape[-1], block):
        total = (total + probs[..., first : first + block].sum(-1, keepdims=True)).astype(sums).astype(np.float32)
    out = probs.astype(storage).astype(np.float32) @ v / total * np.float32(factor)
    return out.astype(storage), (top + np.log(total))[..., 0]


def in_bfloat16(q, k, v, *, scale, causal):
    return attention(q, k, v, scale=scale, causal=causal, sums=ml_dtypes.bfloat16)


def in_float16(q, k, v, *, scale, causal):
    return attention(q, k, v, scale=scale, causal=causal, sums=np.float16, block=1)


def off_by_a_factor(q, k, v, *, scale, causal):
    return attention(q, k, v, scale=scale, causal=causal, factor=1.012)[0]
'''
#: what the arithmetic of no known kernel that sums in float32 explains, and nobody declared
DOUBTED = {"in_bfloat16": "512", "in_float16": "256", "off_by_a_factor": "128"}


@pytest.fixture
def target(tmp_path: Path) -> str:
    file = tmp_path / "kernels.py"
    file.write_text(KERNELS)
    return f"{file}:"


def exit_code(*words: str) -> int:
    return CliRunner().invoke(commands, words).exit_code


@pytest.mark.campaign(but=2)
@pytest.mark.parametrize("name", DOUBTED)
def test_evidence_exits_with_1_unless_it_is_said_otherwise(name: str, target: str) -> None:
    asked = ("diff", target + name, "--seqlen", DOUBTED[name], "--dtype", "bfloat16")
    result = CliRunner().invoke(commands, asked)
    assert (
        result.exit_code == 1 and "verdict: suspicious: " in result.stdout and "; treated as a failure" in result.stdout
    )
    assert exit_code(*asked, "--fail-on", "evidence") == exit_code(*asked, "--fail-on", "biased") + 1 == 1
    assert exit_code(*asked, "--fail-on", "bug") == 0


def test_so_do_a_row_of_several_cases_and_a_second_run_beside_it(target: str) -> None:
    several = CliRunner().invoke(commands, ["diff", target + "in_bfloat16", "--seqlen", "8,512", "--dtype", "bfloat16"])
    assert several.exit_code == 1 and "suspicious (evidence)" in several.stdout
    assert "2 runs: 1 without a bug, 1 with one or untestable" in several.stdout
    beside = ("--against", target + "attention", "--seqlen", "512", "--dtype", "bfloat16")
    assert exit_code("diff", target + "in_bfloat16", *beside) == 1


def test_explain_exits_as_diff_does(target: str, tmp_path: Path) -> None:
    file = str(tmp_path / "run.safetensors")
    save(run(target + "in_bfloat16", Case(seqlen=512, dtype="bfloat16")), file)
    assert exit_code("diff", file) == exit_code("explain", file, "--effort", "0.01") == 1


def test_a_right_kernel_and_an_assumption_exit_with_0(target: str) -> None:
    assert exit_code("diff", target + "attention", "--seqlen", "512", "--dtype", "bfloat16") == 0


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize("case", [{"seqlen": 512, "head_dim": 64}, {"seqlen": 300, "causal": True}], ids=str)
def test_accept_rejects_it(case: dict[str, Any], target: str) -> None:
    spec = {"case": {"dtype": "bfloat16", **case}}
    found = accept(target + "in_bfloat16", spec, seconds=60.0, unsafe=True, seed=1)
    assert found.verdict == "fail" and found.failure is not None and found.failure.kind == "wrong"
