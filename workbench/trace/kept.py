"""What is said of the folder of `workbench.capture` that holds no wrong call."""

import json
from pathlib import Path

#: a folder in the folder of a capture -> what lies there
_BESIDE = {"calls": "every judged call", "backward": "the first wrong backward pass"}


def nothing_kept(folder: Path) -> str:
    """That no wrong call was kept, of how many that were judged, and what else lies there; empty for a folder of no
    capture.

    >>> nothing_kept(Path("no-such-folder"))
    ''
    """
    try:
        report = json.loads((folder / "report.json").read_text())
        judged, wrong = report["judged"], report["wrong"]
    except (OSError, ValueError, LookupError, TypeError):
        return ""
    said = [f"no wrong call was kept: {judged} judged, {wrong} wrong"]
    for name, what in _BESIDE.items():
        if files := sorted((folder / name).glob("*.safetensors")):
            said.append(f"{what} is in {folder / name}, such as {files[0]}")
    return "; ".join(said)
