"""What a cache of keys and values held in earlier calls of the same run, and whether it still does."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from workbench.expectation.observed import Observed

#: inputs that a cache holds
CACHED = ("k", "v")
#: rows that are looked up first in an earlier call
PROBES = 8


@dataclass(frozen=True, eq=False)
class Held:
    """The rows of k and v that a call read, each as a hash of its bits."""

    shape: tuple[int, ...]  #: of k and v but for their rows
    places: np.ndarray  #: of the rows, ascending
    rows: Mapping[str, np.ndarray]  #: k, v -> the hashes, int64; 0 for a row of zeros, which nobody wrote yet

    def of(self, name: str, place: int) -> int:
        """The hash of a row that was read."""
        return int(self.rows[name][np.searchsorted(self.places, place)])


class Changed(NamedTuple):
    """What a call holds otherwise than an earlier one of its layer."""

    since: int  #: the earlier call
    places: frozenset[int]  #: of the rows


def held(run: Observed, places: np.ndarray) -> Held:
    """What a run read of k and v in these places, which ascend."""
    given = {name: run.trace.inputs[name] for name in CACHED}
    shape = tuple(size for x in given.values() for size in (*x.shape[:2], x.shape[3]))
    rows = {
        name: np.array([hash(x[:, :, at].tobytes()) if x[:, :, at].any() else 0 for at in places], np.int64)
        for name, x in given.items()
    }
    return Held(shape, places, rows)


def changed(calls: Mapping[int, Held], call: int, name: str) -> Changed | None:
    """What `call` holds otherwise than the last earlier call of its layer, with most rows alike; None for none."""
    now = calls[call]
    some = now.rows[name][:: max(1, len(now.places) // PROBES)]
    for earlier in sorted((one for one in calls if one < call), reverse=True):
        before = calls[earlier]
        if before.shape != now.shape or not np.isin(some, before.rows[name]).any():
            continue  # of another layer, as quick as can be told
        places, of_before, of_now = np.intersect1d(before.places, now.places, True, return_indices=True)
        old, new = before.rows[name][of_before], now.rows[name][of_now]
        written = old != 0
        other = written & (old != new)
        if written.any() and other.sum() < written.sum() / 2:
            return Changed(earlier, frozenset(map(int, places[other])))
    return None


def kept(calls: Mapping[int, Held], call: int, name: str, place: int) -> int | None:
    """The last call before `call` that holds a row of k or v as `call` does; None for none."""
    row = calls[call].of(name, place)
    earlier = (one for one in calls if one < call and calls[one].shape == calls[call].shape)
    return max((one for one in earlier if row and (calls[one].rows[name] == row).any()), default=None)
