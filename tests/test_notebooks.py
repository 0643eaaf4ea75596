"""Every notebook runs, shows its pictures, and has an .ipynb without outputs that says the same."""

import re
from pathlib import Path

import pytest

jupytext = pytest.importorskip("jupytext", reason="notebooks need the extra `notebooks`: jupytext is not installed")
nbclient = pytest.importorskip("nbclient", reason="notebooks need the extra `notebooks`: nbclient is not installed")
pytest.importorskip("ipykernel", reason="notebooks need the extra `notebooks`: ipykernel is not installed")

SOURCES = sorted(Path(__file__).parent.parent.joinpath("notebooks").glob("*.py"))
notebooks = pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)


def test_there_are_notebooks():
    assert SOURCES


@notebooks
def test_every_cell_runs_and_figures_are_shown_as_pictures(source):
    notebook = jupytext.read(source)
    nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(source.parent)}}
    ).execute()
    shown = [output.data for cell in notebook.cells for output in cell.get("outputs", ()) if "data" in output]
    figures = [data for data in shown if re.match(r"<\w+ size [\d.]+x[\d.]+ with", data.get("text/plain", ""))]
    assert figures
    assert all("image/png" in data for data in figures)
    assert any("<table" in data.get("text/html", "") for data in shown)


@notebooks
def test_the_ipynb_has_the_cells_of_the_source_and_no_outputs(source):
    notebook = jupytext.read(source.with_suffix(".ipynb"))
    assert cells(notebook) == cells(jupytext.read(source)), f"out of date: jupytext --update --to ipynb {source.name}"
    assert not [cell for cell in notebook.cells if cell.get("outputs") or cell.get("execution_count")]


def cells(notebook):
    return [(cell.cell_type, cell.source) for cell in notebook.cells]
