"""Budgets: wide enough for any order of summation, and narrow enough to catch what matters."""

from dataclasses import replace

import numpy as np
import pytest

from workbench import Case, Trace, diff, run
from workbench.case.stages import ALGORITHMS, stages_of
from workbench.cuda.flash import contract as contract_of
from workbench.floats import round_to, ulp
from workbench.reference.losses import U, losses_of

CASE = Case(seqlen=96, heads=2, head_dim=32, block_q=16, block_k=16, causal=True, splits=2)


@pytest.fixture(scope="module")
def trace() -> Trace:
    return run("split_k", CASE, backend="emulator")


@pytest.fixture(scope="module")
def capped() -> Trace:
    """On a build that other tests compile too."""
    case = Case(seqlen=48, heads=2, head_dim=31, block_q=16, block_k=16, causal=True, splits=2, softcap=2.0)
    return run("split_k", case, backend="emulator")


LOSSES = losses_of(contract_of(CASE))


def test_a_sum_loses_no_more_than_n_roundings() -> None:
    assert LOSSES.sum(0) == 0
    assert LOSSES.sum(100) > (1 + U) ** 100 - 1
    assert LOSSES.sum(2**24) == np.inf


#: median isolated budget in ulps of the stage's dtype that a stage may have at most, from its formula: half an ulp
#: where it is exact; qk: 32 roundings of sum|q k|, which is about 4 |qk|; probs: 2 ulp of exp and the rounding of its
#: argument; sums: one for each key; capped: three roundings of its argument, 2.5 ulp of tanh, a product
NARROW = {
    "qk": 300,
    "capped": 10,
    "scores": 2,
    "row_max": 0.5,
    "correction": 0.5,
    "probs": 10,
    "probs_cast": 0.5,
    "row_sum": 40,
    "acc": 300,
    "partial_max": 0.5,
    "partial_sum": 0.5,
    "partial_O": 0.5,
    "merge_max": 0.5,
    "merge_weight": 10,
    "merge_sum": 30,
    "out": 60,
    "lse": 10,
}


@pytest.mark.campaign
def test_isolated_budgets_are_narrow(trace: Trace, capped: Trace) -> None:
    assert set(NARROW) == set(ALGORITHMS["split_k"]) == {*trace.stages, *capped.stages}
    for stage in (*diff(trace), *diff(capped)):
        comparison = stage.isolated
        visible = np.isfinite(comparison.expected) & (comparison.expected != 0)
        in_ulps = comparison.budget[visible] / ulp(comparison.expected[visible], "float32")
        assert in_ulps.size and np.median(in_ulps) <= NARROW[stage.name], stage.name


@pytest.mark.campaign(but=4)
@pytest.mark.parametrize("stage", list(stages_of("split_k")))
def test_an_error_just_beyond_the_budget_is_caught_and_one_just_within_is_not(trace: Trace, stage: str) -> None:
    caught_beyond_and_not_within(trace, stage)


@pytest.mark.campaign
@pytest.mark.parametrize("stage", ["qk", "capped", "scores", "probs", "out"])
def test_so_it_is_with_a_softcap(capped: Trace, stage: str) -> None:
    caught_beyond_and_not_within(capped, stage)


def caught_beyond_and_not_within(trace: Trace, stage: str) -> None:
    comparison = diff(trace)[stage].isolated
    candidates = np.flatnonzero(np.isfinite(comparison.expected) & (comparison.expected != 0) & (comparison.budget > 0))
    index = np.unravel_index(candidates[len(candidates) // 2], comparison.expected.shape)
    expected, budget = comparison.expected[index], comparison.budget[index]
    step = ulp(expected, "float32")
    for error, wrong in ((budget + 2 * step, True), (budget - 2 * step, False)):
        if not wrong and budget < 3 * step:
            error = 0.0  # nothing but the correct rounding lies within
        stages = dict(trace.stages)
        stages[stage] = stages[stage].copy()
        stages[stage][index] = np.float32(round_to(expected + error, "float32"))
        assert bool(diff(replace(trace, stages=stages))[stage].isolated.outside[index]) is wrong


@pytest.mark.parametrize("order", ["ascending", "descending", "largest first", "pairwise"])
def test_sums_in_any_order_are_within_the_budget(trace: Trace, order: str) -> None:
    """qk and row_sum computed again in float32 in orders that the kernel does not use."""
    q, k, _ = (x.astype(np.float32) for x in trace.inputs.values())
    stages = dict(trace.stages)
    products = q[:, :, :, None, :] * k[:, :, None, :, :]
    stages["qk"] = _sum(products, order)
    visible = CASE.mask()
    probs = np.where(visible, trace.stages["probs"], np.float32(0))
    row_sum = trace.stages["row_sum"].copy()
    for t in range(6):
        previous = (
            trace.stages["correction"][..., t] * row_sum[..., t - 1] if t % 3 else np.float32(0)
        )  # tiles 0 and 3 start a split
        row_sum[..., t] = previous + _sum(probs[..., 16 * t : 16 * (t + 1)], order)
    stages["row_sum"] = row_sum
    judged = diff(replace(trace, stages=stages))
    for name in ("qk", "row_sum"):
        assert judged[name].isolated.judged.all() and not judged[name].isolated.outside.any(), name


def _sum(terms: np.ndarray, order: str) -> np.ndarray:
    """Sum of float32 terms over the last axis, rounded after every addition, in the given order."""
    if order == "pairwise":
        while terms.shape[-1] > 1:
            terms = terms[..., ::2] + terms[..., 1::2]
        return terms[..., 0]
    if order == "largest first":
        terms = np.take_along_axis(terms, np.argsort(-np.abs(terms), axis=-1), axis=-1)
    if order == "descending":
        terms = terms[..., ::-1]
    return np.cumsum(terms, axis=-1, dtype=np.float32)[..., -1]


def test_exp_of_two_ulps_is_within_the_budget_and_of_thirty_is_not(trace: Trace) -> None:
    for ulps, wrong in ((LOSSES.exp_ulps - 0.5, False), (30.0, True)):
        stages = dict(trace.stages)
        m = np.repeat(trace.stages["row_max"], CASE.block_k or 0, axis=-1).astype(np.float64)
        x = np.where(
            np.isneginf(trace.stages["scores"]),
            -np.inf,
            trace.stages["scores"].astype(np.float64) - np.where(m < -1e9, 0, m),
        )
        p = np.exp(x)
        stages["probs"] = np.where(p > 0, p + ulps * ulp(p, "float32"), 0).astype(np.float32)
        stages["probs"][x == 0] = 1
        assert (diff(replace(trace, stages=stages))["probs"].verdict == "bug") is wrong


#: those of other tests
BUILDS = {
    "float16": {"dtype": "float16", "head_dim": 64, "block_q": 16, "block_k": 16},
    "bfloat16": {"dtype": "bfloat16", "head_dim": 32, "block_q": 32, "block_k": 16},
}


@pytest.mark.parametrize("dtype", BUILDS)
def test_output_must_be_the_rounding_of_something_within_the_budget(dtype: str) -> None:
    case = Case(seqlen=64, **BUILDS[dtype])
    trace = run("flash", case, backend="emulator")
    judged = diff(trace)["out"].isolated
    # division is rounded in float32 first: all but a few elements allow one value of the storage dtype, none more than
    # two
    allowed = np.round(
        (judged.budget + np.abs(round_to(judged.expected, dtype) - judged.expected)) / ulp(judged.expected, dtype), 3
    )
    assert np.mean(allowed <= 1) > 0.95 and np.all(allowed <= 2)
    toward_zero = trace.stages["out"].copy()
    bits = toward_zero.view(np.uint16)
    exact = judged.expected
    bits -= (np.abs(toward_zero.astype(np.float64)) > np.abs(exact)).astype(np.uint16)  # the next value nearer to zero
    assert diff(replace(trace, stages=trace.stages | {"out": toward_zero})).origins == ("out",)


def test_a_propagated_budget_is_never_narrower_than_what_correct_kernels_need() -> None:
    for seed in range(5):
        for stage in diff(run("split_k", CASE.but(seed=seed), backend="emulator")):
            assert not stage.propagated.outside.any(), (seed, stage.name)
