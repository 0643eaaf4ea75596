"""Context: what a step sees of a run while its table is walked."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import cache, cached_property
from itertools import groupby
from typing import Any, TypeVar

import numpy as np

from workbench.floats import array_namespace, largest, smallest_subnormal, unit_roundoff
from workbench.reference.arithmetic import FLOAT32, Arithmetic
from workbench.reference.bound import EXACT, Bound, added, changed, part, statistical
from workbench.reference.mode import VALUE, Mode
from workbench.reference.problem import OF_ATTENTION, Problem
from workbench.reference.sites import Sites, sites_of
from workbench.reference.stage import Bounded, Same, Step, reads

Made = TypeVar("Made")
#: roundings of float32 that a change of what is read may cost: a product with a factor that is rounded itself
CHANGE_ROUNDINGS = 2
LARGEST_FLOAT32, SMALLEST_FLOAT32 = largest("float32"), smallest_subnormal("float32")

#: what a value becomes, of Context and the value
Change = Callable[["Context", Any], Any]


class Context:
    """What a step sees: at one tile, or at none, the values and bounds of what it reads, and what holds for the run."""

    def __init__(self, p: Problem, computed: dict[str, np.ndarray] | None = None, mode: Mode = VALUE) -> None:
        self.p, self.mode = p, mode
        self.table, self.contract, self.losses, self.tiling = p.table, p.contract, p.losses, p.tiling
        self.statistics, self.splits = p.statistics, p.splits
        self.computed = {} if computed is None else computed
        self.bounds: dict[str, Bounded] = {}
        self.name = ""  #: of the stage that is visited
        self.tile: tuple[int, int | None] | None = None  #: the tile and the one before it
        self._cached: dict[Any, Any] = {}
        self._own: Any = None  # of a step that is changed, in place of what the stage holds
        self._readings: dict[str, Change] = {}  # of what is read as something else
        self._refs: dict[str, tuple[str, bool, bool]] = {}

    # what it reads

    def __call__(self, ref: str) -> Any:
        """The value of what `ref` names: the dumped one where there is one, at the tile where it has tiles or keys."""
        if ref in self._readings:
            change = self._readings[ref]
            with self.reading(ref, None):
                return change(self, self(ref))
        name, earlier, by_tile = self._resolved(ref)
        if by_tile:
            return self.make(self.table[name].step)
        array = self.whole(name)
        index = self._index(name, earlier)
        if index is None:
            return self._before_first(name, array)
        return array[index] if index else array

    def whole(self, name: str) -> Any:
        """The same at all tiles."""
        if name in self.p.given:
            return self.p.given[name]
        if name in self.p.inputs:
            return self.p.inputs[name]
        if name not in self.computed:  # a parameter, or what is asked before its turn
            self.computed[name] = self._at_none(name, self.make)
        return self.computed[name]

    def error(self, ref: str) -> Bound:
        """The bound of the error of what `ref` names; EXACT where it was dumped, and before the first tile."""
        if ref in self._readings:
            change = self._readings[ref]
            with self.reading(ref, None):
                x = self(ref)
                y = change(self, x)
                own = np.where(np.isfinite(y), CHANGE_ROUNDINGS * unit_roundoff("float32") * abs(y), 0.0)
                return added(changed(self, x, self.error(ref), change), Bound(own, 0.0, own))
        name, earlier, by_tile = self._resolved(ref)
        if by_tile:
            with self.owning(None):
                return self.bounded(self.table[name].step).bound
        index = self._index(name, earlier)
        if index is None:
            return self._error_before_first(name)
        known = self.whole_error(name)
        return part(known, index) if index else known

    def whole_error(self, name: str) -> Bound:
        """The same at all tiles."""
        if name in self.p.given:
            return EXACT
        if name not in self.table:
            return self._of_input(name)
        if name not in self.bounds:
            with self.owning(None):
                self.bounds[name] = self._at_none(name, self.bounded)
        return self.bounds[name].bound

    def magnitude(self, name: str) -> Any:
        """The sum of the sizes of the terms of a stage that is no running sum."""
        key = ("magnitude", name, self.owns)
        return self.once(key, lambda: self._at_none(name, lambda step: step.magnitude(self)))

    def terms(self, name: str) -> Any:
        """What the results that are put together in a stage add up to in size: its own where it was dumped by tiles."""
        return abs(self(name)) if self.table[name].dumped else self.magnitude(name)

    def interval(self, name: str) -> Any:
        """What a correct kernel may have as `name`, a stage of codes that was not dumped."""
        if name in self._readings:
            change = self._readings[name]
            with self.reading(name, None):
                return self.interval(name).after(lambda x: change(self, x))
        self.whole(name)
        with self.owning(None):
            return self._at_none(name, lambda step: step.interval(self))

    def given(self, ref: str) -> bool:
        """Whether it was dumped."""
        return self._resolved(ref)[0] in self.p.given

    def axes(self, ref: str) -> str:
        """Its axes."""
        name = self._resolved(ref)[0]
        return self.table[name].axes if name in self.table else OF_ATTENTION[name]

    def arithmetic(self, site: str) -> Arithmetic:
        """What the kernel of an operation promises of a rounding site; float32 where it says nothing."""
        return self.p.arithmetic.get(site, FLOAT32)

    @property
    def sites(self) -> Sites:
        """What the contract of attention promises of each."""
        return sites_of(self.contract)

    # of the stage that is visited

    @property
    def own(self) -> Any:
        """Its value, as it was computed where it was dumped; made now where bounds alone look at it."""
        if self._own is not None:
            return self._own
        array = self.computed[self.name] if self.name in self.computed else self.whole(self.name)
        return array[self._index(self.name, False)]

    @property
    def owns(self) -> bool:
        """Whether its own value is that before a change."""
        return self._own is not None

    @contextmanager
    def owning(self, value: Any | None) -> Iterator[None]:
        """With another value as its own: of a step that is changed, the value before the change."""
        before, self._own = self._own, value
        try:
            yield
        finally:
            self._own = before

    @contextmanager
    def reading(self, ref: str, change: Change | None) -> Iterator[None]:
        """With `change(at, x)` in place of x, the value of `ref`; None: with x itself."""
        before = self._readings
        self._readings = {name: one for name, one in before.items() if name != ref} | ({ref: change} if change else {})
        try:
            yield
        finally:
            self._readings = before

    def computed_before(self) -> Any:
        """Its value after the previous tile, whatever was dumped."""
        index, array = self._index(self.name, True), self.computed[self.name]
        return self._before_first(self.name, array) if index is None else array[index]

    def found_before(self) -> Bound:
        """The bound of that."""
        index = self._index(self.name, True)
        return EXACT if index is None else part(self.bounds[self.name].bound, index)

    def likely(self, bound: Bound) -> Any:
        """The statistical bound of something that has as many elements."""
        return statistical(bound, self.p.elements_of(self.name))

    # of the run

    @property
    def heads(self) -> int:
        """Query heads."""
        return int(self.p.inputs["q"].shape[1])

    @cached_property
    def predicted(self) -> frozenset[str]:
        """Which of the casts of `probs` and `partials` are computed as the kernel does it."""
        return self.p.predicted_casts

    def cast(self, x: Any, cast: str) -> Any:
        """`x` after the cast of `probs` or `partials`, where that is predicted."""
        return getattr(self.sites, cast).rounded(x) if cast in self.predicted else x

    def cast_control(self, x: np.ndarray, site: Arithmetic) -> np.ndarray:
        """float32 `x` after the cast at a site, which cuts off in a biased mode and the contract allows it."""
        cut = site.rounding == "toward-zero" or (site.rounding == "any" and self.mode.biased)
        return x if site.wide else site.rounded(x, toward_zero=cut).astype(np.float32)

    def add_products(self, start: np.ndarray | None, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """start + a @ b in float32, in the order of additions of the evaluation mode."""
        return self.mode.add_products(start, a, b, self.contract)

    def once(self, key: Any, make: Callable[[], Made]) -> Made:
        """What `make` makes, made once in this walk."""
        if key not in self._cached:
            self._cached[key] = make()
        return self._cached[key]

    # the walk

    def make(self, step: Step) -> Any:
        """What the step computes, in the walk's mode."""
        made = getattr(step, self.mode.method, step.value)(self)
        return in_float32_range(made) if self.mode.float32_range else made

    def bounded(self, step: Step) -> Bounded:
        """What the step's bound tells."""
        bound = getattr(step, "bound", None)
        return Bounded(EXACT) if bound is None else bound(self)

    @cached_property
    def looped(self) -> frozenset[str]:
        """What is computed tile by tile: what has tiles, and what reads such a thing along the keys."""
        found = {
            name for name, stage in self.table.items() if "t" in stage.axes
        }  # a state may be read before it is made
        for name, stage in self.table.items():
            if "k" in stage.axes and not found.isdisjoint(reads(stage.step, near=True)):
                found.add(name)
        return frozenset(found)

    def visits(self, names: Collection[str]) -> Iterator[str]:
        """The stages `names` in the order in which a kernel makes them, split by split and tile by tile; `name` and
        `tile` are set.
        """
        stages = [name for name in self.table if name in names]
        for looped, some in groupby(stages, lambda name: name in self.looped):
            group = list(some)
            for tile in self.tiling.order if looped else (None,):
                for name in group:
                    self.name, self.tile = name, tile
                    yield name
        self.tile = None

    def place(self) -> tuple:
        """Where the visited stage's value at the tile lies in its array."""
        index = self._index(self.name, False)
        assert index is not None
        return index

    def _resolved(self, ref: str) -> tuple[str, bool, bool]:
        """Name; whether it is the value after the previous tile; whether it is a parameter that is made anew at each
        tile. A stage that is another under its own name is that one.
        """
        found = self._refs.get(ref)
        if found is None:
            name, earlier = ref.lstrip("-"), ref[0] == "-"
            while name in self.table and isinstance(step := self.table[name].step, Same):
                name, earlier = step.of.lstrip("-"), earlier or step.of[0] == "-"
            by_tile = name in self.table and not self.table[name].dumped and name in self.looped
            found = self._refs[ref] = (name, earlier, by_tile)
        return found

    def _index(self, name: str, earlier: bool) -> tuple | None:
        """Where in its array the value at the tile lies, () where it is all of it; None before the first tile."""
        by_tile, by_key, behind = self._axes(name)
        if by_tile:
            tile = (self.tiling.last, None) if self.tile is None else self.tile
            t = tile[1] if earlier else tile[0]
            return None if t is None else (..., t, *behind)
        if self.tile is not None and by_key:
            return (..., self.tiling.keys[self.tile[0]], *behind)
        return ()

    def _axes(self, name: str) -> tuple[bool, bool, tuple]:
        """Whether what has a name has tiles, or keys, and the index of what follows these."""
        return _of_axes(self.table[name].axes if name in self.table else OF_ATTENTION[name])

    def _before_first(self, name: str, array: np.ndarray) -> np.ndarray:
        like, stage, xp = array[(..., 0, *self._axes(name)[2])], self.table[name], array_namespace(array)
        if self._begins(name):
            return xp.zeros_like(like) + self.whole(stage.begins)
        return xp.full_like(like, stage.initial)

    def _begins(self, name: str) -> str:
        """What a stage begins with at this tile, where it is no number."""
        assert self.tile is not None
        return self.table[name].begins if self.tile[0] == self.tiling.order[0][0] else ""

    def _error_before_first(self, name: str) -> Bound:
        begins = self._begins(name)
        return self._of_input(begins) if begins in self.p.inputs else EXACT

    def _of_input(self, name: str) -> Bound:
        """What a kernel has of an input that is off: one that nobody saw, and a sink in other units than its own."""
        if name == "sinks" and self.losses.units:
            x = self.whole(name)
            lost = self.losses.units * array_namespace(x).where(abs(x) < np.inf, abs(x), 0.0)
            return Bound(lost, 0.0, lost)
        errors = self.p.input_errors or {}
        return Bound(errors[name], 0.0, errors[name]) if name in errors else EXACT

    def _at_none(self, name: str, what: Callable[[Any], Made]) -> Made:
        """What a step that is visited at no tile makes, out of its turn."""
        before = self.name, self.tile
        self.name, self.tile = name, None
        try:
            return what(self.table[name].step)
        finally:
            self.name, self.tile = before


@cache
def _of_axes(axes: str) -> tuple[bool, bool, tuple]:
    """As `Context._axes`, of letters."""
    return "t" in axes, "k" in axes, (slice(None),) * (len(axes) - 1 - max(axes.find("t"), axes.find("k")))


def in_float32_range(x: Any) -> Any:
    """x, infinite where float32 cannot hold it and 0 where it rounds to that."""
    if not isinstance(x, np.ndarray) or x.dtype != np.float64:
        return x
    size = abs(x)
    y = np.where(size < SMALLEST_FLOAT32 / 2, 0.0, x)
    if np.maximum.reduce(size, axis=None, initial=0.0) <= LARGEST_FLOAT32:
        return y
    return np.where(size > LARGEST_FLOAT32, np.copysign(np.inf, x), y)
