"""What a measurement ran on."""

import os
import platform
import subprocess
import sys
from importlib import metadata

import numpy as np
import pytest

from workbench.machine import machine, memory_bytes, peak_bytes, versions

MILLION = 10**6


def test_the_machine_is_named() -> None:
    found = machine()
    assert list(found) == ["cores", "architecture", "load_average"]
    assert found["cores"] == os.cpu_count() and found["load_average"] >= 0


def test_the_peak_is_kept_by_this_process_and_not_inherited_by_the_next() -> None:
    """The next would inherit ru_maxrss."""
    np.ones(25 * MILLION)  # and gone at once
    assert peak_bytes() > 200 * MILLION
    code = "import sys; from workbench.machine import peak_bytes; sys.stdout.write(str(peak_bytes()))"
    alone = int(subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True).stdout)
    assert 2 * MILLION < alone < 100 * MILLION


def test_an_imported_module_says_its_version_better_than_its_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the wheels of torch on the package index leave out the build."""
    known = versions("pytest", "nothing-of-this-name")
    assert known == {"python": platform.python_version(), "pytest": pytest.__version__}
    monkeypatch.setattr(pytest, "__version__", "2.13.0+cu130")
    assert versions("pytest")["pytest"] == "2.13.0+cu130"
    assert versions("pytest-xdist")["pytest-xdist"] == metadata.version("pytest-xdist")


def test_a_process_has_less_than_the_memory_of_its_machine() -> None:
    assert peak_bytes() < memory_bytes() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
