"""The example in JAX, wherever JAX is."""

from pathlib import Path

import pytest

from workbench import Case, diff, run

pytest.importorskip("jax", reason="JAX is not installed")

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "jax_attention.py"
CASE = Case(batch=2, heads=4, kv_heads=2, seqlen_q=20, seqlen_k=33, head_dim=24, causal=True)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_it_is_right_in_every_dtype(dtype: str, device: str) -> None:
    judged = diff(run(f"{EXAMPLE}:attention", CASE.but(dtype=dtype), arrays="jax", device=device))
    assert judged.verdict == "rounding" and [stage.name for stage in judged] == ["scores", "out", "lse"]


def test_a_fault_is_named(tmp_path: Path) -> None:
    source = EXAMPLE.read_text()
    assert source.count("k.shape[2] - q.shape[2], dtype") == 1
    (tmp_path / "mine.py").write_text(source.replace("k.shape[2] - q.shape[2], dtype", "dtype"))
    assert diff(run(f"{tmp_path}/mine.py:attention", CASE, arrays="jax")).origins == ("scores",)
