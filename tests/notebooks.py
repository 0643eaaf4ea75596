"""The notebooks with what they show: `python -m tests.notebooks` runs every notebooks/*.py and writes its .ipynb.

Of a run everything is kept that a reader sees, and nothing that differs between two: no times, no versions, and no frames,
which viewers of notebooks leave out and whose packed numbers differ between machines. Pictures have
a palette of their own, which makes them a third as large. Cells that were there keep their ids, so that only what changed
shows in a review.
"""

import re
import sys
from base64 import b64decode, b64encode
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image

FOLDER = Path(__file__).parent.parent / "notebooks"
SOURCES = sorted(FOLDER.glob("*.py"))
FRAME = re.compile(r"<iframe .*?</iframe>", re.DOTALL)
KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}


def executed(source: Path) -> Any:
    """The notebook of a .py, run, with its outputs."""
    # here, for all that lies in tests/ is imported where doctests are looked for, with the extra `notebooks` or without
    import jupytext
    import nbclient

    notebook = jupytext.read(source)
    where = {"metadata": {"path": str(source.parent)}}
    nbclient.NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources=where, record_timing=False
    ).execute()
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = [one for one in cell.outputs if one.get("name") != "stderr"]  # progress
        for data in (one.data for one in cell.get("outputs", ()) if "data" in one):
            if "image/png" in data:
                data["image/png"] = small(data["image/png"])
            if "text/html" in data:
                data["text/html"] = FRAME.sub("", data["text/html"])
    notebook.metadata = {"kernelspec": KERNEL}
    return notebook


def small(picture: str) -> str:
    """A PNG in base64 with 256 colours, none of which is far from what it was: a colour bar stays one."""
    whole = Image.open(BytesIO(b64decode(picture))).convert("RGB")
    palette = whole.quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    palette.save(written := BytesIO(), "png", optimize=True)
    return b64encode(written.getvalue()).decode()


def renew(source: Path) -> None:
    """Write the .ipynb beside its source."""
    import nbformat

    target, notebook = source.with_suffix(".ipynb"), executed(source)
    before = nbformat.read(target, as_version=4).cells if target.is_file() else []
    known = {(cell.cell_type, cell.source): cell.id for cell in before}
    for cell in notebook.cells:
        cell.id = known.pop((cell.cell_type, cell.source), cell.id)
    nbformat.write(notebook, target)
    print(f"{target.resolve().relative_to(FOLDER.parent)}: {target.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    for path in [Path(word) for word in sys.argv[1:]] or SOURCES:
        renew(path)
