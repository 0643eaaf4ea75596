"""Counted work: how much a search may do. It is counted, never timed, so that every machine gives the same answer.

The unit is a trial: one hypothesis computed for 128 queries and 128 keys of one head, 0.4 ms on one core.
"""

import time
from math import inf

#: A hypothesis takes 0.25 ms in NumPy calls of any size, and 18 ns a score: the calls cost as much as 2^14 scores.
CALLS_AS_SCORES = 2**14
#: a call of a function with its judgement against float64, in trials: 18 ms at 128 x 128
TRIALS_OF_RUN = 40.0
#: a call of a function that is measured, with its budgets, in trials: 4 ms at 128 x 128
TRIALS_OF_CALL = 10.0
#: what a reading computes beside calls, in trials at 128 x 128
TRIALS_OF_READING = {"kernels": 1000.0, "regions": 2500.0, "rescaled": 1000.0, "shares": 500.0, "steps": 600.0}
#: a hypothesis held against budgets, in trials
TRIALS_OF_FIT = 12.0
#: trials of a search with effort 1: 8 s at 128 x 128 where nothing is found
SEARCH = 20_000.0
#: trials that the calls of a function which a capture asks may take beside its search, each as large as its call: 13 s
ASKING = 2.0**15
#: what a report says of what ended a search
ENDED = {
    "": "",
    "effort": "; more are left: --effort 10 tries ten times as many",
    "seconds": "; --seconds ended the search",
    "size": "; the run is too large for a search",
}
#: how much more a search may do for larger cases, each hypothesis of which costs more
MOST_FOR_SIZE = 4.0


def trials(scores: int) -> float:
    """What one hypothesis costs on a case with so many scores, in trials: 1 for 128 x 128.

    >>> trials(128 * 128), trials(512 * 512)
    (1.0, 8.5)
    """
    return (CALLS_AS_SCORES + scores) / (2 * CALLS_AS_SCORES)


class Work:
    """What a search may do, and has done."""

    def __init__(self, allowed: float, *, seconds: float | None = None) -> None:
        """`allowed`: trials. `seconds`: a cap that a user sets, from now on; None: there is none."""
        self.allowed, self.spent = allowed, 0.0
        self._seconds = seconds
        self._until = inf if seconds is None else time.monotonic() + seconds
        self._whole: Work | None = None

    @classmethod
    def of_search(cls, scores: int, effort: float = 1.0, seconds: float | None = None) -> "Work":
        """What a search on a case with so many scores may do. Up to MOST_FOR_SIZE times as much for large cases."""
        return cls(effort * SEARCH * min(MOST_FOR_SIZE, max(1.0, trials(scores))), seconds=seconds)

    def part(self, share: float = 1.0, *, least: float = 0.0) -> "Work":
        """A share of what is left, which counts for the whole, too. `least`: trials that it may do whatever is left."""
        found = Work(max(share * max(self.allowed - self.spent, 0.0), least))
        found._seconds, found._until, found._whole = self._seconds, self._until, self
        return found

    def take(self, cost: float) -> None:
        """Count `cost` trials."""
        self.spent += cost
        if self._whole is not None:
            self._whole.take(cost)

    @property
    def over(self) -> bool:
        """Whether nothing more may be done."""
        return self.spent >= self.allowed or self.late

    @property
    def late(self) -> bool:
        """Whether the user's seconds are over; never where no cap was set."""
        return self._until < inf and time.monotonic() > self._until

    @property
    def ended_by(self) -> str:
        """What ended the search, for a report: "seconds", "effort", or "" where there is work left."""
        return "seconds" if self.late else "effort" if self.over else ""
