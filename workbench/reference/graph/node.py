"""A graph of primitives: what one run of a plain reference did, without its values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple


class Line(NamedTuple):
    """A line of the reference."""

    file: str
    number: int
    backward: bool = False  #: whether it is the backward pass of that line, by autograd

    def __str__(self) -> str:
        return f"{'backward of ' * self.backward}{self.file}:{self.number}"


@dataclass(frozen=True, eq=False)
class Node:
    """One primitive of a run. Its value follows from those that it reads."""

    op: str  #: key of `rules.RULES`
    reads: tuple[int, ...]  #: the nodes whose values it takes, by their place in the graph
    attributes: Mapping[str, Any]  #: what else the primitive takes, such as an axis
    shape: tuple[int, ...]
    dtype: Any  #: what the reference's own arithmetic would give; noted, not executed
    line: Line
    #: of an input or a constant: its value, in float64 where it is a float
    value: Any = None
    #: significant bits of that value: no product of two such values rounds if their bits add up to 24
    bits: int = 53


@dataclass(frozen=True, eq=False)
class Decision:
    """A place where the run went on with a float64 value: `if x > 0`, `float(x)`, an index."""

    node: int
    line: Line
    words: str
    value: Any  #: with which the run went on


@dataclass(frozen=True, eq=False)
class Graph:
    """A run of a reference: its nodes in order, each after those that it reads."""

    nodes: tuple[Node, ...]
    inputs: Mapping[str, int]
    stages: Mapping[str, tuple[int, ...]]  #: name -> the nodes that had it, one a turn
    results: Mapping[str, int]
    decisions: tuple[Decision, ...] = field(default=())
    #: nodes within one call of a library, such as the row's maximum of a softmax, whose result nobody sees
    inside: frozenset[int] = frozenset()
    #: result -> the input that is its gradient, where gradients were asked for
    cotangents: Mapping[str, str] = field(default_factory=dict)
    gradients: Mapping[str, str] = field(default_factory=dict)  #: input -> the result that is its gradient
    #: copies of what the forward pass keeps for the backward pass, which that alone reads: `named` nodes. Neither
    #: inputs nor whole numbers, nor what only a comparison reads, as that of a maximum
    saved: frozenset[int] = frozenset()
    #: node of the backward pass -> the node whose value it computes again, with roundings of its own
    again: Mapping[int, int] = field(default_factory=dict)
    #: node of a function that the reference calls -> the line of the reference that does
    calls: Mapping[int, Line] = field(default_factory=dict)
    #: constant of whole numbers -> the primitive that makes it of others, and what that reads
    made_of: Mapping[int, tuple[str, tuple[int, ...]]] = field(default_factory=dict)

    @property
    def input_size(self) -> int:
        """Numbers of all inputs."""
        return sum(prod(self.nodes[i].shape) for i in self.inputs.values())

    def places(self) -> dict[str, int]:
        """Every name by which a value can be asked: `name`, its last value, and `name[i]`, that of iteration i; results
        too.
        """
        found = {name: turns[-1] for name, turns in self.stages.items()}
        for name, turns in self.stages.items():
            if len(turns) > 1:
                found |= {f"{name}[{i}]": node for i, node in self.iterations(name).items()}
        return {**self.results, **found}

    def iterations(self, name: str) -> dict[int, int]:
        """Index -> node of a stage. Values that its last line made count from 0, as in a loop; those before up to -1:
        `state[-1]` is the initial state.
        """
        turns, latest = self.stages[name], self.latest(name)
        before = turns.index(latest[0])
        return {k - before: node for k, node in enumerate((*turns[:before], *latest))}

    def latest(self, name: str) -> tuple[int, ...]:
        """The turns of a stage that its last line made: of a name that is assigned again its last value, of a loop all
        turns, without what the name was before.
        """
        turns = self.stages[name]
        return tuple(i for i in turns if self.nodes[i].line == self.nodes[turns[-1]].line)

    def called(self, result: str) -> str:
        """The name of a result: that of the variable that holds it in the end; its own where there is none, or a key of
        a dict.
        """
        if not result.startswith("result"):
            return result
        node = self.results[result]
        return next((name for name, turns in reversed([*self.stages.items()]) if turns[-1] == node), result)
