"""The search for causes: a cheap screen of every edit, then budgets of the edited graph, then fresh inputs."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from workbench.floats import round_to, to_float64
from workbench.judge.reference.causes.cause import PROOF, Cause, Explained, Named
from workbench.judge.reference.causes.edit import Edit, fits, size
from workbench.judge.reference.causes.library import Slab, edits
from workbench.judge.reference.causes.replay import VALUES, Replay
from workbench.judge.reference.causes.scene import UNDEFINED, Reach, Scene, is_so, reproduces
from workbench.judge.reference.given import Given, is_whole
from workbench.judge.reference.held import dumps_of
from workbench.judge.stage import StageDiff
from workbench.reference.graph import Graph
from workbench.reference.graph.contract import CASTS
from workbench.reference.graph.plan import stored
from workbench.work import Work

#: share of the error, root mean square, that an edit leaves at most to be looked at
LEFT = 0.5
#: edits that leave at most so many times as much as the best are alternatives to it
ALIKE = 1.25
#: edits that are held against budgets, at most, the best first; and where the work is over
MOST, SOME = 24, 4
#: wrong stages that are searched, at most, the first ones: one fault made most of them, and more faults are rare
STAGES = 3
#: alternatives that are named, at most
NAMED = 3
#: fresh inputs on which a cause is tried, and more where fewer than PROOF elements are wrong
FRESH, MORE = 2, 6
#: errors that remain are the same ones where they differ by such a share: float64 rounds as much
SAME = 1e-6
#: loads past the end of an array. They explain NaN in part of a result; one that is NaN throughout may never have been
#: written at all
IN_PART = "past the end"
#: families of edits that can explain NaN or infinity in a kernel: an element is never written, infinity is multiplied
#: by 0, or a load runs past its array. Under other families, or where the edit makes the operand of a root negative,
#: NaN proves nothing
MAKE_NAN = ("unwritten", "mask", "order", "left out", IN_PART)
#: operations that keep negative numbers from a root or a logarithm: if an edit removes one, NaN is expected
GUARDS = ("maximum", "minimum", "where", "abs")
#: what budgets cost beside values alone
BUDGETS = 20


@dataclass(frozen=True, eq=False)
class Fit:
    """An edit that comes near."""

    edit: Edit
    left: float


@dataclass(frozen=True, eq=False)
class Held:
    """One that reproduces the run."""

    fit: Fit
    reach: Reach


class Screen:
    """One wrong stage, and how much of its error an edit leaves."""

    def __init__(self, scene: Scene, stage: StageDiff) -> None:
        found = stage.decisive
        assert found is not None
        self.one: Given = next(one for one in scene.given if one.name == stage.name)
        read = [other for other in scene.given if stage.judged_from or is_whole(other.x.dtype)]
        own = self.one.places if len(self.one.places) == 1 else ()
        dumps = {name: x for name, x in dumps_of(scene.graph, read).items() if name not in own}
        self.replay = Replay(scene.graph, self.one.nodes, dumps, _dtypes(scene))
        self.actual = to_float64(self.one.x)
        self.budget = np.broadcast_to(np.asarray(found.budget, np.float64), self.actual.shape)
        expected = to_float64(found.expected)
        judged = np.isfinite(expected) & np.isfinite(self.budget) & (self.budget > 0)
        if self.one.free is not None:
            judged &= ~self.one.free
        self.known, self.lost = judged & np.isfinite(self.actual), judged & ~np.isfinite(self.actual)
        first = self._parts(self._rounded(expected))
        self.wrong = first > 1
        self.of_lost = float(first[self.wrong].mean()) if self.wrong.any() else 1.0  # as bad as what is wrong else
        self.error = float(first.sum()) + self.of_lost * float(self.lost.sum())

    def left(self, made: Mapping[int, Any], makes_nan: bool) -> float:
        """Share of the error, root mean square, that remains by an edit that makes some turns anew. makes_nan: whether
        NaN of the edit explains NaN of the kernel.
        """
        turns = [made.get(i, self.replay.made[i]) for i in self.one.nodes]
        whole = to_float64(np.stack(turns) if len(turns) > 1 else turns[0])
        parts = self._parts(self._rounded(whole))
        nan = np.isnan(parts)
        if nan.sum() > UNDEFINED * (self.wrong.sum() + self.lost.sum()):  # where the kernel has a number
            return np.inf
        lost = self.of_lost * float((np.isfinite(whole[self.lost]) | (not makes_nan)).sum())
        return float(np.sqrt((parts[~nan].sum() + lost) / self.error))

    def _rounded(self, x: np.ndarray) -> np.ndarray:
        return round_to(x, self.one.x.dtype) if self.one.narrow else x

    def _parts(self, x: np.ndarray) -> np.ndarray:
        """Squares of errors in units of budgets, of the elements that have one."""
        return ((self.actual - x)[self.known] / self.budget[self.known]) ** 2


@np.errstate(all="ignore")
def explain(scene: Scene, work: Work, without: Collection[str] = ()) -> Explained:
    """The causes of what is wrong in a run, searched for until `work` is over. without: families of edits that are not
    tried, to see what is said where the cause is in none.
    """
    search, left = _Search(scene, work, without), [stage.name for stage in scene.origins]
    causes = list[Cause]()
    with threadpool_limits(1, "blas"):
        for stage in scene.origins:
            if len(search.searched) == STAGES or (search.searched and work.over):
                break
            if stage.name in left and stage.verdict == "bug" and (found := search.cause(stage)) is not None:
                causes.append(found)
                left = [name for name in left if name not in found.stages]
    return Explained(tuple(causes), tuple(left), tuple(search.withdrawn), search.tried, search.ended_by)


class _Search:
    """A search through the edits of one run's graph."""

    def __init__(self, scene: Scene, work: Work, without: Collection[str]) -> None:
        self.scene, self.work, self.without = scene, work, without
        self.tried, self.ended_by = 0, ""
        #: what budgets of the whole run cost, in trials
        self.budgets = BUDGETS * sum(size(node) for node in scene.graph.nodes) / VALUES
        self.searched: list[str] = []
        self.withdrawn: list[Named] = []
        self._fresh: dict[int, Scene | None] = {}

    def cause(self, stage: StageDiff) -> Cause | None:
        """What makes a stage wrong; None where no edit does, or the work does not allow to hold one against budgets."""
        self.searched.append(stage.name)
        screen = Screen(self.scene, stage)
        if screen.replay.is_large:
            self.ended_by = "size"
            return None
        if not screen.error > 0:
            return None
        if self.budgets > self.work.allowed:
            self.ended_by = "effort"
            return None
        screen.replay.start()
        for slab in (None, *_slabs(stage)):
            found = self._proved(stage, self._near(screen, slab))
            if found is not None:
                return found
        return None

    def _near(self, screen: Screen, slab: Slab | None) -> list[Fit]:
        """The edits that leave little, the best first; of those as good the likeliest."""
        found, replay = list[Fit](), screen.replay
        # a dump of the stage itself, in a loop, is read by its later turns, and each turn is made of what it reads
        given = [i for i in replay.given if i not in replay.asked]
        for edit in edits(self.scene.graph, replay.order, given, slab):
            if self.work.over:
                self.ended_by = self.work.ended_by
                break
            if edit.family in self.without:
                continue
            self.tried += 1
            made = replay.of(edit, self.work)
            if made is None or not made.values:
                continue
            guards = all(self.scene.graph.nodes[i].op in GUARDS for i in edit.nodes)
            makes_nan = edit.family in MAKE_NAN and (guards or not made.broken)
            makes_nan &= edit.family != IN_PART or bool(screen.known.any())
            if (left := screen.left(made.values, makes_nan)) <= LEFT:
                found.append(Fit(edit, left))
        return sorted(found, key=_likely)

    def _proved(self, stage: StageDiff, near: Sequence[Fit]) -> Cause | None:
        """The cause that those edits are which reproduce all of the run, and of fresh ones."""
        held = list[Held]()
        for n, fit in enumerate(near[:MOST]):
            late = n >= SOME and self.work.over
            if late or (held and fit.left > ALIKE * held[0].fit.left + 1e-9):
                break
            self.work.take(self.budgets)
            reach = reproduces(self.scene, fit.edit)
            if stage.name in reach.stages:
                held.append(Held(fit, reach))
        most = max((len(one.reach.stages) for one in held), default=0)
        held = [one for one in held if len(one.reach.stages) == most]
        plain = [one for one in held if not one.reach.alone]
        alive, moved, fresh = self._on_fresh_inputs(plain or held, stage)
        if not alive:
            return None
        stages = alive[0].reach.stages
        names = dict.fromkeys(map(self._named, _distinct(alive, self.scene.graph)))
        elements = sum(one.decisive.summary.outside for one in self.scene.stages
                       if one.name in stages and one.decisive is not None)  # fmt: skip
        nan = alive[0].reach.undefined
        best = alive[0]
        found = Cause(
            tuple(names)[:NAMED], stages, elements, nan, fresh, elements - nan + moved, best.fit.left, best.fit.edit,
            best.reach,
        )  # fmt: skip
        return found if found.proved or _has_numbers(stage) else None

    def _on_fresh_inputs(self, held: list[Held], stage: StageDiff) -> tuple[list[Held], int, int]:
        """Those that reproduce the kernel there, too; how many elements they moved; and how many inputs."""
        moved = fresh = 0
        count = stage.decisive.summary.outside if stage.decisive is not None else 0
        for n in range(1, FRESH + MORE + 1):
            if not held or (fresh >= FRESH and count + moved >= PROOF):
                break
            scene = self._scene(n)
            if scene is None:
                break
            wrong = [one for one in scene.origins if one.name in held[0].reach.stages and one.decisive is not None]
            alive = [one for one in held if is_so(scene, one.fit.edit, one.reach)]
            self.withdrawn += [self._named(one) for one in held if one not in alive]
            held = alive
            fresh += bool(wrong)
            moved += sum(one.decisive.summary.outside for one in wrong if one.decisive is not None)
        return held if fresh or self.scene.again is None else [], moved, fresh

    def _scene(self, n: int) -> Scene | None:
        if n not in self._fresh:
            scene = self.scene.fresh(n)
            self._fresh[n] = scene if scene is not None and fits(self.scene.graph, scene.graph) else None
        return self._fresh[n]

    def _named(self, one: Held) -> Named:
        edit = one.fit.edit
        alone = f", for {' and '.join(one.reach.alone)} only" if one.reach.alone else ""
        return Named(edit.words + alone, edit.line(self.scene.graph), edit.family)


def _has_numbers(stage: StageDiff) -> bool:
    """Whether any wrong element is a number: a few that are NaN or infinite fit every edit that makes such."""
    found = stage.decisive
    return found is not None and bool(np.isfinite(to_float64(found.actual)[np.asarray(found.outside)]).any())


def _likely(one: Fit) -> tuple[int, int, int]:
    """Smallest remaining error, then likeliest, then nearest to the wrong stage; of index edits the earliest read."""
    edit = one.edit
    away = edit.nodes[0] if edit.family == "places" else -edit.nodes[-1]
    return round(log(max(one.left, 1e-12)) / log(ALIKE)), edit.size, away


def _dtypes(scene: Scene) -> dict[int, str]:
    """Node -> the dtype that it is rounded to by the contract."""
    contract = scene.contract
    found = {i: contract.stored[name] for i, name in stored(scene.graph, contract).items()}
    if CASTS in contract.stored:
        casts = (i for i, node in enumerate(scene.graph.nodes) if node.op == "cast")
        found = dict.fromkeys(casts, contract.stored[CASTS]) | found
    return {i: dtype for i, dtype in found.items() if dtype != "float32"}


def _distinct(held: Sequence[Held], graph: Graph) -> list[Held]:
    """Without edits that leave the same error as an earlier one and share its line or its words."""
    found = list[Held]()
    for one in held:
        edit, left = one.fit.edit, one.fit.left
        same = (other.fit.edit for other in found if abs(left - other.fit.left) <= SAME * left)
        if not any(other.line(graph) == edit.line(graph) or other.said == edit.said for other in same):
            found.append(one)
    return found


def _slabs(stage: StageDiff) -> Iterator[Slab]:
    """The parts of axes to which what is wrong is confined, of half of an axis at most."""
    found = stage.decisive
    if found is None:
        return
    outside = np.asarray(found.outside)
    for axis, n in enumerate(outside.shape):
        where = outside.any(axis=tuple(a for a in range(outside.ndim) if a != axis))
        if n > 1 and 0 < 2 * where.sum() <= n:
            yield Slab(n, tuple(int(i) for i in np.flatnonzero(where)))
