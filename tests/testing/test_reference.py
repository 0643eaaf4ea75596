"""assert_close: what passes, what fails, and what a failure says."""

import numpy as np
import pytest

from tests.plain_kernels import attention, cut, inputs, naive
from workbench.refusal import Refusal
from workbench.testing import AttentionWarning, assert_close


def test_a_right_array_passes_and_gives_its_judgement() -> None:
    given = inputs(0, "bfloat16")
    judged = assert_close(attention(**given), naive, given)
    assert judged.verdict in ("exact", "rounding") and judged.said == ""
    assert assert_close(attention(**given, stages=True), [naive], given)["probs"].role == "clean"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_wrong_one_fails_with_the_report(dtype: str) -> None:
    given = inputs(0, dtype)
    with pytest.raises(AssertionError) as failed:
        assert_close(attention(**given, keys=47), naive, given)
    said = str(failed.value)
    assert said.startswith("bug: out\nactual against naive: ") and "first wrong stage: out, should be probs @ v" in said
    assert "test_reference.py::test_a_wrong_one_fails_with_the_report" in said or "repeat" not in said


def test_nan_and_an_empty_result_do_not_pass() -> None:
    given = inputs(0, "float32")
    with pytest.raises(AssertionError, match="bug: out"):
        assert_close(np.full_like(given["q"], np.nan), naive, given)
    with pytest.raises(AssertionError, match="untestable"):
        assert_close(np.zeros((0, 3), np.float32), lambda x: x * 2.0, {"x": np.zeros((0, 3), np.float32)})


def test_a_contract_is_taken_in_words() -> None:
    given = inputs(0, "float32")
    assert assert_close(attention(**given), naive, given, contract="operands=tf32").declared
    with pytest.raises(Refusal, match="contract setting"):
        assert_close(attention(**given), naive, given, contract="operand=tf32")


def test_what_only_undeclared_arithmetic_explains_is_a_warning_and_fails_where_that_is_asked() -> None:
    given = inputs(0, "float32")
    actual = attention(**given, operand=cut)
    with pytest.warns(
        AttentionWarning, match="actual against naive: float32 is suspicious: out: .* --contract operands=tf32"
    ):
        assert assert_close(actual, naive, given).doubt == "assumption"
    with pytest.raises(AssertionError, match="suspicious: "):
        assert_close(actual, naive, given, fail_on="suspicious")
    with pytest.raises(AssertionError, match="evidence|suspicious"):
        assert_close(attention(**given, log2e=1.4427), naive, given)


def test_gradients_are_judged_by_those_of_the_reference() -> None:
    torch = pytest.importorskip("torch")
    x = torch.linspace(-2, 2, 12, requires_grad=True)
    dout = torch.ones(12)

    def gate(x):
        out = x * torch.sigmoid(x)
        return out

    out = gate(x)
    out.backward(dout)
    actual, given = {"out": out, "dx": x.grad}, {"x": x, "dout": dout}
    assert [one.name for one in assert_close(actual, gate, given, gradients=True).stages] == ["out", "dx"]
    with pytest.raises(AssertionError, match="bug: dx"):
        assert_close(actual | {"dx": x.grad * 1.01}, gate, given, contract="operands=float32", gradients=True)
