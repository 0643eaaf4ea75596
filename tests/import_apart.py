"""Test files imported once cold: xdist's processes collect all of them at the same time, and each would rewrite the
assertions of each, which takes longer than what is left of collecting. So each begins with others, and finds those of
its neighbours rewritten on disk.
"""

import importlib
from contextlib import suppress
from pathlib import Path

import pytest

from tests.compile_first import asked_for, within


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Import a share of the test files that are asked for, before pytest imports them in its order."""
    worker = getattr(session.config, "workerinput", None)
    if worker is None:
        return
    root, asked = session.config.rootpath, asked_for(session.config)
    files = sorted(str(path.relative_to(root)) for path in root.glob("tests/**/test_*.py"))
    wanted = [file for file in files if within(file, asked)]
    number, count = int(worker["workerid"].removeprefix("gw")), worker["workercount"]
    for file in wanted[number::count]:
        with suppress(Exception, pytest.skip.Exception):  # pytest says why once it imports it itself
            importlib.import_module(".".join(Path(file).with_suffix("").parts))
