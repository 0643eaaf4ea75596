"""The backward pass in numba.cuda: right as it stands, and faults found at their stages, on the emulator and a GPU."""

from pathlib import Path

import pytest

from workbench.operations.call import diff_operation

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "numba_backward.py"
AXES = {"heads": 2, "kv_heads": 1, "queries": 20, "keys": 25, "dim": 8, "dim_v": 8}
STAGES = ["probs", "dprobs", "delta", "dscores", "dq", "dk", "dv"]
#: line of the example -> what stands there in its place, and the first wrong stage
FAULTS = {
    "total += float32(dout[b, h, row, e]) * float32(out[b, h, row, e])": (
        "total += float32(dout[b, h, row, e])",
        "delta",
    ),
    "ds = p * (dp - total)": ("ds = p * (dp + total)", "dscores"),
    "dq[b, h, row, d] = acc[d] * scale": ("dq[b, h, row, d] = acc[d]", "dq"),
    "for h in range(h_kv * group, (h_kv + 1) * group):": ("for h in range(h_kv * group, h_kv * group + 1):", "dk"),
    "of_v[e] += p * float32(dout[b, h, row, e])": ("of_v[e] += ds * float32(dout[b, h, row, e])", "dv"),
}


@pytest.mark.parametrize("causal", [True, pytest.param(False, marks=pytest.mark.campaign)])
def test_every_stage_is_within_its_budget(causal: bool) -> None:
    judged = diff_operation(f"{EXAMPLE}:backward", "attention_backward", axes=AXES, numbers={"causal": causal})
    assert judged.verdict == "rounding" and [stage.name for stage in judged.stages] == STAGES
    hidden = judged["dprobs"].isolated
    assert hidden is not None and hidden.summary.size == (2 * (20 * 25 - 190) if causal else 2 * 20 * 25)


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize("line", FAULTS)
def test_faults_are_found_at_their_stages(line: str, tmp_path: Path) -> None:
    source, (instead, stage) = EXAMPLE.read_text(), FAULTS[line]
    assert source.count(line) == 1
    (tmp_path / EXAMPLE.name).write_text(source.replace(line, instead))
    judged = diff_operation(
        f"{tmp_path / EXAMPLE.name}:backward", "attention_backward", axes=AXES, numbers={"causal": True}
    )
    assert judged.origin == stage


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    judged = diff_operation(
        f"{EXAMPLE}:backward", "attention_backward", axes=AXES, numbers={"causal": True}, backend="cuda"
    )
    assert judged.verdict == "rounding" and [stage.name for stage in judged.stages] == STAGES
