"""Stages and budgets of a loop in plain code that carries a state, from the graph of one turn, for all turns at once.

A turn is affine in the state before it, each column by the same matrix P: state = P before + c. Unit vectors and 0 in
the place of `before` give P and c of every turn, and these give the states. What a turn rounds is bounded from the
right state before it. Errors of earlier turns go through the signed product of the matrices between, in reverse from
each row of a stage: through absolute values they would double with every token.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from workbench.floats import to_float64
from workbench.operations.carried import Array, Errors, Rounded, behind, lengths_of, summed
from workbench.operations.operation import Turn
from workbench.operations.run import OperationRun, size_of
from workbench.reference.bound import Budget, deviations
from workbench.reference.graph import Contract, Expected, Graph, trace
from workbench.reference.graph.expected import placed
from workbench.reference.graph.forward import forward
from workbench.reference.graph.operands import with_operands
from workbench.reference.graph.plan import upstream
from workbench.reference.graph.reverse import MARGIN

#: input of a turn, and its local
BEFORE, STATE = "before", "state"
#: multiply-adds to follow errors back through iterations, about a second; beyond them norms bound what is left
WORK = 4e9
#: numbers of all states that are held at once, of as many heads as have no more
HELD = 2**22


def scans_of(run: OperationRun) -> "list[Scan]":
    """Those of a run, for some heads each; none where its operation carries no state in plain code."""
    case, operation = run.case, run.case.operation
    turn = operation.turn(run.setting)
    if turn is None:
        return []
    axes = {**operation.inputs, **operation.stages(run.setting)}
    sizes = {axis: size_of(case, axis) for axis in "".join(axes.values())}
    state = prod(sizes[axis] for axis in axes[STATE])
    d, e = (sizes[axis] for axis in axes[STATE][-2:])
    back = max(int(WORK / (state // e * (d + 2 * e))), 1)
    group = max(HELD * sizes["h"] // state, 1)
    return [_of_heads(run, turn, axes, sizes, slice(first, first + group), back)
            for first in range(0, sizes["h"], group)]  # fmt: skip


def _of_heads(
    run: OperationRun, turn: Turn, axes: Mapping[str, str], sizes: Mapping[str, int], heads: slice, back: int
) -> "Scan":
    """That of some heads."""
    operation, inputs = run.case.operation, {name: x[:, heads] for name, x in run.inputs.items()}
    given = {name: _in_turns(x, axes[name], operation.walked) for name, x in inputs.items() if name != turn.begins}
    initial = to_float64(inputs[turn.begins])
    before = np.zeros((*initial.shape[:2], sizes["t"], *initial.shape[2:]), np.float32)
    graph = trace(turn.function, {**given, BEFORE: before, **run.case.numbers})
    of_columns = {name: np.zeros(x.shape) for name, x in given.items() if axes[name][-1] == axes[STATE][-1]}
    contract = operation.contract(run.setting)
    return Scan(graph, _with(graph, of_columns), contract, turn, axes, sizes, operation.walked, heads, initial, back)


@dataclass(frozen=True, eq=False)
class Scan:
    """All turns of some heads of a run."""

    graph: Graph = field(repr=False)
    linear: Graph = field(repr=False)  #: the same, of 0 for inputs that have the columns of the state
    contract: Contract
    turn: Turn
    axes: Mapping[str, str]  #: of inputs and stages
    sizes: Mapping[str, int]
    walked: str
    heads: slice
    initial: Array  #: the state before the first turn
    back: int  #: turns that rows go back at most

    def values(self, given: Mapping[str, Array], names: Collection[str]) -> dict[str, Array]:
        """The stages `names`, of the `given` ones before each, and of the inputs."""
        dumps = self._dumps(given)
        made = _values(_with(self.graph, {BEFORE: self._states(dumps)[0]}), dumps, names)
        return {name: self._whole(x, name) for name, x in made.items()}

    @np.errstate(all="ignore")
    def expected(self, given: Mapping[str, Array], names: Collection[str]) -> dict[str, Expected]:
        """The same with budgets."""
        dumps, written = self._dumps(given), self.turn.written
        before, after = self._states(dumps)
        graph = _with(self.graph, {BEFORE: before})
        if STATE in given:
            made = self._rounded(graph, dumps, names)
            return {name: self._expected(name, made[name], made[name].off) for name in names}
        carried = [STATE] if written in given else [STATE, written]
        own = {STATE: after, written: _values(graph, dumps, [written])[written]}
        made = self._rounded(graph, {**own, **dumps}, {*names, *carried})
        off = self._carried(made, dumps, names, carried)
        return {name: self._expected(name, made[name], off[name]) for name in names}

    def matters(self, given: Collection[str], names: Collection[str]) -> bool:
        """Whether some of `names`, or a state, are made of a `given` stage."""
        places, found = self.graph.places(), set[int]()
        for i in (places[name] for name in (*names, STATE)):
            found |= upstream(self.graph, [i]) - {i}
        return any(places[name] in found or name == STATE for name in given)

    def nodes(self, names: Collection[str]) -> dict[int, str]:
        """Node of a turn -> the stage of `names` whose value it has; of a state also what it was before the turn."""
        found = {i: name for name, i in self.graph.places().items() if name in names}
        return found | ({self.graph.inputs[BEFORE]: STATE} if STATE in names else {})

    # values

    def _states(self, dumps: Mapping[str, Array]) -> tuple[Array, Array]:
        """The states before and after each turn; dumped ones where there are some."""
        after = dumps.get(STATE)
        if after is None:
            nothing = _with(self.graph, {BEFORE: np.zeros(self._shape(STATE))})
            after, last = _values(nothing, dumps, [STATE])[STATE], self.initial
            transition = self._by(BEFORE, [STATE], dumps)[STATE]
            for t in range(after.shape[2]):
                last = transition[:, :, t] @ last + after[:, :, t]
                after[:, :, t] = last
        return np.concatenate([self.initial[:, :, None], after[:, :, :-1]], axis=2), after

    def _by(self, by: str, names: Collection[str], dumps: Mapping[str, Array]) -> dict[str, Array]:
        """d stages / d the state before, or d another stage, by unit vectors, one for each column at once."""
        shape = self._shape(STATE if by == BEFORE else by)
        found: dict[str, list[Array]] = {name: [] for name in names}
        constant = {name: np.zeros(x.shape) if self._has_columns(name) else x for name, x in dumps.items()}
        for first in range(0, shape[-2], shape[-1]):
            unit, before = np.broadcast_to(np.eye(shape[-2], shape[-1], -first), shape), np.zeros(self._shape(STATE))
            if by == BEFORE:
                made = _values(_with(self.linear, {BEFORE: unit}), constant, names)
            else:
                made = _values(_with(self.linear, {BEFORE: before}), {**constant, by: unit}, names)
            for name, x in made.items():
                found[name].append(x)
        return {name: np.concatenate(x, axis=-1)[..., : shape[-2]] for name, x in found.items()}

    def _has_columns(self, name: str) -> bool:
        return self.axes[name][-1] == self.axes[STATE][-1]

    # budgets

    def _rounded(self, graph: Graph, dumps: Mapping[str, Array], names: Collection[str]) -> dict[str, Rounded]:
        """The stages `names` from what each reads, dumped or not."""
        places = graph.places()
        run = forward(graph, self.contract, {places[name] for name in names}, placed(graph, dumps), {})
        found = {}
        for name in names:
            value, error = run.values[places[name]], run.errors[places[name]]
            off = Errors(*(np.broadcast_to(np.asarray(x, np.float64), value.shape) for x in error[:3]))
            size = run.budgets[places[name]].size
            found[name] = Rounded(value, off, size, error.sources, any(error.shared[-2:-1]))
        return found

    def _carried(
        self, made: Mapping[str, Rounded], dumps: Mapping[str, Array], names: Collection[str], carried: Sequence[str]
    ) -> dict[str, Errors]:
        """How far each stage is off with what `carried` stages of its turn and of those before it were off by."""
        moved = [name for name in names if self._has_columns(name)]
        before, *own = (self._by(by, {*moved, STATE}, dumps) for by in (BEFORE, *carried))
        transition = before[STATE]
        sources = [(None if name == STATE else rows[STATE], made[name])
                   for name, rows in zip(carried, own, strict=True)]  # fmt: skip
        added = summed([(one.sources, one.off if rows is None else one.through(rows)) for rows, one in sources])
        earlier, whole = lengths_of(transition, added)
        found = {}
        for name in names:
            one = made[name]
            parts = [(one.sources, one.off)]
            if name in moved:
                parts += [(made[by].sources, made[by].through(rows[name]))
                          for by, rows in zip(carried, own, strict=True) if by != name]  # fmt: skip
            off = summed(parts)
            if name == STATE:  # as many rows as dims: by norms
                off = off.plus(earlier)
            elif name in moved:
                off = off.plus(behind(before[name], transition, sources, whole, self.back))
            found[name] = off.times(MARGIN)
        return found

    def _expected(self, name: str, one: Rounded, off: Errors) -> Expected:
        """As arrays of the run; a budget is NaN where the value is, infinite where nothing can be said."""
        value = one.value
        worst, variance, common = (np.where(np.isnan(x), np.inf, x) for x in off)
        elements = prod(self.sizes[axis] for axis in self.axes[name])
        likely = np.minimum(common + deviations(elements) * np.sqrt(variance), worst)
        nan, size = np.isnan(value), one.size
        bound, statistical = (self._whole(np.where(nan, np.nan, x), name) for x in (worst, likely))
        if not isinstance(size, float):
            size = self._whole(np.broadcast_to(size, value.shape), name)
        return Expected(self._whole(value, name), Budget(bound, statistical, size))

    # turns

    def _dumps(self, given: Mapping[str, Array]) -> dict[str, Array]:
        some = {name: to_float64(x)[:, self.heads] for name, x in given.items()}
        return {name: _in_turns(x, self.axes[name], self.walked) for name, x in some.items()}

    def _shape(self, name: str) -> tuple[int, ...]:
        """Of a stage of all turns."""
        axes, heads = self.axes[name], self.initial.shape[1]
        sizes = [heads if axis == "h" else self.sizes[axis] for axis in axes]
        return tuple(sizes) if self.walked not in axes else (*sizes[:3], 1, *sizes[3:])

    def _whole(self, x: Array, name: str) -> Array:
        """A stage as a run has it."""
        return x if self.walked not in self.axes[name] else x.squeeze(self.axes[name].index(self.walked) + 1)


def _in_turns(x: Array, axes: str, walked: str) -> Array:
    """With an axis of the one place that a turn has, behind that of turns."""
    return x if walked not in axes else np.expand_dims(x, axes.index(walked) + 1)


def _with(graph: Graph, inputs: Mapping[str, Array]) -> Graph:
    """A graph with other values of inputs."""
    nodes = list(graph.nodes)
    for name, x in inputs.items():
        nodes[graph.inputs[name]] = replace(nodes[graph.inputs[name]], value=np.asarray(x, np.float64), bits=53)
    return replace(graph, nodes=tuple(nodes))


def _values(graph: Graph, dumps: Mapping[str, Array], names: Collection[str]) -> dict[str, Array]:
    return dict(zip(names, with_operands(graph, [*names], dumps, lambda line, x: x), strict=True))
