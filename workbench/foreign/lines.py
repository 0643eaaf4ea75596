"""Where in its source a foreign function makes each stage.

In Python: from the stage's name in what the function returns back to the statement that computes it, by way of kernels
of numba.cuda and Triton in the same file. What is dumped by a probe of `foreign.probes` in another file, CUDA C++ among
them: the probe's own line. Where that is not clear (a lambda, code that was typed in or has changed since, dicts that
are made at run time), nothing is said.
"""

import ast
import hashlib
import inspect
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

from workbench.assignments import Function, Place, callee
from workbench.case.stages import OUT, RESULTS
from workbench.line import MASK, Line, line_of
from workbench.lineage import File, Node, agreed, file_of
from workbench.trace.provenance import File as SourceFile
from workbench.trace.provenance import Provenance

#: a probe of a stage, in CUDA C++ or in Triton, or in numba.cuda; not where a comment stands before it
_PROBE = r"^(?:(?!//|#).)*\b(?:(?:WB_PROBE(?:_TILE|_FRAGMENT)?\(\s*|probe\(\s*\w+\.){stage}\s*,|probe\.{stage}\s*\[)"
#: in a file that reads the probes of CUDA C++
_CUDA = "cuda_cpp"
#: functions that are gone into, one from the other
_DEPTH = 5


class _Layer(NamedTuple):
    """A part of a dict of stages, in the order in which parts replace each other."""

    stage: str | None  #: None: the value is a dict of its own
    value: ast.expr
    place: Place


def lines_of(function: Callable[..., Any], stages: Collection[str], ran: Provenance) -> Mapping[str, Line]:
    """Stage -> the line that computes it, of those stages of which that is clear, and MASK -> that which masks scores;
    `ran`: the files of the run.
    """
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None or not Path(code.co_filename).is_file():
        return {}
    path = Path(code.co_filename).resolve()
    text, tree = _read(path, code)
    file, lines = file_of(tree), text.splitlines()
    called = (code.co_name, code.co_firstlineno)
    first = next((one for one in file.defined if (one.node.name, _begins(one.node)) == called), None)
    if first is None:
        return {}
    found = {}
    for stage in stages:
        place = agreed(_returned(file, first, stage)) or _probed(file, first, stage)
        if place is not None:
            found[stage] = line_of(str(path), lines, place.lineno)
            if stage == "scores" and (mask := file.masked(place)) is not None:
                found[MASK] = line_of(str(path), lines, mask.lineno)
    if left := [stage for stage in stages if stage not in found]:
        sources = _with_probes(str(path), ran)
        found |= {stage: places[0] for stage in left if len(places := [*_probes(sources, stage)]) == 1}
    return found


def _read(path: Path, code: CodeType) -> tuple[str, ast.Module]:
    """The text of a file and its syntax tree; an empty one where it does not make this very code, as it has changed
    since it was loaded.
    """
    try:
        with warnings.catch_warnings(action="ignore"):
            text = path.read_text()
            tree = ast.parse(text)
            made = compile(tree, str(path), "exec", dont_inherit=True)
    except (OSError, SyntaxError, ValueError):
        return "", ast.parse("")
    return text, tree if code in _codes(made) else ast.parse("")


def _begins(node: ast.FunctionDef) -> int:
    """The first line of a function, as its code tells it: that of a decorator, if it has one."""
    return min([one.lineno for one in node.decorator_list], default=node.lineno)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    yield from chain.from_iterable(_codes(one) for one in code.co_consts if isinstance(one, CodeType))


def _returned(file: File, function: Function, stage: str, depth: int = _DEPTH) -> Iterator[Node | None]:
    """Where what each return of a function holds of a stage is computed; None where that is not clear."""
    for place, value in function.returns:
        yield from _within(file, function, value, stage, place, depth)


def _within(
    file: File, function: Function, value: ast.expr, stage: str, at: Place, depth: int, *, whole: bool = True
) -> Iterator[Node | None]:
    """Where the stage in what is returned, `whole` or merged with more, is computed; nothing where it is not in it,
    None where that is not clear.
    """
    if not depth:
        yield None
    elif isinstance(value, ast.IfExp):
        for one in (value.body, value.orelse):
            yield from _within(file, function, one, stage, at, depth, whole=whole)
    elif (layers := _layers(file, function, value, at)) is not None:
        unclear = False
        for layer in reversed(layers):
            if layer.stage is None:
                found = [*_within(file, function, layer.value, stage, layer.place, depth - 1, whole=False)]
            else:
                found = [file.made(function, layer.value, layer.place)] if layer.stage == stage else []
            if any(found):
                yield agreed(found)
                return
            unclear = unclear or bool(found)
        if unclear:
            yield None
    elif (inner := file.called(value)) is not None:
        yield from _returned(file, inner, stage, depth - 1)
    elif (items := function.items(value, at)) is not None:
        yield from (file.made(function, x, at) for name, x in zip(RESULTS, items, strict=False) if name == stage)
    elif whole and stage == OUT and not isinstance(value, ast.DictComp):
        yield file.made(function, value, at)
    else:
        yield None


def _layers(file: File, function: Function, value: ast.expr, at: Place) -> list[_Layer] | None:
    """The parts of a dict, of several merged, or of a name that holds one; None of anything else."""
    if isinstance(value, ast.Dict):
        return [_Layer(_text(key), x, at) for key, x in zip(value.keys, value.values, strict=True)]
    if isinstance(value, ast.Call) and callee(value) == "dict":
        return [_Layer(None, x, at) for x in value.args] + [_Layer(x.arg, x.value, at) for x in value.keywords]
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.BitOr):
        return [_Layer(None, x, at) for x in (value.left, value.right)]
    if not isinstance(value, ast.Name):
        return None
    found: list[_Layer] = []
    for place in function.places:
        if place.before(at):
            found = _assigned(found, place, value.id)
    if len(found) == 1 and found[0].stage is None:
        first = found[0]
        is_dict = _layers(file, function, first.value, first.place) is not None or file.called(first.value) is not None
        return found if is_dict or isinstance(first.value, ast.DictComp) else None
    return found or None


def _assigned(before: list[_Layer], place: Place, name: str) -> list[_Layer]:
    """The parts of what a name holds after a statement."""
    match place.statement:
        case ast.Assign(targets=[ast.Name(id=found)], value=value) if found == name:
            return [_Layer(None, value, place)]
        case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=found), slice=key)], value=value) if found == name:
            return [*before, _Layer(_text(key), value, place)] if isinstance(key, ast.Constant) else before
        case ast.AugAssign(target=ast.Name(id=found), op=ast.BitOr(), value=value) if found == name:
            return [*before, _Layer(None, value, place)]
        case ast.Expr(ast.Call(func=ast.Attribute(value=ast.Name(id=found), attr="update"), args=args, keywords=more)):
            more_of_it = [_Layer(None, x, place) for x in args] + [_Layer(x.arg, x.value, place) for x in more]
            return [*before, *more_of_it] if found == name else before
    return before


def _text(key: ast.expr | None) -> str | None:
    """A key that is a text."""
    return key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else None


def _probed(file: File, first: Function, stage: str) -> Node | None:
    """Where what the probe of a stage stores in a kernel in Triton or numba.cuda is computed; None without one, and of
    several.
    """
    found = []
    for function in _reached(file, first):
        for place in function.places:
            match place.statement:
                case ast.Assign(
                    targets=[ast.Subscript(value=ast.Attribute(value=ast.Name(id="probe"), attr=attribute))], value=x
                ) if attribute == stage:
                    found.append(file.made(function, x, place) or place.statement)
        for place, call in function.calls:
            if callee(call) == "probe" and len(call.args) == 3 and getattr(call.args[0], "attr", None) == stage:
                found.append(file.made(function, call.args[2], place) or place.statement)
    return agreed(found)


def _reached(file: File, first: Function) -> list[Function]:
    """A function and those of its file that it names, and these."""
    found = [first]
    for function in found:
        found += [one for name, one in file.functions.items() if name in function.names and one not in found]
    return found


def _with_probes(path: str, ran: Provenance) -> list[tuple[str, list[str]]]:
    """The lines of the files of a run in which probes of the function in `path` may be: those that it names, and these,
    and the sources beside it where it uses probes in CUDA C++ and names none; without what has changed since.
    """
    texts = {one.path: _unchanged(one) for one in ran.files if not one.is_object}
    found = [path] if path in texts else []
    for one in found:
        found += [other for other in texts if other not in found and _named(other, texts[one])]
    sources = [one.path for one in ran.files if not one.loaded]
    if not {*found} & {*sources} and any(_CUDA in texts[one] for one in found):
        found += sources
    return [(one, texts[one].splitlines()) for one in found]


def _named(path: str, text: str) -> bool:
    """Whether a text names a file: a module without its suffix, as an import does, another file as it is called."""
    file = Path(path)
    return re.search(rf"\b{re.escape(file.stem if file.suffix == '.py' else file.name)}\b", text) is not None


def _unchanged(file: SourceFile) -> str:
    """The text of a file; none of one that is not what ran."""
    try:
        content = Path(file.path).read_bytes()
    except OSError:
        return ""
    return content.decode(errors="replace") if hashlib.sha256(content).hexdigest() == file.sha256 else ""


def _probes(sources: Sequence[tuple[str, list[str]]], stage: str) -> Iterator[Line]:
    """The lines with a probe of a stage."""
    probe = re.compile(_PROBE.format(stage=re.escape(stage)))
    for path, lines in sources:
        yield from (line_of(path, lines, i) for i, line in enumerate(lines, 1) if probe.match(line))
