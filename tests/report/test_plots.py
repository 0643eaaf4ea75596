"""Pictures hold what the comparison holds: counts, colours, marks and words are read back from the figures."""

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.case import Case
from workbench.comparison import Elements, State, whole
from workbench.contract import of_kernel
from workbench.judge import Diff
from workbench.refusal import Refusal
from workbench.report import heads, numbers, plots, shades
from workbench.report import heatmap as maps
from workbench.report import histogram as bars
from workbench.report.plots import heatmap, histogram, overview, save
from workbench.stage_diff import StageDiff
from workbench.trace import Trace

RUN = "mine.py:attention: float16 b=1 h=4 q=8 k=8 d=64, causal bottom-right, normal, seed 0"
CASE = Case(seqlen=8, heads=4, causal=True, block_q=4, block_k=2, splits=2)
ORDER = (
    "exact",
    "within",
    "not judged",
    "poisoned",
    "suspicious",
    "over",
    "nan",
    "unwritten",
)  # by importance, least first


def comparison(over_budget, state=None, statistical=0.5):
    """A comparison with expectation 2, budget 0.5 and the given ratios and states; NaN where the state says so."""
    over_budget = np.asarray(over_budget, float)
    state = np.full(over_budget.shape, State.ROUNDING, np.uint8) if state is None else np.asarray(state, np.uint8)
    over_budget = np.where((state == State.NAN) | (state == State.UNWRITTEN), np.inf, over_budget)
    over_budget = np.where((state == State.POISONED) | (state == State.VACUOUS), np.nan, over_budget)
    state = np.where((state <= State.ROUNDING) & (over_budget > 1), np.uint8(State.OUTSIDE), state)
    expected = np.full(over_budget.shape, 2.0)
    actual = np.where(np.isfinite(over_budget), expected + 0.5 * np.nan_to_num(over_budget, posinf=0), np.nan)
    half = np.full(over_budget.shape, 0.5)
    likely = np.broadcast_to(np.float32(statistical), half.shape)
    return whole(Elements(actual.astype(np.float32), expected, half, likely, over_budget, state))


def stage(over_budget, state=None, *, axes="bhqk", name="scores", verdict="rounding", propagated=None):
    return StageDiff(name, axes, verdict, comparison(over_budget, state), propagated)


def texts(figure):
    found = [text.get_text() for axes in figure.axes for text in axes.texts] + [
        text.get_text() for text in figure.texts
    ]
    ticks = [tick.get_text() for axes in figure.axes for tick in (*axes.get_xticklabels(), *axes.get_yticklabels())]
    return [*found, *ticks]


def legend(figure):
    return [text.get_text() for box in figure.legends for text in box.get_texts()]


def pixels(figure):
    return np.asarray(figure.axes[0].images[0].get_array())


def rgb(colour):
    return [int(colour[i : i + 2], 16) for i in (1, 3, 5)]


def element(kind):
    """Ratio and state of an element of the kind, as in ORDER."""
    special = {
        "not judged": State.VACUOUS,
        "poisoned": State.POISONED,
        "nan": State.NAN,
        "unwritten": State.UNWRITTEN,
        "suspicious": State.SUSPICIOUS,
    }
    return {"exact": 0.0, "within": 1.0, "suspicious": 1.0, "over": 1.0001}.get(kind, 0.0), special.get(
        kind, State.ROUNDING
    )


# --- histogram


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


# --- which heads


def some_heads(wrong, batches=1, size=6):
    ratios = np.full((batches, size, 8, 8), 0.5)
    for b, h in wrong:
        ratios[b, h, 3, 5] = 40
    return stage(ratios, verdict="bug")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ([(0, 1), (0, 4)], "worst of each head, 2 of 6 outside: 1, 4"),
        ([(0, h) for h in range(6)], "worst of each head, all 6 outside"),
        ([], "worst of each head, none of 6 outside"),
    ],
)
def test_a_map_shows_which_heads_are_wrong(wrong, words):
    plot, strip = heatmap(some_heads(wrong), case=CASE).axes[0::2]
    assert strip.get_xlabel() == words
    image = np.asarray(strip.images[0].get_array())
    assert image.shape == (1, 6, 3)
    red = image[0, :, 0].astype(int) - image[0, :, 2] > 100
    assert np.flatnonzero(red).tolist() == [h for _, h in wrong]
    assert strip.get_position().y1 < plot.get_position().y0
    if wrong:
        assert {(line.get_xdata()[0], line.get_ydata()[0]) for line in strip.lines if line.get_marker() == "o"} == {
            wrong[0][::-1]
        }


def test_the_heads_of_several_batches_and_of_a_window_have_their_own_numbers():
    found = replace(some_heads([(1, 2)], batches=2), first={"b": 3, "h": 8})
    (strip,) = [axes for axes in heatmap(found, case=CASE).axes if axes.get_xlabel().startswith("worst of each")]
    assert strip.get_xlabel() == "worst of each head, 1 of 6 outside: 10" and strip.get_ylabel() == "batch"
    assert strip.images[0].get_extent() == [7.5, 13.5, 4.5, 2.5]


def test_many_heads_are_counted_and_a_strip_needs_several():
    many = heads.worst_shades(some_heads([(0, h) for h in range(0, 40, 2)], size=40))
    assert heads.in_words(many) == "worst of each head, 20 of 40 outside"
    assert len(heatmap(some_heads([], size=1), case=CASE).axes) == 2
    assert len(heatmap(some_heads([(0, 1)]), case=CASE, axes=("h", "q")).axes) == 2


# --- what was run


def test_every_picture_says_what_was_run_and_covers_nothing():
    ratios = np.full((1, 2, 8, 8), 0.5)
    named = replace(stage(ratios), run=RUN)
    drawn = {
        "histogram": histogram,
        "errors": plots.errors,
        "heatmap": lambda stage: heatmap(stage, case=CASE),
        "overview": lambda stage: overview([stage], stage.run),
        "cancellation": lambda stage: plots.cancellation({"qk": np.ones((1, 2, 8, 8))}, stage.run),
    }
    for kind, draw in drawn.items():
        bare, figure = draw(replace(named, run="")), draw(named)
        (line,) = [text for text in figure.texts if text.get_text().replace("\n", " ") == RUN]
        figure.canvas.draw()
        box = line.get_window_extent()
        assert box.y0 > 0 and box.x1 < figure.bbox.width, kind
        lowest = min(axes.get_tightbbox().y0 for axes in figure.axes)
        assert box.y1 < lowest, kind
        # all else is as far from the upper edge as without it
        for one, other in zip(bare.axes, figure.axes, strict=True):
            tops = [figure.bbox.height - axes.get_window_extent().y1 for axes, figure in ((one, bare), (other, figure))]
            assert tops[0] == pytest.approx(tops[1], abs=0.6), kind


# --- map: colours


def test_each_kind_of_element_has_its_colour():
    ratios, state = zip(*(element(kind) for kind in ORDER), strict=True)
    image = pixels(
        heatmap(stage(np.reshape(ratios, (1, 1, 1, len(ORDER))), np.reshape(state, (1, 1, 1, len(ORDER)))), case=CASE)
    )
    assert image.shape == (1, len(ORDER), 3)
    expected = [
        "#ffffff",
        shades.CALM_RAMP[-1],
        "#e9dfc3",
        "#9aa0a6",
        "#159a8c",
        shades.HOT_RAMP[0],
        "#4a0d66",
        "#000000",
    ]
    assert image[0].tolist() == [rgb(colour) for colour in expected]


def test_the_colour_scale_breaks_at_the_budget_and_saturates_at_its_ends():
    ratios = np.array([1e-9, 1e-3, 0.1, 1.0, np.nextafter(1, 2), 1e3, 1e6, 1e300, np.inf])
    shades = maps.shade(ratios, np.zeros(9, np.uint8))
    assert (np.diff(shades) >= 0).all()
    assert shades[0] == shades[1] and shades[6] == shades[7] == shades[8]
    calm, hot = maps.colours(shades)[[3, 4]].astype(int)
    assert abs(calm - hot).max() > 150


def test_legend_names_the_special_colours_that_are_there_and_no_others():
    ratios = np.full((1, 1, 2, 2), 0.5)
    assert legend(heatmap(stage(ratios), case=Case(seqlen=2))) == ["worst element"]
    figure = heatmap(stage(ratios, [[[[0, State.POISONED], [State.UNWRITTEN, 0]]]]), case=Case(seqlen=2))
    assert legend(figure) == ["worst element", "poisoned: inputs NaN", "unwritten"]


def test_what_is_outside_is_drawn_once_more_over_the_lines():
    ratios = np.full((1, 1, 8, 8), 0.5)
    ratios[0, 0, 3, 5] = 2
    under, over = heatmap(stage(ratios), case=CASE).axes[0].images
    lines = heatmap(stage(ratios), case=CASE).axes[0].collections
    assert under.zorder < min(line.zorder for line in lines) <= max(line.zorder for line in lines) < over.zorder
    assert np.argwhere(over.get_array()[..., 3]).tolist() == [[3, 5]]


# --- map: which elements


def test_the_plane_goes_through_the_worst_element_and_marks_it():
    ratios = np.full((2, 4, 8, 8), 0.5)
    ratios[1, 2, 3, 5] = 40
    ratios[0, 1, 6, 6] = 30
    figure = heatmap(stage(ratios, verdict="bug"), case=CASE)
    (subtitle,) = [text for text in texts(figure) if text.startswith("worst of")]
    assert subtitle == (
        "worst of 2 batches x 4 heads: b=1 h=2, isolated |error| / budget\n"
        "worst at b=1 h=2 q=3 k=5: actual 22, expected 2, 40 x of budget"
    )
    image = pixels(figure)
    assert np.argwhere((image != image[0, 0]).any(-1)).tolist() == [[3, 5]]
    for ring in figure.axes[0].lines:
        assert (ring.get_xdata().item(), ring.get_ydata().item()) == (5, 3)
    assert len(figure.axes[0].lines) == 2
    assert (figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()) == ("key", "query")


@pytest.mark.parametrize(
    ("axes", "rows", "columns"),
    [
        ("bhqk", "query", "key"),
        ("bhqd", "query", "dim"),
        ("bhqt", "query", "key tile"),
        ("bhqtd", "query", "dim"),
        ("bhsq", "query", "split"),
        ("bhsqd", "query", "dim"),
        ("bhq", "head", "query"),
        ("bhkd", "key", "dim"),
        ("hc", "head", "code"),
        ("h", "", "head"),
        ("qk", "query", "key"),
    ],
)
def test_axes_of_each_kind_of_stage(axes, rows, columns):
    sizes = dict(zip("bhqkdtsc", (2, 3, 4, 5, 6, 7, 8, 9), strict=True))
    ratios = np.full([sizes[axis] for axis in axes], 0.5)
    ratios.flat[ratios.size // 2] = 7
    figure = heatmap(stage(ratios, axes=axes), case=CASE)
    letters = {word: letter for letter, word in maps.WORDS.items()}
    plot = figure.axes[0]
    assert (plot.get_ylabel().strip(), plot.get_xlabel()) == (rows, columns)
    at = dict(zip(axes, np.unravel_index(ratios.size // 2, ratios.shape), strict=True))
    image = pixels(figure)
    assert image.shape[:2] == (sizes[letters[rows]] if rows else 1, sizes[letters[columns]])
    hot = np.argwhere(image[..., 0] > 240)
    assert hot.tolist() == [[at[letters[rows]] if rows else 0, at[letters[columns]]]]


def test_a_window_is_drawn_with_the_indices_of_its_run():
    ratios = np.full((1, 1, 3, 8), 0.5)
    ratios[0, 0, 2, 5] = 40
    window = replace(stage(ratios, verdict="bug"), first={"b": 1, "h": 2, "q": 3})
    figure = heatmap(window, case=CASE)
    place = "b=1 h=2, isolated |error| / budget\nworst at b=1 h=2 q=5 k=5: actual 22, expected 2, 40 x of budget"
    assert place in texts(figure)
    plot = figure.axes[0]
    assert plot.get_ylim() == (5.5, 2.5) and plot.images[0].get_extent() == [-0.5, 7.5, 5.5, 2.5]
    assert [*plot.get_yticks()] == [3, 4, 5] and [*plot.get_xticks()] == [*range(8)]
    assert np.argwhere((pixels(figure) != pixels(figure)[0, 0]).any(-1)).tolist() == [[2, 5]]
    assert {(ring.get_xdata().item(), ring.get_ydata().item()) for ring in plot.lines} == {(5, 5)}
    queries, tiles, _ = plot.collections
    assert [line[:, 1].tolist() for line in queries.get_segments()] == [[3.5, 3.5]]
    assert [line[:, 1].tolist() for line in tiles.get_segments()] == 2 * [[2.5, 5.5]]
    assert any("worst at b=1 h=2 q=5 k=5" in text for text in texts(histogram(window)))


def test_axes_may_be_chosen_and_turned():
    ratios = np.full((1, 2, 3, 4), 0.5)
    ratios[0, 1, 2, 3] = 9
    figure = heatmap(stage(ratios), case=CASE, axes=("k", "h"))
    assert pixels(figure).shape[:2] == (4, 2)
    assert any(text.startswith("worst of 3 queries: b=0 q=2,") for text in texts(figure))


@pytest.mark.parametrize("axes", [("q", "q"), ("q", "d"), ("x", "k")])
def test_axes_that_the_stage_does_not_have_are_refused(axes):
    with pytest.raises(Refusal) as refusal:
        heatmap(stage(np.ones((1, 1, 2, 2))), case=CASE, axes=axes)
    assert str(refusal.value) == f"axes are two different ones of scores: b, h, q, k; got {', '.join(axes)}"


def test_a_stage_without_a_comparison_is_refused():
    absent = StageDiff("acc", "bhqtd", "not judged", None, None, reason="acc was not given")
    for draw in (histogram, lambda stage: heatmap(stage, case=CASE)):
        with pytest.raises(Refusal) as refusal:
            draw(absent)
        assert str(refusal.value) == "acc cannot be drawn: not judged (acc was not given)"


def test_a_comparison_where_nothing_was_judged_is_drawn_as_such():
    vacuous = stage(np.zeros((1, 2, 4, 4)), np.full((1, 2, 4, 4), State.VACUOUS), verdict="untestable")
    figure = heatmap(vacuous, case=CASE)
    assert (pixels(figure) == rgb("#e9dfc3")).all()
    assert "first of 2 heads: b=0 h=0, isolated |error| / budget\nnothing was judged" in texts(figure)
    assert "worst element" not in legend(figure) and not figure.axes[0].lines
    assert "nothing was judged" in texts(histogram(vacuous))


def test_a_single_element():
    figure = heatmap(stage(np.zeros((1, 1, 1, 1)), verdict="exact"), case=Case(seqlen=1))
    assert pixels(figure).tolist() == [[[255, 255, 255]]]
    assert "worst 0" in texts(histogram(stage(np.zeros((1, 1, 1, 1)))))


# --- map: tiles and splits


@pytest.mark.parametrize(
    ("axis", "size", "tiles", "splits"),
    [("q", 8, [4], []), ("k", 7, [2, 6], [4]), ("t", 4, [], [2]), ("d", 64, [], []), ("s", 2, [], [])],
)
def test_tiles_and_splits_begin_where_the_kernel_begins_them(axis, size, tiles, splits):
    assert maps.grid(CASE, axis, size) == (tiles, splits)


def test_a_split_holds_a_whole_number_of_tiles():
    case = Case(seqlen=10, block_q=4, block_k=2, splits=4)  # 5 tiles, 2 to a split, none left for the last
    assert maps.grid(case, "k", 10) == ([2, 6], [4, 8])
    assert maps.grid(case, "t", 5) == ([], [2, 4])


def test_tiles_of_a_window_begin_where_those_of_the_run_do():
    assert maps.grid(CASE, "q", 5, 2) == ([4], []) and maps.grid(CASE, "q", 5, 4) == ([8], [])


def test_lines_lie_between_elements_and_need_the_tiles_of_the_case():
    ratios = np.full((1, 1, 8, 8), 0.5)
    queries, tiles, splits = heatmap(stage(ratios), case=CASE).axes[0].collections
    assert [line[0, 1] for line in queries.get_segments()] == [3.5]
    assert [line[0, 0] for line in tiles.get_segments()] == [1.5, 5.5]
    assert [line[0, 0] for line in splits.get_segments()] == [3.5]
    assert splits.get_linewidth()[0] > 2 * tiles.get_linewidth()[0]
    bare = heatmap(stage(ratios), case=Case(seqlen=8, splits=2))
    assert not bare.axes[0].collections and legend(bare) == ["worst element"]


# --- map: reduction


@given(st.data())
def test_one_bad_element_survives_the_reduction_wherever_it_is(data):
    shape = data.draw(st.tuples(st.integers(1, 60), st.integers(1, 60)))
    place = tuple(data.draw(st.integers(0, size - 1)) for size in shape)
    limit = data.draw(st.integers(1, 20))
    shades = maps.shade(np.full(shape, 0.999), np.zeros(shape, np.uint8))
    shades[place] = maps.OVER
    found, steps = maps.reduced(shades, limit)
    assert max(found.shape) <= limit
    assert np.argwhere(found == maps.OVER).tolist() == [[place[0] // steps[0], place[1] // steps[1]]]


@given(st.permutations(ORDER), st.integers(2, len(ORDER)))
def test_the_most_important_element_of_a_block_is_shown(kinds, n):
    ratios, state = zip(*(element(kind) for kind in kinds[:n]), strict=True)
    shades = maps.shade(np.array([ratios]), np.array([state]))
    ((shown,),), _ = maps.reduced(shades, 1)
    assert shown == shades[0, max(range(n), key=lambda i: ORDER.index(kinds[i]))]


def test_a_small_map_is_not_reduced_and_a_large_one_says_that_it_is():
    shades = np.arange(12, dtype=np.int16).reshape(3, 4)
    found, steps = maps.reduced(shades)
    assert np.array_equal(found, shades) and steps == (1, 1)
    ratios = np.full((1, 1, 3, 1025), 0.5)
    ratios[0, 0, 1, 1024] = 50
    figure = heatmap(stage(ratios), case=Case(seqlen_q=3, seqlen_k=1025))
    assert pixels(figure).shape[:2] == (3, 342)
    assert any("a cell is the worst of 1 x 3 elements" in text for text in texts(figure))
    plot = figure.axes[0]
    assert (plot.get_xlim(), plot.get_ylim()) == ((-0.5, 1024.5), (2.5, -0.5))
    assert plot.images[0].get_extent() == [-0.5, 342 * 3 - 0.5, 2.5, -0.5], "the last block reaches beyond the map"
    assert plot.lines[0].get_xdata().item() == 1024


def test_every_cell_of_the_largest_map_has_a_pixel():
    figure = heatmap(stage(np.full((1, 1, 2, 2), 0.5)), case=CASE)
    box = figure.axes[0].get_position()
    assert min(box.width * figure.bbox.width, box.height * figure.bbox.height) >= shades.CELLS


# --- overview


def story():
    good, bad = comparison(np.full((1, 1, 2), 0.5)), comparison(np.full((1, 1, 2), 5.0))
    return [
        StageDiff("merge_max", "bhq", "rounding", good, None),
        StageDiff("acc", "bhqtd", "not judged", None, None),
        StageDiff("merge_sum", "bhq", "bug", bad, bad),
        StageDiff("lse", "bhq", "rounding", good, bad),
    ]


def test_overview_tells_origin_victims_and_sizes():
    figure = overview(story(), RUN)
    assert "origin: merge_sum" in texts(figure)
    assert {"victim: lse", RUN} <= {*texts(figure)}
    plot = figure.axes[0]
    assert [label.get_text() for label in plot.get_yticklabels()] == ["merge_max", "acc", "merge_sum", "lse"]
    rows = [patch for patch in plot.patches if patch.get_height() == 0.56]
    assert [patch.get_y() + 0.28 for patch in rows] == [0, 2, 3]
    assert [patch.get_x() + patch.get_width() for patch in rows] == pytest.approx(np.log10([0.5, 5, 0.5]).tolist())
    colours = [tuple(round(255 * part) for part in patch.get_facecolor()[:3]) for patch in rows]
    assert colours == [tuple(rgb(plots.ROLES[name])) for name in ("clean", "origin", "victim")]
    diamonds = [(line.get_xdata()[0], line.get_ydata()[0]) for line in plot.lines if line.get_marker() == "D"]
    assert diamonds == [(np.log10(5), 2), (np.log10(5), 3)]


def test_overview_without_an_origin():
    assert "no origin: no stage is wrong on its own inputs" in texts(overview(story()[:2], RUN))
    assert "nothing was judged" in texts(overview(story()[1:2], RUN))


# --- files


def judged(**stages):
    """The story as the judgement of a run that dumped `stages`."""
    q, k, v = CASE.inputs()
    inputs = {"q": q, "k": k, "v": v}
    return Diff(Trace("split_k", "split_k", CASE, of_kernel(CASE), inputs, stages, ()), tuple(story()), ())


def test_save_writes_the_overview_and_three_pictures_of_each_judged_stage(tmp_path):
    paths = save(judged(), tmp_path / "new" / "folder")
    names = [
        "overview.png",
        *(
            f"{stage}-{kind}.png"
            for stage in ("01-merge_max", "03-merge_sum", "04-lse")
            for kind in ("histogram", "errors", "heatmap")
        ),
    ]
    assert paths == [tmp_path / "new" / "folder" / name for name in names]
    assert sorted(os.listdir(tmp_path / "new" / "folder")) == sorted(names)
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


def test_save_draws_cancellation_where_a_sum_was_dumped(tmp_path):
    paths = save(judged(qk=np.ones((1, 4, 8, 8), np.float32)), tmp_path)
    assert paths[1] == tmp_path / "cancellation.png" and len(paths) == 11
    assert paths[1].read_bytes().startswith(b"\x89PNG")


def test_the_same_diff_gives_the_same_bytes(tmp_path):
    first, second = (save(judged(), tmp_path / name) for name in "ab")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert not any(b"Software" in path.read_bytes() for path in first)


def test_a_failed_run_leaves_old_files_whole_and_nothing_half_written(tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    (tmp_path / "overview.png").write_bytes(b"old")

    def half(self, path, **_):
        path.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(Figure, "savefig", half)
    with pytest.raises(OSError, match="disk full"):
        save(judged(), tmp_path)
    assert os.listdir(tmp_path) == ["overview.png"]
    assert (tmp_path / "overview.png").read_bytes() == b"old"


def test_matplotlib_is_imported_with_the_first_picture_and_pyplot_never():
    program = (
        "import sys, numpy as np\n"
        "from workbench.case import Case\n"
        "from workbench.comparison import Elements, whole\n"
        "from workbench.stage_diff import StageDiff\n"
        "from workbench.report.plots import errors, heatmap, histogram, overview\n"
        "assert 'matplotlib' not in sys.modules\n"
        "x = np.zeros((1, 1, 2, 2))\n"
        "stage = StageDiff('qk', 'bhqk', 'exact', whole(Elements(x, x, x, x, x, x.astype(np.uint8))), None)\n"
        "histogram(stage), errors(stage), heatmap(stage, case=Case(seqlen=2)), overview([stage], 'qk of a kernel')\n"
        "assert 'matplotlib' in sys.modules and 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
