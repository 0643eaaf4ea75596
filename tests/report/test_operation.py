"""The report of a run of an operation: what repeats it, what convention explains it, what cancels."""

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.operations.backwards import backward
from tests.operations.norms import rmsnorm
from tests.refusals import invoked
from workbench.operations.call import diff_operation
from workbench.report.operation import document, repeat_command, sentences

SOURCE = """
from tests.operations.backwards import backward

right, wrong = backward(), backward("scale left out of dq", dumps=False)
"""
SIZES = {"heads": 4, "queries": 20, "keys": 24, "dim": 16}


@pytest.mark.parametrize("name", ["right", "wrong"])
def test_what_repeats_a_run_gives_the_same(name: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SOURCE)
    asked: dict[str, Any] = {
        "axes": SIZES, "dtype": "bfloat16", "distribution": "mean-of-4", "seed": 3, "optional": ("dlse", "sinks"),
        "numbers": {"causal": 1, "softcap": 2.5, "window_left": 4}, "contract": {"dscores_dtype": "float32"},
    }  # fmt: skip
    got = diff_operation(f"{tmp_path}/mine.py:{name}", "attention_backward", **asked)
    command = repeat_command(got)
    assert f"repeat: {command}" in sentences(got)[-1] and document(got)["repeat"] == command
    again = invoked(*shlex.split(command)[1:])
    assert again.stdout.split() == str(got).split(), again.stdout


def test_a_function_of_python_has_no_command() -> None:
    assert repeat_command(diff_operation(rmsnorm(), "rmsnorm")) == ""


def stored(name: str) -> Any:
    """A backward pass that stores something in 16 bits which the usual keeps in float32."""
    right = backward()

    def function(*given: Any, **numbers: Any) -> Any:
        made = right(*given, **numbers)
        dtype = given[0].dtype
        rounded = made[name].astype(dtype).astype(np.float32)
        if name == "dprobs":
            made["dscores"] = made["probs"] * (rounded - made["delta"][..., None])
        if name == "probs":
            made["dscores"] = rounded * (made["dprobs"] - made["delta"][..., None])
        return {one: made[one] for one in ("probs", "dprobs", "delta", "dscores")}

    return function


@pytest.mark.parametrize(("name", "told"), [("dprobs", "dprobs_dtype=inputs"), ("probs", "dscores_of=cast probs")])
def test_the_convention_that_explains_all_of_it_is_named(name: str, told: str) -> None:
    got = diff_operation(stored(name), "attention_backward", dtype="bfloat16")
    assert (
        got.verdict == "bug"
        and f"  every stage is right under another convention: {told} (--contract)" in sentences(got)
    )
    assert [words for words, _ in got.explained_by] == [told]
    key, value = told.split("=")
    assert document(got)["explained_by"] == [{key: value}]
    assert diff_operation(stored(name), "attention_backward", dtype="bfloat16", contract={key: value}).origin is None


def test_no_convention_explains_a_bug() -> None:
    got = diff_operation(backward("scale twice in dk"), "attention_backward", dtype="bfloat16")
    assert got.origin == "dk" and not got.explained_by and "another convention" not in str(got)


def test_a_stage_that_another_convention_does_not_have_explains_nothing() -> None:
    def function(*given: Any, **numbers: Any) -> Any:
        made = backward("delta left out")(*given, **numbers)
        return {"dscores_cast": made["dscores"].astype(given[0].dtype), "dq": made["dq"]}

    got = diff_operation(function, "attention_backward", dtype="bfloat16")
    assert got.origin == "dscores_cast" and not got.explained_by


def test_conventions_that_nothing_depends_on_are_not_listed() -> None:
    """In float32 nothing is cast, and without a softcap there is no tanh."""
    got = diff_operation(backward(), "attention_backward", numbers={"softcap": 2.0})
    assert {*got.assumed} == {"delta", "dscores_of", "tanh"}
    assert "tanh" not in diff_operation(backward(), "attention_backward", dtype="float16").assumed


def test_condition_numbers_say_what_cancels() -> None:
    """Of equal keys dQ is 0, whose terms are infinitely larger; of one key for each row nothing of dV cancels."""
    got = diff_operation(backward(), "attention_backward", distribution="equal-scores")
    assert got.conditions["dq"].largest > 1e6 > got.conditions["dv"].median >= 1
    assert "condition numbers (median, largest): dscores " in str(got)
    one = diff_operation(backward(), "attention_backward", axes={"queries": 1, "keys": 5})
    assert one.conditions["dv"] == (1.0, 1.0)
    assert diff_operation(rmsnorm(), "rmsnorm").conditions == {}


def test_elements_that_nothing_can_tell_are_counted() -> None:
    """dS of 16 bits that is smaller than the least number in float16."""

    def tiny(*given: Any, **numbers: Any) -> Any:
        return backward(dumps=False)(*given, **numbers)

    got = diff_operation(tiny, "attention_backward", dtype="float16", distribution="one-hot", numbers={"scale": 4.0})
    found = got["dk"].isolated
    assert found is not None and found.summary.judged < found.summary.size
    assert "not judged, since the budget exceeds the terms: " in str(got)
