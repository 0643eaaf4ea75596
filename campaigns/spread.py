"""Work of a campaign spread over processes."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def spread(function: Callable[[Item], Result], items: Sequence[Item], jobs: int) -> Iterator[Result]:
    """`function` of each item, in order, from `jobs` processes; from this one for a single job.

    Function, items and results cross to fresh processes, so that they must be picklable.
    """
    if jobs == 1:
        yield from map(function, items)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_one_thread) as pool:
        # several at a time, since each crossing costs a millisecond; few enough to end together
        yield from pool.map(function, items, chunksize=max(1, len(items) // (8 * jobs)))


def _one_thread() -> None:
    """Leave the other cores to the other processes; asked before BLAS is loaded, which reads it once."""
    os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))
