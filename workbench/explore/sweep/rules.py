"""Where a group of cases fails: the shortest conjunction of predicates that holds in all of them and in no other.

A rule is worth what it saves (Rissanen 1978, Modeling by shortest data description): the bits that tell which of the
cases fail, against the bits that tell the rule from others that could be said. One that saves b bits holds by chance in
one of 2^b sweeps.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations
from operator import or_
from typing import NamedTuple

import numpy as np

from workbench.explore.sweep.predicates import Predicate, predicates, varied
from workbench.explore.sweep.row import Row

#: predicates of a rule, at most, and rules that are said beside it
LONGEST, BESIDE = 3, 3
#: bits that a rule saves which is no accident: 1 in 32
NO_CHANCE = 5.0


@dataclass(frozen=True)
class Rule:
    """What holds in all cases of a group, and in none of the others."""

    terms: tuple[str, ...]  #: all of which hold
    failing: int  #: cases of the group, in each of which it holds
    others: int  #: cases beside it, in none of which it holds
    beside: tuple[str, ...]  #: other rules as short of which the same is true
    more: int  #: so many more
    saved: float  #: bits

    @property
    def text(self) -> str:
        """As of "fails where ..."."""
        return " and ".join(self.terms)

    @property
    def certain(self) -> bool:
        """Whether so many cases do not follow a rule by chance."""
        return self.saved >= NO_CHANCE


def rule_of(failing: Sequence[Row], others: Sequence[Row]) -> Rule | None:
    """The rule of a group of cases beside others; None where no conjunction of LONGEST predicates is one, or there are
    no others.
    """
    rows = [*failing, *others]
    wrong = np.arange(len(rows)) < len(failing)
    if not failing or not others:
        return None
    offered = list(predicates(rows, wrong))
    kinds = _kinds(offered, ~wrong)
    every = 2 ** len(others) - 1
    for length in range(1, LONGEST + 1):
        found = [some for some in combinations(kinds, length) if reduce(or_, (kind.excluded for kind in some)) == every]
        if found:
            return _rule(found, len(failing), len(others), len(offered))
    return None


class _Kind(NamedTuple):
    """Predicates that exclude the same of the other cases."""

    excluded: int  #: a bit for each
    texts: list[str]


def _kinds(offered: Sequence[Predicate], others: np.ndarray) -> list[_Kind]:
    """The kinds of some predicates, but those that exclude no more than another one does."""
    kinds: dict[int, list[str]] = {}
    for one in offered:
        excluded = int.from_bytes(np.packbits(~one.holds[others], bitorder="little").tobytes(), "little")
        kinds.setdefault(excluded, []).append(one.text)
    useful = [x for x in kinds if x and not any(x != y and x | y == y for y in kinds)]
    return [_Kind(x, kinds[x]) for x in useful]


def _rule(found: Sequence[Sequence[_Kind]], failing: int, others: int, offered: int) -> Rule:
    """The first of the conjunctions, with those that hold in the same cases."""
    texts = [
        tuple(kind.texts[min(i, len(kind.texts) - 1)] for kind in some)
        for some in found
        for i in range(max(len(kind.texts) for kind in some))
    ]
    said, *rest = dict.fromkeys(texts)
    labels = math.lgamma(failing + others + 1) - math.lgamma(failing + 1) - math.lgamma(others + 1)
    cost = math.log2(math.comb(max(offered, len(said)), len(said)))
    beside = tuple(" and ".join(one) for one in rest[:BESIDE])
    return Rule(said, failing, others, beside, len(rest) - len(beside), labels / math.log(2) - cost)


@dataclass(frozen=True)
class Boundary:
    """What of a field fails: each of its values with how many of its cases are of the group, of how many."""

    field: str
    values: tuple[tuple[object, int, int], ...]  #: value, cases of the group, all

    @property
    def tells(self) -> bool:
        """Whether some values never fail, or some always do and others not."""
        shares = {(n > 0) + (n == of) for _, n, of in self.values}
        return 0 in shares or (2 in shares and len(shares) > 1)


def boundaries(failing: Sequence[Row], others: Sequence[Row]) -> tuple[Boundary, ...]:
    """The boundary of a group in each field in which the cases differ."""
    columns = varied([*failing, *others])
    found = []
    for name, values in columns.items():
        wrong, right = values[: len(failing)], values[len(failing) :]
        kinds = sorted({*values}, key=lambda x: (x is not None, type(x).__name__, x))
        found.append(Boundary(name, tuple((x, wrong.count(x), wrong.count(x) + right.count(x)) for x in kinds)))
    return tuple(found)
