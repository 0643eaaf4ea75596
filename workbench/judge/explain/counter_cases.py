"""Cases that nobody ran: what hypotheses predict there tells which of them are one, and which run would part them."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from workbench.case.case import Case
from workbench.case.distributions import FIXED
from workbench.case.fields import GIVEN
from workbench.case.stages import OF_HEADS
from workbench.judge.explain.coded import Coded
from workbench.judge.explain.hypothesis import Hypothesis
from workbench.judge.explain.scene import Arrays, Scene, predicted
from workbench.reference.problem import Problem
from workbench.reference.walk import values
from workbench.refusal import Refusal

#: arrays that a hypothesis predicts on a case; None where it cannot be
Prediction = Sequence[np.ndarray] | None
Item = TypeVar("Item")

#: largest length of such a case: a few tiles
LENGTH = 320
#: keys that a tile is taken to have at least, so that lengths can differ by some of them
SHORTEST = 16
#: of which lengths may have to be multiples
_LARGEST_TILE = 128
#: of what more heads than there were have in place of what those have
_LARGER = 1.25


@dataclass(frozen=True, eq=False)
class CounterCase:
    """A correct run of the same kernel on another case, as far as a trace holds what it dumped."""

    scene: Scene | Coded
    case: Case

    @cached_property
    def beyond(self) -> tuple[str, ...]:
        """As of the function; of a kernel of which splits are supposed, whose count is that of these keys."""
        ours = self.scene.trace.case
        supposed = isinstance(self.scene, Scene) and self.scene.supposed is not None and self.scene.supposed.splits > 1
        more = ("there are more keys",) if supposed and self.case.seqlen_k > ours.seqlen_k else ()
        return (*beyond(ours, self.case), *more)

    @cached_property
    def _whole(self) -> tuple[Problem, Arrays]:
        problem = self.scene.elsewhere(self.case)
        return problem, values(problem)

    @cached_property
    def problem(self) -> Problem:
        """With what a correct kernel would have dumped as given."""
        problem, found = self._whole
        dumped = {name: x for name, x in found.items() if name in self.scene.problem.given}
        return replace(problem, given=dumped)

    @cached_property
    def expected(self) -> Arrays:
        """All stages of a correct kernel."""
        return self._whole[1]

    def predicted(self, hypothesis: Hypothesis, names: Sequence[str]) -> Arrays | None:
        """As of a scene."""
        return predicted(self.problem, self.expected, hypothesis, names)

    def makes_only_nan(self, hypothesis: Hypothesis) -> bool | None:
        """Whether a kernel with this fault makes NaN or infinity of some numbers of a correct one, and leaves all
        others of every stage as they are; None where it changes nothing here.
        """
        names = [name for name in self.expected if self.problem.table[name].dumped]
        found = self.predicted(hypothesis, names)
        if found is None:
            return None
        right = self.expected
        made = {
            name: (np.isnan(x) & ~np.isnan(right[name])) | (np.isinf(x) & np.isfinite(right[name]))
            for name, x in found.items()
        }
        if not all(alike(np.where(made[name], right[name], x), right[name]) for name, x in found.items()):
            return False
        return True if any(x.any() for x in made.values()) else None


def counter_cases(scene: Scene | Coded) -> list[CounterCase]:
    """The kernel of a scene on all `cases`; one that somebody wrote also with another head_dim, for which kernels of
    ours would be compiled anew.
    """
    ours = scene.trace.case
    if scene.trace.one_case:
        return [CounterCase(scene, case) for case in of_other_numbers(ours)]
    same: list[Case] = []
    further: list[Case] = []
    for case in cases(ours):
        (further if beyond(ours, case) else same).append(case)
    other = [] if scene.trace.backend != "foreign" or ours.ragged else [_of_other_dims(ours)]
    return [CounterCase(scene, case) for case in (*same, *other, *further)]


def _of_other_dims(case: Case) -> Case:
    """The case with half as many dims, a multiple of 8, or twice as many where these are fewer than 16."""
    dims = case.head_dim // 2 // 8 * 8 if case.head_dim >= 16 else 2 * case.head_dim
    changes = {"head_dim": dims, "head_dim_v": dims}
    if case.head_dim_v != case.head_dim:
        changes["head_dim_v"] = max(8, round(case.head_dim_v * dims / case.head_dim / 8) * 8)
    drawn = {} if case.distribution != GIVEN else {"distribution": "normal"}
    return _but(case, **changes, scale=(abs(case.scale) or 1.0) * 0.77, seed=case.seed + 9, **drawn)


def cases(case: Case) -> Iterator[Case]:
    """Cases that distinguish formulas which give identical results on `case`. First those that every kernel takes that
    takes `case`: numbers of another size in the same shape, and in one of twice the length. Then ragged tiles, more
    than two of them, several heads and batches. Tiles, head_dim and dtype stay, so that nothing is compiled anew.
    """
    block = min(max(case.block_k or 64, SHORTEST), LENGTH)
    plain = {"distribution": "normal"}
    drawn = {} if case.distribution != GIVEN else plain
    scale = abs(case.scale) or case.head_dim**-0.5
    longer = min(LENGTH, 2 * block + block // 2 + 5)
    group = case.heads // case.kv_heads
    plainly = not case.ragged and case.page_size is None  # sequences of several lengths are no shape to keep
    if plainly and max(case.seqlen_q, case.seqlen_k) <= LENGTH:
        yield _but(case, scale=scale * 1.37, seed=case.seed + 7, **drawn)
    if plainly and 2 * max(case.seqlen_q, case.seqlen_k) <= LENGTH:
        twice = {"seqlen_q": 2 * case.seqlen_q, "seqlen_k": 2 * case.seqlen_k}
        yield _but(case, **twice, scale=scale * 0.61, seed=case.seed + 8, **drawn)
    yield _but(case, seqlen_q=longer - 7, seqlen_k=longer, scale=scale * 1.37, seed=case.seed + 1, **drawn)
    yield _but(
        case, batch=3, heads=2 * max(group, 2), kv_heads=2, seqlen_q=27, seqlen_k=min(LENGTH, block + block // 4 + 3),
        scale=scale * 0.61, seed=case.seed + 2, **plain,
    )  # fmt: skip
    yield _but(
        case, seqlen_q=min(longer, 40), seqlen_k=min(LENGTH, 4 * block + 3), scale=scale * 5, seed=case.seed + 3,
        **plain,
    )  # fmt: skip
    if case.splits is not None and case.splits > 1:
        keys = min(LENGTH, 4 * block + 3)
        yield _but(case, splits=case.splits + 1, seqlen_q=37, seqlen_k=keys, seed=case.seed + 6, **drawn)
    yield _but(case, seqlen_q=block, seqlen_k=min(LENGTH, 2 * block), seed=case.seed + 4, **drawn)
    yield _but(
        case, seqlen_q=longer - 1, seqlen_k=longer - 20, heads=3, kv_heads=1, scale=scale * 0.8, seed=case.seed + 5,
        **drawn,
    )  # fmt: skip


def of_other_numbers(case: Case) -> Iterator[Case]:
    """The case with other numbers in q and k, as large as usual, larger and smaller."""
    for turn, size in enumerate((1.0, 1.7, 0.6)):
        yield case.but(distribution="normal", input_std=size, seed=case.seed + turn + 1)


def beyond(case: Case, other: Case) -> tuple[str, ...]:
    """In what `other` goes beyond a kernel that may take no more than `case` shows, in words; () where in nothing. A
    kernel may be made for as many queries as keys, for lengths that are multiples of a tile, for one head or batch.
    """
    found = []
    if case.seqlen_q == case.seqlen_k and other.seqlen_q != other.seqlen_k:
        found.append("seqlen_q and seqlen_k differ")
    for name in ("seqlen_q", "seqlen_k"):
        tile = math.gcd(getattr(case, name), _LARGEST_TILE)
        if tile >= SHORTEST and getattr(other, name) % tile:
            found.append(f"{name} is not a multiple of {tile}")
    for name, words in (
        ("heads", "heads"),
        ("kv_heads", "kv_heads"),
        ("batch", "batches"),
        ("splits", "splits"),
        ("head_dim", "dims"),
    ):
        if (there := getattr(other, name)) != getattr(case, name):
            found.append(f"there are {there} {words}")
    return tuple(found)


def _but(case: Case, **changes: Any) -> Case:
    """The case with `changes`, for whose heads and batches what was given of each is repeated, a little larger each
    time, and whose sequences are as much of the largest length as they were.
    """
    heads, batch = changes.get("heads", case.heads), changes.get("batch", case.batch)
    for name in OF_HEADS:
        if isinstance(x := getattr(case, name), tuple):
            changes[name] = tuple(x[h % len(x)] * _LARGER ** (h // len(x)) for h in range(heads))
    for name in ("seqlens_q", "seqlens_k"):
        if (x := getattr(case, name)) is not None:
            length = name.replace("lens", "len")
            most = changes.get(length, getattr(case, length))
            shorter = (round(most * x[b % len(x)] / max(*x, 1)) - b // len(x) for b in range(batch))
            changes[name] = tuple(max(n, 0) for n in shorter)
    try:
        return case.but(**changes)
    except Refusal:  # of inputs that need more dims for more keys, or a larger scale
        if case.distribution not in FIXED:
            raise
        return case.but(**changes | {"distribution": "normal"})


def alike(x: np.ndarray, y: np.ndarray) -> bool:
    """Whether two arrays are one, but for roundings of float64."""
    finite = np.isfinite(x) & np.isfinite(y)
    if not np.array_equal(x[~finite], y[~finite], equal_nan=True):
        return False
    size = np.sqrt(np.mean(x[finite] ** 2)) if finite.any() else 0.0
    return bool(np.all(abs(x[finite] - y[finite]) <= 1e-7 * (abs(x[finite]) + size)))


def classes(
    hypotheses: Sequence[Hypothesis], where: Sequence[CounterCase], names: Sequence[str]
) -> list[list[Hypothesis]]:
    """The hypotheses by what they predict of the stages `names` on every case: those that no run tells apart are
    together, in their order.
    """

    def predicted(one: Hypothesis) -> list[Prediction]:
        found = (there.predicted(one, names) for there in where)
        return [None if x is None else [x[name] for name in names] for x in found]

    return grouped(hypotheses, predicted)


def grouped(items: Sequence[Item], predicted: Callable[[Item], Sequence[Prediction]]) -> list[list[Item]]:
    """Items of which all predictions are alike together, in their order."""
    found: list[tuple[Sequence[Prediction], list[Item]]] = []
    for one in items:
        mine = predicted(one)
        for theirs, members in found:
            if all(_agree(a, b) for a, b in zip(mine, theirs, strict=True)):
                members.append(one)
                break
        else:
            found.append((mine, [one]))
    return [members for _, members in found]


def _agree(one: Prediction, other: Prediction) -> bool:
    if one is None or other is None:
        return one is other
    return all(alike(a, b) for a, b in zip(one, other, strict=True))
