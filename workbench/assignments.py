"""What the functions of a file of Python assign, as their syntax trees tell: statements, names, values."""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

#: what makes or fills an array with what is to be replaced
_BLANK = re.compile(r"(new_|masked_)?(zeros?|ones|empty|full|fill|blank|device_array)(_like)?_?$")


class Place(NamedTuple):
    """A statement of a function."""

    statement: ast.stmt
    branches: frozenset[tuple[int, int]]  #: of `if` and the like, in which it lies

    def before(self, other: "Place | None") -> bool:
        """Whether it stands above another of the same function; all do above its end, None."""
        if other is None:
            return True
        a, b = self.statement, other.statement
        return (a.lineno, a.col_offset) < (b.lineno, b.col_offset)

    def passed_to(self, other: "Place | None") -> bool:
        """Whether all ways to another statement lead past it, whatever the branches."""
        return self.branches <= (frozenset() if other is None else other.branches)


class Write(NamedTuple):
    """What gives a name, or elements of it, a value."""

    place: Place
    value: ast.expr | None  #: None where no expression says it, as of what a loop runs over
    item: int | None = None  #: which item of the value it is, where that is unpacked


@dataclass(frozen=True, eq=False)
class Function:
    """A function without those that are defined in it."""

    node: ast.FunctionDef

    @cached_property
    def names(self) -> frozenset[str]:
        """All names in it."""
        return frozenset(node.id for node in ast.walk(self.node) if isinstance(node, ast.Name))

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """Its statements, in the order of the text."""
        return (*_places(self.node.body, frozenset()),)

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """Those by position, then those by keyword alone."""
        found = self.node.args
        return tuple(one.arg for one in (*found.posonlyargs, *found.args, *found.kwonlyargs))

    @cached_property
    def writes(self) -> Mapping[str, list[Write]]:
        """Name -> what is assigned to it, in the order of the text."""
        found: dict[str, list[Write]] = {}
        for place in self.places:
            for name, write in _writes(place):
                found.setdefault(name, []).append(write)
        return found

    @cached_property
    def calls(self) -> tuple[tuple[Place, ast.Call], ...]:
        """The statements that are calls."""
        return tuple((place, call) for place in self.places if (call := _call(place.statement)) is not None)

    @cached_property
    def returns(self) -> tuple[tuple[Place, ast.expr], ...]:
        """What it returns, and where."""
        found = [(place, place.statement) for place in self.places]
        return tuple((place, x.value) for place, x in found if isinstance(x, ast.Return) and x.value is not None)

    def last(self, name: str, at: Place | None) -> Write | None:
        """The write to a name that counts of those before a statement; None where none computes."""
        found = [x for x in self.writes.get(name, []) if x.place.before(at) and self._computes(x)]
        always = [x for x in found if x.place.passed_to(at)]
        return next(reversed(always or found), None)

    def items(self, value: ast.expr, at: Place) -> list[ast.expr] | None:
        """The items of a tuple, or of a name that holds one; None of anything else."""
        if isinstance(value, ast.Name) and (write := self.last(value.id, at)) is not None and write.value is not None:
            value = value if write.item is not None else write.value
        return value.elts if isinstance(value, ast.Tuple | ast.List) else None

    def _computes(self, write: Write) -> bool:
        """Whether a write is more than a start: what holds no name of the function is a constant."""
        if write.value is None:
            return True
        if isinstance(write.value, ast.Call) and _BLANK.match(callee(write.value)):
            return False
        names = {node.id for node in ast.walk(write.value) if isinstance(node, ast.Name)}
        return bool(names & {*self.writes, *self.parameters})


def callee(call: ast.Call) -> str:
    """The last name of what is called: `empty` of `np.empty(3)`."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def blocks(statement: ast.stmt | ast.Module) -> list[list[ast.stmt]]:
    """The statements that stand in another one, by the branch of it in which they do."""
    found: list[list[ast.stmt]] = [getattr(statement, name, []) for name in ("body", "orelse", "finalbody")]
    return found + [one.body for name in ("handlers", "cases") for one in getattr(statement, name, [])]


def _places(body: list[ast.stmt], branches: frozenset[tuple[int, int]]) -> Iterator[Place]:
    for statement in body:
        yield Place(statement, branches)
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        forks = isinstance(statement, ast.If | ast.Try | ast.Match)
        for i, block in enumerate(blocks(statement)):
            yield from _places(block, branches | {(id(statement), i)} if forks else branches)


def _writes(place: Place) -> Iterator[tuple[str, Write]]:
    """The names to which a statement gives a value."""
    statement = place.statement
    if isinstance(statement, ast.Assign):
        for target in statement.targets:
            yield from _pairs(place, target, statement.value)
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        yield from _pairs(place, statement.target, statement.value)
    elif isinstance(statement, ast.AugAssign):
        if (name := plain(statement.target)) is not None:
            sum_ = ast.BinOp(ast.Name(name, ast.Load()), statement.op, statement.value)
            yield name, Write(place, ast.copy_location(sum_, statement))
    elif isinstance(statement, ast.For | ast.With):
        bound = [statement.target] if isinstance(statement, ast.For) else [x.optional_vars for x in statement.items]
        names = [node.id for x in bound if x is not None for node in ast.walk(x) if isinstance(node, ast.Name)]
        yield from ((name, Write(place, None)) for name in names)
    elif (call := _call(statement)) is not None:
        if callee(call) == "store" and len(call.args) > 1:  # Triton's, through a pointer with offsets
            pointer = call.args[0]
            while isinstance(pointer, ast.BinOp):
                pointer = pointer.left
            stored, value = plain(pointer), call.args[1]
        elif isinstance(call.func, ast.Attribute) and call.func.attr.endswith("_"):  # torch's, in place
            stored, value = plain(call.func.value), call
        else:
            return
        if stored is not None:
            yield stored, Write(place, value)


def _pairs(place: Place, target: ast.expr, value: ast.expr, item: int | None = None) -> Iterator[tuple[str, Write]]:
    """What an assignment gives the names of its target."""
    if isinstance(target, ast.Tuple | ast.List):
        alike = value.elts if isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts) else None
        for i, one in enumerate(target.elts):
            yield from _pairs(place, one, value, i) if alike is None else _pairs(place, one, alike[i])
    elif (name := plain(target)) is not None:
        yield name, Write(place, value, item)


def plain(value: ast.expr) -> str | None:
    """The name whose value, or elements of it, an expression is; None of one that computes, and of an entry of a dict,
    which other entries say nothing of.
    """
    while isinstance(value, ast.Subscript | ast.Starred):
        if isinstance(value, ast.Subscript) and _is_text(value.slice):
            return None
        value = value.value
    return value.id if isinstance(value, ast.Name) else None


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _call(statement: ast.stmt) -> ast.Call | None:
    """The call that a statement is."""
    return statement.value if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call) else None
