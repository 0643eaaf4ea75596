"""Sums that truncate are called biased; correct ones are not, whatever their order and however uniform the data."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from campaigns.known import reduced
from workbench import Case, Trace, diff, run
from workbench.case.distributions import DISTRIBUTIONS
from workbench.case.stages import ALGORITHMS
from workbench.cuda.faults.catalogue import CATALOGUE
from workbench.cuda.kernels import KERNELS
from workbench.expectation.observed import Observed
from workbench.judge.bias import FEWEST_ROWS, Bias, Lean, biases, distinct, lean, rows_seen, second_case, verdicts

#: 96 rows, on a build that other tests compile too
CASE = Case(seqlen_q=48, seqlen_k=96, heads=2, kv_heads=1, head_dim=32, block_q=16, block_k=16)
SOME = ("flash-acc-truncated", "partial-acc-truncated")
BIASED = [
    pytest.param(fault.id, marks=[] if fault.id in SOME else pytest.mark.campaign)
    for fault in CATALOGUE.values()
    if fault.biased
]


def traced(kernel: str, *faults: str, case: Case = CASE) -> Trace:
    case = case.but(splits=2 if KERNELS[kernel].splits else None)
    return run(kernel, case, faults=faults, backend="emulator")


def case_of(fault: str) -> Case:
    """Row sums of 16 truncated terms lean too little to show: those faults get tiles of 32 keys."""
    return CASE if fault in SOME else CASE.but(block_q=32, block_k=32)


def found(trace: Trace) -> dict[str, Bias]:
    return biases(Observed(trace), [stage.name for stage in diff(trace).stages if stage.verdict != "exact"])


def called_biased(trace: Trace, second: Trace) -> list[str]:
    return [name for name, (verdict, _) in verdicts(found(trace), found(second)).items() if verdict != "rounding"]


# ---- the statistic


def everything(errors: np.ndarray) -> Lean:
    seen = np.ones(errors.shape, bool)
    return lean(errors, seen, distinct(errors, seen))


def test_z_and_delta_by_hand() -> None:
    """Mean 2. Deviations -2 0 / 0 2: standard deviation sqrt(8 / 4); row sums -2, 2: variance 2 (4 + 4) / 4^2 = 1."""
    assert everything(np.array([[0.0, 2.0], [2.0, 4.0]])) == Lean(2.0, 2.0, 2 / math.sqrt(2))


def test_without_clusters_z_is_that_of_the_mean() -> None:
    errors = np.random.default_rng(0).normal(0.2, 1.0, (400, 1))
    z = errors.mean() / (errors.std(ddof=1) / math.sqrt(400))
    assert everything(errors).z == pytest.approx(z, rel=1e-12) and abs(z - 4) < 3


def test_equal_errors_in_a_row_are_one_observation() -> None:
    errors = np.random.default_rng(0).normal(0.2, 1.0, (50, 1))
    one, many = everything(errors), everything(np.repeat(errors, 100, axis=1))
    assert many.z == pytest.approx(one.z, rel=1e-9) and many.delta == pytest.approx(one.delta, rel=1e-9)
    each = np.repeat(errors, 100, axis=1).reshape(-1, 1)
    seen = np.ones(each.shape, bool)
    assert abs(one.z) < 6 < lean(each, seen, np.arange(len(each))).z, "each element a row of its own"
    assert everything(each).z == pytest.approx(one.z, rel=1e-9)


def test_unseen_elements_do_not_count() -> None:
    errors = np.array([[0.0, 2.0, np.nan], [2.0, 4.0, 9.0], [7.0, 7.0, 7.0]])
    seen = np.array([[True, True, False], [True, True, False], [False, False, False]])
    assert lean(errors, seen, distinct(errors, seen)) == everything(errors[:2, :2])


def test_rows_that_agree_and_errors_of_zero() -> None:
    """What has no variance decides nothing."""
    assert everything(np.full((8, 2), -0.5)) == Lean(-0.5, 0.0, math.inf)
    assert everything(np.zeros((8, 2))) == Lean(0.0, 0.0, 0.0)


def test_rows_that_err_alike_are_one_observation() -> None:
    """40 queries of one head with a scale of 0; z of 10 heads is that of 10 rows, however often each recurs."""
    rng = np.random.default_rng(0)
    heads = rng.normal(0.2, 1.0, (10, 5))
    often = np.repeat(heads, 40, axis=0)
    seen = np.ones(often.shape, bool)
    of = distinct(often * (1 + rng.uniform(-1, 1, (400, 1)) * 2.0**-28), seen)
    assert rows_seen(seen, of) == 10 and everything(often).z == pytest.approx(everything(heads).z, rel=1e-9)
    assert rows_seen(seen[:40], distinct(often[:40], seen[:40])) == 1


LEANS, STILL = Lean(-0.3, -40.0, 0.5), Lean(-0.01, -1.0, 0.01)


@pytest.mark.parametrize(
    ("own", "excess", "rows", "trips"),
    [
        (LEANS, LEANS, FEWEST_ROWS, True),
        (LEANS, LEANS, FEWEST_ROWS - 1, False),
        (LEANS, STILL, 100, False),  # as rounding to nearest leans
        (STILL, LEANS, 100, False),  # the control leans
        (LEANS, replace(LEANS, mean=0.3, z=40.0), 100, False),  # the control leans farther
        (LEANS, replace(LEANS, z=-6.0), 100, False),
        (LEANS, replace(LEANS, delta=0.1), 100, False),
    ],
)
def test_what_trips(own: Lean, excess: Lean, rows: int, trips: bool) -> None:
    assert Bias(own, excess, rows, 10 * rows).trips is trips


# ---- kernels


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize("fault", BIASED)
def test_truncated_sums_are_biased_at_their_stage_and_nowhere_else(fault: str) -> None:
    kernel, stages = CATALOGUE[fault].kernel, CATALOGUE[fault].biased
    trace, second = (traced(kernel, fault, case=case) for case in (case_of(fault), second_case(case_of(fault))))
    assert diff(trace).origins == stages, "rounding to nearest was promised, and nothing that rounds so leans so far"
    assert called_biased(trace, second) == list(stages)
    assert all(found(trace)[name].toward == "zero" for name in stages)


OFTEN = [("flash", "normal"), ("split_k", "constant-v")]


@pytest.mark.parametrize(
    ("kernel", "distribution"),
    [
        *OFTEN,
        *(
            pytest.param(*one, marks=pytest.mark.campaign)
            for one in product(("flash", "split_k"), sorted(DISTRIBUTIONS))
            if one not in OFTEN
        ),
    ],
)
def test_correct_kernels_are_not_biased(kernel: str, distribution: str) -> None:
    case = CASE.but(distribution=distribution, causal=distribution < "l")
    trace, second = (traced(kernel, case=case) for case in (case, second_case(case)))
    assert called_biased(trace, second) == []
    assert set(found(second)) == {"qk", "row_sum", "acc"}, "all other stages are exact"


def test_uniform_data_lean_in_the_control_too() -> None:
    """Keys that repeat share their rounding errors: no row differs, and the mean of any of them is far from 0."""
    acc = found(traced("flash", case=CASE.but(seqlen_q=96, head_dim=8, scale=0.25, distribution="one-hot")))["acc"]
    assert acc.own.strong and acc.sufficient, "alone the kernel's errors would trip"
    assert acc.excess == Lean(0.0, 0.0, 0.0) and not acc.trips


def test_a_control_that_absorbs_more_than_the_kernel_is_no_bias() -> None:
    row_sum = found(traced("flash", case=CASE.but(distribution="one-hot")))["row_sum"]
    assert row_sum.excess.strong and row_sum.toward == "infinity" and not row_sum.trips


ORDERS = ("descending", "pairwise", "random", "fused")


def total(start: np.ndarray, a: np.ndarray, b: np.ndarray, order: str) -> np.ndarray:
    """start + sum_j a[j] b[j] in float32 (`a` and `b` broadcast behind their first axis)."""
    if order == "fused":  # float64 holds the product exactly
        for x, y in zip(a.astype(np.float64), b.astype(np.float64), strict=True):
            start = (x * y + start).astype(np.float32)
        return start
    terms = [start, *(x * y for x, y in zip(a, b, strict=True))]
    if order == "pairwise":
        while len(terms) > 1:
            terms = [sum(terms[i + 1 : i + 2], terms[i]) for i in range(0, len(terms), 2)]
        return terms[0]
    rest = np.arange(len(terms) - 1, 0, -1)
    if order == "random":
        np.random.default_rng(0).shuffle(rest)
    return sum((terms[i] for i in rest), terms[0])


def reordered(trace: Trace, order: str) -> Trace:
    """A flash trace as a kernel that adds up in another order would have left it: qk, row_sum and acc."""
    stages = dict(trace.stages)
    q, k, v = (np.moveaxis(trace.inputs[name], axis, 0) for name, axis in (("q", 3), ("k", 3), ("v", 2)))
    stages["qk"] = total(np.zeros_like(stages["qk"]), q[..., None], k[..., None, :], order)
    for name in ("row_sum", "acc"):
        stages[name] = np.empty_like(stages[name])
    for t in range(stages["row_sum"].shape[-1]):
        keys = slice(16 * t, min(16 * (t + 1), trace.case.seqlen_k))
        p, correction = np.moveaxis(stages["probs"][..., keys], 3, 0), stages["correction"][..., t]
        row_sum = correction * (stages["row_sum"][..., t - 1] if t else np.float32(0))
        acc = correction[..., None] * (stages["acc"][..., t - 1, :] if t else np.zeros_like(stages["acc"][..., 0, :]))
        stages["row_sum"][..., t] = total(row_sum, p, np.ones_like(p), order)
        stages["acc"][..., t, :] = total(acc, p[..., None], v[keys][..., None, :], order)
    return replace(trace, stages=stages)


@pytest.mark.parametrize(
    ("order", "distribution"),
    [
        *zip(ORDERS, ("normal", "peaked", "constant-v", "one-hot"), strict=True),
        *(
            pytest.param(order, distribution, marks=pytest.mark.campaign)
            for order in ORDERS
            for distribution in ("normal", "peaked", "constant-v", "tiny", "one-hot")
            if (order, distribution) not in zip(ORDERS, ("normal", "peaked", "constant-v", "one-hot"), strict=True)
        ),
    ],
)
def test_other_orders_of_summation_are_not_biased(order: str, distribution: str) -> None:
    case = CASE.but(distribution=distribution, causal=True)
    trace, second = (reordered(traced("flash", case=case), order) for case in (case, second_case(case)))
    assert not {"qk", "row_sum", "acc"} & set(diff(trace).origins)
    assert called_biased(trace, second) == []


def test_the_second_run_has_inputs_of_its_own_and_rows_that_recur_are_no_more() -> None:
    """One-hot inputs draw nothing from the seed, so that the next seed would confirm anything; their heads err alike."""
    case = CASE.but(distribution="one-hot", causal=True, seqlen_q=96)
    trace, seed = (reordered(traced("flash", case=case), "pairwise") for case in (case, case.but(seed=1)))
    assert called_biased(trace, seed) == []
    assert second_case(case) == case.but(seed=1, distribution="normal")


@pytest.mark.campaign
def test_what_is_left_out() -> None:
    trace = traced("split_k", "partial-acc-truncated")
    assert set(found(trace)) == {"qk", "row_sum", "acc"}
    assert not set(found(reduced(trace, "lean"))) - {"scores"}, "exp lies between scores and row_sum, acc"
    out_only = replace(trace, stages={"out": trace.stages["out"]}, requested=())
    assert found(out_only) == {}, "judged end to end"
    inner = {name: stage for name, stage in trace.stages.items() if name not in ("acc", "row_sum")}
    assert {"partial_O", "partial_sum"} <= set(found(replace(trace, stages=inner, requested=())))
    assert set(ALGORITHMS["split_k"]) >= set(found(trace))


def test_few_rows_are_not_enough() -> None:
    bias = found(traced("flash", "flash-acc-truncated", case=CASE.but(seqlen_q=3)))["acc"]
    assert bias.rows == 6 and bias.own.strong and not bias.sufficient and not bias.trips


# ---- what is said


def test_what_is_said() -> None:
    trips = Bias(LEANS, Lean(-0.2, -12.3456, 0.456), 96, 1000)
    other = Bias(replace(LEANS, mean=0.3), Lean(0.2, 9.0, 0.3), 96, 1000)
    leans = (
        "errors lean toward zero by 0.46 standard deviations more than rounding to nearest gives (z = -12.3, 96 rows)"
    )
    first = {"acc": trips, "qk": Bias(STILL, STILL, 96, 1000)}
    assert verdicts(first, None) == {
        "acc": ("rounding", f"{leans}; not called biased: a trace cannot be rerun on other inputs")
    }
    assert verdicts(first, {"acc": replace(trips, rows=64)}) == {
        "acc": ("biased", f"{leans}, again on other inputs (z = -12.3, 64 rows)")
    }
    far = replace(trips, excess=replace(trips.excess, delta=0.51))
    for promised, verdict in ((True, "bug"), (False, "biased")):
        assert verdicts({"acc": replace(far, promised=promised)}, {"acc": far})["acc"][0] == verdict
    for second in ({}, {"acc": other}, {"acc": first["qk"]}):
        assert verdicts(first, second) == {"acc": ("rounding", f"{leans}, but not on other inputs")}


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize("fault", BIASED)
def test_a_diff_calls_a_truncating_kernel_a_bug_and_a_trace_at_rest_only_notes_it(fault: str) -> None:
    trace = traced(CATALOGUE[fault].kernel, fault, case=case_of(fault))
    judged = diff(trace)
    (stage,) = CATALOGUE[fault].biased
    assert (judged.verdict, judged[stage].verdict, judged.origins) == ("bug", "bug", (stage,))
    at_rest = diff(replace(trace, rerun=None))
    assert at_rest[stage].verdict in ("rounding", "suspicious")
    assert "not called biased: a trace cannot be rerun on other inputs" in at_rest[stage].reason
