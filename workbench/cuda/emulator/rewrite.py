"""Rewriting of one function of a kernel: constructs of CUDA become calls of compiled functions.

The result is plain Python; names that start with two underscores are the emulator's. Every node keeps its line number.
"""

import ast
import copy
from dataclasses import dataclass

import numpy as np

from workbench.cuda.emulator import names
from workbench.cuda.emulator.calls import array_of, call_of, called
from workbench.cuda.emulator.emulator_error import EmulatorError
from workbench.cuda.emulator.names import UNKNOWN
from workbench.cuda.emulator.source import Function, is_function
from workbench.cuda.emulator.watcher import Watcher

MAX_CONSTANT = 64 * 1024  # bytes of constant memory on every GPU
_COORDINATES = {"threadIdx": "thread", "blockIdx": "block", "blockDim": "block_dim", "gridDim": "grid_dim"}
_REFUSED = {
    **{getattr(ast, name): name.lower() for name in "Try Raise Assert With Import Global Nonlocal Delete".split()},
    **{getattr(ast, name): name.lower() for name in "Lambda Yield Await Set Dict List Match Starred".split()},
    ast.TryStar: "try",
    ast.YieldFrom: "yield",
    ast.ImportFrom: "import",
    ast.FunctionDef: "nested function",
    ast.AsyncFunctionDef: "nested function",
    ast.ClassDef: "class",
    ast.ListComp: "list comprehension",
    ast.SetComp: "set comprehension",
    ast.DictComp: "dict comprehension",
    ast.GeneratorExp: "generator expression",
    ast.JoinedStr: "f-string",
    ast.NamedExpr: "assignment expression",
}


@dataclass
class Rewritten:
    """A function after rewriting, and what it asks of the program around it."""

    node: ast.FunctionDef
    takes_context: bool = False
    has_barrier: bool = False
    uses_atomics: bool = False


class Rewriter(ast.NodeTransformer):
    """Rewrites the body of one function; ``program`` hands out names for what lies outside it."""

    def __init__(self, function: Function, program):
        self.function = function
        self.program = program
        arguments = function.node.args
        stores = [node.id for node in ast.walk(function.node) if _is_store(node)]
        parameters = {argument.arg for argument in arguments.posonlyargs + arguments.args}
        self.locals = parameters | set(stores)
        self.assigned_once = {name for name in stores if stores.count(name) == 1} - parameters
        self.arrays = {}
        self.branches = 0  # that the node being visited lies in
        self.result = None

    def rewritten(self) -> Rewritten:
        """Return the rewritten function."""
        node = copy.deepcopy(self.function.node)
        arguments = node.args
        if arguments.vararg or arguments.kwarg or arguments.kwonlyargs:
            raise self.refusal(node, "a signature with *, *args or **kwargs")
        for name in self.locals:
            if name.startswith("__"):
                raise self.refusal(node, f"a variable whose name starts with two underscores: {name}")
        for argument in arguments.posonlyargs + arguments.args:
            argument.annotation = None
        arguments.args, arguments.posonlyargs = arguments.posonlyargs + arguments.args, []
        arguments.defaults = [self.visit(default) for default in arguments.defaults]
        node.decorator_list, node.returns = [], None
        self.result = Rewritten(node)
        if ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        node.body = self.statements(node.body)
        if self.program.watched:
            node.body = Watcher(self).statements(node.body)
        if self.result.takes_context:
            arguments.args.insert(0, ast.arg("__c"))
        return self.result

    def refusal(self, node, what) -> EmulatorError:
        """Return the error for a construct that the emulator does not know."""
        return EmulatorError(f"{self.function.at(node)}: the emulator does not support {what}")

    def value(self, node):
        """Return what a free name or dotted name means, else `UNKNOWN`."""
        return names.value_of(node, self.locals, self.function.namespace)

    def static(self, node):
        """Return the value of an expression of constants, else `UNKNOWN`."""
        return names.static_value(node, self.locals, self.function.namespace)

    def context(self):
        """Return the hidden argument."""
        self.result.takes_context = True
        return ast.Name("__c", ast.Load())

    def constant(self, node, value):
        """Return the expression for a value of the namespace."""
        if isinstance(value, bool | np.bool_ | str | None):
            return ast.Constant(bool(value) if isinstance(value, np.bool_) else value)
        if isinstance(value, np.generic) and names.dtype_name(value.dtype) in ("float16", "bfloat16"):
            number = ast.Name(self.program.constant(float(value)), ast.Load())
            return called(self.program.dtype(value.dtype.name), number)
        if isinstance(value, int | float | np.generic):
            return ast.Name(self.program.constant(value), ast.Load())
        if isinstance(value, np.ndarray):
            return called(self.constant_array(node, value))
        if isinstance(value, tuple):
            return ast.Tuple([self.constant(node, item) for item in value], ast.Load())
        if not isinstance(value, str) and (dtype := names.dtype_name(value)):
            return ast.Name(self.program.dtype(dtype), ast.Load())
        if is_function(value):
            raise self.refusal(node, f"a device function as a value: {ast.unparse(node)}")
        raise self.refusal(node, f"{ast.unparse(node)}, which is {value!r}")

    def constant_array(self, node, value):
        """Return the name of the compiled function that gives an array of the namespace."""
        if names.dtype_name(value.dtype) is None or not value.dtype.isnative or value.size == 0:
            raise self.refusal(node, f"{ast.unparse(node)}, an array of shape {value.shape} and dtype {value.dtype}")
        if value.nbytes > MAX_CONSTANT:
            raise self.refusal(
                node, f"{ast.unparse(node)}: {value.nbytes} bytes exceed constant memory ({MAX_CONSTANT})"
            )
        return self.program.constant_array(value)

    def visit_Name(self, node):
        """Replace constants by their values and arrays that are declared once by their declaration."""
        if isinstance(node.ctx, ast.Load):
            if node.id in self.arrays:
                return ast.copy_location(called(self.arrays[node.id], self.context()), node)
            if node.id not in self.locals:
                return ast.copy_location(self.free(node), node)
        return node

    def visit_Attribute(self, node):
        """Replace coordinates and dotted constants."""
        if names.construct(self.value(node.value)) in _COORDINATES and node.attr in ("x", "y", "z"):
            prefix = _COORDINATES[names.construct(self.value(node.value))]
            return ast.copy_location(ast.Attribute(self.context(), f"{prefix}_{node.attr}", ast.Load()), node)
        if self.value(node) is UNKNOWN and self.value(node.value) is UNKNOWN:
            return self.generic_visit(node)
        return ast.copy_location(self.free(node), node)

    def free(self, node):
        """Return the expression for a free name outside of a call."""
        value = self.value(node)
        if value is UNKNOWN:
            raise EmulatorError(f"{self.function.at(node)}: {ast.unparse(node)} is not defined")
        match names.construct(value):
            case "laneid":
                return ast.Attribute(self.context(), "lane", ast.Load())
            case "warpsize":
                return ast.Name(self.program.constant(np.int32(32)), ast.Load())
            case None:
                return self.constant(node, value)
        raise self.refusal(node, f"{ast.unparse(node)} as a value")

    def visit_Call(self, node):
        """Replace a call of anything that lives outside the function."""
        value = self.value(node.func)
        if value is UNKNOWN and not isinstance(node.func, ast.Name):
            return self.generic_visit(node)  # a method of a local value
        if value is UNKNOWN and node.func.id in self.locals:
            raise self.refusal(node, f"a call of the local variable {node.func.id}")
        if value is UNKNOWN:
            raise EmulatorError(f"{self.function.at(node)}: {node.func.id} is not defined")
        return ast.copy_location(call_of(self, node, value), node)

    def statements(self, body):
        """Return the rewritten statements of a block."""
        return [new for statement in body for new in _as_list(self.visit(statement))] or [ast.Pass()]

    def visit(self, node):
        """Refuse what no GPU kernel may hold, then rewrite."""
        if type(node) in _REFUSED:
            raise self.refusal(node, _REFUSED[type(node)])
        visited = super().visit(node)
        if isinstance(visited, ast.For | ast.While) and not visited.body:
            visited.body = [ast.Pass()]
        return visited

    def visit_Assign(self, node):
        """Drop the declaration of an array whose name is assigned once: `visit_Name` repeats it at every use."""
        target = node.targets[0]
        if len(node.targets) == 1 and isinstance(target, ast.Name) and target.id in self.assigned_once:
            if isinstance(node.value, ast.Call):
                construct = names.construct(self.value(node.value.func))
                if construct in ("shared.array", "local.array"):
                    self.arrays[target.id] = array_of(self, node.value, construct.partition(".")[0], target.id)
                    return []
        return self.generic_visit(node)

    def visit_AnnAssign(self, node):
        """Drop the annotation."""
        if node.value is None:
            return []
        return self.visit(ast.copy_location(ast.Assign([node.target], node.value), node))

    def visit_If(self, node):
        """Keep only the branch that runs, where constants decide."""
        if (decided := self.decided(node.test)) is not None:
            return self.statements(node.body if decided else node.orelse) if node.orelse or decided else []
        node.test = self.visit(node.test)
        self.branches += 1
        node.body = self.statements(node.body)
        node.orelse = self.statements(node.orelse) if node.orelse else []
        self.branches -= 1
        return node

    def visit_IfExp(self, node):
        """Keep only the operand that counts, where constants decide."""
        if (decided := self.decided(node.test)) is not None:
            return self.visit(node.body if decided else node.orelse)
        return self.generic_visit(node)

    def decided(self, test):
        """Return the truth of a test made of constants, else None."""
        value = self.static(test)
        return None if value is UNKNOWN else bool(value)

    def visit_Expr(self, node):
        """Drop comments in the form of strings."""
        return [] if isinstance(node.value, ast.Constant) else self.generic_visit(node)


def _is_store(node):
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def _as_list(visited):
    return visited if isinstance(visited, list) else [] if visited is None else [visited]
