"""What every caller of a function relies on beside its numbers: the dtype of its results, and inputs left as they were."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from workbench import Case, diff, run
from workbench.cli.main import commands
from workbench.floats import DTYPES
from workbench.judge.fails import classed, failing
from workbench.operations.call import diff_operation
from workbench.testing import assert_operation

CASE = Case(seqlen=24, head_dim=16)


def attention(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
    """A right kernel in NumPy, whose results are float32: out and lse."""
    q, k, v = (x.astype(np.float32) for x in (q, k, v))
    scores = q @ k.swapaxes(-1, -2) * np.float32(scale)
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    top = scores.max(-1, keepdims=True)
    probs = np.exp(scores - top)
    total = probs.sum(-1, keepdims=True)
    return probs @ v / total, (top + np.log(total))[..., 0]


def stored(out: str, lse: str = "float32", contract: Any = None) -> Callable[..., Any]:
    """The same with results of these dtypes."""

    def kernel(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
        made = dict(zip(("out", "lse"), attention(q, k, v, scale=scale, causal=causal), strict=True))
        made = {name: made[name].astype(DTYPES.get(x, x)) for name, x in (("out", out), ("lse", lse))}
        return made if contract is None else {**made, "contract": contract}

    return kernel


@pytest.mark.parametrize(
    ("of_case", "out"),
    [("float32", "float16"), ("float32", "bfloat16"), ("float16", "bfloat16"), ("bfloat16", "float16")],
)
def test_an_out_that_holds_less_than_its_case_is_a_finding(of_case: str, out: str) -> None:
    trace = run(stored(out), CASE.but(dtype=of_case))
    (said,) = trace.gates
    assert said.endswith(
        f"returned out in {out}, and a kernel of {of_case} returns {of_case}: if that is intended, declare out_dtype={out}"
    )
    assert classed(diff(trace)) in failing()


def test_an_lse_in_16_bits_is_a_finding() -> None:
    (said,) = run(stored("float16", "float16"), CASE.but(dtype="float16")).gates
    assert said.endswith("returned lse in float16, and a kernel of float16 returns float32")


@pytest.mark.parametrize("out", ["float32", "float64"])
@pytest.mark.parametrize("of_case", ["float32", "bfloat16"])
def test_an_out_that_holds_more_is_none(of_case: str, out: str) -> None:
    judged = diff(run(stored(out), CASE.but(dtype=of_case)))
    assert judged.trace.gates == () and classed(judged) not in failing()


@pytest.mark.parametrize("of_case", ["float32", "bfloat16"])
def test_a_dtype_that_was_declared_is_none(of_case: str) -> None:
    case = CASE.but(dtype=of_case)
    for judged in (
        diff(run(stored("float16"), case, contract={"out_dtype": "float16"})),
        diff(run(stored("float16", contract={"out_dtype": "float16"}), case)),
    ):
        assert judged.trace.gates == () and judged.verdict == "rounding"


def test_less_than_was_declared_is_a_finding() -> None:
    (said,) = run(stored("float16"), CASE.but(dtype="float16"), contract={"out_dtype": "float32"}).gates
    assert said.endswith("returned out in float16, and its contract says out_dtype=float32")


def q_scaled(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
    q *= np.float32(scale)
    return attention(q, k, v, scale=1.0, causal=causal)


def out_in_q(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
    q[:], lse = attention(q, k, v, scale=scale, causal=causal)
    return q, lse


def last_row_of_v(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
    made = attention(q, k, v, scale=scale, causal=causal)
    v[:, :, -1] = np.nan
    return made


def slopes_negated(q: Any, k: Any, v: Any, *, scale: float, causal: bool, alibi_slopes: Any = None) -> Any:
    if alibi_slopes is not None:
        np.negative(alibi_slopes, out=alibi_slopes)
    return attention(q, k, v, scale=scale, causal=causal)


@pytest.mark.parametrize(
    ("function", "written", "case"),
    [
        (q_scaled, "q", CASE),
        (out_in_q, "q", CASE),
        (last_row_of_v, "v", CASE.but(dtype="bfloat16")),
        (slopes_negated, "alibi_slopes", CASE.but(alibi_slopes="geometric")),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_a_function_that_writes_into_its_inputs_is_a_finding(
    function: Callable[..., Any], written: str, case: Case
) -> None:
    trace = run(function, case)
    assert trace.gates[0].endswith(f"wrote to its input {written}, which the caller may read again")
    assert trace.resident is None  # which would call it with what it left
    assert classed(diff(trace)) in failing()


def test_one_that_leaves_them_is_none() -> None:
    assert run(attention, CASE).gates == () and run(slopes_negated, CASE).gates == ()


@pytest.mark.parametrize("function", ["narrow", "overwrites"])
def test_such_findings_exit_with_1(function: str, tmp_path: Path) -> None:
    file = tmp_path / "kernels.py"
    file.write_text(
        "import numpy as np\nfrom tests.foreign.test_promises import attention, q_scaled as overwrites\n"
        "def narrow(q, k, v, *, scale, causal):\n"
        "    return attention(q, k, v, scale=scale, causal=causal)[0].astype(np.float16)\n"
    )
    asked = ["diff", f"{file}:{function}", "--seqlen", "24", "--head-dim", "16"]
    result = CliRunner().invoke(commands, [*asked, "--fail-on", "bug"])
    assert result.exit_code == 1 and result.stdout.startswith("gate failed: ")


def test_a_function_of_an_operation_that_writes_into_its_inputs_is_a_finding(tmp_path: Path) -> None:
    file = tmp_path / "norm.py"
    file.write_text(
        "import numpy as np\n\n\ndef rmsnorm(x, weight, *, eps):\n"
        "    x /= np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(eps))\n    return x * weight\n"
    )
    judged = diff_operation(f"{file}:rmsnorm", "rmsnorm")
    assert judged.origin is None and judged.fails
    assert judged.run.gates == (f"{file}:rmsnorm wrote to its input x, which the caller may read again",)
    page = tmp_path / "page.html"
    result = CliRunner().invoke(commands, ["diff", f"{file}:rmsnorm", "--operation", "rmsnorm", "--html", str(page)])
    assert "wrote to its input x" in page.read_text()
    assert result.exit_code == 1 and result.stdout.startswith("gate failed: ")
    with pytest.raises(AssertionError, match="wrote to its input x"):
        assert_operation(f"{file}:rmsnorm", "rmsnorm")
