"""The measurement that would decide among plausible causes: the case and row on which they differ most."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from workbench.case.case import Case
from workbench.judge.explain.draws import Draws
from workbench.judge.explain.plausible import Plausible, Range, Values, numbers

#: edges of tiles and blocks
_EDGES = (16, 32, 64, 128)

#: a case with some values of the unknowns, how often it is drawn, and rows of it
Drawn = Callable[[Case, Sequence[Values], int, Sequence[int | None]], Draws]


@dataclass(frozen=True)
class Measurement:
    """One number to measure, and what each cause predicts of it."""

    case: Case  #: whose inputs are those that it draws, whatever those of the table were; tiles as the kernel has them
    row: int | None  #: query; None: the largest error of all
    predicted: tuple[Range, ...]  #: of each cause, in their order
    parted: int  #: groups of causes that the number tells apart

    def as_dict(self) -> dict[str, Any]:
        """Of plain Python values."""
        return {
            "case": self.case.as_dict(),
            "row": self.row,
            "predicted": [one.as_dict() for one in self.predicted],
            "parted": self.parted,
        }


def deciding(causes: Sequence[Plausible], cases: Sequence[Case], drawn: Drawn) -> Measurement | None:
    """The number that parts most of the causes that are told, the first of `cases` among equals; None where none parts
    any. Each cause is taken with the tiles with which it comes nearest.
    """
    best: Measurement | None = None
    for case in cases:
        rows = _rows(case)
        made: dict[str, Draws] = {}
        told: list[list[Range]] = []
        for cause in causes:
            tiles = {name: value for name, value in cause.best.items() if name != "input_std"}
            draws = made.setdefault(repr(tiles), drawn(case, [tiles], 1, rows))
            if (found := draws.errors(cause.members[0])) is None:
                break
            there = numbers(found.shaped(1, 1, 1), 0.0)
            told.append([Range.of(*x) for x in zip(there.low[0, 0], there.high[0, 0], there.nan[0, 0], strict=True)])
        else:
            for row, *predicted in zip(rows, *told, strict=True):
                parted = groups(predicted)
                if parted > (1 if best is None else best.parted):
                    best = Measurement(case, row, tuple(predicted), parted)
    return best


def groups(predicted: Sequence[Range]) -> int:
    """How many groups of ranges there are that do not overlap; those that are always NaN are one of them."""
    always = [one for one in predicted if one.high != one.high]
    found, reached = bool(always) + 0, -1.0
    for one in sorted((one for one in predicted if one.high == one.high), key=lambda one: one.low):
        found += one.low > reached
        reached = max(reached, one.high)
    return found


def _rows(case: Case) -> list[int | None]:
    """The largest of all, the first and last rows, and those at edges of blocks."""
    last = case.seqlen_q - 1
    edges = [row for edge in _EDGES for row in (edge - 1, edge)]
    return [None, *sorted({row for row in (0, 1, last // 2, last - 1, last, *edges) if 0 <= row <= last})]
