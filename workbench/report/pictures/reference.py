"""The pictures of a run that a plain reference judged, and how they are written to a folder."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.files import write_atomically
from workbench.judge.reference.diff import ReferenceDiff
from workbench.report.pictures.heatmap import heatmap
from workbench.report.pictures.histogram import histogram
from workbench.report.pictures.overview import overview, write
from workbench.report.pictures.signed import errors
from workbench.report.pictures.sources import sources
from workbench.report.reference import document

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Figure


def of_stage(diff: ReferenceDiff, name: str) -> "Iterator[tuple[str, Figure]]":
    """What each picture of a stage shows, and it: errors in ulps and in units of budget, and what the budget of the
    worst element comes from.
    """
    stage = replace(diff[name], run=diff.headline)
    if stage.reported is not None and stage.reported.summary.judged:
        yield f"errors of {name}, in ulps and in units of budget", errors(stage)
        if stage.reported.actual.dtype.kind not in "biu":
            yield f"where the budget of the worst element of {name} comes from", sources(diff, name)


def save(diff: ReferenceDiff, folder: Path) -> list[Path]:
    """Write `overview.png`, each stage's `<nn>-<stage>-histogram.png`, `-errors.png`, `-heatmap.png` and
    `-sources.png`, and `diff.json`; return them. nn is the place of a stage in the reference, from 01. A stage of
    whole numbers has no sources, and one without axes no map. The same diff gives the same bytes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = [write(overview(diff.stages, diff.headline), folder / "overview.png")]
    for place, one in enumerate(diff.stages, 1):
        stage = replace(one, run=diff.headline)
        if stage.reported is None:
            continue
        drawn = {"histogram": histogram(stage), "errors": errors(stage)}
        drawn |= {"heatmap": heatmap(stage, case=None)} if stage.axes else {}
        if stage.reported.summary.judged and stage.reported.actual.dtype.kind not in "biu":
            drawn["sources"] = sources(diff, stage.name)
        name = stage.name.replace("/", "-")
        paths += [write(figure, folder / f"{place:02d}-{name}-{kind}.png") for kind, figure in drawn.items()]
    write_atomically(folder / "diff.json", json.dumps(document(diff)).encode())
    return [*paths, folder / "diff.json"]
