"""What is kept for tests is what they need, or the run is red: planned builds that no longer exist fail it, and of a whole
run stored traces that no test read.
"""

import sys
from collections.abc import Sequence
from typing import Any

import pytest

#: what is wrong with what is kept, in lines; of the process that hands tests out
WRONG = pytest.StashKey[list[str]]()
#: files of stored traces that workers read
_READ = pytest.StashKey[set[str]]()


def pytest_configure(config: pytest.Config) -> None:
    """Room for what is found."""
    config.stash[WRONG], config.stash[_READ] = [], set()


def read_here() -> set[str]:
    """The stored traces that this process read for tests."""
    stored = sys.modules.get("tests.stored")  # imported by the first test that asks for one
    return set() if stored is None else stored.READ


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take what a worker read; one that crashed leaves nothing, and the run is red."""
    node.config.stash[_READ] |= set(getattr(node, "workeroutput", {}).get("read", ()))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run, green so far, that finds something wrong."""
    config = session.config
    if hasattr(config, "workeroutput"):
        config.workeroutput["read"] = sorted(read_here())
        return
    if session.exitstatus == pytest.ExitCode.OK and _whole(config):
        config.stash[WRONG] += unread(config.stash[_READ] | read_here())
    if session.exitstatus == pytest.ExitCode.OK and config.stash[WRONG]:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say what is wrong."""
    for line in config.stash[WRONG]:
        terminalreporter.write_line(f"ERROR: {line}", red=True)


def _whole(config: pytest.Config) -> bool:
    """Whether all tests ran that a machine without a GPU runs."""
    option = config.option
    chosen = (option.keyword, option.markexpr, option.deselect, option.ignore, option.ignore_glob, option.collectonly)
    named = config.args_source is pytest.Config.ArgsSource.ARGS or config.invocation_params.dir != config.rootpath
    if any(chosen) or named or getattr(option, "lf", False):
        return False
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    skipped = () if reporter is None else reporter.stats.get("skipped", ())
    return reporter is not None and all("gpu" in getattr(report, "keywords", ()) for report in skipped)


def unread(read: set[str]) -> Sequence[str]:
    """Of a whole run that read these traces, the line about those that nobody reads; none where there are none."""
    from tests.stored import FOLDER, manifest

    left = sorted({*manifest()} - read)
    if not left:
        return []
    return [f"no test reads {', '.join(left)} of {FOLDER}; `python -m tests.stored forget FILE ...` takes them out"]
