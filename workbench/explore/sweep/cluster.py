"""Where the cases of a sweep run: processes of Dask, here or on a cluster, or whatever executor a caller has."""

from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from logging import CRITICAL
from typing import TYPE_CHECKING

from workbench.machine import processors
from workbench.refusal import Refusal, Unavailable

if TYPE_CHECKING:
    from distributed import LocalCluster

#: seconds to reach a scheduler
_REACH_S = 10
#: what reads the number of threads when it is imported
_THREADS = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
#: what workers do beside their work: they only wait for processes of ours, whose memory has limits of its own
_QUIET = {
    **{f"distributed.worker.memory.{what}": False for what in ("terminate", "pause", "spill", "target")},
    "distributed.admin.system-monitor.gil.enabled": False,
    "distributed.worker.profile.enabled": False,
}


def check_place(jobs: int | None, scheduler: str | None, own: Executor | None) -> None:
    """Refusal where several of them are asked for."""
    asked = {"jobs": jobs, "scheduler": scheduler, "executor": own}
    if len(given := [name for name, value in asked.items() if value is not None]) > 1:
        raise Refusal(f"a sweep runs in one place, of jobs, scheduler and executor; got {' and '.join(given)}")


@contextmanager
def executor(jobs: int | None, scheduler: str | None, own: Executor | None) -> Iterator[Executor]:
    """The executor of a sweep: `own`, which stays open; the cluster of a Dask scheduler; else `jobs` processes of Dask
    here, as many as processors where it is None. Unavailable for a scheduler that is not reached.
    """
    if own is not None:
        yield own
        return
    from distributed import Client

    if scheduler is None:
        with local(jobs or processors()) as cluster, Client(cluster) as client:
            yield client.get_executor(pure=False)
        return
    try:
        client = Client(scheduler, timeout=_REACH_S)
        client.wait_for_workers(1, timeout=_REACH_S)
    except (OSError, ValueError) as error:
        raise Unavailable(f"--scheduler {scheduler} has no worker that is reached: {error}") from None
    with client:
        yield client.get_executor(pure=False)


@contextmanager
def local(jobs: int) -> Iterator["LocalCluster"]:
    """A cluster of so many processes here, each of which runs a case at a time."""
    import dask
    from distributed import LocalCluster

    with (
        dask.config.set(_QUIET),
        LocalCluster(
            n_workers=jobs,
            threads_per_worker=1,
            processes=True,
            dashboard_address="127.0.0.1:0",  # any free port: that of another cluster here is taken
            env=_THREADS,
            silence_logs=CRITICAL,
        ) as cluster,
    ):
        yield cluster
