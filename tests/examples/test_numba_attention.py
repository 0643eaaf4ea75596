"""The example in numba.cuda: right as it stands, without a finding, and each fault named at its stage and line."""

from pathlib import Path
from typing import Any

import pytest

from workbench import Case, check, diff, run

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "numba_attention.py"
CASE = Case(heads=2, kv_heads=1, seqlen_q=20, seqlen_k=25, head_dim=8, causal=True)
STAGES = ["qk", "scores", "row_max", "correction", "probs", "row_sum", "acc", "out", "lse"]


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize(
    "changes",
    [{}, {"causal": False}, {"seqlen_q": 25, "seqlen_k": 20}],
    ids=["causal", "full", "rows without keys"],
)
def test_every_stage_is_within_its_budget(changes: dict[str, Any]) -> None:
    judged = diff(run(f"{EXAMPLE}:attention", CASE.but(**changes)))
    assert judged.verdict == "rounding" and [stage.name for stage in judged] == STAGES


@pytest.mark.campaign
def test_it_leaves_nothing_to_find() -> None:
    checked = check(f"{EXAMPLE}:attention", CASE.but(seqlen_q=25, seqlen_k=20), schedules=3)
    assert checked.passed and checked.launches == 1


@pytest.mark.campaign
def test_a_fault_is_named_with_its_line(tmp_path: Path) -> None:
    source, before = EXAMPLE.read_text(), "row_sum * correction + prob"
    assert source.count(before) == 1
    (tmp_path / EXAMPLE.name).write_text(source.replace(before, "row_sum + prob"))
    judged = diff(run(f"{tmp_path / EXAMPLE.name}:attention", CASE))
    assert judged.origin == "row_sum" and judged.victims == ("out", "lse")
    assert judged.trace.lines["row_sum"].text == "row_sum = row_sum + prob"


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_on_a_gpu_probes_change_no_bit_of_the_outputs(dtype: str) -> None:
    judged = diff(run(f"{EXAMPLE}:attention", CASE.but(dtype=dtype), backend="cuda", runs=2))
    assert judged.verdict == "rounding" and [stage.name for stage in judged] == STAGES
    provenance = judged.trace.provenance
    assert provenance is not None and provenance.identical and provenance.plain_agrees is not None
