"""A small kernel runs on either machine alike, on arrays in place."""

import numpy as np
import pytest
from numba import cuda

from workbench.cuda.calibrate.backends import MACHINES


def scaled(x, factor, shift, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = x[i] * factor + shift


@pytest.mark.parametrize("backend", ["emulator", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_arrays_are_read_and_written_in_place(backend):
    launch = MACHINES[backend](scaled)
    x, out = np.arange(200, dtype=np.float32), np.full((2, 200), np.nan)
    launch(2, 128, (x, np.float32(2), 1, out[1]))
    np.testing.assert_array_equal(out[1], 2 * np.arange(200) + 1)
    assert np.isnan(out[0]).all()
    launch(1, 128, (x, 0.5, 0, out[0]))  # another type of the factor
    np.testing.assert_array_equal(out[0, :128], np.arange(128) / 2)
    assert np.isnan(out[0, 128:]).all()
