"""Factors are named where a kernel applied them once too often or not at all, and nowhere else."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from workbench import Case, Diff, Trace, diff, run
from workbench.case.stages import ALGORITHMS
from workbench.cuda.faults.catalogue import CATALOGUE
from workbench.cuda.kernels import KERNELS
from workbench.judge.expectation import Expectation
from workbench.judge.explain.factors import _TERMS, FACTORS, Entry, ledger
from workbench.reference.graph import direct
from workbench.reference.tables import table_of
from workbench.report.document import diff_document
from workbench.report.words import findings

CASE = Case(seqlen=96, heads=2, head_dim=32, block_q=32, block_k=32, causal=True)

#: the faults that are a factor, with (origin, factor, power, what it is applied to); all others name none
WHOLE = {
    "reduce-double-counts-sum": [("merge_weight", "partial_sum", 1, "merge_weight")],
    "flash-no-correction": [("acc", "correction", -1, "correction")],
    "reduce-sum-unweighted": [("merge_sum", "merge_weight", -1, "partial_sum")],
    "flash-row-sum-no-correction": [("row_sum", "correction", -1, "correction")],
    "flash-out-not-normalised": [("out", "row_sum", 1, "out")],
    "flash-scale-twice": [("scores", "scale", 1, "scores")],
    "flash-scale-missing": [("scores", "scale", -1, "scores")],
}
#: the same, judged from out and lse alone
FROM_OUT = {
    "reduce-double-counts-sum": [("out", "partial_sum", 1, "merge_weight")],
    "flash-scale-twice": [("out", "scale", 1, "scores"), ("lse", "scale", 1, "scores")],
    "flash-scale-missing": [("out", "scale", -1, "scores"), ("lse", "scale", -1, "scores")],
    "flash-out-not-normalised": [("out", "row_sum", 1, "out")],
}
#: faults of other kinds, at stages that have factors
NO_FACTOR = (
    *("flash-no-masked-tile-guard", "flash-stale-max", "flash-softcap-times-argument", "flash-causal-off-by-one"),
    *("flash-correction-inverted", "flash-v-tile-stale", "flash-acc-truncated", "partial-offset-wrong-split"),
    *("reduce-max-first-split", "partial-acc-uninitialised", "flash-lse-base-2"),
)


def traced(kernel: str, *faults: str, case: Case = CASE) -> Trace:
    splits = 3 if KERNELS[kernel].splits else None
    return run(kernel, case.but(splits=splits), faults=faults, backend="emulator")


def only(trace: Trace, *names: str) -> Trace:
    """The trace with these stages alone, as a foreign kernel of the same contract would give it."""
    return replace(trace, stages={name: trace.stages[name] for name in names}, requested=())


def named(judged: Diff) -> list[tuple[str, str, int, str]]:
    """Every entry of every stage: stage, factor, power, term."""
    entries = ((stage.name, entry) for stage in judged for entry in ledger(judged.trace, stage))
    return [(name, entry.factor, entry.power, entry.term) for name, entry in entries]


def changed(trace: Trace, name: str, change: Callable[[np.ndarray], np.ndarray]) -> Diff:
    """The judgement of the trace with one stage replaced."""
    stage = np.asarray(change(trace.stages[name]), trace.stages[name].dtype)
    return diff(replace(trace, stages={**trace.stages, name: stage}))


@pytest.fixture(scope="module")
def flash() -> Trace:
    return traced("flash")


@pytest.fixture(scope="module")
def split_k() -> Trace:
    return traced("split_k")


def test_each_factor_is_a_stage_or_the_scale_and_is_applied_by_stages() -> None:
    stages = {name for known in ALGORITHMS.values() for name in known}
    assert set(FACTORS) - {"scale"} <= stages
    assert all(factor.applied and set(factor.applied) <= stages for factor in FACTORS.values())
    for algorithm in ALGORITHMS:
        steps = table_of(algorithm)
        terms = {stage: term for stage, term in _TERMS.items() if stage in steps and term in steps}
        assert len(terms) == (4 if "merge_weight" in steps else 2)
        assert all(term in direct(steps, stage) for stage, term in terms.items())


@pytest.mark.parametrize("fault", [*WHOLE, *NO_FACTOR])
@pytest.mark.parametrize("dtype", ["float32"])  # a second one would compile every fault anew
def test_only_faults_that_are_a_factor_name_one(fault: str, dtype: str) -> None:
    case = CASE.but(dtype=dtype, seqlen_k=64 if fault == "flash-no-masked-tile-guard" else 96)
    trace = traced(CATALOGUE[fault].kernel, fault, case=case.but(**CATALOGUE[fault].needs))
    assert named(diff(trace)) == WHOLE.get(fault, [])
    assert named(diff(only(trace, "out", "lse"))) == FROM_OUT.get(fault, [])


def test_all_elements_are_explained_where_the_factor_is_the_bug() -> None:
    judged = diff(traced("split_k", "reduce-double-counts-sum"))
    weight = judged["merge_weight"]
    outside = int(weight.isolated.outside.sum())
    assert outside > 100
    assert ledger(judged.trace, weight) == (Entry("partial_sum", 1, "merge_weight", outside, outside),)


def test_sum_over_splits_names_the_factor_of_its_terms() -> None:
    trace = only(traced("split_k", "reduce-double-counts-sum"), "partial_O", "partial_max", "partial_sum", "out")
    judged = diff(trace)
    assert judged.origins == ("out",) and judged["out"].upstream == ("merge_max", "merge_weight", "merge_sum")
    (entry,) = ledger(trace, judged["out"])
    assert (entry.factor, entry.power, entry.term) == ("partial_sum", 1, "merge_weight")
    assert entry.matched == entry.of == judged["out"].isolated.outside.sum()


def test_of_a_large_stage_a_few_queries_are_recomputed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The term of each key or split takes as much memory as the scores of its queries."""
    judged = [diff(only(traced(*fault), "out", "lse")) for fault in (("split_k", "reduce-double-counts-sum"),
                                                                    ("flash", "flash-scale-missing"))]  # fmt: skip
    whole = [ledger(one.trace, one["out"]) for one in judged]
    queries: list[int] = []
    recomputed = Expectation.recomputed

    def counted(self: Expectation, *instead: Any) -> dict[str, np.ndarray]:
        found = recomputed(self, *instead)
        queries.append(found["out"].shape[2])
        return found

    monkeypatch.setattr(Expectation, "recomputed", counted)
    monkeypatch.setattr("workbench.judge.explain.factors.AT_ONCE_ON_CPU", 5 * CASE.heads * CASE.seqlen_k)
    assert [ledger(one.trace, one["out"]) for one in judged] == whole
    assert all(len(entries) == 1 for entries in whole) and len(queries) > 40 and max(queries) <= 5


def test_splits_and_tiles_need_not_be_known() -> None:
    trace = only(traced("split_k", "reduce-double-counts-sum"), "partial_O", "partial_max", "partial_sum", "out")
    unknown = replace(trace, contract=replace(trace.contract, block_k=None, splits=None))
    assert named(diff(unknown)) == [("out", "partial_sum", 1, "merge_weight")]


def test_correct_kernels_name_none(flash: Trace, split_k: Trace) -> None:
    for trace in (flash, split_k):
        judged = diff(trace)
        assert judged.origins == () and named(judged) == []


@pytest.mark.parametrize("size", [1e-6, 1e-3, 1.0], ids=str)
@pytest.mark.parametrize("kernel", ["flash", "split_k"])
def test_noise_names_none(kernel: str, size: float, flash: Trace, split_k: Trace) -> None:
    trace = {"flash": flash, "split_k": split_k}[kernel]
    rng = np.random.default_rng(0)
    wrong = 0
    for name in trace.stages:
        judged = changed(trace, name, lambda stage: stage * (1 + size * rng.standard_normal(stage.shape)))
        wrong += name in judged.origins
        assert [entry for entry in named(judged) if entry[0] == name] == []
    assert wrong >= 8


@pytest.mark.parametrize(
    "change",
    [
        np.zeros_like,
        lambda stage: np.full_like(stage, -1.5),
        lambda stage: stage * 1.001,
        lambda stage: stage * -2,
        lambda stage: np.roll(stage, 1, axis=2),
    ],
    ids=["zeros", "a constant", "a little more", "minus two times", "shifted"],
)
def test_what_is_no_factor_names_none(change: Callable, flash: Trace, split_k: Trace) -> None:
    wrong = 0
    for trace in (flash, split_k):
        for name in trace.stages:
            judged = changed(trace, name, change)
            wrong += name in judged.origins
            assert [entry for entry in named(judged) if entry[0] == name] == []
    assert wrong >= 20


def test_zeros_are_not_explained_by_a_factor_of_zero() -> None:
    """With one tile the correction is 0 everywhere, and `acc * correction` too."""
    trace = traced("flash", case=CASE.but(seqlen=32))
    assert not trace.stages["correction"].any()
    judged = changed(trace, "acc", np.zeros_like)
    assert judged["acc"].verdict == "bug" and ledger(judged.trace, judged["acc"]) == ()


def test_infinities_are_not_explained_by_dividing_by_zero() -> None:
    trace = traced("flash", case=CASE.but(seqlen=32))
    judged = changed(trace, "acc", lambda stage: np.copysign(np.inf, -stage))
    assert judged["acc"].verdict == "bug" and ledger(judged.trace, judged["acc"]) == ()


@pytest.mark.parametrize(("elements", "entries"), [(7, []), (8, [("scores", "scale", 1, "scores")])])
def test_a_handful_of_elements_is_no_evidence(elements: int, entries: list, flash: Trace) -> None:
    def scaled(stage: np.ndarray) -> np.ndarray:
        stage = stage.copy()
        stage[0, 0, 50, :elements] *= np.float32(flash.case.scale)
        return stage

    judged = changed(flash, "scores", scaled)
    assert judged["scores"].isolated.outside.sum() == elements
    assert [entry for entry in named(judged) if entry[0] == "scores"] == entries


@pytest.mark.parametrize("power", [1, -1, 0])
@pytest.mark.parametrize(
    ("stage", "decode"), [("lut_k", "table"), ("dequant_k", "table"), ("dequant_q", "direct"), ("dequant_v", "direct")]
)
def test_a_scale_too_many_or_too_few_is_named(stage: str, decode: str, power: int) -> None:
    """Of each head its own; where it is neither, nothing is."""
    case = Case(seqlen=40, heads=4, kv_heads=2, head_dim=32, decode=decode, distribution="outlier-channels")
    trace = traced("fp8", case=case)
    name = f"scale_{stage[-1]}"
    scale = trace.stages[name].reshape((-1, 1) if stage == "lut_k" else (-1, 1, 1))
    judged = changed(trace, stage, lambda x: x * (scale**power if power else scale[::-1]))
    entries = [(name, power, stage)] if power else []
    assert judged.origin == stage
    assert [(entry.factor, entry.power, entry.term) for entry in ledger(judged.trace, judged[stage])] == entries


def test_factor_that_vanishes_is_missed_too() -> None:
    """Rescaling by 0 forgets what came before; without it, everything stays."""
    trace = traced("flash", "flash-no-correction", case=CASE.but(input_std=24.0))
    judged = diff(trace)
    assert (judged["acc"].isolated.outside & (trace.stages["correction"][..., None] == 0)).mean() > 0.01
    assert ("acc", "correction", -1, "correction") in named(judged)


def test_factor_may_come_from_the_reference() -> None:
    trace = only(traced("split_k", "reduce-double-counts-sum"), "partial_max", "merge_max", "merge_weight")
    assert named(diff(trace)) == [("merge_weight", "partial_sum", 1, "merge_weight")]


def test_errors_grow_with_the_factor(flash: Trace) -> None:
    """A kernel whose rounding nearly uses up its budget, and that forgets to divide."""
    lone = only(flash, "out")
    comparison = diff(lone)["out"].decisive
    edge = comparison.expected + 0.9 * comparison.budget
    judged = changed(lone, "out", lambda _: edge * flash.stages["row_sum"][..., -1:])
    assert named(judged) == [("out", "row_sum", 1, "out")]


def test_factor_of_one_explains_nothing(flash: Trace) -> None:
    trace = traced("flash", case=CASE.but(scale=1.0))
    judged = changed(trace, "scores", lambda stage: stage * np.float32(1.001))
    assert judged["scores"].verdict == "bug" and ledger(judged.trace, judged["scores"]) == ()


@pytest.mark.parametrize(
    ("kernel", "name", "change", "entry"),
    [
        ("flash", "qk", lambda t: t.stages["qk"] * t.case.scale, ("scale", 1, "qk")),
        ("flash", "scores", lambda t: t.stages["scores"] / t.case.scale, ("scale", -1, "scores")),
        ("flash", "out", lambda t: t.stages["acc"][..., -1, :], ("row_sum", 1, "out")),
        ("flash", "out", lambda t: t.stages["out"] / t.stages["row_sum"][..., -1:], ("row_sum", -1, "out")),
        (
            "split_k",
            "out",
            lambda t: (t.stages["merge_weight"][..., None] * t.stages["partial_O"]).sum(2),
            ("merge_sum", 1, "out"),
        ),
        (
            "split_k",
            "out",
            lambda t: t.stages["partial_O"].sum(2) / t.stages["merge_sum"][..., None],
            ("merge_weight", -1, "merge_weight"),
        ),
        ("split_k", "merge_sum", lambda t: t.stages["partial_sum"].sum(2), ("merge_weight", -1, "partial_sum")),
        ("split_k", "merge_sum", lambda t: t.stages["merge_weight"].sum(2), ("partial_sum", -1, "partial_sum")),
        ("split_k", "merge_weight", lambda t: t.stages["merge_weight"] ** 2, ("merge_weight", 1, "merge_weight")),
    ],
    ids=[
        "scale before qk",
        "no scale",
        "no division",
        "division twice",
        "no division after merge",
        "no weight of partial_O",
        "no weight of partial_sum",
        "weights alone",
        "weight twice",
    ],
)
def test_every_factor_is_named_where_it_is_too_many_or_missing(
    kernel: str, name: str, change: Callable[[Trace], np.ndarray], entry: tuple, flash: Trace, split_k: Trace
) -> None:
    trace = {"flash": flash, "split_k": split_k}[kernel]
    judged = changed(trace, name, lambda _: change(trace))
    assert judged[name].verdict == "bug"
    assert [found[1:] for found in named(judged) if found[0] == name] == [entry]


def test_nearly_all_must_match(split_k: Trace) -> None:
    """One in fifty that the factor does not explain is one too many."""
    trace = traced("split_k", "reduce-double-counts-sum")
    outside = np.argwhere(diff(trace)["merge_weight"].isolated.outside)

    def with_others(n: int) -> tuple[Entry, ...]:
        stage = trace.stages["merge_weight"].copy()
        for index in outside[:: len(outside) // n][:n]:
            stage[tuple(index)] += 1e3
        judged = diff(replace(trace, stages={**trace.stages, "merge_weight": stage}))
        return ledger(judged.trace, judged["merge_weight"])

    (entry,) = with_others(2)
    assert entry.matched == entry.of - 2 == len(outside) - 2
    assert with_others(len(outside) // 50) == ()


def test_findings_and_document_show_it() -> None:
    judged = diff(traced("split_k", "reduce-double-counts-sum"))
    lines = findings(judged, full=True)
    n = int(judged["merge_weight"].isolated.outside.sum())
    where = next(i for i, line in enumerate(lines) if line.startswith("  the budget there"))
    assert lines[where + 1 : where + 3] == [
        f"  actual = expected * partial_sum at {n} of {n} elements outside the budget",
        "  partial_sum, a split's denominator, which partial_O holds already, is applied by merge_sum (to each split's weight)",
    ]
    stages = {stage["name"]: stage["ledger"] for stage in diff_document(judged)["stages"]}
    assert stages.pop("merge_weight") == [
        {"factor": "partial_sum", "power": 1, "term": "merge_weight", "matched": n, "of": n}
    ]
    assert all(entries == [] for entries in stages.values())


def test_findings_say_what_a_sum_lacks() -> None:
    lines = findings(diff(traced("flash", "flash-no-correction")))
    (line,) = (line for line in lines if line.startswith("  actual"))
    assert line.startswith("  actual = expected without correction at ")
    trace = only(traced("split_k", "reduce-double-counts-sum"), "partial_O", "partial_max", "partial_sum", "out")
    (line,) = (line for line in findings(diff(trace)) if line.startswith("  actual"))
    assert line.startswith("  actual = expected with merge_weight * partial_sum at ")
