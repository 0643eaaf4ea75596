"""The picture of signed errors holds what the comparison holds: bars, mean and words are read back from the figure."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from workbench.expectation.elements import Elements, State, whole
from workbench.floats import round_to, ulp
from workbench.judge.stage import StageDiff
from workbench.refusal import Refusal
from workbench.report.pictures import style as look
from workbench.report.pictures.signed import BINS, EDGES, GAPS, errors, reach, signed_counts, ulp_counts

EXPECTED = np.random.default_rng(0).normal(size=(1, 1, 64, 32))


def stored(actual, expected=EXPECTED, state=None, dtype=ml_dtypes.bfloat16):
    """A stage whose budget is half an ulp of its dtype, outside it where it errs by more."""
    spacing = ulp(expected, dtype)
    over = np.abs(actual - expected) / (spacing / 2)
    if state is None:
        state = np.where(over > 1, State.OUTSIDE, np.where(actual == round_to(expected, dtype), State.EXACT, 1))
    elements = Elements(
        actual.astype(dtype), expected, spacing / 2, np.ones_like(over), over.astype(np.float32), state.astype(np.uint8)
    )
    return StageDiff("out", "bhqd", "rounding", whole(elements), None)


def texts(figure):
    return [text.get_text() for holder in (figure, *figure.axes) for text in holder.texts]


def bars(axes):
    """Heights of the filled histograms of a panel, by the colour that they are drawn in."""
    from matplotlib.colors import to_hex
    from matplotlib.patches import StepPatch

    steps = [patch for patch in axes.patches if isinstance(patch, StepPatch)]
    return {to_hex(step.get_facecolor()): np.nan_to_num(step.get_data().values) for step in steps}


# --- bars


def test_every_error_in_ulps_is_in_one_bar_which_holds_its_outer_end():
    found = ulp_counts(np.array([0, 1e-9, 0.5, np.nextafter(0.5, 1), -0.5, 2.0**24, 2.0**24 + 2, -1e30]))
    middle = len(EDGES) // 2 - 1
    half = middle + 1 + 7  # after the gap, the octaves that end at 1/128 to 1/2
    assert found[middle] == 1, "exactly 0"
    assert found[middle + 2] == 1, "below the axis"
    assert (EDGES[half + 1], list(found[[half, half + 1, -1 - half]])) == (9, [1, 1, 1]), "1/2, a little more, -1/2"
    assert list(found[[-3, -1, 0]]) == [1, 1, 1], "the last octave, beyond the axis on either side"
    assert np.isnan(found[GAPS]).all() and len(GAPS) == 4
    assert np.nansum(found) == 8


numbers = st.floats(allow_nan=False, allow_infinity=False, width=32)


@given(arrays(np.float64, st.integers(0, 50), elements=numbers))
def test_bars_in_ulps_are_symmetric(error):
    found = ulp_counts(error)
    assert np.nansum(found) == error.size
    assert np.array_equal(ulp_counts(-error)[::-1], found, equal_nan=True)


@given(arrays(np.float64, st.integers(0, 50), elements=numbers))
def test_every_error_in_budgets_but_zero_is_in_one_bar_and_nearly_all_are_on_the_axis(signed):
    top = reach(signed)
    edges, found = signed_counts(signed, top)
    assert np.nansum(found) == np.count_nonzero(signed)
    assert found[0] + found[-1] <= max(1, 0.006 * np.count_nonzero(signed))
    assert (edges[2], edges[-3], len(edges)) == (-top, top, BINS + 5)


@pytest.mark.parametrize(("largest", "top"), [(0, 1), (1, 1), (1.01, 2), (0.03, 0.05), (3e5, 5e5), (6, 10)])
def test_the_axis_ends_at_a_round_number(largest, top):
    assert reach(np.linspace(-largest, largest, 11)) == pytest.approx(top)


# --- figure


def test_correct_rounding_stays_within_half_an_ulp_and_on_both_sides():
    figure = errors(stored(round_to(EXPECTED, "bfloat16")))
    above, below = figure.axes
    assert list(bars(above)) == [look.CALM], "nothing outside"
    assert "2,048 of 2,048 (100.0%) correctly rounded to the last bit" in figure.texts[1].get_text()
    inner = bars(above)[look.CALM]
    assert inner.sum() == 2048 and inner[np.abs(EDGES[1:] + EDGES[:-1]) / 2 > 9].sum() == 0, "half an ulp is at 9"
    pale, dark = bars(below)[look.PALE], bars(below)[look.CALM]
    assert (pale >= dark).all() and pale.sum() > dark.sum() > 0.4 * pale.sum()
    assert above.get_xlabel() == "error in ulps of bfloat16" and below.get_xlabel() == "isolated error / budget"


def test_rounding_toward_zero_takes_positive_elements_down_and_negative_ones_up():
    figure = errors(stored(round_to(EXPECTED, "bfloat16", toward_zero=True)))
    above, below = figure.axes
    assert bars(above)[look.HOT].sum() == pytest.approx(1024, abs=100)
    pale, dark = bars(below)[look.PALE], bars(below)[look.CALM]
    middle = len(dark) // 2
    assert dark[:middle].sum() == np.count_nonzero(EXPECTED > 0) and dark[middle:].sum() == 0
    assert (pale - dark)[middle:].sum() == np.count_nonzero(EXPECTED < 0)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["expected below 0", "expected 0 or above"]


def test_rounding_down_makes_every_error_negative_and_the_mean_shows_it():
    spacing = ulp(EXPECTED, "bfloat16")
    figure = errors(stored(np.floor(EXPECTED / spacing) * spacing))
    assert {"2,048 negative", "0 exactly 0", "0 positive"} <= set(texts(figure))
    (mean,) = [text for text in texts(figure) if text.startswith("mean")]
    ratio = (np.floor(EXPECTED / spacing) - EXPECTED / spacing) / 0.5
    assert float(mean.removeprefix("mean ")) == pytest.approx(ratio.mean(), abs=5e-3)
    drawn = [line.get_xdata()[0] for line in figure.axes[1].lines if line.get_color() == look.INK]
    assert drawn == pytest.approx([ratio.mean()], abs=1e-6)


def test_a_mean_beyond_the_axis_is_drawn_at_its_end():
    actual = np.full((1, 1, 1, 1000), 1.0 + 2.0**-23)
    actual[..., 0] = 1e20
    figure = errors(stored(actual, np.ones_like(actual), dtype=np.float32))
    (mean,) = [line for line in figure.axes[1].lines if line.get_color() == look.INK]
    assert mean.get_xdata()[0] == figure.axes[1].get_xlim()[1] < 1e10
    assert any(text.startswith("mean 1.68e+2") for text in texts(figure)), "1e17 / 2^-24"


def test_elements_without_an_error_or_a_judgement_are_in_no_bar():
    expected = np.array([1.0, 1.0, 1.0, -np.inf, 1.0]).reshape(1, 1, 1, 5)
    actual = np.array([1.25, np.nan, np.inf, -np.inf, 1.0]).reshape(1, 1, 1, 5)
    state = np.array([State.ROUNDING, State.NAN, State.NAN, State.EXACT, State.POISONED]).reshape(1, 1, 1, 5)
    with np.errstate(all="ignore"):
        given = stored(actual, expected, state, np.float32).isolated.elements
    over = np.array([0.5, np.inf, np.inf, 0.0, np.nan], np.float32).reshape(1, 1, 1, 5)
    figure = errors(StageDiff("out", "bhqd", "bug", whole(replace(given, over_budget=over)), None))
    assert sum(heights.sum() for heights in bars(figure.axes[0]).values()) == 2, "1.25, and the equal infinities"
    assert {"0 negative", "1 exactly 0", "1 positive", "mean 0.25"} <= set(texts(figure))
    line = "1 of 5 (20.0%) correctly rounded to the last bit; 2 NaN, wrong class or unwritten"
    assert line in figure.texts[1].get_text().splitlines()


def test_a_stage_without_errors_or_without_judged_elements_says_so():
    ones = np.ones((1, 1, 2, 2))
    assert "every error is 0" in texts(errors(stored(ones, ones)))
    vacuous = np.full(ones.shape, State.VACUOUS)
    figure = errors(stored(ones, ones, vacuous))
    assert "nothing was judged" in texts(figure)
    assert not figure.legends, "nothing below 0 is expected"


def test_a_stage_that_is_only_judged_end_to_end():
    only = StageDiff("out", "bhqd", "rounding", None, stored(round_to(EXPECTED, "bfloat16")).isolated)
    assert errors(only).axes[1].get_xlabel() == "propagated error / budget"


def test_a_stage_without_a_comparison_is_refused():
    with pytest.raises(Refusal) as refusal:
        StageDiff("acc", "bhqtd", "not judged", None, None, reason="not given").plot_errors()
    assert str(refusal.value) == "acc cannot be drawn: not judged (not given)"
