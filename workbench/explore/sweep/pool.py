"""Questions spread over an executor, a few at a time, and what comes back as it comes."""

from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from itertools import islice

from workbench.explore.sweep.ask import Answer, Ask, MachineLacks
from workbench.explore.sweep.worker import answered
from workbench.foreign.isolation import Limits
from workbench.refusal import Unavailable

#: questions that go to a process together: a task of a cluster costs a millisecond or two, and what a killed worker had
#: is asked again
TOGETHER = 4
#: tasks that are handed out in advance, so that a cluster of as many threads has work, and a new answer soon counts
AHEAD = 256


def answers(pool: Executor, asks: Iterable[Ask], limits: Limits) -> Iterator[tuple[Ask, Answer]]:
    """Each question with its answer, in the order in which they come. Unavailable where the machine lacks what a case
    needs, and where the executor gives up.
    """
    left = iter(asks)
    pending: dict[Future[list[Answer]], list[Ask]] = {}
    try:
        while True:
            while len(pending) < AHEAD and (some := list(islice(left, TOGETHER))):
                pending[pool.submit(answered, some, limits)] = some
            if not pending:
                return
            for future in wait(pending, return_when=FIRST_COMPLETED).done:
                some = pending.pop(future)
                yield from zip(some, future.result(), strict=True)
    except MachineLacks as lacks:
        raise Unavailable(str(lacks)) from None
    except (GeneratorExit, KeyboardInterrupt, Unavailable):
        raise
    except Exception as error:  # a worker that was lost again and again, a pool that broke: each has its own
        raise Unavailable(
            f"the executor of the sweep failed: {type(error).__name__}: {error}. Judged cases are kept: continue "
            "with --resume"
        ) from error
    finally:
        for future in pending:
            future.cancel()
