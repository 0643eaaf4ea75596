"""What all tests share: skipping of `gpu` tests, their count in the summary, and hypothesis settings."""

import gc
import math
import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings

from workbench.cuda.gpu import gpu

pytest_plugins = ["tests.kept", "tests.compile_first", "tests.import_apart"]  # the second imports the first

gc.disable()  # until all tests are collected: nothing of what is loaded is freed, and looking took half of the time

os.environ.setdefault("MPLBACKEND", "Agg")  # pictures are written to files, no test opens a window

# A first example may compile a kernel, which takes seconds. Where CI is set, hypothesis has loaded its `ci` profile.
settings.register_profile("dev", deadline=None)
if "CI" not in os.environ:
    settings.load_profile("dev")

# JAX would take three quarters of a GPU's memory, which other processes of these tests need
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

# Without a GPU, kernels in Triton run in its interpreter. Triton asks for it once, when it is imported.
if gpu() is None:
    os.environ.setdefault("TRITON_INTERPRET", "1")

NO_GPU = "needs an NVIDIA GPU, and this machine has none"

#: dear tests each of whose lines another one runs: `make campaigns` runs them (`campaigns/spared.py`)
SPARED = {*Path(__file__).parent.joinpath("tests", "spared.txt").read_text().splitlines()}
if "SPARED" in os.environ:  # they are drawn anew, of all
    SPARED.clear()


def pytest_configure(config):
    """A campaign runs the kernels whose traces other tests read from files (`tests.stored`)."""
    if "campaign" in config.option.markexpr:
        os.environ["STORE"] = "run"


def pytest_sessionstart(session):
    """Stop at once where numba.cuda is not NVIDIA's: every kernel would be compiled by another compiler."""
    if hasattr(session.config, "workerinput"):
        return  # an xdist worker; the process that started it has looked
    from workbench.cuda.gpu import implementation

    try:
        found = implementation()
    except Exception as error:  # numba checks versions at import and raises what it likes
        found = f"not to be imported ({type(error).__name__}: {error})"
    if found != "NVIDIA":
        raise pytest.UsageError(f"numba.cuda is {found}, and must be NVIDIA's; `workbench doctor` says how to mend it")


def pytest_collection_finish():
    """Look for garbage again, less often than usual, and never in what is loaded: compilers make millions of objects
    that stay, which took a quarter of their time.
    """
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)
    gc.enable()


def pytest_collection_modifyitems(config, items):
    """Skip the tests marked `gpu` where there is none; leave campaigns to `make campaigns`."""
    for item in items:
        if item.nodeid in SPARED:
            item.add_marker(pytest.mark.campaign)
    if "campaign" not in config.option.markexpr:
        campaigns = _campaigns(items)
        config.hook.pytest_deselected(items=[*campaigns])
        items[:] = [item for item in items if item not in campaigns]
    for item in items:
        if item.get_closest_marker("gpu") and gpu() is None:
            item.add_marker(pytest.mark.skip(reason=NO_GPU))


def _campaigns(items):
    """The tests marked `campaign`; of a function marked `campaign(but=3)`, all but its first three cases, and of one
    marked `campaign(every=5)` all but the first, the sixth and so on; none of either on a GPU.
    """
    found, seen, kept = {}, Counter(), Counter()
    for item in items:
        marks = [mark.kwargs for mark in item.iter_markers("campaign")]
        function = item.nodeid.partition("[")[0]
        if item.nodeid in SPARED:
            found[item] = None
            kept[function] += len(marks) > 1  # none that comes later takes its place
            seen[function] += 1
            continue
        if any(marks) and item.get_closest_marker("gpu"):
            continue
        every = max((mark.get("every", 1) for mark in marks), default=1)
        of_turn, most = seen[function] % every == 0, min((_most(mark) for mark in marks), default=math.inf)
        seen[function] += 1
        if of_turn and kept[function] < most:
            kept[function] += 1
        else:
            found[item] = None
    return found


def _most(mark):
    """How many cases a mark leaves to every change."""
    return mark.get("but", math.inf if "every" in mark else 0)


@pytest.fixture
def without_causes(monkeypatch):
    """Reports do not search for causes, of which each takes a second."""
    monkeypatch.setattr("workbench.judge.diff.QUICK", 0.0)


@pytest.fixture
def without_searches(without_causes):
    """Nor do assertions for the smallest case that fails."""
    from workbench.testing.settings import Settings, current

    token = current.set(Settings(shrink_effort=0.0))
    yield
    current.reset(token)


def pytest_terminal_summary(terminalreporter):
    """Count what was not tested for want of a GPU, so that nobody takes a green run for more than it is."""
    skipped = [report for report in terminalreporter.stats.get("skipped", []) if NO_GPU in str(report.longrepr)]
    if skipped:
        terminalreporter.write_line(f"{len(skipped)} gpu tests skipped: {NO_GPU}", yellow=True)
