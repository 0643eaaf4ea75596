"""The picture of bits lost, read back, and the same numbers in the table."""

import numpy as np
import pytest

from tests.stored import stored
from workbench import Case, diff
from workbench.report import text
from workbench.report.pictures import style as look
from workbench.report.pictures.cancellation import EDGES, LIMIT, cancellation, counts


def words(figure):
    return [{text.get_text() for text in axes.texts} for axes in figure.axes]


def test_every_sum_is_in_one_bar_but_those_of_nan():
    found = counts(np.array([0, 1e-16, 1, 1.5, 20, 20.5, 24, 24.1, np.inf, np.nan]))
    assert np.nansum(found) == 9
    assert list(found[:2]) == [3, 1] and list(found[19:21]) == [1, 1] and list(found[[23, 25]]) == [1, 2]
    assert np.isnan(found[24]) and list(EDGES[-3:]) == [24, 25, 27]


def test_a_histogram_for_each_sum_with_a_line_where_four_good_bits_are_left():
    figure = cancellation({"qk": np.array([1.0, 3.0, 21.0, np.inf]), "out": np.array([2.0, np.nan])})
    first, second = words(figure)
    assert {"qk", "median 12.0, max inf; 2 of 4 ill-conditioned", "fewer than 4 good bits"} <= first
    assert {"out", "median 2.0, max 2.0; 0 of 2 ill-conditioned", "bits lost"} <= second | {figure.axes[1].get_xlabel()}
    assert figure.texts[0].get_text() == "cancellation: 2 ill-conditioned elements"
    assert [axes.lines[0].get_xdata()[0] for axes in figure.axes] == [LIMIT, LIMIT] == [20, 20]
    good, few = (np.nansum(patch.get_data().values) for patch in figure.axes[0].patches)
    assert (good, few) == (2, 2)


def test_no_ill_conditioned_element_and_none_at_all():
    figure = cancellation({"acc": np.array([np.nan])})
    assert figure.texts[0].get_text() == "cancellation: no ill-conditioned elements"
    assert "no finite sum" in words(figure)[0]


@pytest.fixture(scope="module")
def judged():
    return diff(stored("flash", Case(seqlen=16, head_dim=8, block_q=16, block_k=16)))


def test_a_diff_draws_the_bits_of_its_own_sums(judged):
    figure = judged.plot_cancellation()
    names = ["qk", "row_sum", "acc", "out"]
    assert [name in panel for name, panel in zip(names, words(figure), strict=True)] == [True] * 4
    assert figure.axes[0].patches[0].get_facecolor()[:3] == pytest.approx(
        [int(look.CALM[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    )
    assert np.nansum(figure.axes[0].patches[0].get_data().values) == 256


def test_the_table_has_a_column_for_sums_where_it_is_wide_enough(judged):
    bits = judged.bits_lost["qk"]
    cells = {stage.name: text.bits_lost(judged, stage) for stage in judged}
    assert cells["qk"] == f"{np.median(bits):.1f} / {bits.max():.1f}"
    assert cells["row_sum"] == "0.0 / 0.0" and cells["scores"] == ""
    assert "bits lost" in columns(judged, 200) and "bits lost" not in columns(judged, 110)


def columns(judged, width):
    table = text.report(judged, unicode=False, width=width, full=True).renderables[1]
    return [column.header for column in table.columns]
