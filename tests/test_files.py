import os
from pathlib import Path

import pytest

from workbench.files import cache_folder, package_folders, write_atomically
from workbench.foreign.collect import _foreign_object


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


def test_what_pip_put_into_a_folder_of_the_path_is_of_packages(tmp_path, monkeypatch):
    """As `pip install --target` does: a framework there is no file of a kernel, an extension is."""
    target, beside = tmp_path / "target", tmp_path / "beside"
    (target / "some-1.0.dist-info").mkdir(parents=True)
    beside.mkdir()
    for folder in (target, beside):
        monkeypatch.syspath_prepend(folder)
    package_folders.cache_clear()
    try:
        assert target in package_folders() and beside not in package_folders()
        assert not _foreign_object(target / "numpy" / "some.so") and not _foreign_object(target / "numpy.libs" / "x.so")
        assert _foreign_object(target / "mine" / "some.so") and _foreign_object(beside / "numpy" / "some.so")
    finally:
        package_folders.cache_clear()
