"""A random part of the campaigns, for those who wait: the same part wherever seed, percentage and tests are the same."""

from math import ceil
from pathlib import Path
from random import Random

import pytest

import campaigns.faults  # noqa: F401  (the whole catalogue)

HERE = Path(__file__).parent


def pytest_addoption(parser):
    parser.addoption("--sample", type=float, default=100, metavar="N", help="run a random N percent of the tests")
    parser.addoption("--sample-seed", type=int, default=0, metavar="SEED", help="what draws them [0]")


def pytest_configure(config):
    if not 0 < config.getoption("--sample") <= 100:
        raise pytest.UsageError(f"--sample is a percentage above 0, at most 100; got {config.getoption('--sample'):g}")


def drawn(names, percent, seed):
    """So many percent of the names, at least one; the same in whatever order they come, as on workers of xdist."""
    return {*Random(seed).sample(sorted(names), ceil(len(names) * percent / 100))}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Leave out what is no campaign, as most of tests/, and what is not drawn."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker("campaign")
    chosen = [item for item in items if item.get_closest_marker("campaign")]
    config.hook.pytest_deselected(items=[item for item in items if not item.get_closest_marker("campaign")])
    items[:] = chosen
    names = drawn([item.nodeid for item in items], config.getoption("--sample"), config.getoption("--sample-seed"))
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in names])
    items[:] = [item for item in items if item.nodeid in names]


def pytest_terminal_summary(terminalreporter, config):
    if (part := config.getoption("--sample")) < 100:
        seed = config.getoption("--sample-seed")
        terminalreporter.write_line(f"a random {part:g} % of the tests: --sample {part:g} --sample-seed {seed}")
