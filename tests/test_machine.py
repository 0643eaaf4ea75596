"""What a measurement ran on."""

import os
import subprocess
import sys

import numpy as np

from workbench.machine import machine, peak_bytes

MILLION = 10**6


def test_the_machine_is_named() -> None:
    found = machine()
    assert list(found) == ["cores", "architecture", "load_average"]
    assert found["cores"] == os.cpu_count() and found["load_average"] >= 0


def test_the_peak_keeps_what_was_given_back() -> None:
    before = peak_bytes()
    np.ones(before // 8 + 25 * MILLION)  # more than ever, and gone at once
    assert peak_bytes() >= before + 200 * MILLION


def test_a_program_does_not_inherit_the_peak_of_the_one_that_starts_it() -> None:
    """As ru_maxrss does, of a process that has run a kernel."""
    np.ones(50 * MILLION)
    code = "import sys; from workbench.machine import peak_bytes; sys.stdout.write(str(peak_bytes()))"
    alone = int(subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True).stdout)
    assert alone < 200 * MILLION < peak_bytes()
