"""How lines of a reference are named."""

from pathlib import Path

import pytest

from workbench.judge.reference.lines import short
from workbench.reference.graph.node import Line


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (Line(str(Path.cwd() / "naive.py"), 7), "naive.py:7"),
        (Line("/elsewhere/naive.py", 7), "/elsewhere/naive.py:7"),
        (Line("/elsewhere/naive.py", 7, True), "backward of /elsewhere/naive.py:7"),
        (Line("/elsewhere/ipykernel_12/34.py", 7), "cell:7"),
    ],
)
def test_a_line_is_named_as_its_author_finds_it(line: Line, words: str) -> None:
    assert short(line) == words
