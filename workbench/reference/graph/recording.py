"""What a run writes down: its nodes, the lines of the reference that made them, and the names that it gives."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any, NoReturn

import numpy as np

from workbench.reference.graph.node import Decision, Graph, Line, Node
from workbench.reference.graph.rules import CONSTANT, INPUT, RULES
from workbench.reference.graph.rules.moves import MOVES
from workbench.reference.graph.values import Values
from workbench.refusal import Refusal

_HERE = str(Path(__file__).parent)
_NUMPY = str(Path(np.__file__).parent)
#: the recording of the run that is under way, if any
_RUN: ContextVar["Recording | None"] = ContextVar("run", default=None)
#: a float64's bits below the leading one
FRACTION = (1 << 52) - 1


@dataclass(frozen=True)
class Backward:
    """A backward pass that is under way."""

    caller: CodeType  #: what asked autograd for it; functions of the reference that it calls in turn have lines
    line: Callable[[], Line]  #: whose backward pass it is
    first: int  #: its first node


class Recording:
    """The nodes of one run, in order."""

    def __init__(self, device: Any = None) -> None:
        self.nodes: list[Node] = []
        #: of a run whose arrays are blank, since its values are to be on a device of torch
        self.values = None if device is None else Values(self.nodes, device)
        self.inputs: dict[str, int] = {}
        self.stages: dict[str, list[int]] = {}
        self.decisions: list[Decision] = []
        self.inside: set[int] = set()
        self._theirs = (_HERE, _NUMPY, *_of_torch())  #: files that are not the reference's
        self._named: set[int] = set()
        self.kept: set[int] = set()  #: nodes that a kernel may keep in fewer bits for its backward pass
        self.again: dict[int, int] = {}  #: node -> the node whose value it computes again
        self.backward: Backward | None = None  #: while autograd goes back

    def add(self, op: str, reads: tuple[int, ...], attributes: Mapping[str, Any], y: Any, dtype: Any) -> int:
        """A primitive, whose result has the shape of y; Refusal without a rule for it."""
        if op not in RULES:
            self.refuse(f"no rule for {op}")
        self.nodes.append(Node(op, reads, attributes, tuple(y.shape), dtype, self.line()))
        return len(self.nodes) - 1

    def hold(self, value: Any, dtype: Any, name: str = "", bits: int | None = None) -> int:
        """An input, or without a name a constant, by its value."""
        bits = significant(value) if bits is None else bits
        node = Node(INPUT if name else CONSTANT, (), {}, tuple(value.shape), dtype, self.line(), value, bits)
        self.nodes.append(node)
        if name:
            self.inputs[name] = len(self.nodes) - 1
        return len(self.nodes) - 1

    def name(self, name: str, node: int, again: bool = False) -> None:
        """One more turn of a stage; `again`: the last one anew, as after a write to a part of it."""
        turns = self.stages.setdefault(name, [])
        if again and turns:
            turns.pop()
        if not turns or turns[-1] != node:
            turns.append(node)
            self._named.add(node)

    def named(self, node: int) -> bool:
        """Whether it is a stage already."""
        return node in self._named

    def decide(self, node: int, words: str, value: Any) -> None:
        """Notes that the run goes on with a value."""
        self.decisions.append(Decision(node, self.line(), words, value.copy()))

    def one_call(self, first: int, made: Iterable[int]) -> None:
        """Notes that one call of a library made all nodes from `first` on, and that only those of `made` are seen."""
        if len(self.nodes) - first < 2:
            return
        seen = set()
        for i in made:
            while self.nodes[i].op in MOVES and self.nodes[i].reads:  # what rounds is behind them
                i = self.nodes[i].reads[-1 if self.nodes[i].op == "write" else 0]
            seen.add(i)
        self.inside.update(i for i in range(first, len(self.nodes)) if i not in seen)

    def line(self) -> Line:
        """The line of the reference that is being run."""
        frame: Any = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename.startswith(self._theirs):
            if self.backward is not None and frame.f_code is self.backward.caller:
                return self.backward.line()
            frame = frame.f_back
        return Line("?", 0) if frame is None else Line(frame.f_code.co_filename, frame.f_lineno)

    def refuse(self, words: str) -> NoReturn:
        """Raises a Refusal that names the line."""
        raise Refusal(f"{self.line()}: {words}")

    def graph(self, results: Mapping[str, int], **of_gradients: Any) -> Graph:
        """What was recorded; `of_gradients`: further fields of the graph."""
        stages = {name: tuple(turns) for name, turns in self.stages.items()}
        return Graph(
            tuple(self.nodes), dict(self.inputs), stages, dict(results), tuple(self.decisions),
            inside=frozenset(self.inside), **of_gradients,
        )  # fmt: skip


def _of_torch() -> tuple[str, ...]:
    """Where torch's own code is, and that of einops, where they are loaded."""
    found = (sys.modules.get(name) for name in ("torch", "einops"))
    return tuple(str(Path(one.__file__).parent) for one in found if one is not None and one.__file__)


@contextmanager
def recording(device: Any = None) -> Iterator[Recording]:
    """A recording that `stage` writes to. device: of torch, for a run whose arrays are blank."""
    run = Recording(device)
    token = _RUN.set(run)
    try:
        yield run
    finally:
        _RUN.reset(token)


def stage(name: str, x: Any) -> Any:
    """`x`, named as an intermediate of a reference: in a run of the workbench a dump of that name is judged against it,
    and takes its place in what follows. Outside of a run nothing happens.

    A name that is given again, as in a loop, has one value a turn: `name[0]`, `name[1]`, ..., and `name` is the last.

    Refusal for a name that is no string or is empty, and in a run for an x that is no array of it.

    >>> stage("scores", 3.0)
    3.0
    """
    run = _RUN.get()
    if run is None:
        return x
    if not isinstance(name, str) or not name:
        run.refuse(f"stage takes the name first, a string; got {name!r}")
    node = getattr(x, "node_of_run", None)
    if node is None:
        run.refuse(f"stage {name!r} takes an array that the reference computed from its inputs; got {type(x).__name__}")
    if run.named(node):  # of one value under two names each has a dump of its own
        x = x.again()
    run.name(name, x.node_of_run)
    return x


def may_lose(x: Any, each: Any, times: int = 1) -> Any:
    """`x`, of which a kernel may lose up to |each|, so many `times`, as by a cast that it makes or does not.

    In a run of the workbench that is in the budgets of what follows. Outside of a run nothing happens.

    >>> may_lose(3.0, 0.5)
    3.0
    """
    run = _RUN.get()
    if run is None:
        return x
    each = each + 0.0 * x
    node = run.add("lose", (x.node_of_run, each.node_of_run), {"times": times}, x.value, x.dtype)
    return type(x)(run, x.value.copy(), node, x.dtype, x.fixed)


def applied(f: Callable[[Any], Any], x: Any, *, reads: bool = True) -> Any:
    """f(x), element by element, 0 where that is not finite. `reads`: whether it loses digits of x, too.

    In a run of the workbench f is called with arrays of float64, and its budget is of its values near x.
    """
    run = _RUN.get()
    if run is None:
        made = f(x)
        return np.where(np.isfinite(made), made, 0.0)
    return x.made("applied", {"f": f, "reads": reads}, RULES["applied"].value(x.value, f=f, reads=reads))


def significant(x: np.ndarray) -> int:
    """Significant bits that all values of a float64 array need, 0 where all are 0; NaN and infinities need none."""
    x = np.asarray(x)
    if x.dtype.kind == "b":
        return int(x.any())
    x = x.astype(np.float64)
    fractions = x.view(np.int64)[np.isfinite(x)] & FRACTION if x.ndim else _of_one(x)
    whole = int(np.bitwise_or.reduce(fractions, axis=None, initial=0)) if fractions.size else 0
    if not whole:
        return int(bool(np.any(x != 0)))
    return 53 - ((whole & -whole).bit_length() - 1)


def _of_one(x: np.ndarray) -> np.ndarray:
    return np.atleast_1d(x).view(np.int64)[np.isfinite(np.atleast_1d(x))] & FRACTION
