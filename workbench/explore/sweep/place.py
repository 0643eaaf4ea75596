"""Where the cases of a sweep run: threads here with a process each, a cluster of Dask, or the caller's executor."""

import threading
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager

from workbench.explore.sweep.worker import stops_with
from workbench.extras import needed
from workbench.machine import processors
from workbench.refusal import Refusal, Unavailable

#: seconds to reach a scheduler
_REACH_S = 10


def check_place(jobs: int | None, scheduler: str | None, own: Executor | None) -> None:
    """Refusal where several of them are asked for."""
    asked = {"jobs": jobs, "scheduler": scheduler, "executor": own}
    if len(given := [name for name, value in asked.items() if value is not None]) > 1:
        raise Refusal(f"a sweep takes one of jobs, scheduler and executor; got {' and '.join(given)}")


@contextmanager
def executor(jobs: int | None, scheduler: str | None, own: Executor | None) -> Iterator[Executor]:
    """The executor of a sweep: `own`, which stays open; the cluster of a Dask scheduler; else `jobs` threads here, as
    many as processors where it is None. Unavailable for a scheduler without Dask, and for one that is not reached.
    """
    if own is not None:
        yield own
    elif scheduler is not None:
        with _cluster(scheduler) as pool:
            yield pool
    else:
        with _local(jobs or processors()) as pool:
            yield pool


@contextmanager
def _local(jobs: int) -> Iterator[Executor]:
    """So many threads, each of which has a process that judges; left before all is answered, it ends at once."""
    stopped = threading.Event()
    pool = ThreadPoolExecutor(jobs, initializer=stops_with, initargs=(stopped,))
    try:
        yield pool
    finally:
        stopped.set()
        pool.shutdown(cancel_futures=True)


@contextmanager
def _cluster(scheduler: str) -> Iterator[Executor]:
    with needed(f"--scheduler {scheduler} needs", "distributed"):
        from distributed import Client
    try:
        client = Client(scheduler, timeout=_REACH_S)
        client.wait_for_workers(1, timeout=_REACH_S)
    except (OSError, ValueError) as error:
        raise Unavailable(f"no worker of --scheduler {scheduler} can be reached: {error}") from None
    with client:
        yield client.get_executor(pure=False)
