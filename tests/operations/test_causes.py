"""Causes of what is wrong in functions of operations: named, tried on fresh runs, and none of a right run."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.operations import backwards, deltas, norms, ropes
from tests.refusals import invoked
from workbench.operations.call import diff_operation
from workbench.operations.judge import OperationDiff, judged

AXES = {
    "rmsnorm": {"rows": 40, "dim": 96},
    "rope": {"batch": 2, "heads": 2, "tokens": 24, "dim": 16},
    "gated_delta_rule": {"heads": 2, "tokens": 5, "dim": 8, "dim_v": 8},
    "attention_backward": {"heads": 4, "kv_heads": 2, "queries": 24, "keys": 28, "dim": 8, "dim_v": 8},
}
FUNCTIONS = {
    "rmsnorm": norms.rmsnorm,
    "rope": ropes.rope,
    "gated_delta_rule": deltas.gated_delta_rule,
    "attention_backward": backwards.backward,
}
#: what is named of a fault, with all stages and from results alone
NAMED = [
    ("rmsnorm", "mean over the padded width", "mean is multiplied by 1/128 in place of 1/96"),
    ("rmsnorm", "last vector lost", "squares leaves out its last tile of 8 terms"),
    ("rmsnorm", "rstd of the row before", "is read one place back along"),
    ("rmsnorm", "rstd twice", "rstd is squared"),
    ("rmsnorm", "weight left out", "out lacks the multiply"),
    ("rope", "position off by one", "positions is larger by 1"),
    ("rope", "angles in bfloat16", "angles is rounded to bfloat16"),
    ("gated_delta_rule", "recall without the gate", "scaled lacks the multiply"),
    ("gated_delta_rule", "beta twice", "b is squared"),
    ("attention_backward", "lse of base 2", "lse is multiplied by ln(2)"),
    ("attention_backward", "mask left out", "until_diagonal is True everywhere"),
    ("attention_backward", "delta of the next head", "is read one place on along"),
    ("attention_backward", "delta left out", "centred lacks the subtract"),
    ("attention_backward", "V transposed back", "v is read as if keys and dim_v were in each other's place"),
    ("attention_backward", "scale left out of dq", "dq lacks the multiply of 0.353553"),
    ("attention_backward", "heads of a group overwritten", "dk_group leaves out its first term"),
    ("attention_backward", "last tile of queries left out of dk", "dk_sum leaves out its last, partial tile of 16"),
]


def diff(name: str, function: Callable[..., Any], **given: Any) -> OperationDiff:
    numbers = {"causal": True} if name == "attention_backward" else {}
    return diff_operation(function, name, **{"axes": AXES[name], "numbers": numbers, **given})


@pytest.mark.campaign(every=3)
@pytest.mark.parametrize("dumps", [True, False], ids=["all stages", "results alone"])
@pytest.mark.parametrize(("name", "fault", "said"), NAMED, ids=[f"{name}: {fault}" for name, fault, _ in NAMED])
def test_a_cause_is_named_and_predicts_runs_that_no_search_has_seen(
    name: str, fault: str, said: str, dumps: bool
) -> None:
    found = diff(name, FUNCTIONS[name](fault, dumps=dumps))
    causes = found.explain().causes
    assert any(said in text for one in causes for text in one.texts), causes
    unseen = diff(name, FUNCTIONS[name](fault, dumps=dumps), seed=77).run
    assert all(one.proved and one.predicts(unseen) for one in causes)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_right_run_has_no_cause_and_none_of_a_fault_predicts_it(name: str) -> None:
    right = diff(name, FUNCTIONS[name]())
    found = right.explain()
    assert found.causes == () and found.tried == 0 and found.sentences == []
    _, fault, _ = next(one for one in NAMED if one[0] == name)
    for cause in diff(name, FUNCTIONS[name](fault)).explain().causes:
        assert not cause.predicts(right.run)


def once() -> Callable[..., Any]:
    """A backward pass that is wrong when it is first called, and right afterwards."""
    runs = iter(["scale twice in dk"])

    def function(*arrays: Any, **numbers: Any) -> Any:
        return backwards.backward(next(runs, ""), dumps=False)(*arrays, **numbers)

    return function


def test_what_a_fresh_run_contradicts_is_withdrawn() -> None:
    found = diff("attention_backward", once()).explain()
    assert found.causes == () and any("dk is multiplied by 1 / sqrt(8)" in text for text in found.withdrawn)
    assert any(text.startswith("withdrawn: ") for text in found.sentences)


def test_what_cannot_be_run_again_is_no_proof() -> None:
    found = diff("attention_backward", backwards.backward("scale left out of dq"))
    at_rest = replace(found, run=replace(found.run, again=None)).explain()
    assert at_rest.causes and not any(one.proved for one in at_rest.causes)
    assert at_rest.sentences[0].startswith("cause: perhaps dq lacks the multiply of 0.353553 (")
    assert at_rest.sentences[0].endswith("; not tried on a fresh case")
    again = found.explain()
    assert again.causes[0].proved and "perhaps" not in again.sentences[0]


def test_few_wrong_elements_prove_nothing() -> None:
    found = diff("rmsnorm", norms.rmsnorm("weight left out"), axes={"rows": 1, "dim": 4}).explain()
    assert found.causes and not found.causes[0].proved


@pytest.mark.campaign
def test_of_a_long_loop_a_shorter_run_is_searched() -> None:
    axes = {**AXES["gated_delta_rule"], "tokens": 65}
    found = diff("gated_delta_rule", deltas.gated_delta_rule("beta twice"), axes=axes).explain()
    assert found.causes[0].text.startswith("b is squared (") and found.shorter == "16 tokens"
    assert found.sentences[0].endswith("; confirmed on 2 fresh cases, of 16 tokens")


def test_a_long_loop_that_cannot_run_again_is_not_searched() -> None:
    found = diff("gated_delta_rule", deltas.gated_delta_rule("beta twice"),
                 axes={**AXES["gated_delta_rule"], "tokens": 65})  # fmt: skip
    explained = replace(found, run=replace(found.run, again=None)).explain()
    assert explained.sentences == ["cause unknown: 0 edits tried; the run is too large for a search"]


def test_what_is_in_no_library_is_unknown() -> None:
    def backward(*arrays: Any, **numbers: Any) -> Any:
        dq, dk, dv = backwards.backward(dumps=False)(*arrays, **numbers)
        return dq * np.float32(1.01), dk, dv

    found = diff("attention_backward", backward).explain()
    assert found.causes == () and found.tried > 500
    assert found.sentences == [f"cause unknown: {found.tried} edits tried"]


def test_two_faults_in_two_gradients_are_told_apart() -> None:
    def backward(*arrays: Any, **numbers: Any) -> Any:
        dq, _, dv = backwards.backward("scale left out of dq", dumps=False)(*arrays, **numbers)
        _, dk, _ = backwards.backward("heads of a group overwritten", dumps=False)(*arrays, **numbers)
        return dq, dk, dv

    found = diff("attention_backward", backward).explain()
    by_stage = {one.stages: one.text for one in found.causes}
    assert by_stage[("dq",)].startswith("dq lacks the multiply of 0.353553 (")
    assert by_stage[("dk",)].startswith("dk_group leaves out its first term (")
    assert found.sentences[0].startswith("cause in dq: ")


@pytest.mark.parametrize("fault", backwards.FAULTS_OF)
def test_causes_of_what_a_case_may_have_are_never_false(fault: str) -> None:
    numbers, optional, _ = backwards.FAULTS_OF[fault]
    given: dict[str, Any] = {"numbers": {"causal": False, **numbers}, "optional": optional}
    axes = {**AXES["attention_backward"], "batch": 2}
    found = diff("attention_backward", backwards.backward(fault), axes=axes, **given)
    unseen = diff("attention_backward", backwards.backward(fault), axes=axes, seed=77, **given).run
    for cause in found.explain().causes:
        assert cause.predicts(unseen), cause.text


def test_the_report_and_the_command_name_it(tmp_path: Any) -> None:
    given = ["--operation", "attention_backward", "--axes", "heads=4,queries=24,keys=28,dim=8,dim_v=8"]
    given += ["--fault", "backward-dk-scaled-twice", "--backend", "emulator"]
    page = tmp_path / "page.html"
    ran = invoked("diff", "backward", *given, "--html", str(page))
    (line,) = [line for line in ran.stdout.splitlines() if line.startswith("  cause: ")]
    assert ran.exit_code == 1 and line.startswith("  cause: dk is multiplied by 1 / sqrt(8) ("), ran.output
    assert "attention_backward.py:" in line and line.endswith("; confirmed on 2 fresh cases")
    assert "dk is multiplied by 1 / sqrt(8)" in page.read_text()
    told = json.loads(invoked("explain", "backward", *given, "--json").stdout)
    assert told["causes"][0]["text"] in line and told["causes"][0]["proved"]


def test_gradients_alone_of_a_kernel_have_their_cause() -> None:
    axes = {"heads": 4, "queries": 24, "keys": 28, "dim": 8, "dim_v": 8}
    found = diff_operation("backward", "attention_backward", axes=axes, faults=["backward-lse-base-2"],
                           probes="output", backend="emulator")  # fmt: skip
    (cause,) = found.explain().causes
    assert cause.text.startswith("lse is multiplied by ln(2) (workbench/reference/attention_backward.py:")
    assert judged(found.run).explained.causes[0].proved


@pytest.mark.campaign
def test_what_nobody_wrote_is_explained_by_no_more_than_that() -> None:
    """A reference that is NaN everywhere is NaN where the kernel is, too."""
    axes = {"queries": 72, "keys": 48, "dim": 8, "dim_v": 8}
    found = diff_operation("backward", "attention_backward", axes=axes, faults=["backward-last-queries-skipped"],
                           backend="emulator")  # fmt: skip
    said = "qk and dprobs: each is not computed in the last, partial tile of 16 rows, which dk_sum and dv_sum leave out"
    assert [one.text.split(" (")[0] for one in found.explain().causes] == [said]


#: how many faults are named, with all stages and from results alone
NAMED_OF_ALL = {"rmsnorm": (12, 12), "rope": (9, 6), "gated_delta_rule": (9, 8)}


@pytest.mark.campaign
@pytest.mark.parametrize("name", NAMED_OF_ALL)
def test_how_many_faults_are_named(name: str) -> None:
    """And none that is named falsely."""
    faults = {"rmsnorm": norms.FAULTS, "rope": ropes.FAULTS, "gated_delta_rule": deltas.FAULTS}[name]
    axes = {axis: {"rows": 128, "tokens": 24}.get(axis, n) for axis, n in AXES[name].items()}
    for dumps, wanted in zip((True, False), NAMED_OF_ALL[name], strict=True):
        named = 0
        for fault in faults:
            distribution = "near-eps" if "eps" in fault else ""
            function = FUNCTIONS[name](fault, dumps=dumps)
            causes = diff(name, function, axes=axes, distribution=distribution).explain().causes
            unseen = diff(name, function, axes=axes, distribution=distribution, seed=77).run
            assert all(one.predicts(unseen) for one in causes), fault
            named += bool(causes) and all(one.proved for one in causes)
        assert named == wanted


def test_what_moves_nothing_is_no_cause_of_small_elements() -> None:
    """eps added to the result: in float16 most wrong elements are one rounding off, a few near 0 are far beyond."""

    def shifted(x: Any, weight: Any, *, eps: float) -> Any:
        x = x.astype(np.float32)
        return (x / np.sqrt((x * x).mean(-1, keepdims=True)) * weight.astype(np.float32) + eps).astype(np.float16)

    found = diff_operation(shifted, "rmsnorm", dtype="float16", axes={"rows": 32, "dim": 256})
    assert found.verdict == "bug"
    assert [one.text.split(" (")[0] for one in found.explain().causes] == ["out is larger by 1e-06"]
