"""What a measurement ran on."""

import os
import subprocess
import sys

import numpy as np

from workbench.machine import machine, memory_bytes, peak_bytes

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


def test_a_process_has_less_than_the_memory_of_its_machine() -> None:
    assert peak_bytes() < memory_bytes() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
