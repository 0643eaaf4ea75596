"""A wrong call of a GPU is asked for its cause once the capture ends."""

from pathlib import Path
from typing import Any

import pytest

from workbench import capture

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.gpu

SPEC = "which the spec does not mention: if that is intended, fix the spec"


def causal(q: Any, k: Any, v: Any) -> Any:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def dropped(q: Any, k: Any, v: Any) -> Any:
    return torch.nn.functional.dropout(torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1), 0.1) @ v


@pytest.mark.parametrize(
    ("attend", "said"),
    [
        (causal, f"the function hides keys after the query (causal), {SPEC}"),
        (
            dropped,
            "a second call on the same inputs gives different numbers; resetting the random seed gives the same "
            "numbers: dropout is on",
        ),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_wrong_call_is_asked_behind_the_capture(attend: Any, said: str, dtype: str, tmp_path: Path) -> None:
    q, k, v = (torch.randn(2, 4, 48, 64, device="cuda", dtype=getattr(torch, dtype)) for _ in "qkv")
    with capture(attend, tmp_path, spec=lambda q, k, v: {"q": q, "k": k, "v": v}) as c:
        for _ in range(3):
            c.function(q, k, v)
        state = torch.cuda.get_rng_state()
    assert (c.report.verdict, c.report.wrong, c.report.causes) == ("bug", 3, (said,))
    assert torch.equal(torch.cuda.get_rng_state(), state)


def test_arguments_that_do_not_fit_are_let_go(tmp_path: Path) -> None:
    q, k, v = (torch.randn(1, 2, 48, 64, device="cuda") for _ in "qkv")
    size = q.nbytes * 4  # a snapshot holds q, k, v and out
    with capture(causal, tmp_path, spec=lambda q, k, v: {"q": q, "k": k, "v": v}, limit_mb=1.5 * size / 2**20) as c:
        c.function(q, k, v)
    assert (c.report.verdict, c.report.judged) == ("bug", 1) and c.report.causes[0].endswith(SPEC)
