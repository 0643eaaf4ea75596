"""Every notebook runs, shows its pictures, and lies beside its source as an .ipynb that shows the same."""

import re
from base64 import b64decode
from pathlib import Path

import pytest

jupytext = pytest.importorskip("jupytext", reason="notebooks need the extra `notebooks`: jupytext is not installed")
pytest.importorskip("nbclient", reason="notebooks need the extra `notebooks`: nbclient is not installed")
pytest.importorskip("ipykernel", reason="notebooks need the extra `notebooks`: ipykernel is not installed")

from tests.notebooks import SOURCES, executed  # noqa: E402

notebooks = pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
#: digits, which differ between machines, and with them the widths of columns
NUMBER = re.compile(r"-?\d[\d.e+-]*|\binf\b|\s+")
ANEW = "out of date: python -m tests.notebooks"


def committed(source):
    return jupytext.read(source.with_suffix(".ipynb"))


def cells(notebook):
    return [(cell.cell_type, cell.source) for cell in notebook.cells]


def shown(notebook):
    """What each cell shows, without numbers and pictures' bytes."""
    found = []
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            data = output.get("data", {"text": output.get("text", "")})
            texts = {kind: NUMBER.sub("", text) for kind, text in data.items() if kind != "image/png"}
            found.append((output.output_type, sorted(data), texts))
    return found


def test_there_are_notebooks():
    assert len(SOURCES) >= 7


@notebooks
def test_the_ipynb_has_the_cells_of_its_source(source):
    assert cells(committed(source)) == cells(jupytext.read(source)), ANEW


@pytest.mark.campaign
@notebooks
def test_every_cell_runs_and_the_ipynb_shows_the_same(source):
    fresh, kept = executed(source), committed(source)
    assert shown(kept) == shown(fresh), ANEW
    data = [output.data for cell in kept.cells for output in cell.get("outputs", ()) if "data" in output]
    figures = [one for one in data if re.match(r"<\w+ size [\d.]+x[\d.]+ with", one.get("text/plain", ""))]
    assert figures
    assert all(b64decode(one["image/png"]).startswith(b"\x89PNG") for one in figures)
    assert any("<table" in one.get("text/html", "") for one in data)


@notebooks
def test_the_ipynb_is_small_and_tells_nothing_of_the_machine(source):
    path = source.with_suffix(".ipynb")
    text = path.read_text()
    assert path.stat().st_size < 600 * 1024
    notebook = committed(source)
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert counts == [*range(1, len(counts) + 1)], "run from the top"
    assert not any(cell.metadata for cell in notebook.cells) and [*notebook.metadata] == ["kernelspec"]
    outputs = "".join(str(shown) for cell in notebook.cells for shown in cell.get("outputs", ()))
    without_pictures = re.sub(r"'image/png': '[^']*'", "", outputs)
    # an absolute path, a day, an address: of whatever machine
    assert not re.search(r"(?<!\w)/\w+/|Users|\b20\d\d-\d\d-\d\d\b|0x[0-9a-f]{6,}", without_pictures)
    assert "stderr" not in text


def test_readme_leads_to_every_notebook():
    page = Path(__file__).parent.parent.joinpath("README.md").read_text()
    assert [source.stem for source in SOURCES if f"(notebooks/{source.stem}.ipynb)" not in page] == []
