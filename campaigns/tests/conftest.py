"""A random part of these tests, for those who wait: the same part wherever the seed, the part and the tests are."""

from math import ceil
from random import Random

import pytest


def pytest_addoption(parser):
    parser.addoption("--sample", type=float, default=100, metavar="N", help="run a random N percent of the tests")
    parser.addoption("--sample-seed", type=int, default=0, metavar="SEED", help="what draws them [0]")


def pytest_configure(config):
    if not 0 < config.getoption("--sample") <= 100:
        raise pytest.UsageError(f"--sample is a percentage above 0, at most 100; got {config.getoption('--sample'):g}")


def drawn(names, percent, seed):
    """So many percent of the names, at least one; the same in whatever order they come, as on workers of xdist."""
    return {*Random(seed).sample(sorted(names), ceil(len(names) * percent / 100))}


def pytest_collection_modifyitems(config, items):
    """Leave out what is not drawn."""
    names = drawn([item.nodeid for item in items], config.getoption("--sample"), config.getoption("--sample-seed"))
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in names])
    items[:] = [item for item in items if item.nodeid in names]


def pytest_terminal_summary(terminalreporter, config):
    if (part := config.getoption("--sample")) < 100:
        seed = config.getoption("--sample-seed")
        terminalreporter.write_line(f"a random {part:g} % of the tests: --sample {part:g} --sample-seed {seed}")
