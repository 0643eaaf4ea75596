"""Maps hold what the comparison holds: colours, marks and words are read back from the figures."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.report.pictures.figures import CASE, ORDER, element, legend, pixels, rgb, stage, texts
from workbench.case.case import Case
from workbench.expectation.elements import State
from workbench.judge.stage import StageDiff
from workbench.refusal import Refusal
from workbench.report.pictures import heatmap as maps
from workbench.report.pictures import shades
from workbench.report.pictures.overview import heatmap, histogram

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
        "worst at b=1 h=2 q=3 k=5: actual 22, expected 2, error 40x its budget"
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
    place = "b=1 h=2, isolated |error| / budget\nworst at b=1 h=2 q=5 k=5: actual 22, expected 2, error 40x its budget"
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
    assert str(refusal.value) == f"axes must be two different axes of scores: b, h, q, k; got {', '.join(axes)}"


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
