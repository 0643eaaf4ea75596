"""Causes of what is wrong in functions of operations: named, tried on fresh runs, and none of a right run."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.operations import backwards, deltas, norms, ropes
from tests.refusals import invoked
from workbench.judge.explain.hypothesis import edited
from workbench.operations.call import diff_operation
from workbench.operations.causes.explain import library
from workbench.operations.causes.scene import Scene
from workbench.operations.expected import problem
from workbench.operations.judge import OperationDiff, judged
from workbench.reference.walk import values

AXES = {
    "rmsnorm": {"rows": 40, "dim": 96},
    "rope": {"batch": 2, "heads": 2, "tokens": 24, "dim": 16},
    "gated_delta_rule": {"heads": 2, "tokens": 10, "dim": 8, "dim_v": 8},
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
    ("rmsnorm", "mean over the padded width", "the mean is over 128"),
    ("rmsnorm", "last vector lost", "the last tile of 8 is left out"),
    ("rmsnorm", "rstd of the row before", "from one place earlier along rows"),
    ("rmsnorm", "rstd twice", "squared"),
    ("rmsnorm", "weight left out", "reads 1 in place of"),
    ("rope", "position off by one", "angles reads positions +1"),
    ("rope", "angles in bfloat16", "angles is rounded to bfloat16"),
    ("gated_delta_rule", "recall without the gate", "scaled reads 1 in place of gate"),
    ("gated_delta_rule", "beta twice", "written reads beta squared"),
    ("attention_backward", "lse of base 2", "ln(2)"),
    ("attention_backward", "mask left out", "the causal mask is left out when P is recomputed"),
    ("attention_backward", "delta of the next head", "from one place later along heads"),
    ("attention_backward", "delta left out", "reads 0 in place of delta"),
    ("attention_backward", "V transposed back", "v_rows as if stored as"),
    ("attention_backward", "scale left out of dq", "multiplied by 1/scale"),
    ("attention_backward", "heads of a group overwritten", "each kv head gets dK of the last query head"),
    ("attention_backward", "last tile of queries left out of dk", "tiles of 16 queries are rounded down"),
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
    assert any(said in text for one in causes for text in [one.text, *(x.text for x in one.members)]), causes
    unseen = diff(name, FUNCTIONS[name](fault, dumps=dumps), seed=77).run
    assert all(one.fresh == 2 and one.predicts(unseen) for one in causes)


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
    assert found.causes == () and any("dk is multiplied by scale" in text for text in found.withdrawn)
    assert any(text.startswith("withdrawn: ") for text in found.sentences)


def test_what_cannot_be_run_again_is_no_proof() -> None:
    found = diff("attention_backward", backwards.backward("scale left out of dq"))
    at_rest = replace(found, run=replace(found.run, again=None)).explain()
    assert at_rest.causes and not any(one.proved for one in at_rest.causes)
    assert at_rest.sentences[0].startswith("cause: perhaps dq is multiplied by 1/scale (not tried on a fresh case)")
    again = found.explain()
    assert again.causes[0].proved and "perhaps" not in again.sentences[0]


def test_few_wrong_elements_prove_nothing() -> None:
    found = diff("rmsnorm", norms.rmsnorm("weight left out"), axes={"rows": 1, "dim": 16}).explain()
    assert found.causes and not found.causes[0].proved


def test_wide_budgets_ask_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """An edit whose budgets are ten times as wide leaves a tenth as much."""

    def backward(*arrays: Any, **numbers: Any) -> Any:
        dq, dk, dv = backwards.backward("scale left out of dq", dumps=False)(*arrays, **numbers)
        return dq * np.float32(1.05), dk, dv

    scene = Scene(diff("attention_backward", backward).run)
    (hypothesis,) = (one for one in library(scene.run) if one.id == "factor.dq.1/scale")
    assert scene.fit(hypothesis, scene.wrong) is None
    for wider, fits in ((1.0, True), (10.0, False)):
        monkeypatch.setattr(scene, "within", lambda h, names, way, wider=wider: dict.fromkeys(names, wider))
        found = scene.fit(hypothesis, scene.wrong)
        assert (found is not None) == fits and (found is None or 0.02 < found.left < 0.2)


def test_what_is_in_no_library_is_unknown() -> None:
    def backward(*arrays: Any, **numbers: Any) -> Any:
        dq, dk, dv = backwards.backward(dumps=False)(*arrays, **numbers)
        return dq * np.float32(1.01), dk, dv

    found = diff("attention_backward", backward).explain()
    assert found.causes == () and found.tried > 500
    assert found.sentences == [f"cause unknown: {found.tried} hypotheses tried"]


def test_two_faults_in_two_gradients_are_told_apart() -> None:
    def backward(*arrays: Any, **numbers: Any) -> Any:
        dq, _, dv = backwards.backward("scale left out of dq", dumps=False)(*arrays, **numbers)
        _, dk, _ = backwards.backward("heads of a group overwritten", dumps=False)(*arrays, **numbers)
        return dq, dk, dv

    found = diff("attention_backward", backward).explain()
    by_stage = {one.stages: one.text for one in found.causes}
    assert by_stage[("dq",)] == "dq is multiplied by 1/scale"
    assert by_stage[("dk",)].startswith("each kv head gets dK of the last query head")
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


CASES: dict[str, dict[str, Any]] = {
    "plain": {"numbers": {"causal": True}},
    "all of it": {
        "numbers": {"softcap": 2.0, "window_left": 5, "window_right": 3, "dropout_p": 0.25},
        "optional": ("sinks", "dlse", "bias", "alibi_slopes", "dropout_mask", "mask", "seqlens_k"),
        "dtype": "bfloat16",
    },
}


@pytest.mark.parametrize("case", CASES)
def test_every_hypothesis_of_the_backward_pass_is_an_edit_of_its_table(case: str) -> None:
    """With other names each, and of what the table has; what it has not is edited by none."""
    run = diff("attention_backward", backwards.backward(), **CASES[case]).run
    some = [*library(run)]
    assert len({one.id for one in some}) == len(some) > 1000
    own = [one for one in some if one.id.startswith("backward.")]
    table = run.case.operation.table(run.setting)
    fitting = [one for one in own if edited(table, one) is not None]
    assert len(fitting) > len(own) / 2 > 40
    p = problem(run, {})
    for one in fitting:
        with np.errstate(all="ignore"):
            made = values(replace(p, table=edited(table, one)), ("dq", "dk", "dv"))
        assert all(made[name].shape == run.stages[name].shape for name in ("dq", "dk", "dv")), one.id


def test_the_report_and_the_command_name_it(tmp_path: Any) -> None:
    given = ["--operation", "attention_backward", "--axes", "heads=4,queries=24,keys=28,dim=8,dim_v=8"]
    given += ["--fault", "backward-dk-scaled-twice", "--backend", "emulator"]
    line = "  cause: dk is multiplied by scale (confirmed on 2 fresh cases)"
    page = tmp_path / "page.html"
    ran = invoked("diff", "backward", *given, "--html", str(page))
    assert ran.exit_code == 1 and line in ran.stdout.splitlines(), ran.output
    assert "dk is multiplied by scale" in page.read_text()
    told = json.loads(invoked("explain", "backward", *given, "--json").stdout)
    assert [one["text"] for one in told["causes"]] == ["dk is multiplied by scale"] and told["causes"][0]["proved"]


def test_gradients_alone_of_a_kernel_have_their_cause() -> None:
    axes = {"heads": 4, "queries": 24, "keys": 28, "dim": 8, "dim_v": 8}
    found = diff_operation("backward", "attention_backward", axes=axes, faults=["backward-lse-base-2"],
                           probes="output", backend="emulator")  # fmt: skip
    assert [one.text for one in found.explain().causes] == ["row_lse is multiplied by ln(2)"]
    assert judged(found.run).explained.causes[0].fresh == 2


#: how many faults are named, with all stages and from results alone
NAMED_OF_ALL = {"rmsnorm": (12, 12), "rope": (6, 5), "gated_delta_rule": (5, 6)}


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
    assert found.verdict == "bug" and found.explain().causes == ()
