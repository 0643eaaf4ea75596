"""Histograms hold what the comparison holds: counts, colours, marks and words are read back from the figures."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.report.pictures.figures import CASE, comparison, pixels, stage, texts
from workbench.expectation.elements import State
from workbench.judge.stage import StageDiff
from workbench.report import numbers
from workbench.report.pictures import histogram as bars
from workbench.report.pictures import overview as plots
from workbench.report.pictures import shades
from workbench.report.pictures.overview import heatmap, histogram


def test_every_judged_element_is_in_one_bar_and_the_budget_itself_is_within():
    ratios = np.array([0, 0, 1e-30, 1e-4, 0.3, 1.0, np.nextafter(1, 2), 5, 1e8, 2e8, np.inf, np.nan])
    found = bars.counts(ratios)
    assert np.nansum(found) == 11
    assert found[0] == 2, "exactly 0"
    assert found[2] == 2, "the first bin holds what lies below the axis"
    assert list(found[[-3, -1]]) == [1, 1], "beyond the axis, inf"
    assert np.nansum(found[bars.EDGES[1:] <= 0]) == 6
    assert np.nansum(found[bars.EDGES[1:] > 0]) == 5
    assert np.isnan(found[[1, -4, -2]]).all(), "gaps"


@given(st.floats(0, allow_nan=False) | st.just(np.inf))
def test_a_ratio_is_drawn_inside_its_own_bar(ratio):
    (bar,) = np.flatnonzero(bars.counts(np.array([ratio])) == 1)
    assert bars.EDGES[bar] <= bars.position(ratio) <= bars.EDGES[bar + 1]


def test_histogram_colours_the_two_sides_and_outlines_the_propagated_error():
    ratios = np.array([0.02, 0.5, 0.5, 5.0]).reshape(1, 1, 2, 2)
    figure = histogram(stage(ratios, verdict="bug", propagated=comparison(100 * ratios)))
    within, outside, outline = figure.axes[0].patches[-3:]
    assert within.get_fill() and outside.get_fill() and not outline.get_fill()
    assert np.nansum(within.get_data().values) == 3
    assert np.nansum(outside.get_data().values) == 1
    assert np.nansum(outline.get_data().values) == 4
    assert np.argmax(np.nan_to_num(outline.get_data().values)) > np.argmax(np.nan_to_num(within.get_data().values))
    assert within.get_facecolor() != outside.get_facecolor()
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == ["isolated", "propagated"]


def test_histogram_says_what_it_counts():
    ratios = np.array([0.25, 3e5, 0.5, 0.1]).reshape(1, 1, 2, 2)
    figure = histogram(stage(ratios, [[[[0, 0], [State.POISONED, 0]]]], verdict="bug", name="merge_weight"))
    assert "merge_weight: bug" in texts(figure)
    summary = (
        "4 elements, 1 outside, 1 poisoned\nworst at b=0 h=0 q=0 k=1: actual 150002, expected 2, 3e+05 x of budget"
    )
    assert summary in texts(figure)
    assert {"worst 3e+05", "budget", "2 within", "1 outside", "0", ">1e8", "inf"} <= set(texts(figure))
    assert figure.axes[0].get_xlabel() == "isolated |error| / budget"
    assert figure.axes[0].get_yscale() == "log"


def test_histogram_of_a_stage_that_is_only_judged_end_to_end():
    only = StageDiff("out", "bhqd", "rounding", None, comparison(np.full((1, 1, 2, 2), 0.5)))
    figure = histogram(only)
    assert figure.axes[0].get_xlabel() == "propagated |error| / budget"
    assert figure.axes[0].get_legend() is None


def test_suspicious_elements_are_counted_once_more_in_a_colour_of_their_own():
    ratios = np.array([0.02, 0.6, 0.6, 0.6]).reshape(1, 1, 2, 2)
    state = np.array([State.ROUNDING, State.SUSPICIOUS, State.SUSPICIOUS, State.ROUNDING]).reshape(ratios.shape)
    figure = histogram(stage(ratios, state, verdict="suspicious"))
    within, suspicious, _ = figure.axes[0].patches[-3:]
    assert np.nansum(within.get_data().values) == 4
    assert np.nansum(suspicious.get_data().values) == 2
    assert np.argmax(np.nan_to_num(within.get_data().values)) == np.argmax(np.nan_to_num(suspicious.get_data().values))
    assert len({patch.get_facecolor() for patch in figure.axes[0].patches[-3:]}) == 3
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == ["isolated", "suspicious"]
    assert any(text.startswith("4 elements, 2 suspicious, 0 outside, 0 poisoned\n") for text in texts(figure))


def test_the_statistical_budget_is_a_tick_at_its_median():
    ratios, shares = np.full((1, 1, 1, 4), 0.01), np.array([0.1, 0.2, 0.4, 0.9])
    state = np.array([[[[State.ROUNDING, State.ROUNDING, State.ROUNDING, State.POISONED]]]])
    drawn = StageDiff("acc", "bhqd", "rounding", comparison(ratios, state, shares), None)
    figure = histogram(drawn)
    assert "statistical 0.2" in texts(figure)
    (tick,) = [line for line in figure.axes[0].lines if line.get_linestyle() == "--"]
    assert tick.get_xdata() == pytest.approx(np.log10([0.2, 0.2]))


@pytest.mark.parametrize("state", [State.ROUNDING, State.VACUOUS])
def test_no_tick_where_the_statistical_budget_is_the_budget_or_nothing_was_judged(state):
    ratios = np.full((1, 1, 1, 2), 0.01)
    share = 1.0 if state == State.ROUNDING else 0.1
    drawn = StageDiff("out", "bhqd", "rounding", comparison(ratios, np.full(ratios.shape, state), share), None)
    assert not [text for text in texts(histogram(drawn)) if text.startswith("statistical")]


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (0, "0"),
        (np.inf, "inf"),
        (1, "1"),
        (1.0003, "1.0003"),
        (np.float32(1.0000001), "1.0000001"),
        (0.9987793, "0.999"),
        (0.99997, "0.99997"),
        (0.25, "0.25"),
        (999.6, "1e+03"),
        (5000, "5e+03"),
        (3e-5, "3e-05"),
        (None, "-"),
    ],
)
def test_ratios(ratio, text):
    assert numbers.ratio(ratio) == text


def test_a_victim_is_drawn_by_its_propagated_errors_as_tables_show_it():
    good, bad = np.full((1, 1, 4, 4), 0.5), np.full((1, 1, 4, 4), 300.0)
    victim = StageDiff("out", "bhqd", "exact", comparison(good), comparison(bad))
    assert victim.role == "victim"
    figure = histogram(victim)
    assert "out: victim (exact by itself)" in texts(figure) and {"16 outside", "worst 300"} <= set(texts(figure))
    assert figure.axes[0].get_xlabel() == "propagated |error| / budget"
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == ["propagated", "isolated"]
    drawn = heatmap(victim, case=CASE)
    assert (pixels(drawn) == shades.colours(shades.shade(np.array([300.0]), np.zeros(1, np.uint8)))[0]).all()
    assert any("expected 2, 300 x of budget" in text for text in texts(drawn))
    assert any("16 outside" in text for text in texts(plots.errors(victim)))
