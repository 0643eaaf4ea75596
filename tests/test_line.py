"""A line of source as a reader is sent to it."""

from pathlib import Path

import pytest

from workbench.line import SHOWN, Line, line_of, near


def test_a_line_is_shown_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = line_of(str(tmp_path / "sub/mine.py"), ["import x", "    s = q @ k  "], 2)
    assert found == Line(str(tmp_path / "sub/mine.py"), 2, "s = q @ k")
    assert str(found) == "sub/mine.py:2: s = q @ k"
    assert near(str(tmp_path.parent / "other.py")) == str(tmp_path.parent / "other.py")


def test_a_long_line_is_cut() -> None:
    assert line_of("a.py", [f"s = {'x' * SHOWN}"], 1).text == f"s = {'x' * (SHOWN - 4)}"
