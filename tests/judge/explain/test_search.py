"""The search: what fits by chance or because NaN fits anything, and two faults of which one is small."""

from collections.abc import Callable
from dataclasses import replace
from math import inf

import numpy as np
import pytest

from tests.judge.explain.kernels import attention
from workbench import Case, Trace, diff, run
from workbench.case.box import Box
from workbench.expectation.observed import Observed
from workbench.judge.explain import search
from workbench.judge.explain.counter_cases import alike
from workbench.judge.explain.fit import PROOF, UNEXPLAINED, fit
from workbench.judge.explain.hypothesis import Hypothesis, altered, together
from workbench.judge.explain.library import family, library, shows_in_rows
from workbench.judge.explain.scene import Scene
from workbench.judge.explain.search import pairs, singles
from workbench.judge.explain.trial import holds
from workbench.trace.narrow import narrowed
from workbench.work import Work

CASE = Case(heads=2, kv_heads=1, seqlen_q=40, seqlen_k=71, head_dim=16, causal=True, scale=0.4)
FOREVER = Work(inf)


def named(id_: str) -> Hypothesis:
    return next(one for one in family(id_.split(".")[0]) if one.id == id_)


def changed(trace: Trace, stage: str, change: Callable[[np.ndarray], np.ndarray]) -> Trace:
    return replace(trace, stages={**trace.stages, stage: change(trace.stages[stage])})


def wrong_of(trace: Trace) -> dict[str, np.ndarray]:
    return {x.name: x.decisive.outside for x in diff(trace).stages if x.role == "origin" and x.decisive is not None}


def test_what_changes_nothing_explains_no_nan() -> None:
    def unread(x: np.ndarray) -> np.ndarray:
        return np.where(np.arange(71) >= 64, np.float32(np.nan), x)

    # scores that are NaN because the dumped qk is: so they are whatever reads it
    trace = changed(changed(run(attention(), CASE.but(causal=False)), "qk", unread), "scores", unread)
    scene = Scene.of(Observed(trace))
    wrong = {"scores": np.isnan(trace.stages["scores"])}
    found = singles(scene, wrong, FOREVER, (named("mask.none"), named("mask.right-+1")))
    assert wrong["scores"].any() and found.near == found.fits == ()


def test_few_values_must_be_hit_the_better() -> None:
    case = CASE.but(heads=1, seqlen_q=3, causal=False)
    near = Hypothesis("test.near", "lse is 1 more", (altered("lse", lambda at, x: x + 1.0),))
    trace = changed(run(attention(), case), "lse", lambda x: x + np.float32(1.0 + 0.1))
    scene = Scene.of(Observed(trace))
    few = {"lse": np.ones((1, 1, 3), bool)}
    assert UNEXPLAINED * np.sqrt(3 / PROOF) < 0.1 / 1.1 < UNEXPLAINED and fit(scene, near, few) is None
    exact = Hypothesis("test.exact", "lse is 1.1 more", (altered("lse", lambda at, x: x + 1.1),))
    assert fit(scene, exact, few) is not None


def test_a_prediction_overflows_as_float32_does() -> None:
    case = CASE.but(scale=40.0, causal=False)
    nothing = named("softmax.subtracts-nothing")
    scene = Scene.of(Observed(run(attention(dump=False), case)))
    found = scene.predicted(nothing, ["probs", "row_sum", "out"])
    assert found is not None
    assert np.isinf(found["probs"]).any() and np.isinf(found["row_sum"]).any() and np.isnan(found["out"]).any()
    large = np.isfinite(found["probs"]) & (found["probs"] > 0)
    assert found["probs"][large].max() <= np.finfo(np.float32).max
    assert found["probs"][large].min() >= np.finfo(np.float32).smallest_subnormal / 2


@pytest.mark.parametrize("clear", [None, 0.0])
def test_a_small_fault_is_found_beside_a_large_one(monkeypatch: pytest.MonkeyPatch, clear: float | None) -> None:
    """Also where there are fewer hypotheses than the beam has, and no pair is near enough to end the search early."""
    if clear is not None:
        monkeypatch.setattr(search, "CLEAR", clear)
    case = CASE.but(heads=1, kv_heads=1, seqlen_q=24, seqlen_k=36)
    large, small = named("softmax.correction-missing-in-row_sum"), named("precision.lse-bfloat16")
    clean = run(attention((), dump=False), case)
    made = Scene.of(Observed(clean)).predicted(together(large, small), ["out", "lse"])
    assert made is not None
    trace = clean
    for name, x in made.items():
        trace = changed(trace, name, lambda _, x=x: x.astype(np.float32))
    scene, wrong = Scene.of(Observed(trace)), wrong_of(trace)
    among = (large, small, *family("scale")[:5])
    one = singles(scene, wrong, FOREVER, among)
    assert one.fits == ()  # the large one alone leaves little of the error, and most of lse off
    (both, *_) = pairs(scene, wrong, one, FOREVER, all_of_it=True).fits
    assert {*both.hypothesis.id.split(" + ")} == {large.id, small.id} and {*both.stages} == {"out", "lse"}


@pytest.mark.parametrize("elsewhere", [False, True])
def test_less_is_asked_of_one_hypothesis_elsewhere(elsewhere: bool) -> None:
    near = Hypothesis("test.near", "lse is 1 more", (altered("lse", lambda at, x: x + 1.0),))
    trace = changed(run(attention(), CASE.but(causal=False)), "lse", lambda x: x + np.float32(1.0))
    half = changed(trace, "lse", lambda x: np.where(np.arange(40) % 10 == 0, x + np.float32(1e-6), x))
    assert holds(Scene.of(Observed(half)), near, elsewhere=elsewhere)
    other = changed(trace, "lse", lambda x: x + np.float32(0.3))
    assert not holds(Scene.of(Observed(other)), near, elsewhere=elsewhere)


@pytest.mark.parametrize(
    "case", [CASE.but(seqlen_q=60, heads=4, kv_heads=2), CASE.but(seqlen_q=80, seqlen_k=65, batch=2)], ids=str
)
def test_what_some_rows_show_of_common_hypotheses_is_what_all_do(case: Case) -> None:
    trace = run(attention((), False), case)
    rows = Scene(Observed(narrowed(trace, Box(slice(0, case.batch), slice(0, case.heads), slice(24, 56)))))
    whole, told = Scene.of(Observed(trace)), 0
    for one in filter(shows_in_rows, library(whole.families)):
        all_rows, some = (scene.predicted(one, scene.names) for scene in (whole, rows))
        assert (all_rows is None) == (some is None), one.id
        for name, x in (all_rows or {}).items():
            assert alike(x[:, :, 24:56], some[name]), f"{one.id}: {name}"
            told += 1
    assert told > 300
