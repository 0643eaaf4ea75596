"""Where everything wrong lies, on faults of the catalogue and on made-up stages."""

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.stored import stored
from workbench import Case, diff
from workbench.expectation.elements import Elements, State, whole
from workbench.judge.explain.patterns import where
from workbench.judge.stage import StageDiff
from workbench.refusal import Refusal
from workbench.report.words import findings

CASE = Case(seqlen=48, head_dim=32, block_q=16, block_k=16, causal=True)


def stage(wrong, axes="bhqd", expected=1.0):
    """A stage that is wrong where `wrong` is True."""
    expected = np.broadcast_to(np.asarray(expected, np.float64), wrong.shape)
    state = np.where(wrong, State.OUTSIDE, State.EXACT).astype(np.uint8)
    over = np.where(wrong, 9.0, 0.0).astype(np.float32)
    ones = np.ones(wrong.shape)
    return StageDiff(
        "x", axes, "bug", whole(Elements(expected.astype(np.float32), expected, ones, ones, over, state)), None
    )


def wrong(*index, shape=(1, 2, 64, 32)):
    """False but at `index`."""
    found = np.zeros(shape, bool)
    found[index] = True
    return found


# --- faults


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize(
    ("kernel", "fault", "name", "words"),
    [
        ("flash", "flash-k-tile-stale", "qk", "the last 32 of 48 keys, from 16 on"),
        ("flash", "flash-v-tile-stale", "acc", "the last 2 of 3 tiles, from 1 on"),
        # key 47 is right too, but only query 47 sees it: that is no end of the range
        ("flash", "flash-stale-max", "probs", "the last 32 of 48 keys, from 16 on (31 of them)"),
        # query 0 sees one key, so that its row_sum is 1
        ("flash", "flash-out-not-normalised", "out", "the last 47 of 48 queries, from 1 on"),
        ("split_k", "partial-no-masked-tile-guard", "probs", "the first 32 of 48 queries"),
        # wrong above the diagonal: fewer and fewer keys of each query up to the last, of which none is
        ("flash", "flash-no-causal-mask", "scores", ""),
        ("flash", "flash-causal-off-by-one", "scores", ""),
        ("flash", "flash-scale-twice", "scores", ""),
        ("split_k", "reduce-double-counts-sum", "merge_weight", ""),
    ],
)
def test_faults_whose_errors_lie_in_a_part_of_an_axis(kernel, fault, name, words):
    case = CASE.but(splits=3) if kernel == "split_k" else CASE
    judged = diff(stored(kernel, case, faults=[fault]))
    assert judged[name].role == "origin"
    assert where(judged[name]) == words
    lines = findings(judged, full=True)
    start = next(i for i, line in enumerate(lines) if f": {name}, should be " in line)
    line = next(line for line in lines[start:] if line.startswith("  over budget:"))
    assert (f"), all at {words}" in line) == bool(words) == ("all at" in line)


# --- words


@pytest.mark.parametrize(
    ("index", "words"),
    [
        (np.s_[:, 1], "head 1 of 2"),
        (np.s_[:, :, 48:], "the last 16 of 64 queries, from 48 on"),
        (np.s_[:, :, :16], "the first 16 of 64 queries"),
        (np.s_[:, :, 16:32], "queries 16 to 31 of 64"),
        (np.s_[..., 3::8], "dims with d % 8 == 3 of 32"),
        (np.s_[..., 8::8], "dims 8, 16 and 24 of 32"),  # d % 8 == 0 but for the first
        (np.s_[..., 1::2], "dims with d % 2 == 1 of 32"),
        (np.s_[:, :, ::21], "queries with q % 21 == 0 of 64"),
        (np.s_[:, :, 2::11], "queries with q % 11 == 2 of 64"),
        (np.s_[..., np.arange(32) % 8 >= 4], "dims with d % 8 >= 4 of 32"),
        (np.s_[..., np.arange(32) % 8 < 2], "dims with d % 8 < 2 of 32"),
        (np.s_[..., np.isin(np.arange(32) % 8, (1, 2, 5))], "dims with d % 8 in 1, 2 and 5 of 32"),
        # the smallest share wins: 1 of 32 before 1 of 2
        (np.s_[:, 1, :, 5], "dim 5 of 32"),
        (np.s_[:,], ""),
        (np.s_[:, :, [3, 4, 9]], "queries 3, 4 and 9 of 64"),
        (np.s_[:, :, [3, 5, 6]], "queries 3, 5 and 6 of 64"),  # what lies between them is right
        (np.s_[:, :, [3, 40]], "queries 3 and 40 of 64"),  # twice is no period
        (np.s_[:, :, [0, 3, 4, 9, 10, 11, 30, 50]], ""),  # too many to list
        (np.s_[:, :, np.r_[3, 8:12, 40]], "queries 3, 8 to 11 and 40 of 64"),
        (np.s_[:, :, :, :0], ""),
    ],
)
def test_words(index, words):
    assert where(stage(wrong(*index))) == words


@pytest.mark.parametrize(
    ("heads", "size", "words"),
    [
        ([1, 4], 6, "heads 1 and 4 of 6"),
        ([1, 4, 7], 9, "heads with h % 3 == 1 of 9"),
        ([1, 4, 7], 8, "heads with h % 3 == 1 of 8"),
        ([1, 4, 7], 11, "heads 1, 4 and 7 of 11"),  # head 10 is right
        ([2, 3, 6, 7, 10, 11], 12, "heads with h % 4 >= 2 of 12"),
        ([1, 2, 3, 4], 6, "heads 1 to 4 of 6"),
    ],
)
def test_heads_that_are_right_are_not_named(heads, size, words):
    found = wrong(0, heads, shape=(1, size, 16, 8))
    assert where(stage(found)) == words


def test_a_long_axis_with_many_runs_is_told_at_once():
    found = wrong(0, 0, np.random.default_rng(0).random(20000) < 0.3, shape=(1, 1, 20000, 4))
    assert where(stage(found)) == ""
    assert where(stage(wrong(*np.s_[:, :, 7::32], shape=(1, 1, 20000, 4)))) == "queries with q % 32 == 7 of 20000"


def test_a_window_counts_from_its_first_index():
    found = replace(stage(wrong(0, [1, 4, 7], shape=(1, 9, 16, 8))), first={"h": 2})
    assert where(found) == "heads with h % 3 == 0 of 9"
    found = replace(stage(wrong(0, [1, 4], shape=(1, 6, 16, 8))), first={"h": 2})
    assert where(found) == "heads 3 and 6 of 6"


def test_an_index_without_errors_among_many_with_few_is_chance_and_is_counted():
    """One dim of 8 is wrong in each of the last 16 queries but one, where none is."""
    found = wrong(0, 0, [*range(48, 55), *range(56, 64)], 0, shape=(1, 1, 64, 8))
    found[0, 0, 48:55, 1::3] = True
    found[0, 0, 56:, 2::4] = True
    assert where(stage(found[..., ::-1])) == "the last 16 of 64 queries, from 48 on (15 of them)"


def test_two_elements_anywhere_are_no_set():
    assert where(stage(wrong(0, 0, [3, 40], [5, 20], shape=(1, 1, 64, 32)))) == ""


def test_of_equal_shares_the_shortest_axis_is_named():
    found = np.zeros((1, 1, 48, 3, 4), bool)
    found[:, :, 16:, 1] = found[:, :, 32:, 2] = True
    assert where(stage(found, "bhqtd")) == "the last 2 of 3 tiles, from 1 on"


def test_one_wrong_element_is_no_pattern_and_two_of_a_row_are():
    assert where(stage(wrong(0, 1, 7, 5))) == ""
    assert where(stage(wrong(0, 1, 7, [5, 20]))) == "query 7 of 64"


@given(st.data())
def test_what_is_named_holds_all_that_is_wrong(data):
    places = data.draw(st.lists(st.tuples(st.integers(0, 63), st.integers(0, 31)), max_size=40))
    found = wrong(0, 0, [q for q, _ in places], [d for _, d in places])
    words = where(stage(found))
    if part := re.fullmatch(r"(?:queries (\d+) to (\d+)|query (\d+)) of 64", words):
        first, last = (int(part[i] or part[3]) for i in (1, 2))
        assert not found[:, :, :first].any() and not found[:, :, last + 1 :].any()
    if words:
        assert len(set(places)) > 1


def test_what_a_mask_makes_0_tells_nothing():
    """Queries before 60 see nothing of this split: that they are right explains nothing."""
    assert where(stage(wrong(*np.s_[:, :, 60:]))) == "the last 4 of 64 queries, from 60 on"
    masked = np.where(np.arange(64) < 60, 0.0, 1.0)[:, None]
    assert where(stage(wrong(*np.s_[:, :, 60:]), expected=masked)) == ""
    assert where(stage(wrong(*np.s_[:, :, 60:]), expected=np.where(masked == 0, -np.inf, masked))) == ""


def test_a_stage_that_was_not_judged_is_refused():
    with pytest.raises(Refusal) as refusal:
        where(StageDiff("acc", "bhqtd", "not judged", None, None, reason="not given"))
    assert str(refusal.value) == "stage acc was not judged: not given"
