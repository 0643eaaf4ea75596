"""What a judged run leaves in a folder: its pictures and its trace."""

from pathlib import Path

from workbench.judge.diff import Diff
from workbench.report.pictures import overview
from workbench.trace.file import save


def write(judged: Diff, folder: Path) -> None:
    """The pictures of `overview.save`, and trace.safetensors, in a folder, which is made where it is not there."""
    overview.save(judged, folder)
    save(judged.trace, folder / "trace.safetensors")
