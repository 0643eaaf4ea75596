"""The overview, what every picture says of its run, and the files."""

import errno
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from tests.report.pictures.figures import CASE, RUN, comparison, rgb, stage, texts
from workbench.cuda.flash import contract as contract_of
from workbench.expectation.observed import Observed
from workbench.judge.diff import Diff
from workbench.judge.stage import StageDiff
from workbench.refusal import Refusal
from workbench.report.pictures import overview as plots
from workbench.report.pictures.overview import heatmap, histogram, overview, save
from workbench.trace.trace import Trace

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
    return Diff(Observed(Trace("split_k", "split_k", CASE, contract_of(CASE), inputs, stages, ())), tuple(story()), ())


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


@pytest.mark.campaign
def test_save_draws_cancellation_where_a_sum_was_dumped(tmp_path):
    paths = save(judged(qk=np.ones((1, 4, 8, 8), np.float32)), tmp_path)
    assert paths[1] == tmp_path / "cancellation.png" and len(paths) == 11
    assert paths[1].read_bytes().startswith(b"\x89PNG")


@pytest.mark.campaign
def test_the_same_diff_gives_the_same_bytes(tmp_path):
    first, second = (save(judged(), tmp_path / name) for name in "ab")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert not any(b"Software" in path.read_bytes() for path in first)


def test_a_failed_run_leaves_old_files_whole_and_nothing_half_written(tmp_path, monkeypatch):
    (tmp_path / "overview.png").write_bytes(b"old")

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(Refusal) as refused:
        save(judged(), tmp_path)
    assert str(refused.value) == f"{tmp_path}/overview.png cannot be written: No space left on device"
    assert os.listdir(tmp_path) == ["overview.png"]
    assert (tmp_path / "overview.png").read_bytes() == b"old"


def test_matplotlib_is_imported_with_the_first_picture_and_pyplot_never():
    program = (
        "import sys, numpy as np\n"
        "from workbench.case.case import Case\n"
        "from workbench.expectation.elements import Elements, whole\n"
        "from workbench.judge.stage import StageDiff\n"
        "from workbench.report.pictures.overview import errors, heatmap, histogram, overview\n"
        "assert 'matplotlib' not in sys.modules\n"
        "x = np.zeros((1, 1, 2, 2))\n"
        "stage = StageDiff('qk', 'bhqk', 'exact', whole(Elements(x, x, x, x, x, x.astype(np.uint8))), None)\n"
        "histogram(stage), errors(stage), heatmap(stage, case=Case(seqlen=2)), overview([stage], 'qk of a kernel')\n"
        "assert 'matplotlib' in sys.modules and 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
