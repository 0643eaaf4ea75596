import os
from pathlib import Path

import pytest

from workbench.files import cache_folder, write_atomically


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"WORKBENCH_CACHE": "chosen", "XDG_CACHE_HOME": "xdg"}, "chosen"),
        ({"XDG_CACHE_HOME": "xdg"}, "xdg/workbench"),
        ({"WORKBENCH_CACHE": "", "XDG_CACHE_HOME": ""}, "home/.cache/workbench"),
        ({}, "home/.cache/workbench"),
    ],
    ids=["chosen", "xdg", "empty", "home"],
)
def test_cache_folder(environment, folder, monkeypatch):
    for name in ("WORKBENCH_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "home", **environment}.items():
        monkeypatch.setenv(name, value)
    assert cache_folder() == Path(folder)


def test_written_files_have_the_mode_that_the_umask_says(tmp_path):
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "new" / "file", b"whole")
    finally:
        os.umask(before)
    (file,) = (tmp_path / "new").iterdir()
    assert (file.name, file.read_bytes(), file.stat().st_mode & 0o777) == ("file", b"whole", 0o640)
