"""Bits lost to cancellation, against exact sums and the cases in which none are lost."""

from dataclasses import replace

import numpy as np
import pytest

from tests.stored import stored
from workbench import Case, Trace
from workbench.case.stages import ALGORITHMS, shape
from workbench.expectation.observed import Observed
from workbench.floats import to_float64
from workbench.judge import blocks as parts
from workbench.judge.cancellation import ill_conditioned
from workbench.judge.diagnostics import diagnostics

SMALL = Case(heads=2, kv_heads=1, seqlen_q=10, seqlen_k=40, head_dim=8, block_q=16, block_k=16, causal=True)


def traced(kernel: str, probes: str = "all", **changes) -> Trace:
    return stored(kernel, SMALL.but(**changes, splits=2 if kernel == "split_k" else None), probes=probes)


def exact_bits(terms) -> float:
    """log2(sum|t| / |sum t|) of balls so narrow that they are exact."""
    flint = pytest.importorskip("flint", reason="the judge with proven bounds, python-flint, is not installed")
    total, size = sum(terms, flint.arb(0)), sum((abs(t) for t in terms), flint.arb(0))
    if size == 0:
        return 0.0
    if total == 0:
        return np.inf
    assert not abs(total).contains(0)
    ratio = size / abs(total)
    assert ratio.rad() < 1e-20 * ratio.mid()
    return float((ratio.log() / flint.arb(2).log()).mid())


def exact_terms(trace: Trace, name: str, index):
    """The terms of one element, in python-flint's balls; the dumped values are exact, and so are their products."""
    import flint

    exact = {key: to_float64(x) for key, x in {**trace.stages, **trace.inputs}.items()}
    b, h, q, *rest = index
    kv = h // (trace.case.heads // trace.case.kv_heads)

    def ball(key, *where):
        return flint.arb(float(exact[key][where]))

    if name == "qk":
        return [ball("q", b, h, q, d) * ball("k", b, kv, rest[0], d) for d in range(trace.case.head_dim)]
    tiles = range(exact["row_max"].shape[3])
    per_split = -(-len(tiles) // (trace.case.splits or 1))
    terms = []
    for j in range(trace.case.seqlen_k):
        tile = j // trace.case.block_k
        weight = ball("probs_cast", b, h, q, j)
        for later in range(tile + 1, min((tile // per_split + 1) * per_split, len(tiles))):
            weight *= ball("correction", b, h, q, later)
        if trace.algorithm == "split_k":
            weight *= ball("merge_weight", b, h, tile // per_split, q)
        terms.append(weight * ball("v", b, kv, j, rest[0]))
    return terms


def lost_by(trace):
    return diagnostics(Observed(trace)).bits_lost


def assert_half_a_bit(found, wanted):
    assert found.shape == wanted.shape
    same = found == wanted  # infinities
    assert np.all(same | (np.abs(np.where(same, 0, found) - np.where(same, 0, wanted)) <= 0.5))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("kernel", ["flash", "split_k"])
def test_qk_and_out_against_exact_sums(kernel, dtype):
    flint = pytest.importorskip("flint", reason="the judge with proven bounds, python-flint, is not installed")
    trace = traced(kernel, dtype=dtype, distribution="near-cancelling")
    found = lost_by(trace)
    with flint.ctx.workprec(512):
        for name in ("qk", "out"):
            wanted = np.empty_like(found[name])
            for index in np.ndindex(wanted.shape):
                wanted[index] = exact_bits(exact_terms(trace, name, index))
            assert_half_a_bit(found[name], wanted)
            # the inputs cancel: some elements lose far more than the half bit in which both agree, and not all alike
            assert wanted.max() > 8 and wanted.max() - wanted.min() > 4


def test_out_alone_against_ball_arithmetic_from_q_k_v():
    flint = pytest.importorskip("flint", reason="the judge with proven bounds, python-flint, is not installed")
    trace = traced("flash", probes="output", distribution="near-cancelling")
    case, mask = trace.case, trace.case.mask()
    found = lost_by(trace)
    assert set(found) == {"out"}
    wanted = np.empty_like(found["out"])
    with flint.ctx.workprec(512):
        q, k, v = (np.vectorize(lambda x: flint.arb(float(x)), otypes=[object])(trace.inputs[name]) for name in "qkv")
        for b, h, i in np.ndindex(wanted.shape[:3]):
            keys = np.flatnonzero(mask[i])
            weights = [((q[b, h, i] * k[b, 0, j]).sum() * flint.arb(case.scale)).exp() for j in keys]
            for d in range(case.head_dim):
                wanted[b, h, i, d] = exact_bits([w * v[b, 0, j, d] for w, j in zip(weights, keys, strict=True)])
    assert_half_a_bit(found["out"], wanted)
    assert wanted.max() > 8


def test_every_dumped_sum_has_its_bits_in_its_own_shape():
    for kernel, names in (
        ("flash", ["qk", "row_sum", "acc", "out"]),
        ("split_k", ["qk", "row_sum", "acc", "merge_sum", "out"]),
    ):
        trace = traced(kernel)
        found = lost_by(trace)
        assert list(found) == names
        for name, bits in found.items():
            assert bits.shape == shape(ALGORITHMS[kernel][name], trace.case.sizes)
            assert np.all(bits >= 0)


def test_acc_counts_its_previous_tile_as_one_term():
    trace = traced("flash", distribution="near-cancelling")
    b, h, q, t, d = index = (0, 1, 9, 1, 3)
    correction, probs, acc = (to_float64(trace.stages[name]) for name in ("correction", "probs_cast", "acc"))
    products = probs[b, h, q, 16:32] * trace.inputs["v"][b, 0, 16:32, d]
    terms = np.array([correction[b, h, q, t] * acc[b, h, q, t - 1, d], *products])
    wanted = np.log2(np.abs(terms).sum() / abs(terms.sum()))
    assert wanted > 1 and lost_by(trace)["acc"][index] == pytest.approx(wanted, abs=1e-6)


def test_terms_of_one_sign_lose_nothing():
    for kernel in ("flash", "split_k"):
        constant = lost_by(traced(kernel, distribution="constant-v"))
        for name in ("row_sum", "acc", "merge_sum", "out"):
            assert name not in constant or np.all(constant[name] < 1e-12), name
        assert constant["qk"].max() > 1


@pytest.mark.campaign
def test_random_signs_lose_about_three_bits():
    """sum|t| of D products of U(-sqrt 3, sqrt 3) is about 3/4 D, and the median |sum t| is 0.6745 sqrt(D)."""
    case = Case(seqlen=96, head_dim=64, block_q=16, block_k=16, distribution="uniform")
    bits = lost_by(stored("flash", case))["qk"]
    # 9216 sums, uncorrelated in pairs, tell their median to about one percent: 0.02 bits; 64 products are nearly normal
    assert np.median(bits) == pytest.approx(np.log2(0.75 * 64 / (0.6745 * 8)), abs=0.1)
    assert ill_conditioned(bits).mean() < 1e-3


def test_zero_terms_lose_nothing_and_a_zero_sum_all():
    zeros = lost_by(traced("split_k", heads=2, kv_heads=2, distribution="zero-head"))
    assert all(np.all(zeros[name][:, 0] == 0) for name in ("qk", "out"))
    q, k, v = (np.ones(x.shape, np.float32) for x in SMALL.inputs())
    q[..., ::2] = -1
    cancelled = lost_by(stored("flash", SMALL, inputs=(q, k, v)))
    assert np.all(cancelled["qk"] == np.inf) and np.all(cancelled["out"] == 0)
    assert np.all(ill_conditioned(cancelled["qk"])) and not np.any(ill_conditioned(cancelled["out"]))


def test_rows_without_keys_lose_nothing():
    for kernel in ("flash", "split_k"):
        trace = traced(kernel, seqlen_q=40, seqlen_k=20)
        empty = ~trace.case.mask().any(axis=1)
        found = lost_by(trace)
        assert empty.sum() == 20
        assert all(np.all(found[name][:, :, empty] == 0) for name in found if name != "qk")


def test_a_nan_among_the_terms_has_no_bits():
    trace = traced("flash")
    probs = trace.stages["probs_cast"].copy()
    probs[0, 0, 5, 3] = np.nan
    found = lost_by(replace(trace, stages={**trace.stages, "probs_cast": probs}))
    assert np.all(np.isnan(found["out"][0, 0, 5])) and not np.any(ill_conditioned(found["out"][0, 0, 5]))
    assert np.all(np.isfinite(found["out"][0, 0, 4])) and np.all(np.isfinite(found["row_sum"]))


def test_splits_that_nobody_told_of_do_not_hide_the_row():
    """Weights of the splits then fit no sum over keys: those of a reference without splits do."""
    trace = traced("split_k", distribution="near-cancelling")
    unknown = replace(
        trace,
        contract=replace(trace.contract, block_k=None, splits=None),
        stages={name: trace.stages[name] for name in ("partial_O", "partial_max", "partial_sum", "out")},
    )
    partial_max = unknown.stages["partial_max"].copy()
    partial_max[:, :, 0] -= 1000  # the first split is nothing: not so the row
    found = lost_by(replace(unknown, stages={**unknown.stages, "partial_max": partial_max}))
    assert_half_a_bit(found["out"], lost_by(traced("flash", probes="output", distribution="near-cancelling"))["out"])


@pytest.mark.parametrize(("bits", "ill"), [(20.0, False), (20.001, True), (np.inf, True), (np.nan, False)])
def test_fewer_than_four_good_bits_of_24_are_ill_conditioned(bits, ill):
    assert ill_conditioned(np.array(bits)) == ill


def test_parts_of_a_trace_lose_the_bits_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = stored("split_k", Case(seqlen=40, heads=2, head_dim=8, block_q=16, block_k=16, splits=2))
    whole = lost_by(trace)
    monkeypatch.setattr(parts, "AT_ONCE_ON_CPU", 400)
    cut = lost_by(trace)
    assert set(cut) == set(whole) and len(list(parts.parts_of(trace.case, "cpu"))) > 4
    for name, bits in whole.items():
        np.testing.assert_allclose(cut[name], bits, rtol=1e-6, atol=1e-6)
