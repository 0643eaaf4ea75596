"""What two traces have in common: whether they are runs of one problem, and which stages mean the same in both."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from workbench.case.fields import PROBLEM, of_role
from workbench.case.stages import INPUTS, STAGES
from workbench.expectation.observed import Observed
from workbench.floats import to_float64, ulp
from workbench.refusal import Refusal

#: fields of a case that both must have alike: inputs are compared themselves, dtypes may differ, and where the diagonal
#: lies matters only to what hides keys
_PROBLEM = tuple(name for name in of_role(PROBLEM) if name not in ("dtype", "causal_alignment"))

#: every stage of every algorithm, in data-flow order
ORDER = tuple(STAGES)


@dataclass(frozen=True)
class Shared:
    """The stages of two traces that can be held against each other, in data-flow order, and those that cannot."""

    #: stage -> the key tiles in which it means the same in both, bool [tiles]; None: all of it
    tiles: Mapping[str, np.ndarray | None]
    apart: Mapping[str, str]  #: stage that either trace holds -> why it is not comparable


def check_same_problem(one: Observed, two: Observed) -> None:
    """Refusal unless both are runs of one problem on the same inputs: bit for bit, or where their dtypes differ,
    numbers that may be roundings of the same ones.
    """
    a, b = one.trace, two.trace
    where = f"{a.target} against {b.target}"
    if a.box != b.box:
        parts = " and ".join("all of it" if trace.box is None else str(trace.box) for trace in (a, b))
        raise Refusal(f"{where}: both must cover the same part of the run; they cover {parts}")
    fields = (*_PROBLEM, "diagonal") if a.case.causal or a.case.window else _PROBLEM
    for name in fields:
        if getattr(a.case, name) != getattr(b.case, name):
            name = "causal_alignment" if name == "diagonal" else name
            values = f"{getattr(a.case, name)} and {getattr(b.case, name)}"
            raise Refusal(f"{where}: both must run the same problem; they differ in {name}: {values}")
    for name in dict.fromkeys((*a.inputs, *b.inputs)):
        if (name in a.inputs) != (name in b.inputs):
            has, lacks = "AB" if name in a.inputs else "BA"
            raise Refusal(f"{where}: both must read the same inputs; {has} was given {name}, {lacks} was not")
        _check_same(where, name, a.inputs[name], b.inputs[name])
    for x in INPUTS:
        for name in () if x in a.inputs else (f"codes_{x}", f"scale_{x}"):
            _check_same(where, name, a.stages[name], b.stages[name])


@np.errstate(invalid="ignore")  # inf - inf of a bias
def _check_same(where: str, name: str, one: np.ndarray, other: np.ndarray) -> None:
    x, y = to_float64(one), to_float64(other)
    alike = one.dtype == other.dtype
    rule = "must be bit-identical" if alike else "may differ by one rounding to each dtype"
    if x.shape != y.shape:
        raise Refusal(f"{where}: {name} {rule}; shapes are {list(x.shape)} and {list(y.shape)}")
    apart, allowed = abs(x - y), 0.0 if alike else (ulp(x, one.dtype) + ulp(y, other.dtype)) / 2
    if not np.all(same := (x == y) | (apart <= allowed)):
        place = tuple(int(i) for i in np.argwhere(~same)[0])
        dtypes = f"both {one.dtype}" if alike else f"{one.dtype} and {other.dtype}"
        raise Refusal(
            f"{where}: {name} ({dtypes}) {rule}; "
            f"{(~same).sum()} of {same.size} elements differ, first at {list(place)}: {x[place]:.9g} and {y[place]:.9g}"
        )


def shared(a: Observed, b: Observed) -> Shared:
    """Which stages of two runs of one problem can be held against each other, and where."""
    tiles: dict[str, np.ndarray | None] = {}
    apart: dict[str, str] = {}
    for name in ORDER:
        if name not in a.dumped and name not in b.dumped:
            continue
        if reason := _alone(a, b, name) or _of_other_keys(a, b, name):
            apart[name] = reason
        else:
            seen = zip(_before(a), _before(b), strict=True) if STAGES[name].by_tile else ()
            same = np.array([one == other for one, other in seen], bool)
            tiles[name] = None if same.all() else same
    return Shared(tiles, apart)


def _alone(a: Observed, b: Observed, name: str) -> str:
    """Why only one run has the stage, or nothing to hold it against; empty where both have."""
    for letter, run in (("A", a), ("B", b)):
        if name not in run.known:
            return f"{letter} has no such stage"
        if name not in run.dumped:
            return f"{letter} did not return it"
        if why := run.unjudgeable.get(name):
            return f"{letter}: {why}"
    return ""


def _of_other_keys(a: Observed, b: Observed, name: str) -> str:
    """Why the elements of the stage belong to other keys in one run than in the other; empty where they do not."""
    blocks = a.contract.block_k, b.contract.block_k
    if STAGES[name].by_tile and blocks[0] != blocks[1]:
        return f"key tiles of {blocks[0]} in A, of {blocks[1]} in B"
    if STAGES[name].by_tile and a.tiling.keys != b.tiling.keys:
        return "key tiles cover different keys in A and in B"
    if "s" in a.axes(name):
        if not (a.split_keys_known and b.split_keys_known):
            return "the contract does not declare block_k and splits, so the keys of a split are unknown"
        if _keys_of_splits(a) != _keys_of_splits(b):
            return f"{a.splits} splits in A, {b.splits} in B, with different keys"
    return ""


def _before(run: Observed) -> list[frozenset[int]]:
    """For each key tile those whose keys its running state has seen, itself among them."""
    found: dict[int, frozenset[int]] = {}
    for t, before in run.tiling.order:
        found[t] = (found[before] if before is not None else frozenset()) | {t}
    return [found[t] for t in range(len(found))]


def _keys_of_splits(run: Observed) -> list[list[int]]:
    """The keys of each split."""
    tiles = run.tiling
    return [sorted(k for t in own for k in range(tiles.keys[t].start, tiles.keys[t].stop)) for own in tiles.splits]
