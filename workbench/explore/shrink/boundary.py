"""Boundaries: in one coordinate after the other, which values of the smallest case fail, and which pass."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from workbench.case.case import Case
from workbench.case.stages import INPUTS
from workbench.explore.shrink.attempts import Attempts, Outcome
from workbench.explore.shrink.smaller import below
from workbench.explore.shrink.space import COUNTS, SIDES, axes, changed, coordinates, seeds


@dataclass(frozen=True)
class Boundary:
    """What was run of the smallest case with other values of one coordinate."""

    name: str  #: as of `space.coordinates`
    at: Any  #: its value in the smallest case
    tried: Mapping[Any, Outcome]  #: value -> what came of it, that of the smallest case among them

    def values(self, outcome: Outcome) -> tuple[Any, ...]:
        """The values of which that came, in order."""
        return tuple(value for value, found in self.tried.items() if found is outcome)

    @property
    def counts(self) -> bool:
        """Whether its values are numbers in order."""
        return self.name in (*COUNTS, *SIDES)

    @property
    def monotone(self) -> bool:
        """Whether what fails and what passes lie on one side each, of what was tried."""
        fails = [found is Outcome.FAILS for found in self.tried.values() if found in (Outcome.FAILS, Outcome.PASSES)]
        return not self.counts or sum(one != other for one, other in pairwise(fails)) < 2


def boundaries(attempts: Attempts, start: Case, tiled: bool) -> tuple[Boundary, ...]:
    """The boundaries of the best in every coordinate that `start` could be changed in, and in whether it is causal;
    those of which time is left for another value. A count does not count as passing by an accident of the draw: the
    nearest below is tried with other seeds, and larger ones with the failing inputs among theirs.
    """
    own, at, of_start = axes(attempts.best, tiled), coordinates(attempts.best), axes(start, tiled)
    found = []
    for name in dict.fromkeys((*of_start, "causal")):
        if name not in at:  # a side of a window that is gone, or a size that lengths tell
            continue
        value = at[name]
        plainer = list(below(value, own[name])) if name in own else []
        tried = {one: attempts.outcome(**{name: one}) for one in (*plainer, value)}
        if name in COUNTS and plainer:
            tried[plainer[-1]] = _of_seeds(attempts, name, plainer[-1])
        for one in _beyond(name, value, of_start.get(name, (False, True))):
            tried[one] = _of_larger(attempts, name, one) if name in COUNTS else attempts.outcome(**{name: one})
        known = {one: what for one, what in tried.items() if what is not None}
        if len(known) > 1:
            found.append(Boundary(name, value, known))
    return tuple(found)


def _of_seeds(attempts: Attempts, name: str, value: int) -> Outcome | None:
    """What comes of a smaller count: it fails where it does with any seed."""
    for seed in seeds(attempts.best):
        if attempts.outcome(**{name: value, "seed": seed}) is Outcome.FAILS:
            return Outcome.FAILS
    return attempts.outcome(**{name: value})


def _of_larger(attempts: Attempts, name: str, value: int) -> Outcome | None:
    """What comes of a larger count: where its own inputs do not fail, with the failing ones of the best among them."""
    found = attempts.outcome(**{name: value})
    if found in (None, Outcome.FAILS, Outcome.REFUSED):
        return found
    case = changed(attempts.best, **{name: value})
    inputs = dict(zip(INPUTS, case.inputs(), strict=True))
    for of, small in zip(INPUTS, attempts.best.inputs(), strict=True):
        inputs[of][..., small.shape[-1] :] = 0
        inputs[of][tuple(slice(size) for size in small.shape)] = small
    return found if attempts.of(case, inputs) is not Outcome.FAILS else Outcome.FAILS


def _beyond(name: str, value: Any, values: Sequence[Any]) -> list[Any]:
    """What is tried of the values above a count, up to the start's own, or less plain than another value."""
    if name not in (*COUNTS, *SIDES):
        return list(values[values.index(value) + 1 :])[-1:] if value in values else []
    last = values[-1]
    further = {value + 1, value + 2, 1 << value.bit_length(), 2 * value, 3 * value, last}
    return sorted(one for one in further if value < one <= max(last, value + 2))
