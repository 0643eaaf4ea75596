"""The option --html: each command writes a page and says where; what cannot be written is refused before the run."""

import json
from pathlib import Path

import pytest

from tests.cli.test_explain import KERNEL
from tests.refusals import invoked, refused
from tests.report.page.test_page import text_of
from workbench import Case, Refusal, diff, run

NUMBA = """
import numpy as np
from numba import cuda

@cuda.jit
def twice(x):
    x[cuda.threadIdx.x + 1] = 2.0

def launch():
    twice[1, 4](cuda.to_device(np.zeros(4, np.float32)))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("html")
    (made / "mine.py").write_text(KERNEL.replace("FACTOR", "1.4427"))
    (made / "right.py").write_text(KERNEL.replace("FACTOR", "1"))
    (made / "launches.py").write_text(NUMBA)
    return made


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize(
    ("words", "first"),
    [
        (["diff", "--seqlen", "16"], "bug first wrong stage: lse"),
        (["diff", "--seqlen", "16,24"], "bug 2 runs: 0 without a bug, 2 with one or untestable"),
        (["explain", "--seqlen", "128", "--seconds", "4"], "bug first wrong stage: lse"),
        (
            ["explain", "--seqlen", "112,128", "--seconds", "4"],
            "bug 2 runs: 0 without a bug, 2 with one or untestable",
        ),
    ],
    ids=["diff", "diffs", "explain", "explains"],
)
def test_a_page_of_what_was_found(folder: Path, words: list[str], first: str) -> None:
    command, *options = words
    page = folder / "new" / "page.html"
    result = invoked(command, f"{folder}/mine.py:attention", *options, "--head-dim", 8, "--html", page)
    assert result.exit_code == 1 and result.stdout.splitlines()[-1] == f"page: {page}"
    said = text_of(page.read_text())
    assert first in said and "lse is in base 2" in said
    assert ("proof: reproduces" in said) is (command == "explain")


def test_a_page_of_two_runs(folder: Path) -> None:
    page = folder / "two.html"
    target = f"{folder}/right.py:attention"
    result = invoked("diff", target, "--against", target, "--seqlen", 16, "--head-dim", 8, "--html", page)
    assert result.stdout.splitlines()[-1] == f"page: {page}"
    assert "no divergence: every compared stage is bit-identical" in text_of(page.read_text())


def test_a_page_of_a_watched_run(folder: Path) -> None:
    page = folder / "watched.html"
    result = invoked("check", f"{folder}/launches.py:launch", "--html", page)
    assert result.exit_code == 1 and result.stdout.splitlines()[-1] == f"page: {page}"
    said = text_of(page.read_text())
    assert "found 1 finding" in said and "out-of-bounds: " in said and "x[cuda.threadIdx.x + 1] = 2.0" in said


def test_beside_a_page_json_is_one_document(folder: Path) -> None:
    page = folder / "both.html"
    result = invoked("diff", f"{folder}/right.py:attention", "--seqlen", 16, "--json", "--html", page)
    assert json.loads(result.stdout)["verdict"] == "rounding" and page.is_file()


def test_what_is_no_page_is_not_written_over(folder: Path) -> None:
    assert refused("diff", f"{folder}/mine.py:attention", "--html", folder / "mine.py") == (
        f"--html writes a page, FILE.html; got {folder}/mine.py"
    )
    assert (folder / "mine.py").read_text().startswith("\nimport numpy")
    assert refused("diff", "flash", "--html", folder / "mine.py" / "page.html").startswith(
        f"--html {folder}/mine.py/page.html: "
    )


def test_symptoms_have_no_page(folder: Path) -> None:
    result = invoked("explain", "--symptoms", "largest.json", "--html", folder / "page.html")
    assert isinstance(result.exception, Refusal)
    assert str(result.exception) == ("--symptoms largest.json replaces TARGET and takes no other option")


def test_python_writes_the_same_page(folder: Path) -> None:
    page, same = folder / "python.html", folder / "shell.html"
    judged = diff(run(f"{folder}/right.py:attention", Case(seqlen=16, head_dim=8)), report=True)
    judged.save_html(page)
    invoked("diff", f"{folder}/right.py:attention", "--seqlen", 16, "--head-dim", 8, "--html", same)
    assert text_of(page.read_text()) == text_of(same.read_text())
