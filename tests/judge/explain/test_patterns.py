"""Rules that tell which elements are wrong, on kernels with odd bugs; and silence where there is none."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from tests.numpy_kernels import Style, kernel
from tests.odd_kernels import CASE, SPLITS, judged, right, scaled, scaled_where
from workbench import diff, run
from workbench.expectation.elements import State, whole
from workbench.expectation.observed import Observed
from workbench.judge.explain.formulas import formulas
from workbench.judge.explain.patterns import patterns
from workbench.judge.stage import StageDiff
from workbench.trace.trace import Trace

# --- where


@pytest.mark.campaign(but=4)
@pytest.mark.parametrize(
    ("name", "mask", "text"),
    [
        ("qk", lambda b, h, q, k: q - k == 7, "k - q == -7"),
        ("qk", lambda b, h, q, k: abs(k - q) <= 1, "k - q from -1 to 1"),
        ("qk", lambda b, h, q, k: k - q >= 16, "k - q >= 16"),
        ("scores", lambda b, h, q, k: q == k, "k - q == 0, the diagonal"),
        ("qk", lambda b, h, q, k: k // 16 % 3 == 2, "key tiles 2 and 5 of 6"),
        ("qk", lambda b, h, q, k: k % 16 == 15, "keys with k % 16 == 15 of 96"),
        ("qk", lambda b, h, q, k: q % 8 * 4 + k % 8 // 2 == 5, "lane 5 of 32"),
        ("qk", lambda b, h, q, k: (q % 16 < 8) & (k % 2 == 1), "keys with k % 2 == 1 of 96; queries with q % 16 < 8 of 96"),
        ("qk", lambda b, h, q, k: (h == 2) & (k >= 80), "key tile 5 of 6; head 2 of 4"),
        ("scores", lambda b, h, q, k: q // 16 == k // 16, (
            "key tiles where the tile of queries sees some but not all "
            "keys"
        )),
        ("row_sum", lambda b, h, q, t: (t == 5) & (h > 0), "tile 5 of 6; the last 3 of 4 heads, from 1 on"),
        ("out", lambda b, h, q, d: (h == 1) & (d % 8 == 3), "dims with d % 8 == 3 of 32; head 1 of 4"),
    ],
)  # fmt: skip
def test_places(name, mask, text):
    found = patterns(*judged(name, scaled_where(mask)))
    assert found[0].text == text
    assert found[0].saved > 0.8 and found[0].precision > 0.999 and found[0].recall == 1


def test_a_split_is_told_by_its_keys():
    found = patterns(*judged("qk", scaled_where(lambda b, h, q, k: (k >= 32) & (k < 64)), SPLITS))
    assert found[0].text == "split 1 of 3"


def test_a_part_of_a_run_counts_from_where_it_begins():
    """Queries 7 to 69: the diagonal and the tiles of the whole run tell, not those of the part."""
    names = ("qk", "scores")
    trace = run(kernel(Style(), {"block_k": 16}, names), CASE, where="q=7:70")
    q, k = np.arange(7, 70)[:, None], np.arange(96)
    for wrong, text in (
        (k == q, "k - q == 0, the diagonal"),
        ((q % 16 == 5) & (k == k), "queries with q % 16 == 5 of 63"),
    ):
        scores = trace.stages["scores"] * np.where(wrong, 1.5, 1).astype(np.float32)
        broken = replace(trace, stages={**trace.stages, "scores": scores})
        assert patterns(Observed(broken), diff(broken)["scores"])[0].text == text


def test_exceptions_are_counted():
    """One of 50 elements of the rule is right, and a few are wrong elsewhere."""
    rng = np.random.default_rng(0)
    noise = rng.random((1, 4, 96, 96))
    mask = lambda b, h, q, k: (noise < 0.98) & (q % 4 == 1) | (noise > 0.999)  # noqa: E731
    observed, stage = judged("qk", scaled_where(mask))
    (found,) = patterns(observed, stage)
    inside = np.broadcast_to(np.arange(96)[:, None] % 4 == 1, stage.judged.outside.shape)
    assert found.text == "queries with q % 4 == 1 of 96"
    assert found.exceptions == (stage.judged.outside != inside).sum() > 100
    assert found.precision == stage.judged.outside[inside].mean() < 1 and 0.99 < found.recall < 1
    assert str(found) == f"{found.text}, with {found.exceptions} exceptions"


@pytest.mark.parametrize(
    ("name", "mask"),
    [
        ("qk", lambda x: np.arange(96)[:, None] % 4 == 1),
        ("probs", lambda x: (x["scores"] > 1) & (np.arange(4) == 1)[:, None, None]),
        ("row_sum", lambda x: np.arange(96)[:, None] >= 64),
    ],
)
def test_rules_that_are_found_on_some_rows_are_counted_on_all(name, mask, monkeypatch):
    observed, stage = judged(name, scaled(mask))
    whole = patterns(observed, stage)
    monkeypatch.setattr("workbench.judge.explain.unknown.difference.AT_ONCE", stage.judged.outside.size // 3)
    in_part = patterns(observed, stage)
    assert whole[0].exceptions == in_part[0].exceptions == 0
    assert (whole[0].text, whole[0].recall) == (in_part[0].text, in_part[0].recall)


def test_a_wrong_rule_in_most_elements_is_none():
    """Half of the keys, and 1 in 10 of the others."""
    noise = np.random.default_rng(0).random((1, 4, 96, 96))
    assert patterns(*judged("qk", scaled_where(lambda b, h, q, k: (k < 48) | (noise < 0.1)))) == ()


# --- values


@pytest.mark.parametrize(
    ("name", "mask", "text"),
    [
        ("probs", lambda x: x["scores"] > 1, "scores > 1"),
        ("probs", lambda x: (x["scores"] > 1) & (np.arange(4) == 1)[:, None, None], "head 1 of 4; scores > 1"),
        ("qk", lambda x: abs(x["qk"]) > 8, "|expected| > 8"),
        ("probs", lambda x: x["probs"] < 2.0**-14, "expected <= 2^-14, the smallest normal float16"),
        ("out", lambda x: x["row_sum"][..., -1:] > 4, "the last row_sum > 4"),
    ],
)
def test_values(name, mask, text):
    found = patterns(*judged(name, scaled(mask), CASE.but(scale=0.5)))
    assert found[0].text == text


def test_a_value_that_a_row_shares_is_one_observation():
    """The row of the largest row_sum is wrong, in all of its dims: by chance one row is that of some extreme."""

    def largest(x):
        total = x["row_sum"][..., -1:]
        return total == total.max()

    observed, stage = judged("out", scaled(largest))
    assert stage.judged.outside.sum() == 32
    assert [one.text for one in patterns(observed, stage) if "row_sum" in one.text] == []


def test_what_a_fault_could_not_change_is_no_exception():
    """Hidden keys have probs of 0, which no factor moves."""
    found = patterns(*judged("probs", scaled_where(lambda b, h, q, k: k >= 64)))
    assert (found[0].text, found[0].exceptions) == ("the last 2 of 6 key tiles, from 4 on", 0)


# --- nothing where nothing holds


@cache
def stages() -> tuple[Trace, list[StageDiff]]:
    """A right run, and its stages."""
    case = CASE.but(seqlen=48, heads=2, kv_heads=1, head_dim=16)
    names = ("qk", "scores", "row_max", "correction", "probs", "row_sum", "acc", "out", "lse")
    trace = replace(right(case), stages={name: right(case).stages[name] for name in names})
    judged = diff(trace)
    assert not judged.origins
    return trace, list(judged)


def wrong(stage: StageDiff, mask: np.ndarray, actual: np.ndarray) -> StageDiff:
    """The stage, wrong at `mask`, where it holds `actual`."""
    was = stage.judged.elements
    state = np.where(mask, State.OUTSIDE, was.state).astype(np.uint8)
    over = np.where(mask, 9.0, was.over_budget).astype(np.float32)
    held = np.where(mask, actual, was.actual).astype(was.actual.dtype)
    return replace(stage, verdict="bug", isolated=whole(replace(was, actual=held, over_budget=over, state=state)))


def at_random(stage: StageDiff, seed: int) -> StageDiff:
    """Wrong at elements or rows drawn at random, at any density, by amounts drawn at random."""
    rng, expected = np.random.default_rng(seed), stage.judged.expected
    share, shape = rng.choice([0.03, 0.3, 0.7, 0.97]), expected.shape
    rows = rng.random((*shape[:3], *(1,) * (len(shape) - 3))) < share
    single = rng.random(shape) < share
    mask = [single, np.broadcast_to(rows, shape), single & rows, np.ones(shape, bool)][seed % 4]
    mask = mask & np.isfinite(expected) & (expected != 0)
    amounts = (
        rng.standard_normal(shape),
        expected * rng.uniform(0.5, 2, shape),
        expected + 0.1 * rng.standard_normal(shape),
    )
    return wrong(stage, mask, amounts[seed % 3])


@pytest.mark.parametrize("draws", [30, pytest.param(200, marks=pytest.mark.campaign)])
def test_random_masks_and_values_are_told_by_nothing(draws):
    """Over 200 draws one statement at most: rules are kept where they hold by chance in 1 of 1000."""
    (trace, known), said, tried = stages(), [], 0
    for seed in range(draws):
        stage = at_random(known[seed % len(known)], seed)
        rows = stage.judged.outside.any(axis=tuple(range(3, stage.judged.outside.ndim)))
        if rows.sum() <= 4:  # these are listed
            continue
        tried += 1
        said += [(seed, str(one)) for one in (*patterns(Observed(trace), stage), *formulas(Observed(trace), stage))]
    assert tried > 0.8 * draws and len(said) <= 1, said


def test_the_guard_against_chance_is_needed(monkeypatch):
    """With rules that save nothing, random masks are told by some."""
    monkeypatch.setattr("workbench.judge.explain.unknown.mining.SAVED", -1.0)
    monkeypatch.setattr("workbench.judge.explain.unknown.mining.NO_CHANCE", -1e9)
    monkeypatch.setattr("workbench.judge.explain.unknown.mining.PRECISION", 0.0)
    trace, known = stages()
    found = [patterns(Observed(trace), at_random(stage, seed)) for seed, stage in enumerate(known)]
    assert any(found)
