"""Launches of few blocks, without numba's warning that they leave a GPU idle: small cases are the point here."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet() -> Iterator[None]:
    """Within it nothing is said of grids that are too small to fill a GPU."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*will likely result in GPU under-utilization")
        yield
