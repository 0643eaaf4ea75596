"""The search for causes that come near a table of largest errors, with values of what the table leaves open."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from workbench.case.case import Case
from workbench.case.tiling import tiling
from workbench.judge.explain.draws import Draws, Errors
from workbench.judge.explain.hypothesis import Hypothesis
from workbench.judge.explain.imagine import alike, cases, grouped
from workbench.judge.explain.library import FAMILIES, OF_FIELDS, library
from workbench.judge.explain.plausible import Against, Plausible, Range, Values, deviations, ranges, surprises
from workbench.judge.explain.symptom_table import Entry, SymptomTable
from workbench.progress import Tick

#: draws of inputs of which nobody told the seed
SEEDS = 8
#: factors of two by which an entry may be beyond the draws: a little, since one draw of nine is; where input_std is
#: unknown the half of the step between tried values, which are at most 2.5 apart
LIMIT, LIMIT_OF_UNKNOWN = 0.3, math.log2(2.5) / 2
#: factors of two: as near as the best
MARGIN = 0.5
#: natural logarithm of how much likelier the likeliest may be: what is e^6 = 400 times less likely is out
LIKELY = 6.0
#: ways to cut the keys after which a prediction that was always the same is taken not to depend on them
WITNESSES = 3


class Pass(NamedTuple):
    """A screening, on few draws."""

    seeds: int
    largest: float  #: factors of two by which the largest error of a case may be beyond these draws and LIMIT
    row: float  #: the same of one row, in which few numbers may decide


#: the largest of thousands of numbers varies little between draws, that of a row that sees one key by some factors of
#: two; a range of four draws holds most of that
PASSES = (Pass(1, 0.7, 2.5), Pass(4, 0.2, 0.5))

#: which values of tiles and input_std a hypothesis is still plausible with, bool [tiles, stds]
Alive = dict[Hypothesis, np.ndarray]


@dataclass(frozen=True, eq=False)
class Search:
    """A table with the values that are tried for what it leaves open."""

    table: SymptomTable

    @property
    def limit(self) -> float:
        """Known inputs leave nothing to chance."""
        if self.table.seeded:
            return 0.0
        return LIMIT_OF_UNKNOWN if "input_std" in self.table.unknown else LIMIT

    @property
    def seeds(self) -> int:
        """Draws of each case."""
        return 1 if self.table.seeded else SEEDS

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
    def _told(self) -> Mapping[int, Sequence[Entry]]:
        """Index of a case -> its entries, of those that have some, the smallest case first."""
        size = {i: case.seqlen_q * case.seqlen_k * case.heads * case.batch for i, case in enumerate(self.table.cases)}
        entries = {i: [one for one in self.table.entries if one.case == i] for i in sorted(size, key=size.__getitem__)}
        return {i: some for i, some in entries.items() if some}

    @cached_property
    def by_case(self) -> Mapping[int, Sequence[Entry]]:
        """The same, first the cases that are wrong with whatever values: these rule out most hypotheses."""
        return dict(sorted(self._told.items(), key=lambda one: bool(self._within[one[0]].any())))

    @cached_property
    def entries(self) -> list[Entry]:
        """All, in that order."""
        return [one for some in self.by_case.values() for one in some]

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
        rows = [entry.row for entry in self._told[i]]
        return self.drawn(self.table.cases[i], [self.valued(t, s) for s in stds], seeds, rows)

    def _cuts(self, i: int) -> list[list[int]]:
        """The tiles, those together that cut the keys of a case alike: the first, the last, one between, the rest."""
        length, found = self.table.cases[i].seqlen_k, dict[str, list[int]]()
        for t, (splits, block_k) in enumerate(self.tiles):
            found.setdefault(repr(tiling(length, block_k or length, splits or 1)), []).append(t)
        cuts = list(found.values())
        order = dict.fromkeys([0, len(cuts) - 1, len(cuts) // 2, *range(len(cuts))])
        return [cuts[c] for c in order]

    def correct(self) -> tuple[Values, ...]:
        """The values of the unknowns with which all entries are what a kernel without a fault may have."""
        every = np.logical_and.reduce([*self._within.values()])
        return tuple(self.valued(t, s) for t, s in np.argwhere(every))

    @cached_property
    def _within(self) -> Mapping[int, np.ndarray]:
        """Index of a case -> the values with which its entries are that, bool [tiles, stds]."""
        found = {}
        for i, entries in self._told.items():
            given = np.array([one.least for one in entries])
            found[i] = np.zeros((len(self.tiles), len(self.stds)), bool)
            for some in self._cuts(i):
                _, high, _ = ranges(self._draws(i, some[0], range(len(self.stds)), 1).correct, 1)
                found[i][some] = (given <= high).all(1)  # NaN is not
        return found

    def applicable(self) -> Alive:
        """Hypotheses of which the kernel has all that they change, with all values."""
        known = {*self._draws(next(iter(self.by_case)), 0, [0], 1).table}
        every = np.ones((len(self.tiles), len(self.stds)), bool)
        among = library([name for name in FAMILIES if name not in OF_FIELDS])
        return {one: every for one in among if {*one.stages} <= known}

    def screened(self, alive: Alive, tick: Tick) -> Alive:
        """Those that come near the first case, in one draw and then in some; all where inputs are known."""
        if self.table.seeded:
            return alive
        i, entries = next(iter(self.by_case.items()))
        alive = self._acting(alive, i, tick)
        for one in PASSES:
            slack = self.limit + np.array([one.largest if entry.row is None else one.row for entry in entries])
            left: Alive = {}
            for hypothesis, t, stds, found in self._predicted(alive, i, one.seeds, self._groups(one.seeds), tick):
                off = deviations(found, one.seeds, entries, self.table.finest)
                _mark(left, hypothesis, alive[hypothesis], t, stds, off <= slack)
            alive = {x: left[x] for x in alive if x in left}
        return self._of_one_batch(alive, i)

    def _acting(self, alive: Alive, i: int, tick: Tick) -> Alive:
        """Those that move something wherever a case is wrong, and make NaN where it has NaN, in a draw with the largest
        input_std, whose scores reach every clamp, or with the least, in which every key has weight.
        """
        ends = [*{0, len(self.stds) - 1}]
        right = self._draws(i, 0, ends, 1).correct
        wrong = np.array([one.least for one in self.by_case[i]]) > right.rounding.max(0)
        nan = np.array([np.isnan(one.value) for one in self.by_case[i]])
        left: Alive = {}
        for one, tiles, _, found in self._predicted(alive, i, 1, [ends], tick):
            moved = (abs(found.size - right.size) > 1e-6 * right.rounding).any(0)
            acts = np.isnan(found.size).any(0) | (~nan & (moved | ~wrong))
            _mark(left, one, alive[one], tiles, range(len(self.stds)), acts[None])
        return {x: left[x] for x in alive if x in left}

    def _groups(self, seeds: int) -> list[list[int]]:
        """The stds that are drawn at once: all of them to screen, else one by one."""
        every = list(range(len(self.stds)))
        return [every] if seeds == 1 and not self.table.seeded else [[s] for s in every]

    def _of_one_batch(self, alive: Alive, i: int) -> Alive:
        """Without those that take numbers of another batch, of which a case has one and its draws together several."""
        one, several = (self._draws(i, 0, [0], seeds) for seeds in (1, 2))
        if several.cases[0].batch > 1:
            return alive
        pairs = {x: (one.errors(x), several.errors(x)) for x in alive}
        return {
            x: alive[x] for x, (a, b) in pairs.items() if a is not None and b is not None and alike(a.size, b.size[:1])
        }

    def _predicted(
        self, alive: Alive, i: int, seeds: int, groups: Sequence[list[int]], tick: Tick
    ) -> Iterator[tuple[Hypothesis, list[int], list[int], Errors]]:
        """What hypotheses predict on a case, with tiles that cut its keys alike, and with each group of stds."""
        for stds in groups:
            asked = {one: where for one, where in alive.items() if where[:, stds].any()}
            known: dict[Hypothesis, list[Errors]] = {one: [] for one in asked}
            for tiles in self._cuts(i) if asked else []:
                draws = self._draws(i, tiles[0], stds, seeds)
                for count, (one, where) in enumerate(asked.items()):
                    if not where[np.ix_(tiles, stds)].any():
                        continue
                    tick(f"{count} of {len(asked)} causes at {_named(self.table.cases[i], draws.cases[0])}")
                    before = known[one]
                    independent = len(before) >= WITNESSES and all(alike(before[0].size, x.size) for x in before[1:])
                    found = before[0] if independent else draws.errors(one)
                    if found is None:
                        continue
                    before.append(found)
                    yield one, tiles, stds, found

    def scored(self, alive: Alive, tick: Tick) -> list[Plausible]:
        """Those that come near every entry, case by case, each with the values with which it comes nearest;
        the nearest first.
        """
        scores: dict[Hypothesis, list[_Scores]] = {}
        for i, entries in self.by_case.items():
            left: Alive = {}
            now: dict[Hypothesis, _Scores] = {}
            for one, tiles, stds, found in self._predicted(alive, i, self.seeds, self._groups(self.seeds), tick):
                off = deviations(found, self.seeds, entries, self.table.finest)
                _mark(left, one, alive[one], tiles, stds, off <= self.limit)
                if one not in left:
                    continue
                if one not in now:
                    shape = (len(self.tiles), len(self.stds), len(entries))
                    now[one] = _Scores(*(np.full(shape, np.nan) for _ in _Scores._fields))
                surprise = surprises(found, self.seeds, entries, self.table.finest)
                for array, x in zip(now[one], (off, surprise, *ranges(found, self.seeds)), strict=True):
                    array[np.ix_(tiles, stds)] = x
            scores = {one: [*scores.get(one, []), now[one]] for one in left}
            alive = {x: left[x] for x in alive if x in left}
            if not self.table.seeded:
                alive = _likely(alive, scores)
        told = [self._plausible(one, scores[one], where) for one, where in alive.items()]
        # what differs by less than draws do is in the library's order, the plainest first
        told.sort(key=lambda x: round(x.surprise, 1))
        best = min((one.deviation for one in told), default=0.0)
        return [one for one in told if one.deviation <= best + MARGIN]

    def _plausible(self, one: Hypothesis, by_case: Sequence["_Scores"], where: np.ndarray) -> Plausible:
        x = _Scores(*(np.concatenate(arrays, -1) for arrays in zip(*by_case, strict=True)))
        worst = np.where(where, x.off.max(-1), np.inf)
        near = worst <= worst.min() + MARGIN
        surprise = np.where(near, x.surprise.mean(-1), np.inf)
        t, s = map(int, np.unravel_index(np.argmin(surprise), surprise.shape))
        against = tuple(
            Against(self.entries[j], Range.of(x.low[t, s, j], x.high[t, s, j], x.nan[t, s, j]))
            for j in np.argsort(-x.off[t, s], kind="stable")
            if x.off[t, s, j] > 0
        )
        values = tuple(self.valued(*place) for place in np.argwhere(near))
        return Plausible((one,), float(worst[t, s]), float(surprise[t, s]), self.valued(t, s), values, against)

    def classes(self, near: Sequence[Plausible]) -> list[Plausible]:
        """Those of which no run tells one from the other as one, in their order."""
        where = [self.drawn(case, [near[0].best], 1, ()) for case in self.elsewhere()] if near else []
        together = grouped(near, lambda one: [there.predicted(one.members[0]) for there in where])
        return [replace(some[0], members=tuple(x.members[0] for x in some)) for some in together]

    def elsewhere(self) -> list[Case]:
        """Cases of a measurement: those of the table, and others of the same kernel."""
        largest = self.table.cases[[*self._told][-1]]
        return [*dict.fromkeys(self.table.cases), *cases(largest)]


class _Scores(NamedTuple):
    """Of a hypothesis, [tiles, stds, entries], NaN where it is not plausible."""

    off: np.ndarray
    surprise: np.ndarray
    low: np.ndarray
    high: np.ndarray
    nan: np.ndarray


def _mark(
    left: Alive, one: Hypothesis, before: np.ndarray, tiles: Sequence[int], stds: Sequence[int], near: np.ndarray
) -> None:
    """Note what is left of a hypothesis with some tiles and stds, where anything is; `near`: [stds, entries]."""
    where = np.ix_(tiles, stds)
    kept = before[where] & near.all(1)
    if kept.any():
        left.setdefault(one, np.zeros_like(before))[where] = kept


def _likely(alive: Alive, scores: Mapping[Hypothesis, Sequence[_Scores]]) -> Alive:
    """What is not much less likely than the likeliest, of all entries so far."""
    totals = {
        one: np.where(where, sum(x.surprise.sum(-1) for x in scores[one]), np.inf) for one, where in alive.items()
    }
    limit = min((total.min() for total in totals.values()), default=0.0) + LIKELY
    return {one: total <= limit for one, total in totals.items() if (total <= limit).any()}


def _named(case: Case, drawn: Case) -> str:
    open_ = {"input_std": drawn.input_std, "block_k": drawn.block_k, "splits": drawn.splits}
    known = ", ".join(f"{name} {value}" for name, value in open_.items() if value is not None)
    return f"seqlen {case.seqlen_k}: {known}"
