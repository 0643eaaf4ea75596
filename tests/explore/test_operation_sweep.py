"""Sweeps and shrinks of operations."""

import json
from typing import Any

import numpy as np
import pytest

from tests.refusals import invoked, refusal
from workbench.explore.operation_shrink import shrink_operation
from workbench.explore.operation_sweep import sweep_operation
from workbench.operations.call import diff_operation

NORM = """
import numpy as np


def rmsnorm(x, weight, *, eps):
    wide = x.astype(np.float32)
    seen = wide[:, : x.shape[-1] // 32 * 32]
    rstd = 1 / np.sqrt((seen * seen).sum(-1) / x.shape[-1] + np.float32(eps))
    return (wide * rstd[:, None] * weight).astype(x.dtype)
"""


def rmsnorm(x: Any, weight: Any, *, eps: float) -> Any:
    """Vectors of 32 are rounded down, of at least one."""
    if x.shape[-1] < 8:
        raise ValueError("too few")
    wide = x.astype(np.float32)
    seen = wide[:, : max(32, x.shape[-1] // 32 * 32)]
    rstd = 1 / np.sqrt((seen * seen).sum(-1) / x.shape[-1] + np.float32(eps))
    return (wide * rstd[:, None] * weight).astype(x.dtype)


def test_every_case_is_a_row() -> None:
    dims = (4, 32, 40, 64, 100)
    found = sweep_operation(rmsnorm, "rmsnorm", [{"axes": {"rows": 3, "dim": dim}} for dim in dims])
    assert [one.verdict for one in found.rows] == ["raised", "rounding", "bug", "rounding", "bug"]
    assert [one.origin for one in found.rows] == [None, None, "out", None, "out"]
    assert "too few" in found.rows[0].cause and found.groups.total() == 3
    assert all("of 32" in one.cause or "or 32" in one.cause for one in found.rows if one.origin), found.rows
    assert found.smallest is not None and found.smallest.diff is not None
    assert found.smallest.diff.run.case.sizes["d"] == 40


def test_a_sweep_of_which_nothing_was_taken_is_refused() -> None:
    said = refusal(sweep_operation, rmsnorm, "rmsnorm", [{"axes": {"row": 3}}])
    assert said.startswith("all 1 cases were refused: axes of rmsnorm must be among rows, dim")


def test_a_failing_case_is_made_small() -> None:
    found = diff_operation(rmsnorm, "rmsnorm", axes={"rows": 24, "dim": 100}, distribution="outlier")
    small = shrink_operation(found)
    case = small.diff.run.case
    # 33 to 63 fail, and below 32 nothing does
    assert small.complete and (case.sizes["n"], case.distribution) == (1, "normal") and case.sizes["d"] == 33
    assert small.diff.origin == found.origin and small.diff.verdict == found.verdict


def test_a_number_that_follows_sizes_follows_them() -> None:
    def backward(q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, *, scale: float, causal: bool) -> Any:
        return 0 * q, 0 * k, 0 * v

    case = shrink_operation(diff_operation(backward, "attention_backward")).diff.run.case
    assert case.numbers["scale"] == case.sizes["d"] ** -0.5 and case.sizes["d"] < 32


def test_only_what_fails_is_made_small() -> None:
    right = diff_operation(rmsnorm, "rmsnorm", axes={"rows": 2, "dim": 32})
    assert "shrink needs a wrong stage" in refusal(shrink_operation, right)


@pytest.fixture
def norm(tmp_path: Any) -> str:
    path = tmp_path / "norm.py"
    path.write_text(NORM)
    return f"{path}:rmsnorm"


def test_the_commands(norm: str) -> None:
    given = [norm, "--operation", "rmsnorm", "--axes"]
    ran = invoked("sweep", *given, "rows=2,dim=32/40", "--dtype", "float32,bfloat16", "--json")
    told = json.loads(ran.stdout)
    assert ran.exit_code == 1 and (told["cases"], told["fail"]) == (4, 2)
    assert [one["origin"] for one in told["rows"]] == [None, None, "out", "out"]
    printed = invoked("sweep", *given, "rows=2,dim=40").stdout
    assert "1 of 1 cases fail" in printed and "the smallest: workbench diff" in printed
    assert invoked("sweep", *given, "rows=2,dim=32").exit_code == 0
    small = invoked("shrink", *given, "rows=8,dim=80")
    assert small.exit_code == 1 and small.stdout.startswith("smallest of ") and "rows=1 " in small.stdout
