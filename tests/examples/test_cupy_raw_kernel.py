"""The example in CuPy, wherever CuPy and a GPU are."""

from pathlib import Path

import pytest

from workbench import Case, Refusal, diff, run

pytest.importorskip("cupy", reason="CuPy is not installed")
pytestmark = pytest.mark.gpu

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "cupy_raw_kernel.py"
CASE = Case(batch=2, heads=4, kv_heads=2, seqlen_q=70, seqlen_k=75, head_dim=24, causal=True)


@pytest.mark.parametrize("layout", ["bhsd", "strided"])
@pytest.mark.parametrize("seqlen_k", [75, 40])
def test_it_is_right(layout: str, seqlen_k: int) -> None:
    judged = diff(run(f"{EXAMPLE}:attention", CASE.but(seqlen_k=seqlen_k), arrays="cupy", layout=layout))
    assert judged.verdict == "rounding" and [stage.name for stage in judged] == ["scores", "out", "lse"]


@pytest.mark.parametrize(
    ("before", "after", "origin"),
    [
        ("row + 1 + seqlen_k - seqlen_q)", "row + 1)", "scores"),
        ("acc[d] / sum", "acc[d]", "out"),
        ("top + logf(sum)", "top + log2f(sum)", "lse"),
    ],
)
def test_faults_are_named(tmp_path: Path, before: str, after: str, origin: str) -> None:
    source = EXAMPLE.read_text()
    assert source.count(before) == 1
    (tmp_path / "mine.py").write_text(source.replace(before, after))
    assert diff(run(f"{tmp_path}/mine.py:attention", CASE, arrays="cupy")).origins == (origin,)


def test_what_it_does_not_take_is_its_own_message() -> None:
    with pytest.raises(Refusal, match="float32 with head_dim up to 128 is all it takes; got float16 with 24"):
        run(f"{EXAMPLE}:attention", CASE.but(dtype="float16"), arrays="cupy")
