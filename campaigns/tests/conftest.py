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


def pytest_collection_modifyitems(config, items):
    """Leave out what is not drawn; by name, so that every worker of xdist draws the same."""
    names = sorted(item.nodeid for item in items)
    count = ceil(len(names) * config.getoption("--sample") / 100)
    drawn = {*Random(config.getoption("--sample-seed")).sample(names, count)}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in drawn])
    items[:] = [item for item in items if item.nodeid in drawn]


def pytest_terminal_summary(terminalreporter, config):
    if (part := config.getoption("--sample")) < 100:
        seed = config.getoption("--sample-seed")
        terminalreporter.write_line(f"a random {part:g} % of the tests: --sample {part:g} --sample-seed {seed}")
