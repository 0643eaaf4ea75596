"""Factors that are no round numbers, found in what a kernel returns; and no factor where there is none."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests import stored
from workbench import Case, diff, run
from workbench.expectation.observed import Observed
from workbench.judge.explain.cover import wrong_of
from workbench.judge.explain.explain import Explained
from workbench.judge.explain.measured import measured
from workbench.judge.explain.scene import Scene
from workbench.judge.explain.search import singles
from workbench.work import SEARCH, Work

CASE = Case(seqlen=48, head_dim=16, causal=True, seed=2)
Arrays = dict[str, np.ndarray]


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float, causal: bool) -> Arrays:
    q, k, v = (x.astype(np.float32) for x in (q, k, v))
    scores = q @ k.swapaxes(-1, -2) * np.float32(scale)
    if causal:
        n, m = scores.shape[-2:]
        scores = np.where(np.tril(np.ones((n, m), bool), m - n), scores, np.float32(-np.inf))
    top = scores.max(-1, keepdims=True)
    probs = np.exp(scores - top)
    total = probs.sum(-1, keepdims=True)
    return {"scores": scores, "out": probs @ v / total, "lse": (top + np.log(total))[..., 0]}


def explained(kernel: Callable[..., Arrays], case: Case = CASE, only: tuple[str, ...] = ("out",)) -> Explained:
    """What is said of a kernel that gives `only` some of its stages; the library has next to no time."""

    def given(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float, causal: bool) -> Arrays:
        found = kernel(q, k, v, scale, causal)
        return {name: found[name].astype(q.dtype if name == "out" else np.float32) for name in only}

    return diff(run(given, case)).explain(0.01)


def times(factor: float) -> Callable[..., Arrays]:
    return lambda q, k, v, scale, causal: attention(q, k, v, scale * factor, causal)


@pytest.mark.campaign(but=3)
@pytest.mark.parametrize("only", [("out",), ("out", "lse"), ("scores", "out", "lse")])
@pytest.mark.parametrize("factor", [1.01, 0.99228])
def test_a_factor_of_the_scale_is_told_by_its_number(only: tuple[str, ...], factor: float) -> None:
    (cause,) = explained(times(factor), only=only).causes
    assert cause.text == f"scores are multiplied by {factor}"
    assert not cause.rivals and cause.trial is not None and cause.trial.held and cause.trial.of == 3


def test_in_half_precision_too() -> None:
    (cause,) = explained(times(1.01), CASE.but(dtype="float16"), ("out", "lse")).causes
    assert cause.text == "scores are multiplied by 1.01" and cause.stands


@pytest.mark.parametrize("factor", [1.01, 0.99, 0.97, 1.03])
def test_each_stage_allows_the_digits_that_it_tells(factor: float) -> None:
    """Out in bfloat16 allows 1 / 0.99 for 1.01, of which lse knows better."""

    def given(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float, causal: bool) -> Arrays:
        found = attention(q, k, v, scale * factor, causal)
        return {"out": found["out"].astype(q.dtype), "lse": found["lse"]}

    run_ = diff(run(given, CASE.but(dtype="bfloat16"))).to_explain
    scene, origins = Scene.of(run_.run), [run_[name] for name in run_.origins]
    said = [one.text for one in measured(scene, wrong_of(scene, origins), Work(SEARCH))]
    assert run_.origins == ("out", "lse") and f"scores are multiplied by {factor}" in said


def test_a_scale_that_is_not_the_one_asked_for_is_told_from_a_factor_by_a_run() -> None:
    def fixed(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float, causal: bool) -> Arrays:
        return attention(q, k, v, 1.01 / q.shape[-1] ** 0.5, causal)

    (cause,) = explained(fixed).causes
    assert cause.text == "the scale is 0.2525 = 1.01/sqrt(head_dim), not the requested one" and cause.stands


@pytest.mark.parametrize(
    ("name", "factor", "texts"),
    [
        ("out", 1.023, ("out is multiplied by 1.023", "acc is multiplied by 1.023")),  # lse is right, and so row_sum
        ("lse", 1.03, ("lse is multiplied by 1.03",)),
    ],
)
def test_so_is_a_factor_of_another_stage(name: str, factor: float, texts: tuple[str, ...]) -> None:
    def kernel(*args: Any) -> Arrays:
        found = attention(*args)
        return found | {name: found[name] * np.float32(factor)}

    # 48 numbers prove nothing
    (cause,) = explained(kernel, CASE.but(seqlen=128), ("out", "lse")).causes
    assert cause.names == texts and cause.stands


FAULTY = [x for x, asked in stored.manifest().items() if asked.get("faults") and asked["kernel"] in stored.SHARED]


@pytest.mark.campaign(but=6)
@pytest.mark.parametrize("only", [("out", "lse"), ()])
@pytest.mark.parametrize("file", [x for x in FAULTY if "flash-scale-twice" not in stored.manifest()[x]["faults"]])
def test_other_faults_are_no_factors(file: str, only: tuple[str, ...]) -> None:
    trace = stored.read(file)
    kept = {name: x for name, x in trace.stages.items() if name in only or not only}
    trace = replace(trace, stages=kept, requested=())
    wrong = {x.name: x.decisive.outside for x in diff(trace).stages if x.role == "origin" and x.decisive is not None}
    scene, work = Scene.of(Observed(trace)), Work(SEARCH)
    wrong = {name: mask for name, mask in wrong.items() if name in scene.names and mask.any()}
    with np.errstate(all="ignore"):  # of infinite scores, as `explain` has it
        assert not singles(scene, wrong, work, list(measured(scene, wrong, work))).fits
