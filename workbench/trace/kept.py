"""What is said of the folder of `workbench.capture` that holds no wrong call."""

import json
from pathlib import Path
from typing import Any

#: a folder in the folder of a capture -> what lies there
_BESIDE = {"calls": "every judged call", "backward": "the first wrong backward pass"}


def report_of(folder: Path) -> dict[str, Any] | None:
    """The document `workbench.capture/1` of a capture's folder; None for another folder.

    >>> report_of(Path("no-such-folder"))
    """
    try:
        report = json.loads((folder / "report.json").read_text())
        return report if report["schema"] == "workbench.capture/1" else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def nothing_kept(folder: Path) -> str:
    """That no wrong call was kept, of how many that were judged, and what else lies there; empty for a folder of no
    capture.

    >>> nothing_kept(Path("no-such-folder"))
    ''
    """
    report = report_of(folder)
    if report is None:
        return ""
    said = [f"no wrong call was kept: {report['judged']} judged, {report['wrong']} wrong"]
    for name, what in _BESIDE.items():
        if files := sorted((folder / name).glob("*.safetensors")):
            said.append(f"for {what} see {folder / name}, such as {files[0]}")
    return "; ".join(said)
