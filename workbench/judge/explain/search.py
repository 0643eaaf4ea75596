"""The search for hypotheses that reproduce a kernel's wrong numbers: one alone, or two together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product

import numpy as np

from workbench.case.box import Box
from workbench.case.stages import ALGORITHMS
from workbench.expectation.observed import Observed
from workbench.judge.explain.coded import Coded
from workbench.judge.explain.fit import NOTHING, UNEXPLAINED, Fit, fit, missed, unexplained
from workbench.judge.explain.hypothesis import Hypothesis, edited, together
from workbench.judge.explain.library import COMMON, shows_in_rows
from workbench.judge.explain.scene import Arrays, Scene, predicted, touched
from workbench.reference.problem import Problem
from workbench.trace.narrow import narrowed
from workbench.work import TRIALS_OF_FIT, Work

Wrong = Mapping[str, np.ndarray]
#: hypotheses that come nearest by themselves, each of which is tried with all others
BEAM = 16
#: hypotheses that are held against budgets, at most, of each search
HELD = 48
#: share of the error that a pair leaves that needs no other beside it
CLEAR = 1e-3
#: queries that tell whether a hypothesis is worth all
ROWS = 32
#: share of the error that a hypothesis may leave in one head to be looked at in all
WORTH = 0.6
#: names of a pair whose members have others that predict the same by themselves, at most
TWINS = 16
#: of what came near, how many are held against budgets at least, whatever the search took
HELD_AT_LEAST = 8
#: elements of a stage by which predictions are told apart
SAMPLE = 2048
#: 2^32 over the golden ratio, odd: multiples of it spread evenly (Knuth, volume 3, section 6.4)
GOLDEN = 2654435769


@dataclass(frozen=True, eq=False)
class Near:
    """A hypothesis with the share of the error that it leaves."""

    left: float  #: of the wrong stage that it explains worst
    best: float  #: of the one that it explains best
    order: int
    hypothesis: Hypothesis
    print: bytes = field(repr=False)  #: of what it predicts


@dataclass(frozen=True, eq=False)
class Search:
    """What was found."""

    fits: tuple[Fit, ...]  #: the best first
    near: tuple[Near, ...]  #: every single hypothesis, the nearest first
    tried: int
    complete: bool  #: whether all was tried that was asked for


def singles(
    scene: Scene | Coded, wrong: Wrong, work: Work, among: Sequence[Hypothesis], *, in_haste: bool = False
) -> Search:
    """Those `among` hypotheses that reproduce wrong stages by themselves and break no right one, tried from the common
    ones on, until `work` is over. `in_haste`: what does not explain some rows
    in which most is wrong is not tried on all; of two faults each may be in rows of its own.
    """
    parts = _Parts(scene, wrong, in_haste) if isinstance(scene, Scene) else None
    near, complete = [], True
    for order, one in sorted(enumerate(among), key=lambda x: not COMMON.match(x[1].id)):
        if work.over:
            complete = False
            break
        part = None if parts is None else parts.showing(one)
        found = None if part is None else _near(part, one, order, part.wrong, work)
        if part is None or (found is not None and found.left < WORTH):
            found = _near(scene, one, order, wrong, work)
        if found is not None:
            near.append(found)
    tried = len(near)
    near.sort(key=lambda x: (max(x.left, NOTHING), x.order))
    held = _held(scene, near, wrong, work)
    return Search(tuple(held), tuple(near), tried, complete)


def pairs(scene: Scene | Coded, wrong: Wrong, found: Search, work: Work, *, all_of_it: bool = False) -> Search:
    """Two hypotheses together: each of those that come nearest with every other, then all others, until `work` is over.
    `all_of_it`: only those that touch every wrong stage.
    """
    likely = sorted(found.near, key=lambda x: (x.best, x.order))
    twins: dict[bytes, list[Near]] = {}
    for one in likely:
        twins.setdefault(one.print, []).append(one)
    unlike = [some[0] for some in twins.values()]
    allowed = {name: scene.allowed(name) for name in wrong}
    small = scene.group(wrong) if isinstance(scene, Scene) else None
    near: list[tuple[float, Near, Near]] = []
    held: list[Fit] = []
    tried, complete = 0, True
    seen: set[frozenset[int]] = set()
    asked, bases = 0, [*unlike]
    while bases and complete and not held:
        one, asked = bases.pop(0), asked + 1
        whole = _Faulty.of(scene, one.hypothesis, wrong)
        if whole is None:
            continue
        part = None if small is None or one.hypothesis.across else _Faulty.of(small, one.hypothesis, small.wrong)
        for other in unlike:
            key = frozenset((one.order, other.order))
            if other is one or key in seen:
                continue
            seen.add(key)
            if work.over:
                complete = False
                break
            names = [name for name in wrong if name in whole.touched or name in scene.touched(other.hypothesis)]
            if not names or (all_of_it and len(names) < len(wrong)):
                continue
            tried += 1
            in_part = None if other.hypothesis.across else part
            if in_part is not None and in_part.left_beside(other.hypothesis, names, work)[0] >= WORTH:
                continue
            left, both = whole.left_beside(other.hypothesis, names, work)
            if left >= 2 * UNEXPLAINED:
                continue
            off = max(missed(scene, name, x, allowed[name]) for name, x in both.items())
            near += [
                (off, Near(left, left, a.order + b.order, together(a.hypothesis, b.hypothesis), b""), other)
                for a, b in _diagonally(twins[one.print], twins[other.print])
            ]
        # beside a large fault a small one is no large part of the error, and moves many elements
        near.sort(key=lambda x: (round(x[0], 2), x[1].left, x[1].order))
        clear = bool(near) and near[0][1].left < CLEAR
        if clear and asked < BEAM:
            # what may be in the place of the first of them
            asked, bases = BEAM, [near[0][2], *bases]
        elif clear or asked >= BEAM:
            held = _held(scene, [x[1] for x in near], wrong, work)
            near = []  # what came near and does not hold is not asked again
    held = held or _held(scene, [x[1] for x in near], wrong, work)
    return Search(tuple(held), found.near, tried, complete)


@dataclass(frozen=True, eq=False)
class _Parts:
    """The parts of a scene on which hypotheses are tried first."""

    scene: Scene
    wrong: Wrong
    in_haste: bool

    def showing(self, one: Hypothesis) -> Scene | None:
        """A part that shows what a hypothesis does; None where it takes all."""
        if self.in_haste and shows_in_rows(one):
            rows = self._rows if one.across else self._rows_of_group
            if rows is not None:
                return rows
        # most hypotheses do nothing of the kind, and one head is as good as all to see it
        return None if one.across else self._group

    @cached_property
    def _group(self) -> Scene | None:
        return self.scene.group(self.wrong)

    @cached_property
    def _rows(self) -> Scene | None:
        return _rows(self.scene, self.wrong, across=True)

    @cached_property
    def _rows_of_group(self) -> Scene | None:
        return _rows(self.scene, self.wrong, across=False)


def _rows(scene: Scene, wrong: Wrong, *, across: bool) -> Scene | None:
    """The ROWS queries next to each other in which most is wrong, of all heads where hypotheses go `across` these, else
    of a group that shares a kv head; None where there are not twice as many, or they cannot be told apart.
    """
    trace, case = scene.trace, scene.trace.case
    axes = [ALGORITHMS[trace.algorithm][name].axes for name in wrong]
    apart = case.ragged or scene.decoded or trace.box or trace.input_errors
    if apart or case.seqlen_q < 2 * ROWS or any(x[:2] != "bh" or "q" not in x for x in axes):
        return None
    count = np.zeros((case.batch, case.heads, case.seqlen_q))
    for mask, letters in zip(wrong.values(), axes, strict=True):
        count += np.moveaxis(mask, letters.index("q"), 2).reshape(*count.shape, -1).mean(-1)
    batches, heads = slice(0, case.batch), slice(0, case.heads)
    if not across:
        size = case.heads // case.kv_heads
        b, h = divmod(int(count.reshape(case.batch * case.kv_heads, -1).sum(-1).argmax()), case.kv_heads)
        batches, heads = slice(b, b + 1), slice(h * size, (h + 1) * size)
    of_rows = count[batches, heads].sum((0, 1))
    first = int(np.convolve(of_rows, np.ones(ROWS), "valid").argmax())
    found = Scene(Observed(narrowed(trace, Box(batches, heads, slice(first, first + ROWS)))))
    return found if {*found.wrong} >= {*wrong} else None


def _near(scene: Scene | Coded, hypothesis: Hypothesis, order: int, wrong: Wrong, work: Work) -> Near | None:
    names = tuple(name for name in scene.touched(hypothesis) if name in wrong)
    if not names:
        return None
    work.take(scene.trials)
    found = scene.predicted(hypothesis, names)
    if found is None:
        return None
    print_ = _print(found)
    rest = [unexplained(scene, name, found[name], wrong[name]) for name in names]
    # where nothing but NaN is wrong, whatever reads NaN fits
    no_number = all(np.isnan(scene.actual[name][wrong[name]]).all() for name in names)
    if (min(rest) >= 1 or no_number) and print_ == _print({name: scene.expected[name] for name in names}):
        return None  # it changes nothing here
    return Near(max(rest), min(rest), order, hypothesis, print_)


def _print(found: Arrays) -> bytes:
    """Six digits of some elements."""
    parts = []
    for name, x in found.items():
        # spread without a period, as lanes and tiles have one
        places = np.arange(min(SAMPLE, x.size)) * GOLDEN % x.size if x.size > SAMPLE else slice(None)
        flat = x.ravel()[places]
        finite = flat[np.isfinite(flat)]
        size = np.sqrt(finite @ finite / max(flat.size, 1)) or 1.0
        parts.append(f"{name} {size:.5g}".encode() + np.round(flat / size, 6).tobytes())
    return b"".join(parts)


def _held(scene: Scene | Coded, near: Sequence[Near], wrong: Wrong, work: Work) -> list[Fit]:
    """Those of the nearest that hold within budgets, in the order in which they are to be believed. HELD_AT_LEAST are
    tried even where `work` is over.
    """
    cost = TRIALS_OF_FIT * scene.trials
    work = work.part(least=HELD_AT_LEAST * cost)
    fits: list[tuple[Fit, int]] = []
    for one in near[:HELD]:
        if one.left > 2 * UNEXPLAINED or work.over:
            break
        work.take(cost)
        if (found := fit(scene, one.hypothesis, wrong)) is not None:
            fits.append((found, one.order))
    best = min((one.residual for one, _ in fits), default=0.0)
    # what is within its budget and yet much farther off than another is so by chance
    fits.sort(key=lambda x: (-len(x[0].stages), x[0].off > 0, x[0].residual > 4 * best + 0.02, x[1]))
    return [one for one, _ in fits]


def _diagonally(some: Sequence[Near], others: Sequence[Near]) -> list[tuple[Near, Near]]:
    """The first pairs of two lists, the first of both before the later ones of either."""
    places = sorted(product(range(min(len(some), TWINS)), range(min(len(others), TWINS))), key=lambda x: (sum(x), x))
    return [(some[i], others[j]) for i, j in places[:TWINS]]


@dataclass(frozen=True, eq=False)
class _Faulty:
    """What a kernel with one fault makes, to which another is added."""

    scene: Scene | Coded
    wrong: Wrong
    problem: Problem
    expected: Arrays
    touched: frozenset[str]  #: stages in which the fault may show

    @staticmethod
    def of(scene: Scene | Coded, hypothesis: Hypothesis, wrong: Wrong) -> "_Faulty | None":
        """None where the kernel cannot have the fault."""
        table = edited(scene.problem.table, hypothesis)
        if table is None:
            return None
        names = [name for name in scene.expected if table[name].dumped]
        found = predicted(scene.problem, scene.expected, hypothesis, names)
        if found is None:
            return None
        problem = replace(scene.problem, table=table)
        return _Faulty(scene, wrong, problem, found, frozenset(scene.touched(hypothesis)))

    def left_beside(self, other: Hypothesis, names: Sequence[str], work: Work) -> tuple[float, Arrays]:
        """The share of the error that both faults leave of the one of the stages `names` that they explain worst, and
        these stages; inf where the kernel cannot have both.
        """
        work.take(self.scene.trials)
        found = predicted(self.problem, self.expected, other, touched(self.problem, names, other))
        if found is None:
            return np.inf, {}
        both = {name: found.get(name, self.expected[name]) for name in names}
        return max(unexplained(self.scene, name, x, self.wrong[name]) for name, x in both.items()), both
