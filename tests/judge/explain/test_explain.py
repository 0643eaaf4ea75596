"""Causes: what is named, on what proof, and what is not."""

from typing import Any

import numpy as np
import pytest

from tests.judge.explain.kernels import attention
from workbench import Case, Diff, diff, run
from workbench.case.formats import FORMATS
from workbench.cuda.quantize import quantize
from workbench.expectation.observed import Observed
from workbench.judge.explain.explain import Explained, explain
from workbench.work import SEARCH, Work

CASE = Case(heads=2, kv_heads=1, seqlen_q=60, seqlen_k=71, head_dim=16, causal=True, scale=0.4)
GROUPED = CASE.but(heads=4, kv_heads=2)


def judged(bugs: tuple[str, ...], case: Case = CASE, *, dump: bool = True) -> Diff:
    return diff(run(attention(bugs, dump), case))


def ids(found: Explained) -> list[set[str]]:
    return [{one.id for one in cause.members} for cause in found.causes]


NAMED = [
    ("scale-twice", CASE, "scale.twice", "scores"),
    ("causal-off", CASE, "mask.right--1", "scores"),
    ("head-modulo", GROUPED, "layout.head-modulo-kv", "qk"),
    ("stale-max", CASE, "softmax.subtracts-stale", "probs"),
    ("sum-not-rescaled", CASE, "softmax.correction-missing-in-row_sum", "row_sum"),
    ("lse-base-2", CASE, "output.lse-base-2", "lse"),
]


@pytest.mark.campaign(but=2)
@pytest.mark.parametrize(("bug", "case", "cause", "stage"), NAMED, ids=[row[0] for row in NAMED])
def test_a_bug_is_named_at_its_stage_and_proved(bug: str, case: Case, cause: str, stage: str) -> None:
    found = judged((bug,), case).explain()
    first = found.causes[0]
    assert cause in ids(found)[0] and first.stage == stage and first.proved and not found.withdrawn
    assert first.fit.off == 0 and 0 < first.fit.over_budget <= 1 and first.fit.unexplained <= 0.01
    assert first.trial is not None and first.trial.held and first.trial.case != case


SMALL = CASE.but(heads=1, kv_heads=1, seqlen_q=24, seqlen_k=36)


@pytest.mark.parametrize(
    ("bug", "case"),
    [
        ("scale-twice", SMALL),
        *(
            pytest.param(bug, CASE, marks=pytest.mark.campaign)
            for bug in ("scale-twice", "stale-max", "sum-not-rescaled")
        ),
    ],
)
def test_a_bug_is_named_from_out_and_lse_alone(bug: str, case: Case) -> None:
    (cause,) = judged((bug,), case, dump=False).explain().causes
    assert next(row[2] for row in NAMED if row[0] == bug) in {one.id for one in cause.members} and cause.proved


def test_a_right_kernel_has_no_cause() -> None:
    for dump in (True, False):
        found = judged((), dump=dump).explain()
        assert found.causes == found.unexplained == found.withdrawn == () and found.tried == 0


def test_two_bugs_are_named_each_at_its_stage() -> None:
    found = judged(("scale-twice", "sum-not-rescaled")).explain()
    assert [cause.stage for cause in found.causes] == ["scores", "row_sum"]
    assert "scale.twice" in ids(found)[0] and "softmax.correction-missing-in-row_sum" in ids(found)[1]


@pytest.mark.campaign
def test_two_bugs_are_named_together_from_out_and_lse() -> None:
    causes = judged(("scale-twice", "lse-base-2"), SMALL, dump=False).explain().causes
    assert [one.text for one in causes] == [
        "the scale is 0.16, not 0.4: scores are multiplied by 0.4",
        "lse is the log of the denominator of out, in base 2",
    ]


def test_a_bug_of_no_family_is_unknown_and_gets_its_formula() -> None:
    found = judged(("neighbour",), CASE.but(seqlen_q=64, seqlen_k=64, causal=False)).explain(0.2)
    assert found.causes == () and found.unexplained == ("row_sum",)
    (formula, *_) = found.formulas["row_sum"]
    assert "query q + 1" in formula.text and formula.unexplained < 0.01


@pytest.mark.campaign
def test_a_bug_of_no_family_is_never_named() -> None:
    found = judged(("wave",), CASE.but(seqlen_q=24, seqlen_k=24)).explain(0.2)
    assert found.causes == () and found.unexplained == ("out",)


def test_what_fails_on_a_fresh_case_is_withdrawn() -> None:
    found = judged(("scale-at-64",), CASE.but(seqlen_q=64, seqlen_k=64)).explain()
    assert found.causes == () and [cause.id for cause in found.withdrawn] == ["scale.twice"]
    trial = found.withdrawn[0].trial
    assert trial is not None and not trial.held and trial.case.seqlen_k != 64


def test_formulas_that_are_one_here_are_told_apart_by_a_run() -> None:
    """With the usual scale, twice is 1 / head_dim."""
    usual = CASE.but(scale=CASE.head_dim**-0.5)
    (cause,) = judged(("scale-twice",), usual).explain().causes
    assert cause.id == "scale.twice" and cause.decided_by is not None and cause.decided_by.scale != usual.scale


def test_a_trace_at_rest_keeps_its_rivals() -> None:
    from dataclasses import replace

    usual = CASE.but(scale=CASE.head_dim**-0.5)
    d = judged(("scale-twice",), usual)
    (cause,) = explain(Observed(replace(d.trace, rerun=None)), d.stages, work=Work(SEARCH)).causes
    assert cause.rivals and not cause.proved and cause.trial is None


def test_a_report_takes_single_bugs_without_a_run() -> None:
    d = judged(("stale-max",))
    (cause,) = d.explained.causes
    assert cause.id == "softmax.subtracts-stale" and cause.trial is None and d.explained is d.explained


def test_the_document() -> None:
    found = judged(("scale-twice",)).explain()
    (one,) = found.as_dicts()
    assert {"id", "names", "stage", "text", "edits", "over_budget", "unexplained", "proved", "falsifier"} <= one.keys()
    assert one["id"] == "scale.twice" and one["edits"] == ["scale"] and one["proved"] is True
    assert one["falsifier"]["held"] is True and one["falsifier"]["case"]["seed"] != CASE.seed
    assert found.unknown() == {"stages": [], "patterns": [], "formulas": []}


@pytest.mark.campaign
def test_an_effect_within_rounding_fits_nothing() -> None:
    """An error of a little more than its budget is near to what a hypothesis gives that changes next to nothing."""

    def kernel(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> dict[str, Any]:
        found = attention()(q, k, v, scale=scale, causal=causal)
        scores = found["scores"]
        found["scores"] = np.where(np.isfinite(scores), scores * np.float32(1 + 2.0**-20), scores)
        return {"scores": found["scores"], "qk": found["qk"], "contract": found["contract"]}

    d = diff(run(kernel, CASE))
    assert d.origins == ("scores",) and d.explain().causes == ()


def test_a_run_that_is_too_large_is_not_searched_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from workbench.report.causes import lines

    for module in ("workbench.judge.explain.explain", "workbench.report.causes"):
        monkeypatch.setattr(f"{module}.LARGEST", 1000)
    d = judged(("scale-twice",))
    found = d.explain()
    assert found.causes == () and not found.complete and found.tried == 0
    size = CASE.heads * CASE.seqlen_q * CASE.seqlen_k
    assert lines(d, found) == [f"not searched: {size} scores are too many, the limit is 1000; take a smaller case"]


@pytest.mark.campaign
def test_wrong_rows_of_codes_that_nobody_saw_are_named() -> None:
    """A kernel that quantises itself, and decodes codes of k above 0 to 0: faults of its codes and scales are tried."""

    def kernel(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float, causal: bool) -> dict[str, np.ndarray]:
        made = {}
        for x, array in zip("qkv", (q, k, v), strict=True):
            codes, scales = quantize(array, "simulated")
            values = FORMATS["simulated"].values.astype(np.float32)[codes] * scales[:, None, None]
            made[f"dequant_{x}"] = (np.minimum(values, 0) if x == "k" else values).astype(np.float16)
        return made

    (cause,) = diff(run(kernel, Case(seqlen=24, head_dim=8, codes="simulated"))).explained.causes
    assert "codes.first-half-k-decoded" in {one.id for one in cause.members} and cause.fit.off == 0


COMMONEST = {
    "head-modulo": (CASE.but(heads=4, kv_heads=2, seqlen_q=80, seqlen_k=80), "h % kv_heads in place of h // group"),
    "sum-not-rescaled": (CASE.but(seqlen_q=80, seqlen_k=80), "in row_sum the correction is not applied"),
}


def outputs(bug: str) -> Any:
    """A kernel with a bug that tells nothing of how it computes."""

    def kernel(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
        found = attention((bug,), False)(q, k, v, scale=scale, causal=causal)
        return found["out"], found["lse"]

    return kernel


def waves(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
    return outputs("wave")(q, k, v, scale=scale, causal=causal)


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize("bug", COMMONEST)
def test_a_report_names_the_commonest_bugs_from_out_and_lse(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In half of its time: the processor of another machine is slower."""
    monkeypatch.setattr("workbench.judge.diff.QUICK", 2000.0)
    case, words = COMMONEST[bug]
    d = diff(run(outputs(bug), case))
    (cause,) = d.explained.causes
    assert words in cause.text and cause.fit.stages == ("out", "lse") == d.origins
    assert f"cause: {cause.text}" in str(d) and "no cause" not in str(d)


def test_a_report_without_a_cause_says_so_and_what_looks_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.judge.diff.QUICK", 200.0)
    case = CASE.but(seqlen_q=24, seqlen_k=24)
    d = diff(run(outputs("wave"), case))
    assert d.explained.causes == ()
    assert str(d).splitlines()[-1] == "no cause found among 293 hypotheses; next: `Diff.explain()` in Python tries more"
    *_, last, repeat = str(diff(run(f"{__file__}:waves", case))).splitlines()
    longer = repeat.removeprefix("repeat: workbench diff ")
    assert (
        repeat != longer
        and last == f"no cause found among 293 hypotheses; next: `workbench explain {longer}` tries more"
    )


def test_every_wrong_stage_has_a_line() -> None:
    """One that has a cause beside one that has none."""
    d = judged(("scale-twice", "neighbour"), CASE.but(seqlen_q=48, seqlen_k=48))
    (cause,) = d.explained.causes
    assert cause.stage == "scores" and d.origins == ("scores", "row_sum")
    assert f"cause: {cause.text}" in str(d)
    assert (
        str(d).splitlines()[-1]
        == "no cause found for row_sum among 804 hypotheses; next: `Diff.explain()` in Python tries more"
    )


def test_tiles_that_are_supposed_are_as_many_as_those_that_were_dumped() -> None:
    """With two where three were dumped, rows alone could not be compared: a defect of the workbench, for a user."""

    def kernel(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
        out, lse = (attention(dump=True)(q, k, v, scale=scale, causal=causal)[name] for name in ("out", "lse"))
        rng = np.random.default_rng(0)
        wrong = (out * rng.uniform(0.5, 1.5, out.shape)).astype(out.dtype)
        return {"out": wrong, "lse": lse, "correction": rng.random((*q.shape[:3], 3)).astype(np.float32)}

    found = diff(run(kernel, Case(seqlen=65, head_dim=4, causal=True)))
    assert found.origins == ("out",) and found.explained.causes == ()
