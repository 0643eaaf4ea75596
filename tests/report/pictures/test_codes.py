"""Pictures of decode tables, decoded tiles and tensor-core tiles hold what the comparison holds."""

from dataclasses import replace

import numpy as np
import pytest

from workbench.case.case import Case
from workbench.cuda.flash import contract as contract_of
from workbench.expectation.elements import Elements, State, whole
from workbench.expectation.observed import Observed
from workbench.judge.diff import Diff
from workbench.judge.stage import StageDiff
from workbench.refusal import Refusal
from workbench.report.pictures import heatmap as maps
from workbench.report.pictures.codes import decode_table, decoded_tile
from workbench.report.pictures.fragments import owner, tensor_core_tile
from workbench.report.pictures.overview import save
from workbench.trace.trace import Trace

CASE = Case(heads=2, seqlen=40, head_dim=32, block_q=32, block_k=16, codes="simulated", scores="mma")


def stage(name, axes, expected, ratios, *, dtype=np.float32):
    """A comparison of budget 0.5 with the given expectations and ratios; what is expected to be NaN is poisoned."""
    expected = np.asarray(expected, float)
    ratios = np.where(np.isnan(expected), np.nan, ratios)
    state = np.where(ratios > 1, State.OUTSIDE, State.ROUNDING)
    state = np.where(np.isnan(expected), State.POISONED, state).astype(np.uint8)
    actual = (expected + 0.5 * np.nan_to_num(ratios, posinf=0)).astype(dtype)
    half = np.full(expected.shape, 0.5)
    return StageDiff(name, axes, "bug", whole(Elements(actual, expected, half, half, ratios, state)), None)


def texts(figure):
    return [text.get_text() for axes in figure.axes for text in axes.texts] + [text.get_text() for text in figure.texts]


def table():
    expected = np.arange(512.0).reshape(2, 256) - 128
    expected[1, 127] = np.nan
    ratios = np.full((2, 256), 0.5)
    ratios[1, 200] = 30
    return stage("lut_k", "hc", expected, ratios)


def test_a_decode_table_shows_the_head_of_its_worst_entry_on_the_ideal_line():
    drawn = table()
    figure = decode_table(drawn)
    values, differences, errors = figure.axes
    (ideal,) = [line for line in values.lines if line.get_label() == "ideal"]
    codes = np.delete(np.arange(256), 127)
    assert np.array_equal(ideal.get_xydata(), np.stack([codes, drawn.isolated.expected[1, codes]], axis=1))
    (dots,) = values.collections
    assert np.array_equal(dots.get_offsets(), np.stack([codes, drawn.isolated.actual[1, codes]], axis=1))
    (far,) = differences.collections
    expected = drawn.isolated.actual[1, codes].astype(float) - drawn.isolated.expected[1, codes]
    assert np.array_equal(far.get_offsets(), np.stack([codes, expected], axis=1)) and expected.max() == 15
    (heights,) = errors.collections
    offsets = np.asarray(heights.get_offsets())
    np.testing.assert_allclose(offsets[offsets[:, 0] == 200, 1], np.log10(30))
    np.testing.assert_allclose(offsets[offsets[:, 0] != 200, 1], np.log10(0.5))
    reddest = maps.colours(maps.shade(np.array([30.0]), np.zeros(1, np.uint8)))[0] / 255
    hot = [np.allclose(colour[:3], reddest) for colour in dots.get_facecolors()]
    assert codes[np.flatnonzero(hot)].tolist() == [200]
    assert "lut_k: bug" in texts(figure)
    worst = "head 1, isolated |error| / budget\nworst at h=1 c=200: actual 343, expected 328, error 30x its budget"
    assert worst in texts(figure)


def decoded():
    expected = np.arange(2 * 40 * 32.0).reshape(1, 2, 40, 32)
    ratios = np.zeros(expected.shape)
    ratios[0, 1, 19, 5] = 7
    return stage("dequant_v", "bhkd", expected, ratios)


def test_a_decoded_tile_is_the_one_of_the_worst_element():
    drawn = decoded()
    figure = decoded_tile(drawn, case=CASE)
    values, errors = (axes for axes in figure.axes if axes.get_title())
    assert np.array_equal(values.images[0].get_array(), drawn.isolated.actual[0, 1, 16:32])
    image = np.asarray(errors.images[0].get_array())
    assert np.argwhere((image != image[0, 0]).any(-1)).tolist() == [[3, 5]]
    assert values.images[0].get_extent() == errors.images[0].get_extent() == [-0.5, 31.5, 31.5, 15.5]
    for axes in (values, errors):
        assert [(line.get_xdata().item(), line.get_ydata().item()) for line in axes.lines] == [(5, 19)]
    assert any(text.startswith("b=0 h=1, keys 16 to 31, isolated") for text in texts(figure))
    assert "1  budget" in texts(figure), "the colours have a key"


def test_a_ragged_tile_is_cut_off():
    drawn = decoded()
    drawn.isolated.over_budget[0, 1, 39, 0] = 90
    figure = decoded_tile(drawn, case=CASE)
    assert figure.axes[0].images[0].get_array().shape == (8, 32)
    query = stage("dequant_q", "bhqd", np.ones((1, 2, 40, 32)), np.zeros((1, 2, 40, 32)))
    assert decoded_tile(query, case=CASE).axes[0].images[0].get_array().shape == (32, 32)


def test_windows_are_drawn_with_the_indices_of_their_run():
    drawn = replace(table(), first={"h": 4})
    figure = decode_table(drawn)
    worst = "head 5, isolated |error| / budget\nworst at h=5 c=200: actual 343, expected 328, error 30x its budget"
    assert worst in texts(figure)
    (dots,) = figure.axes[0].collections
    assert dots.get_offsets()[0].tolist() == [0, drawn.isolated.actual[1, 0]]

    ratios = np.zeros((1, 1, 10, 32))
    ratios[0, 0, 4, 5] = 7
    query = replace(stage("dequant_q", "bhqd", np.ones(ratios.shape), ratios), first={"b": 2, "h": 3, "q": 28})
    figure = decoded_tile(query, case=CASE)  # of the tile of queries 32 to 63 those up to 37 are in the window
    values = figure.axes[0]
    assert values.images[0].get_array().shape == (6, 32) and values.images[0].get_extent()[2:] == [37.5, 31.5]
    assert [(line.get_xdata().item(), line.get_ydata().item()) for line in values.lines] == [(5, 32)]
    assert any(text.startswith("b=2 h=3, queries 32 to 37, isolated") for text in texts(figure))
    query.isolated.over_budget[0, 0, 2, 5] = 9
    figure = decoded_tile(query, case=CASE)  # of the tile of queries 0 to 31, those from 28 on
    assert figure.axes[0].images[0].get_extent()[2:] == [31.5, 27.5]


def products():
    ratios = np.full((1, 1, 40, 40), 0.5)
    ratios[0, 0, 24:32, 16:32] = 3  # registers 2 and 3 of one tile
    ratios[0, 0, 25, 27] = 9
    return stage("qk", "bhqk", np.ones(ratios.shape), ratios)


def test_every_lane_and_register_owns_one_element():
    owned = [owner(row, column) for row in range(16) for column in range(16)]
    assert sorted(owned) == [(n, lane, register) for n in range(2) for lane in range(32) for register in range(4)]
    # lane 4 g + t: rows g and g + 8, columns 2 t and 2 t + 1
    for lane, register in np.ndindex(32, 4):
        row, column = lane // 4 + 8 * (register // 2), 2 * (lane % 4) + register % 2
        assert owner(row, column) == (0, lane, register) and owner(row, column + 8) == (1, lane, register)


def test_a_tensor_core_tile_is_coloured_by_lane_and_register():
    figure = tensor_core_tile(products())
    axes, _ = figure.axes
    image = np.asarray(axes.images[0].get_array())
    wrong = (image != image[0, 0]).any(-1)
    registers = np.array([[owner(row, column)[2] for column in range(16)] for row in range(16)])
    assert np.array_equal(wrong, registers >= 2)
    labels = {text.get_position(): text.get_text() for text in axes.texts}
    assert len(labels) == 256 and labels[16, 16] == "0.0" and labels[27, 25] == "5.3"
    assert "qk: bug" in texts(figure) and "1  budget" in texts(figure)
    assert axes.get_xlim() == (15.5, 31.5) and axes.get_ylim() == (31.5, 15.5)
    assert [(line.get_xdata(), line.get_ydata()) for line in axes.lines if line.get_marker() == "s"] == [([27], [25])]


def test_a_tile_at_the_edge_leaves_out_what_does_not_exist():
    drawn = products()
    drawn.isolated.over_budget[0, 0, 39, 35] = 70
    axes, _ = tensor_core_tile(drawn).axes
    assert np.asarray(axes.images[0].get_array()).shape == (8, 8, 3) and len(axes.texts) == 64
    assert axes.get_xlim() == (31.5, 47.5)


def test_a_tile_at_the_edge_of_a_window_keeps_its_lanes():
    drawn = products()
    window = stage("qk", "bhqk", np.ones((1, 1, 20, 40)), drawn.isolated.over_budget[:, :, 20:])
    axes, _ = tensor_core_tile(replace(window, first={"b": 0, "h": 1, "q": 20})).axes
    whole, _ = tensor_core_tile(drawn).axes
    labels, expected = ({text.get_position(): text.get_text() for text in one.texts} for one in (axes, whole))
    assert labels == {place: label for place, label in expected.items() if place[1] >= 20} and len(labels) == 12 * 16
    assert axes.images[0].get_extent() == [15.5, 31.5, 31.5, 19.5] and axes.get_ylim() == (31.5, 15.5)
    assert [(line.get_xdata(), line.get_ydata()) for line in axes.lines if line.get_marker() == "s"] == [([27], [25])]


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: decode_table(decoded()), "a decode table has axes h, c; dequant_v has b, h, k, d"),
        (
            lambda: decoded_tile(products(), case=CASE),
            "decoded tiles exist only for dequant_q, dequant_k and dequant_v; got qk",
        ),
        (lambda: tensor_core_tile(table()), "tiles of tensor cores have axes b, h, q, k; lut_k has h, c"),
        (
            lambda: decode_table(StageDiff("lut_k", "hc", "not judged", None, None, reason="not given")),
            "lut_k cannot be drawn: not judged (not given)",
        ),
    ],
)
def test_what_cannot_be_drawn_is_refused(draw, message):
    with pytest.raises(Refusal) as refused:
        draw()
    assert str(refused.value) == message


@pytest.mark.campaign
@pytest.mark.parametrize(("scores", "pictures"), [("mma", ["03-qk-fragments.png"]), ("scalar", [])])
def test_save_writes_them_beside_the_others(tmp_path, scores, pictures):
    case = CASE.but(scores=scores)
    inputs = dict(zip("qkv", case.inputs(), strict=True))
    trace = Trace("fp8", "flash", case, contract_of(case), inputs, {}, ())
    save(Diff(Observed(trace), (table(), decoded(), products()), ()), tmp_path)
    usual = ("histogram", "errors", "heatmap")
    own = sorted(path.name for path in tmp_path.iterdir() if path.stem.rpartition("-")[2] not in usual)
    assert own == ["01-lut_k-table.png", "02-dequant_v-tile.png", *pictures, "overview.png"]
