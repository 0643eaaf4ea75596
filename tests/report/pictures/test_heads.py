"""A strip beside a map shows which heads are wrong."""

from dataclasses import replace

import numpy as np
import pytest

from tests.report.pictures.figures import CASE, stage
from workbench.report.pictures import heads
from workbench.report.pictures.overview import heatmap


def some_heads(wrong, batches=1, size=6):
    ratios = np.full((batches, size, 8, 8), 0.5)
    for b, h in wrong:
        ratios[b, h, 3, 5] = 40
    return stage(ratios, verdict="bug")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ([(0, 1), (0, 4)], "worst of each head, 2 of 6 over budget: 1, 4"),
        ([(0, h) for h in range(6)], "worst of each head, all 6 over budget"),
        ([], "worst of each head, none of 6 over budget"),
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
    assert strip.get_xlabel() == "worst of each head, 1 of 6 over budget: 10" and strip.get_ylabel() == "batch"
    assert strip.images[0].get_extent() == [7.5, 13.5, 4.5, 2.5]


def test_many_heads_are_counted_and_a_strip_needs_several():
    many = heads.worst_shades(some_heads([(0, h) for h in range(0, 40, 2)], size=40))
    assert heads.in_words(many) == "worst of each head, 20 of 40 over budget"
    assert len(heatmap(some_heads([], size=1), case=CASE).axes) == 2
    assert len(heatmap(some_heads([(0, 1)]), case=CASE, axes=("h", "q")).axes) == 2
