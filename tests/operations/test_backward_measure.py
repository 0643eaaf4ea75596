"""What is read of P and dS off gradients: nothing false of a right function, and the first wrong stage where it tells."""

import json
from typing import Any

import numpy as np
import pytest

from tests.operations import backwards
from tests.refusals import invoked, refusal
from workbench.operations.backward_measure import BackwardMeasured, measured
from workbench.operations.call import diff_operation

AXES = {"heads": 4, "kv_heads": 2, "queries": 20, "keys": 24, "dim": 8, "dim_v": 8}
#: fault -> what is told; empty where P and dS are right, or what is made of them may be wrong in their place
TOLD = {
    "lse of base 2": "probs",
    "scale twice in the scores": "probs",
    "mask left out": "probs",
    "delta of dout alone": "dscores",
    "V transposed back": "dscores",
    "delta added": "dscores",
    "delta left out": "dscores",
    "scale left out of dq": "",
    "scale twice in dk": "",
    "last tile of queries left out of dk": "",
    "heads of a group overwritten": "",
    "P of the row before in dv": "",
}


def read(fault: str = "", **given: Any) -> BackwardMeasured:
    asked = {"axes": AXES, "numbers": {"causal": True}, **given}
    return measured(diff_operation(backwards.backward(fault, dumps=False), "attention_backward", **asked).run)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("fault", TOLD)
def test_the_first_wrong_stage_is_told_or_nothing(fault: str, dtype: str) -> None:
    found = read(fault, dtype=dtype)
    assert found.origin == TOLD[fault], found.sentences
    assert found.calls == 16 and found.rows[0] == 0 and found.rows[-1] == 19


@pytest.mark.campaign(every=3)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("distribution", ["normal", "one-hot", "mean-of-4", "outliers"])
def test_nothing_is_wrong_in_a_right_function(distribution: str, dtype: str) -> None:
    for optional, numbers in (
        ((), {"causal": True}),
        (("dlse", "sinks", "dropout_mask"), {"causal": False, "softcap": 5.0, "dropout_p": 0.25}),
    ):
        found = read(distribution=distribution, dtype=dtype, optional=optional, numbers=numbers)
        assert not found.weights.wrong.any() and not found.scores.wrong.any() and found.origin == ""
        assert abs(found.weights.actual).max() > 0 and abs(found.scores.actual).max() > 0


def test_what_does_not_arrive_in_a_sum_is_said_and_is_no_origin() -> None:
    found = read("heads of a group overwritten")
    assert found.scores.lost.sum() == found.scores.lost.size / 2 and not found.weights.lost.any()
    assert any("rows are missing from the sum over queries" in line for line in found.sentences)


def test_queries_that_neither_sum_has_are_no_wrong_p() -> None:
    """Their P and dS read as 0, and the one follows from the other."""

    def function(*arrays: Any, **numbers: Any) -> Any:
        dq, *_ = backwards.backward(dumps=False)(*arrays, **numbers)
        q, k, v, out, lse, dout = arrays
        few = (q[:, :, :16], k[:, :, :20], v[:, :, :20], out[:, :, :16], lse[:, :, :16], dout[:, :, :16])
        _, dk, dv = backwards.backward(dumps=False)(*few, **numbers)
        wide = [np.zeros_like(x) for x in (k, v)]
        wide[0][:, :, :20], wide[1][:, :, :20] = dk, dv
        return dq, *wide

    found = measured(diff_operation(function, "attention_backward", axes=AXES, numbers={"causal": True}).run)
    assert found.weights.lost.any() and found.scores.lost.any() and found.origin == ""


def test_two_wrong_sums_are_no_wrong_p() -> None:
    """dS does not follow from the P that was read."""

    def function(*arrays: Any, **numbers: Any) -> Any:
        dq, dk, dv = backwards.backward(dumps=False)(*arrays, **numbers)
        return dq, dk * np.float32(0.5), dv * np.float32(2)

    found = measured(diff_operation(function, "attention_backward", axes=AXES, numbers={"causal": True}).run)
    assert found.weights.wrong.any() and found.scores.wrong.any() and found.origin == ""


def test_the_command(tmp_path: Any) -> None:
    given = ["backward", "--operation", "attention_backward", "--axes", "queries=12,keys=12,dim=8,dim_v=8"]
    given += ["--fault", "backward-lse-base-2", "--probes", "output", "--backend", "emulator"]
    ran = invoked("measure", *given, "--json")
    told = json.loads(ran.stdout)
    assert ran.exit_code == 1 and told["origin"] == "probs" and told["stages"][0]["outside"] > 0
    assert "  first wrong stage, as measured: probs" in invoked("diff", *given, "--measure").stdout.splitlines()


def test_what_is_refused() -> None:
    norm = diff_operation(lambda x, weight, *, eps: x, "rmsnorm", axes={"rows": 2, "dim": 8}).run
    assert refusal(measured, norm) == "only attention_backward can be measured; got rmsnorm"
