from pathlib import Path

import pytest

from workbench.files import cache_folder


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
