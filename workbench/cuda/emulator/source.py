"""The source of a kernel: a syntax tree and the meaning of its free names."""

import ast
import inspect
from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass
from types import FunctionType

from workbench.cuda.emulator.emulator_error import EmulatorError


@dataclass(frozen=True)
class Source:
    """A kernel as text has it, possibly rewritten since."""

    #: the kernel function's name in `tree`
    name: str
    #: the module with the kernel and its own device functions; line numbers are those of `filename`
    tree: ast.Module
    #: the meaning of every free name: constants, modules, types, device functions
    namespace: Mapping[str, object]
    #: the file that error messages name
    filename: str


@dataclass(frozen=True)
class Function:
    """One function of a kernel's source: the kernel or a device function."""

    node: ast.FunctionDef
    namespace: Mapping[str, object]
    filename: str

    def at(self, node: ast.AST) -> str:
        """Return ``file:line`` of a node of the function."""
        return f"{self.filename}:{getattr(node, 'lineno', self.node.lineno)}"


def source_of(function) -> Source:
    """Return the source of a plain Python function, or of what ``cuda.jit`` made of it.

    Raises `EmulatorError` where Python does not find its text.
    """
    found = _inspected(_python_function(function))
    tree = ast.Module(body=[found.node], type_ignores=[])
    return Source(found.node.name, tree, found.namespace, found.filename)


def kernel_of(source: Source) -> Function:
    """Return the kernel; raises `EmulatorError` where the tree does not define it."""
    node = _definition(source.tree, source.name)
    if node is None:
        raise EmulatorError(f"{source.filename} does not define the kernel {source.name}")
    return Function(node, source.namespace, source.filename)


def device_function(value, source: Source) -> Function:
    """Return the device function behind a value of a namespace: from the source's tree if it is defined there."""
    function = _python_function(value)
    node = _definition(source.tree, function.__name__)
    if node is not None and function.__code__.co_filename == source.filename:
        return Function(node, ChainMap(_closure(function), source.namespace, function.__globals__), source.filename)
    return _inspected(function)


def is_function(value) -> bool:
    """Return whether a value is a function of the user's, with a Python source of its own."""
    function = getattr(value, "py_func", value)
    return isinstance(function, FunctionType) and function.__module__.partition(".")[0] != "numba"


def _python_function(value) -> FunctionType:
    function = getattr(value, "py_func", value)
    if not isinstance(function, FunctionType):
        raise EmulatorError(f"{value!r} is not a Python function or a numba dispatcher")
    return function


def _definition(tree: ast.Module, name: str) -> ast.FunctionDef | None:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return node
    return None


def _closure(function: FunctionType) -> dict[str, object]:
    return dict(inspect.getclosurevars(function).nonlocals)


def _inspected(function: FunctionType) -> Function:
    filename = function.__code__.co_filename
    try:
        lines, _ = inspect.findsource(function)
    except (OSError, TypeError) as error:
        raise EmulatorError(f"{filename}: no source of {function.__name__} to be found") from error
    first = function.__code__.co_firstlineno
    for node in ast.walk(ast.parse("".join(lines))):
        if isinstance(node, ast.FunctionDef) and node.name == function.__name__:
            if first in (node.lineno, *(decorator.lineno for decorator in node.decorator_list)):
                return Function(node, ChainMap(_closure(function), function.__globals__), filename)
    raise EmulatorError(f"{filename}:{first}: no source of {function.__name__} to be found")
