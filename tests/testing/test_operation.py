"""`assert_operation`: the report of a wrong function, and what it returns of a right one."""

from typing import Any

import numpy as np
import pytest

from tests.operations.norms import rmsnorm
from workbench import Refusal
from workbench.testing import assert_operation


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_right_function_passes(dtype: str) -> None:
    judged = assert_operation(rmsnorm(), "rmsnorm", axes={"rows": 8, "dim": 40}, dtype=dtype)
    assert judged.origin is None and len(judged.stages) == 4


def test_a_wrong_function_fails_with_its_report() -> None:
    with pytest.raises(AssertionError) as failed:
        assert_operation(rmsnorm("half a row"), "rmsnorm", axes={"rows": 8, "dim": 40})
    said = str(failed.value)
    assert said.startswith("bug: squares\n")
    assert "\nverdict: bug; first wrong stage: squares, should be einsum('nd,nd->n', x, x)\n" in said


def half(x: Any, weight: Any, *, eps: float) -> Any:
    return rmsnorm("half a row")(x, weight, eps=eps)


def test_a_failure_says_how_to_repeat_it() -> None:
    with pytest.raises(AssertionError) as failed:
        assert_operation(half, "rmsnorm", axes={"rows": 8, "dim": 40}, seed=2)
    said = str(failed.value)
    command = "workbench diff tests/testing/test_operation.py:half --operation rmsnorm --axes rows=8,dim=40 --seed 2"
    assert f"repeat: {command}\n" in said and said.splitlines()[-1].startswith("repeat: pytest tests/testing/test_op")


def test_nan_everywhere_fails() -> None:
    with pytest.raises(AssertionError, match="bug: out"):
        assert_operation(lambda x, weight, eps: np.full_like(x, np.nan), "rmsnorm")


def test_what_cannot_be_judged_is_no_assertion() -> None:
    with pytest.raises(Refusal):
        assert_operation(rmsnorm(), "layernorm")
