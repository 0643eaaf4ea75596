"""Where everything wrong lies, on faults of the catalogue and on made-up stages."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench import Case, diff, run
from workbench.comparison import Elements, State, whole
from workbench.pattern import pattern
from workbench.refusal import Refusal
from workbench.report.words import findings
from workbench.stage_diff import StageDiff

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


@pytest.mark.parametrize(
    ("kernel", "fault", "name", "words"),
    [
        ("flash", "flash-k-tile-stale", "qk", "the last 32 of 48 keys, from 16 on"),
        ("flash", "flash-v-tile-stale", "acc", "the last 2 of 3 tiles, from 1 on"),
        # key 47 is right too, but only query 47 sees it: that is no end of the range
        ("flash", "flash-stale-max", "probs", "the last 32 of 48 keys, from 16 on"),
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
    judged = diff(run(kernel, case, faults=[fault], backend="emulator"))
    assert judged[name].role == "origin"
    assert pattern(judged[name]) == words
    assert (f"  all of them lie at {words}" in findings(judged)) == bool(words)
    assert any("all of them lie at" in line for line in findings(judged)) == bool(words)


# --- words


@pytest.mark.parametrize(
    ("index", "words"),
    [
        (np.s_[:, 1], "head 1 of 2"),
        (np.s_[:, :, 48:], "the last 16 of 64 queries, from 48 on"),
        (np.s_[:, :, :16], "the first 16 of 64 queries"),
        (np.s_[:, :, 16:32], "queries 16 to 31 of 64"),
        (np.s_[..., 3::8], "every 8th of 32 dims, from 3 on"),
        (np.s_[..., 1::2], "every 2nd of 32 dims, from 1 on"),
        (np.s_[:, :, ::21], "every 21st of 64 queries, from 0 on"),
        (np.s_[:, :, 2::11], "every 11th of 64 queries, from 2 on"),
        # the smallest share wins: 1 of 32 before 1 of 2
        (np.s_[:, 1, :, 5], "dim 5 of 32"),
        (np.s_[:,], ""),
        (np.s_[:, :, [3, 4, 9]], ""),  # neither a range, most of which is right, nor a stride
        (np.s_[:, :, [3, 5, 6]], "queries 3 to 6 of 64"),
        (np.s_[:, :, [3, 40]], ""),  # two are no stride
        (np.s_[..., 8::8], ""),  # a stride that leaves out its first
        (np.s_[:, :, :, :0], ""),
    ],
)
def test_words(index, words):
    assert pattern(stage(wrong(*index))) == words


def test_of_equal_shares_the_shortest_axis_is_named():
    found = np.zeros((1, 1, 48, 3, 4), bool)
    found[:, :, 16:, 1] = found[:, :, 32:, 2] = True
    assert pattern(stage(found, "bhqtd")) == "the last 2 of 3 tiles, from 1 on"


def test_one_wrong_element_is_no_pattern_and_two_of_a_row_are():
    assert pattern(stage(wrong(0, 1, 7, 5))) == ""
    assert pattern(stage(wrong(0, 1, 7, [5, 20]))) == "query 7 of 64"


@given(st.data())
def test_what_is_named_holds_all_that_is_wrong(data):
    places = data.draw(st.lists(st.tuples(st.integers(0, 63), st.integers(0, 31)), max_size=40))
    found = wrong(0, 0, [q for q, _ in places], [d for _, d in places])
    words = pattern(stage(found))
    if part := re.fullmatch(r"(?:queries (\d+) to (\d+)|query (\d+)) of 64", words):
        first, last = (int(part[i] or part[3]) for i in (1, 2))
        assert not found[:, :, :first].any() and not found[:, :, last + 1 :].any()
    if words:
        assert len(set(places)) > 1


def test_what_a_mask_makes_0_tells_nothing():
    """Queries before 60 see nothing of this split: that they are right explains nothing."""
    assert pattern(stage(wrong(*np.s_[:, :, 60:]))) == "the last 4 of 64 queries, from 60 on"
    masked = np.where(np.arange(64) < 60, 0.0, 1.0)[:, None]
    assert pattern(stage(wrong(*np.s_[:, :, 60:]), expected=masked)) == ""
    assert pattern(stage(wrong(*np.s_[:, :, 60:]), expected=np.where(masked == 0, -np.inf, masked))) == ""


def test_a_stage_that_was_not_judged_is_refused():
    with pytest.raises(Refusal) as refusal:
        pattern(StageDiff("acc", "bhqtd", "not judged", None, None, reason="not given"))
    assert str(refusal.value) == "stage acc was not judged: not given"
