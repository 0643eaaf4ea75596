"""Orders in which the emulator runs the blocks and threads of a launch."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from workbench.refusal import Refusal


@dataclass(frozen=True)
class Schedule:
    """In which order blocks and threads run; arguments of `emulator.Emulated`."""

    order: str
    seed: int
    skew: bool  #: each warp runs to the block's barrier before the next one starts


def schedules_of(count: int) -> tuple[Schedule, ...]:
    """As many orders as are asked for. Refusal for none."""
    if count < 1:
        raise Refusal(f"schedules must be a whole number of at least 1; got {count}")
    return tuple(itertools.islice(_schedules(), count))


def _schedules() -> Iterator[Schedule]:
    """Ascending and descending order, then orders drawn at random, each with and without skew."""
    for seed in itertools.count():
        for order in ("ascending", "descending") if seed == 0 else ("shuffle",):
            for skew in (False, True):
                yield Schedule(order, seed, skew)
