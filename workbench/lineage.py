"""Where a Python function makes a value: the statement that computes it, found in the syntax tree of its file.

Of several assignments to a name, that one counts which computes (no constant, no empty array) whatever branch is taken,
the last of these: `scores = q @ k.T`, not the `scores = where(visible, scores, -inf)` behind it in an `if`. An element
that is loaded (`dot = tile[r, c]`) leads on to what was stored, an array that is handed to a function of the same file
to what that stores into it. Where several places may be meant, none is told: a reader is sent there.
"""

import ast
import builtins
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from workbench.assignments import Function, Place, Write, blocks, callee, plain

#: what hands on the value that it is given, at most rounded
_METHODS = frozenset(
    ("astype", "bfloat16", "clone", "contiguous", "copy", "copy_to_host", "cpu", "detach", "float", "get", "half")
    + ("numpy", "to", "view")
)
_FUNCTIONS = frozenset(("array", "asarray", "ascontiguousarray", "float16", "float2half_rn", "float32", "half2float"))
#: what is given an array and leaves it alone
_READERS = frozenset(("append", "debug", "info", "save", "savez", *dir(builtins)))
#: what takes one of two values for each element
_CHOOSERS = frozenset(("where", "masked_fill", "masked_fill_", "select", "selp"))
#: what computes nothing, and whose maker no name tells
_HELD = ast.Attribute | ast.Subscript | ast.Constant
#: where something is computed
Node = ast.stmt | ast.expr
#: functions that are gone into, one from the other
_DEPTH = 5


@dataclass(frozen=True, eq=False)
class File:
    """The functions of a file of Python."""

    defined: tuple[Function, ...]

    @cached_property
    def functions(self) -> Mapping[str, Function]:
        """By name, those whose name no other has."""
        names = Counter(one.node.name for one in self.defined)
        return {one.node.name: one for one in self.defined if names[one.node.name] == 1}

    def made(self, function: Function, value: ast.expr, at: Place | None, depth: int = _DEPTH) -> Node | None:
        """Where a value that stands in a statement is computed: where it stands, or, if it is but a name, where that
        was given it; None where that is not clear.
        """
        inner = _unconverted(value)
        if (name := plain(inner)) is not None:
            return self._named(function, name, at, depth)
        return None if isinstance(inner, _HELD) else value

    def stored(self, function: Function, name: str, depth: int = _DEPTH) -> Node | None:
        """Where what a function leaves in an array, one of its parameters, is computed; None where it stores nothing
        there, or that is not clear.
        """
        write = function.last(name, None)
        if write is None or write.value is None:
            return self._filled(function, name, None, depth)
        made = self.made(function, write.value, write.place, depth)
        return write.place.statement if made is None else made

    def returned(self, function: Function, item: int, depth: int = _DEPTH) -> Node | None:
        """Where an item of the tuple that a function returns is computed; None where that is not clear."""
        return agreed(self._item(function, value, item, place, depth) for place, value in function.returns)

    def masked(self, made: Node) -> Node | None:
        """The one statement behind that of `made`, of the same function, that replaces what it computes in some cases
        or elements, as a mask does; its own where it chooses itself. None without one, and of several.
        """
        held = [(f, x) for f in self.defined for x in f.places if any(node is made for node in ast.walk(x.statement))]
        if not held:
            return None
        function, place = held[-1]  # the innermost
        writes = [x for own in function.writes.values() for x in own]
        if any(x.place is place and _chooses(x.value) for x in writes):
            return place.statement
        names = [name for name, own in function.writes.items() if any(x.place is place for x in own)]
        behind = [x for name in names for x in function.writes[name] if place.before(x.place)]
        found = {id(x.place): x.place for x in behind if not x.place.passed_to(place) or _chooses(x.value)}
        return next(iter(found.values())).statement if len(found) == 1 else None

    def called(self, value: ast.expr) -> Function | None:
        """The function of the file that an expression calls."""
        name = value.func.id if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) else ""
        return self.functions.get(name)

    def _item(self, function: Function, value: ast.expr, item: int, at: Place, depth: int) -> Node | None:
        if (items := function.items(value, at)) is not None:
            return self.made(function, items[item], at, depth) if item < len(items) else None
        inner = self.called(value) if depth else None
        return None if inner is None else self.returned(inner, item, depth - 1)

    def _named(self, function: Function, name: str, at: Place | None, depth: int) -> Node | None:
        """Where what a name holds at a statement is computed."""
        write = function.last(name, at)
        if write is not None and write.value is None:
            return None
        filled = self._filled(function, name, at, depth, None if write is None else write.place)
        if write is None or write.value is None or filled is not None:
            return filled
        if any(plain(x) == name for _, x in self._opaque(function, at, write.place)):
            return None
        return self._followed(function, write, write.value, depth)

    def _followed(self, function: Function, write: Write, value: ast.expr, depth: int) -> Node:
        """The statement of a write, or where what it loads is computed."""
        found = None
        if write.item is not None:
            found = self._item(function, value, write.item, write.place, depth)
        elif isinstance(value, ast.Subscript) and (name := plain(value)) is not None and depth:
            found = self._named(function, name, write.place, depth - 1)
        return write.place.statement if found is None else found

    def _filled(
        self, function: Function, name: str, at: Place | None, depth: int, since: Place | None = None
    ) -> Node | None:
        """Where a call before `at` fills an array: in a function of the file, of several the last that stores into it;
        else the one call that is given it. `since`: it was computed there, and only what comes behind can be meant.
        """
        for place, call in reversed(function.calls):
            behind = since is None or (since.before(place) and place.passed_to(at))
            if not (depth and behind and place.before(at)) or (inner := self._launched(call)) is None:
                continue
            for parameter in [one for one, x in _bound(function, inner, call, place) if plain(x) == name]:
                if (found := self.stored(inner, parameter, depth - 1)) is not None:
                    return found
        given = {id(p): p.statement for p, x in self._opaque(function, at, since) if plain(x) == name}
        return next(iter(given.values())) if since is None and len(given) == 1 else None

    def _opaque(self, function: Function, at: Place | None, since: Place | None) -> Iterator[tuple[Place, ast.expr]]:
        """What calls between two statements are given whose functions are not of the file, and may write into it."""
        for place, call in function.calls:
            if place.before(at) and (since is None or since.before(place)) and self._launched(call) is None:
                if callee(call) not in _READERS:
                    for value in (*call.args, *(keyword.value for keyword in call.keywords)):
                        yield from ((place, x) for x in function.items(value, place) or [value])

    def _launched(self, call: ast.Call) -> Function | None:
        """The function of the file that a statement calls or launches, or the one that it names."""
        if (direct := self.functions.get(_launcher(call) or "")) is not None:
            return direct
        named = {node.id for node in ast.walk(call) if isinstance(node, ast.Name)} & {*self.functions}
        return self.functions[named.pop()] if len(named) == 1 else None


def _chooses(value: ast.expr | None) -> bool:
    """Whether an expression takes one value or another, such as `where(visible, scores, -inf)`."""
    nodes = [] if value is None else ast.walk(value)
    return any(isinstance(x, ast.IfExp) or (isinstance(x, ast.Call) and callee(x) in _CHOOSERS) for x in nodes)


def file_of(tree: ast.Module) -> File:
    """The functions of a module, those inside of others among them."""
    return File(tuple(_functions(tree)))


def _functions(within: ast.stmt | ast.Module) -> Iterator[Function]:
    for block in blocks(within):
        for statement in block:
            if isinstance(statement, ast.FunctionDef):
                yield Function(statement)
            yield from _functions(statement)


def agreed(places: Iterable[Node | None]) -> Node | None:
    """The one line that all of them are on; None where they differ."""
    found = [*places]
    return found[0] if len({place and place.lineno for place in found}) == 1 else None


def _unconverted(value: ast.expr) -> ast.expr:
    """What is held somewhere, where an expression only converts that; any other expression as it is."""
    inner = value
    while isinstance(inner, ast.Call):
        if callee(inner) in _FUNCTIONS and inner.args:
            inner = inner.args[0]
        elif callee(inner) in _METHODS and isinstance(inner.func, ast.Attribute):
            inner = inner.func.value
        else:
            return value
    return inner if isinstance(inner, ast.Name | _HELD) else value


def _launcher(call: ast.Call) -> str | None:
    """The name of what is called, or launched: `kernel` of `kernel[grid, block](x)`."""
    found: ast.expr = call.func
    while isinstance(found, ast.Subscript | ast.Call | ast.Attribute):
        found = found.func if isinstance(found, ast.Call) else found.value
    return found.id if isinstance(found, ast.Name) else None


def _bound(function: Function, inner: Function, call: ast.Call, at: Place) -> Iterator[tuple[str, ast.expr]]:
    """Parameters of `inner` with what a call in `function` gives them; of one that is launched by another function,
    with the items of the tuples that this is given.
    """
    given: list[ast.expr] = []
    if _launcher(call) != inner.node.name:
        for value in call.args:
            yield from zip(inner.parameters, function.items(value, at) or [], strict=False)
        return
    for value in call.args:
        items = function.items(value.value, at) if isinstance(value, ast.Starred) else [value]
        if items is None:
            break
        given += items
    yield from zip(inner.parameters, given, strict=False)
    yield from ((keyword.arg, keyword.value) for keyword in call.keywords if keyword.arg is not None)
