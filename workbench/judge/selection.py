"""Some elements of a stage, chosen by indices as NumPy's or by axis name: `qk[0, 0, 0:3]`, `qk[q=5, k=0:3]`."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from workbench.case.stages import AXIS_NAMES
from workbench.expectation.elements import Comparison, State
from workbench.floats import to_float64
from workbench.refusal import Refusal
from workbench.shown import shown_by

#: what chooses of a stage: integers and slices for each axis in turn, or by axis letter
Index = Sequence[Any] | Mapping[str, Any]

NOTHING: Mapping[str, int] = MappingProxyType({})

_TEXT = re.compile(r"\s*(\w+)\s*(?:\[(.*)\])?\s*", re.DOTALL)
_RULE = (
    "a selection is a stage and, in brackets, an index or a slice for each axis, in order or by name: qk, "
    "qk[0,0,0:3,0:3], qk[...,-1], qk[q=5,k=0:3]"
)


@dataclass(frozen=True, repr=False)
class Selection:
    """Some elements of a stage; arrays have an axis for each axis of the stage."""

    stage: str
    indices: Mapping[str, range]  #: axis letter -> which of its indices were chosen
    actual: np.ndarray | None  #: as dumped, in the stage's dtype; None of the reference alone
    expected: np.ndarray | None  #: float64; None where the stage was not judged
    budget: np.ndarray | None = None  #: the largest |actual - expected| of a kernel that keeps its contract
    over_budget: np.ndarray | None = None  #: |actual - expected| / budget; inf for NaN, nan where not judged
    state: np.ndarray | None = None  #: a State each
    of_ranks: bool = False  #: whether splits are the keys of ranks

    @property
    def shape(self) -> tuple[int, ...]:
        """How many indices were chosen along each axis."""
        return tuple(map(len, self.indices.values()))

    @property
    def size(self) -> int:
        """How many elements were chosen."""
        return int(np.prod(self.shape))

    def rows(self) -> list[dict[str, Any]]:
        """Each element as index (axis letter -> index), actual, expected, error, budget, over_budget and state; what is
        not known is None.
        """
        return [self._row(place) for place in np.ndindex(self.shape)]

    def worst(self, n: int) -> list[dict[str, Any]]:
        """The rows of the n elements farthest outside their budget, the farthest first; fewer where fewer were judged.
        Refusal where the stage was not judged.
        """
        if self.over_budget is None:
            raise Refusal(f"stage {self.stage} was not judged, so it has no worst element")
        over = np.asarray(self.over_budget).ravel()
        candidates = np.flatnonzero(~np.isnan(over))
        order = candidates[np.argsort(-over[candidates], kind="stable")[:n]]
        return [self._row(np.unravel_index(flat, self.shape)) for flat in order]

    def _row(self, place: Sequence[Any]) -> dict[str, Any]:
        at = tuple(map(int, place))
        index = {axis: chosen[i] for (axis, chosen), i in zip(self.indices.items(), at, strict=True)}
        actual, expected, budget, over = (
            None if array is None else float(to_float64(np.asarray(array[at])))
            for array in (self.actual, self.expected, self.budget, self.over_budget)
        )
        state = None if self.state is None else State(int(self.state[at]))
        error = None if actual is None or expected is None else 0.0 if actual == expected else actual - expected
        values = {"actual": actual, "expected": expected, "error": error, "budget": budget, "over_budget": over}
        return {"index": index, **values, "state": state}

    def __repr__(self) -> str:
        chosen = (f"{axis}={one[0] if len(one) == 1 else _said(_slice(one))}" for axis, one in self.indices.items())
        return f"<Selection of {self.stage}[{', '.join(chosen)}]>"

    def __str__(self) -> str:
        return shown_by("values.plain_table", self)

    def _repr_html_(self) -> str:
        return shown_by("values.html_table", self)


def select(
    stage: str,
    axes: str,
    index: Index,
    actual: np.ndarray,
    comparison: Comparison | None,
    first: Mapping[str, int] = NOTHING,
) -> Selection:
    """The elements at `index` of `actual`, a dumped stage with the axes `axes`, and what `comparison` makes of them;
    `first` as of `chosen`.
    """
    indices = chosen(stage, axes, actual.shape, index, first)
    where = grid(indices, first)
    if comparison is None:
        return Selection(stage, indices, actual[where], None)
    found = comparison.elements
    return Selection(
        stage, indices, actual[where], found.expected[where], found.budget[where], found.over_budget[where],
        found.state[where],
    )  # fmt: skip


def grid(indices: Mapping[str, range], first: Mapping[str, int] = NOTHING) -> Any:
    """What takes the chosen elements out of an array: all combinations of the axes' indices."""
    return np.ix_(*([i - first.get(axis, 0) for i in one] for axis, one in indices.items()))


def parse(text: str) -> tuple[str, Index]:
    """The stage and the index of `stage[...]`, as the command line takes it; () where there are no brackets.

    >>> parse("qk[0, 0, 0:3]")
    ('qk', (0, 0, slice(0, 3, None)))
    >>> parse("qk[q=-1, k=::2]")
    ('qk', {'q': -1, 'k': slice(None, None, 2)})
    """
    match = _TEXT.fullmatch(text)
    if not match:
        raise Refusal(f"{_RULE}; got {text!r}")
    stage, inside = match.groups()
    if inside is None:
        return stage, ()
    parts = [part.strip() for part in inside.split(",")]
    if parts[-1] == "" and len(parts) > 1:
        parts.pop()  # as in a tuple of Python, a comma may end the list
    named = [part.partition("=")[0].strip() for part in parts if "=" in part]
    if not named:
        return stage, tuple(_one(part, text) for part in parts)
    if len(named) < len(parts):
        raise Refusal(f"give indices in order or by name, not both; got {text!r}")
    if twice := [axis for i, axis in enumerate(named) if axis in named[:i]]:
        raise Refusal(f"give each axis once; got {twice[0]} twice in {text!r}")
    found = {axis: _one(part.partition("=")[2].strip(), text) for axis, part in zip(named, parts, strict=True)}
    return stage, found


def _one(part: str, text: str) -> Any:
    """An index, a slice or an Ellipsis."""
    if part == "...":
        return ...
    try:
        numbers = [int(number) if number.strip() else None for number in part.split(":")]
    except ValueError:
        numbers = []
    if len(numbers) == 1 and numbers[0] is not None:
        return numbers[0]
    if not 2 <= len(numbers) <= 3:
        raise Refusal(f"{_RULE}; got {part!r} in {text!r}")
    return slice(*numbers)


def chosen(
    stage: str, axes: str, dims: Sequence[int], index: Index, first: Mapping[str, int] = NOTHING
) -> dict[str, range]:
    """Which indices of each axis `index` chooses, axis letter -> range; `first`: the first index of axes that do not
    begin at 0.

    As NumPy's: negative indices count from the end, slices are cut to the axis, axes that are not named give all of
    theirs. Refusal for a name that is no axis, more indices than axes, an index outside its axis, a slice of nothing.
    """
    names = " ".join(axes)
    if isinstance(index, Mapping):
        for axis in index:
            if axis not in axes or len(axis) != 1:
                raise Refusal(f"stage {stage} has the axes {names}; got {axis!r}")
        one_each = {axis: index.get(axis, slice(None)) for axis in axes}
    else:
        if index.count(...) > 1:
            raise Refusal(f"stage {stage}: use ... at most once, for all the axes not named; got {index.count(...)}")
        given = len(index) - index.count(...)
        if given > len(axes):
            raise Refusal(f"stage {stage} has {len(axes)} axes, {names}; got {given} indices")
        at = index.index(...) if ... in index else len(index)
        rest = [slice(None)] * (len(axes) - given)
        one_each = dict(zip(axes, [*index[:at], *rest, *index[at + 1 :]], strict=True))
    return {
        axis: _along(stage, axis, first.get(axis, 0), size, one_each[axis])
        for axis, size in zip(axes, dims, strict=True)
    }


def _along(stage: str, axis: str, first: int, size: int, one: Any) -> range:
    """The indices of an axis, of `size` from `first` on, that `one` chooses."""
    last = first + size - 1
    if isinstance(one, int | np.integer) and not isinstance(one, bool):
        if not (first <= one <= last or -size <= one < 0):
            raise Refusal(f"stage {stage}: {_named(axis)} {axis} must be {first} to {last}; got {one}")
        at = int(one) if one >= 0 else last + 1 + int(one)
        return range(at, at + 1)
    if not isinstance(one, slice):
        raise Refusal(f"stage {stage}: {_named(axis)} {axis} takes an index or a slice; got {one!r}")
    if one.step == 0:
        raise Refusal(f"stage {stage}: {_named(axis)} {axis} takes a slice with a step other than 0; got {_said(one)}")
    found = range(last + 1)[one]
    if first:  # without those before the first, from whichever end they come
        inside = [i for i in found if i >= first]
        found = range(inside[0], inside[-1] + found.step, found.step) if inside else range(0)
    if not found:
        raise Refusal(
            f"stage {stage}: {_named(axis)} {axis} runs from {first} to {last}; {_said(one)} selects none of them"
        )
    return found


def _named(axis: str) -> str:
    """What an axis is called; of one without a name, that it is one."""
    return AXIS_NAMES.get(axis, "axis")


def _slice(one: range) -> slice:
    """The slice that chooses some indices."""
    stop = None if one.stop < 0 else one.stop
    return slice(one.start, stop, None if one.step == 1 else one.step)


def _said(one: slice) -> str:
    """A slice as it is written."""
    ends = f"{'' if one.start is None else one.start}:{'' if one.stop is None else one.stop}"
    return ends if one.step is None else f"{ends}:{one.step}"
