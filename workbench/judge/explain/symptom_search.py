"""The search for faults that predict every number of a table of largest errors, whatever it leaves open."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from workbench.case.case import Case
from workbench.case.tiling import tiling
from workbench.judge.explain.counter_cases import alike, cases, grouped
from workbench.judge.explain.draws import Draws, Errors
from workbench.judge.explain.hypothesis import Hypothesis
from workbench.judge.explain.likely import likely
from workbench.judge.explain.plausible import BESIDE, FIRST, FIRST_OF_ROW, Plausible, Values, numbers
from workbench.judge.explain.symptom_table import Entry, SymptomTable
from workbench.progress import Tick

#: causes that are told, and the likeliest that are compared to tell those that are one
MOST, COMPARED = 5, 20
#: natural logarithm of how much likelier the likeliest may be: what is e^9 = 8,000 times less likely is out
LIKELY = 9.0
#: ways to cut the keys that give the same where a fault does not depend on them
WITNESSES = 3
#: scores of all causes on a case that take some seconds, and those that are computed at once
BUDGET, TOGETHER = 2e7, 2**16
#: how much of what one takes a later one takes, for an estimate only
LATER = 0.3
#: scores of all causes after which none is begun, with effort 1: 10 s at 128 keys, 30 s at 1024
MOST_SCORES = 4e8

#: which values of tiles and input_std a hypothesis is still plausible with, bool [tiles, stds]
Alive = dict[Hypothesis, np.ndarray]
#: index of a case -> hypotheses -> how little its numbers are to be expected, [tiles, stds]
Fits = dict[int, dict[Hypothesis, np.ndarray]]


@dataclass
class Pace:
    """How much was computed, and how long the rest takes: scores that are left, at the speed of those that were."""

    tick: Tick
    most: float  #: scores after which no cause is begun
    left: float = 0.0
    done: float = 0.0
    began: float = field(default_factory=time.monotonic)

    @property
    def late(self) -> bool:
        """Whether no further cause is begun."""
        return self.done > self.most

    def note(self, scores: float, text: str) -> None:
        self.done, self.left = self.done + scores, max(self.left - scores, 0.0)
        self.tick(text, self.left * (time.monotonic() - self.began) / self.done)


@dataclass(frozen=True, eq=False)
class Search:
    """A table with the values that are tried for what it leaves open."""

    table: SymptomTable
    effort: float = 1.0

    @cached_property
    def stds(self) -> tuple[float, ...]:
        """Values of input_std."""
        return self.table.unknown.get("input_std", (self.table.cases[0].input_std,))

    @cached_property
    def tiles(self) -> tuple[tuple[int | None, int | None], ...]:
        """Values of splits and block_k."""
        first = self.table.cases[0]
        splits, blocks = (self.table.unknown.get(name, (getattr(first, name),)) for name in ("splits", "block_k"))
        return tuple((s, b) for s in splits for b in blocks)

    @cached_property
    def by_case(self) -> Mapping[int, Sequence[Entry]]:
        """Index of a case -> its entries, of those that have some, the smallest case first."""
        order = sorted(range(len(self.table.cases)), key=lambda i: _scores(self.table.cases[i]))
        told = {i: [one for one in self.table.entries if one.case == i] for i in order}
        return {i: some for i, some in told.items() if some}

    def valued(self, t: int, s: int) -> dict[str, Any]:
        """The unknowns with their values."""
        splits, block_k = self.tiles[t]
        every = {"input_std": self.stds[s], "splits": splits, "block_k": block_k}
        return {name: every[name] for name in self.table.unknown}

    def drawn(self, case: Case, values: Sequence[Values], seeds: int, rows: Sequence[int | None]) -> Draws:
        """A case with each of some values of the unknowns, and each of so many seeds."""
        made = tuple(case.but(**one, seed=case.seed + seed) for one in values for seed in range(seeds))
        return Draws(self.table.kernel, self.table.stage, made, rows)

    def _draws(self, i: int, t: int, stds: Sequence[int], seeds: int) -> Draws:
        rows = [entry.row for entry in self.by_case[i]]
        return self.drawn(self.table.cases[i], [self.valued(t, s) for s in stds], seeds, rows)

    def _cuts(self, i: int) -> list[list[int]]:
        """The tiles, those together that cut the keys of a case alike: the first, the last, one between, the rest."""
        length, found = self.table.cases[i].seqlen_k, dict[str, list[int]]()
        for t, (splits, block_k) in enumerate(self.tiles):
            found.setdefault(repr(tiling(length, block_k or length, splits or 1)), []).append(t)
        cuts = list(found.values())
        order = dict.fromkeys([0, len(cuts) - 1, len(cuts) // 2, *range(len(cuts))])
        return [cuts[c] for c in order]

    @cached_property
    def rounding(self) -> tuple[Values, ...]:
        """The values of the unknowns with which a kernel without a fault may have all entries. Where nobody told
        input_std, no number is far below what storing alone does: else the largest values explain whatever is small.
        """
        found, finest = np.ones(len(self.stds), bool), self.table.finest
        for i, entries in self.by_case.items():
            given = np.array([one.value for one in entries])
            least = np.array([one.least for one in entries])
            for s in np.flatnonzero(found):
                draw = self._draws(i, 0, [int(s)], 1).correct
                found[s] = (least <= draw.size + draw.rounding).all()  # NaN is not
                if found[s] and "input_std" in self.table.unknown:
                    found[s] = (np.maximum(given, finest) >= draw.size / 4)[draw.size > finest].all()
        return tuple(self.valued(t, int(s)) for t in range(len(self.tiles)) for s in np.flatnonzero(found))

    def found(self, tick: Tick) -> tuple[list[Plausible], int, bool]:
        """The causes that predict every number, the likeliest first, how many were tried, and whether the effort
        was spent before each case was tried. What costs least is done first: another case, or more draws of one.
        """
        first = next(iter(self.by_case))
        known, one_batch = {*self._draws(first, 0, [0], 1).table}, self.table.cases[first].batch == 1
        lacks = ("merge",) if "partial_O" not in known else ()
        tried = [
            x for x in likely()
            if {*x.stages} <= known and x.family not in lacks and not (one_batch and "batch" in x.id)
        ]  # fmt: skip
        wrong = ~np.isin(self.stds, [one.get("input_std", self.stds[0]) for one in self.rounding])
        alive: Alive = {x: np.tile(wrong, (len(self.tiles), 1)) for x in tried if wrong.any()}
        fits, drawn = Fits(), dict[int, int]()
        acts = {x: np.zeros_like(where) for x, where in alive.items()}
        spreads = {x: np.tile([FIRST, FIRST_OF_ROW], (len(self.tiles), len(self.stds), 1)) for x in alive}
        pace = Pace(tick, self.effort * MOST_SCORES)
        while alive and (ways := self._ways(alive, fits, drawn)):
            (cost, i, seeds), untried = ways[0], len(self.by_case) - len(drawn)
            if not untried and cost > BUDGET:
                break
            alive = alive if i in drawn else self._afforded(alive, i, fits)
            pace.left = cost * (1 + LATER * untried)
            left, fit = self._tried(alive, i, seeds, spreads, acts, pace)
            if pace.late and untried:
                return [], len(tried), True
            if pace.late:
                break  # what was found stands
            fits[i], drawn[i] = fit, seeds
            alive = _likeliest(left, fits, LIKELY)
        alive = {x: where & acts[x] for x, where in alive.items() if (where & acts[x]).any()}
        told = [self._plausible(one, _total(fits, one), where) for one, where in alive.items()]
        # causes whose errors differ by less than those of two draws stay in the library's order: the plainest first
        return sorted(told, key=lambda x: round(x.surprise, 1)), len(tried), False

    def _ways(self, alive: Alive, fits: Fits, drawn: Mapping[int, int]) -> list[tuple[float, int, int]]:
        """What can be tried next, the cheapest first: scores, a case, and how often it is drawn, more than it was."""
        most = 1 if self.table.seeded else max(BESIDE) if len(drawn) == len(self.by_case) else min({*BESIDE} - {1})
        every = [(i, seeds) for i in self.by_case for seeds in BESIDE if drawn.get(i, 0) < seeds <= most]
        left = {i: alive if i in drawn else self._afforded(alive, i, fits) for i in self.by_case}
        return sorted((seeds * self._cost(left[i], i), i, seeds) for i, seeds in every)

    def _afforded(self, alive: Alive, i: int, fits: Fits) -> Alive:
        """The likeliest causes that there is time to try on a case."""
        for less in (LIKELY, LIKELY / 2, LIKELY / 4) if fits else ():
            if self._cost(alive, i) > BUDGET:
                alive = _likeliest(alive, fits, less)
        return alive

    def _cost(self, alive: Alive, i: int) -> float:
        """Scores of one draw, where causes that are plausible with all tiles alike do not depend on them."""
        share = len(self._cuts(i)) / len(self.tiles)
        cells = (_wide(x).any(0).sum() if (x == x[0]).all() else share * _wide(x).sum() for x in alive.values())
        return _scores(self.table.cases[i]) * float(sum(cells))

    def _tried(
        self, alive: Alive, i: int, seeds: int, spreads: Alive, acts: Alive, pace: Pace
    ) -> tuple[Alive, dict[Hypothesis, np.ndarray]]:
        """What no number of a case contradicts, and how little its numbers are to be expected. One draw is held against
        the largest spread of other cases.
        """
        entries, finest = self.by_case[i], self.table.finest
        kind = np.array([int(one.row is not None) for one in entries])
        tells = (kind == 0) | (seeds > 1) | self.table.seeded  # of a row one draw tells next to nothing
        left, fits = Alive(), dict[Hypothesis, np.ndarray]()
        for one, errors in self._errors(alive, i, seeds, pace).items():
            made = numbers(errors, finest, spreads[one][..., kind] * (seeds == 1 and not self.table.seeded))
            kept = alive[one] & np.all(made.agree(entries, finest), -1)
            if kept.any():
                acts[one] |= made.acts
                left[one], fits[one] = kept, (made.surprise(entries) * tells).sum(-1)
                for k in {*kind} if seeds > 1 else ():
                    spreads[one][..., k] = np.fmax(spreads[one][..., k], made.spread[..., kind == k].max(-1))
        return left, fits

    def _errors(self, alive: Alive, i: int, seeds: int, pace: Pace) -> dict[Hypothesis, Errors]:
        """What hypotheses make of a case, [tiles, stds, seeds, entries]; NaN with values that are out, nor beside."""
        case, cuts, wide = self.table.cases[i], self._cuts(i), {one: _wide(where) for one, where in alive.items()}
        shape = (len(self.tiles), len(self.stds), seeds, len(self.by_case[i]))
        found = {one: Errors(np.full(shape, np.nan), np.full(shape, np.nan)) for one in alive}
        asked = [s for s in range(len(self.stds)) if any(where[:, s].any() for where in wide.values())]
        bound = self._bound(alive, i, asked[-1]) if len(cuts) > WITNESSES else alive
        size = max(1, TOGETHER // (seeds * _scores(case)))
        for stds in (asked[n : n + size] for n in range(0, len(asked), size)):
            for tiles in cuts:
                draws = self._draws(i, tiles[0], stds, seeds)
                for n, one in enumerate(alive):
                    where = np.ix_(tiles if one in bound else range(len(self.tiles)), stds)
                    if (one not in bound and tiles is not cuts[0]) or not wide[one][where].any():
                        continue
                    if pace.late:
                        return found
                    if (made := draws.errors(one)) is not None:
                        for array, x in zip(found[one], made.shaped(len(stds), seeds), strict=True):
                            array[where] = x
                    text = f"{n} of {len(alive)} causes at seqlen {case.seqlen_k}"
                    pace.note(_scores(case) * seeds * len(stds), text)
        return found

    def _bound(self, alive: Alive, i: int, s: int) -> set[Hypothesis]:
        """Those that depend on how the keys are cut."""
        some = [self._draws(i, tiles[0], [s], 1) for tiles in self._cuts(i)[:WITNESSES]]
        made = {one: [x.size for draws in some if (x := draws.errors(one)) is not None] for one in alive}
        return {one for one, sizes in made.items() if not all(alike(sizes[0], x) for x in sizes)}

    def _plausible(self, one: Hypothesis, surprise: np.ndarray, where: np.ndarray) -> Plausible:
        mean = np.where(where, surprise, np.inf) / len(self.table.entries)
        t, s = map(int, np.unravel_index(np.argmin(mean), mean.shape))
        values = tuple(self.valued(*place) for place in np.argwhere(where))
        return Plausible((one,), float(mean[t, s]), self.valued(t, s), values)

    def classes(self, found: Sequence[Plausible]) -> list[Plausible]:
        """Those of which no run tells one from the other as one, in their order."""
        where = [self.drawn(case, [found[0].best], 1, ()) for case in self.elsewhere()] if found else []
        together = grouped(found, lambda one: [there.predicted(one.members[0]) for there in where])
        return [replace(some[0], members=tuple(x.members[0] for x in some)) for some in together]

    def elsewhere(self) -> list[Case]:
        """Cases of a measurement: the smallest of the table, and others of the same kernel."""
        smallest = min(self.table.cases, key=_scores)
        return [smallest, *cases(smallest)]


def _scores(case: Case) -> int:
    return case.batch * case.heads * case.seqlen_q * case.seqlen_k


def _wide(where: np.ndarray) -> np.ndarray:
    """Values of input_std with those beside, which tell how fast a number moves."""
    found = where.copy()
    found[:, 1:] |= where[:, :-1]
    found[:, :-1] |= where[:, 1:]
    return found


def _total(fits: Fits, one: Hypothesis) -> np.ndarray:
    """How little all numbers so far are to be expected."""
    return np.sum([found[one] for found in fits.values()], axis=0)


def _likeliest(alive: Alive, fits: Fits, less: float) -> Alive:
    """What is not much less likely than the likeliest, of all entries so far."""
    limit = min((_total(fits, one)[where].min() for one, where in alive.items()), default=0.0) + less
    left = {one: where & (_total(fits, one) <= limit) for one, where in alive.items()}
    return {one: where for one, where in left.items() if where.any()}
