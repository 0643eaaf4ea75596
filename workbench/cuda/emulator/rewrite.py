"""Rewriting of one function of a kernel: constructs of CUDA become calls of compiled functions.

The result is plain Python over names that start with two underscores. `Rewriter` leaves every node its line number.
"""

import ast
import copy
from dataclasses import dataclass, field

import numpy as np

from workbench.cuda.emulator import libdevice, names
from workbench.cuda.emulator.errors import EmulatorError
from workbench.cuda.emulator.intrinsics import DTYPES
from workbench.cuda.emulator.kinds import KINDS
from workbench.cuda.emulator.names import UNKNOWN
from workbench.cuda.emulator.source import Function, is_function

_COORDINATES = {"threadIdx": "thread", "blockIdx": "block", "blockDim": "block_dim", "gridDim": "grid_dim"}
_FENCES = ("threadfence", "threadfence_block", "threadfence_system", "nanosleep")
_BIT_FUNCTIONS = ("popc", "clz", "ffs", "brev", "selp", "fma", "cbrt")
_TAKES = {
    **{name: "take" for name in ("shfl_sync", "shfl_up_sync", "shfl_down_sync", "shfl_xor_sync")},
    **{name: "take_bool" for name in ("all_sync", "any_sync", "eq_sync")},
    **{name: "take_int32" for name in ("syncthreads_count", "syncthreads_and", "syncthreads_or", "syncwarp")},
    **{name: "take_uint32" for name in ("ballot_sync", "activemask")},
}
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


@dataclass(frozen=True)
class Site:
    """A place where threads wait for each other."""

    construct: str
    location: str


@dataclass(frozen=True)
class Array:
    """A shared or local array that a function declares."""

    memory: str
    shape: tuple[int, ...]
    dtype: str


@dataclass
class Rewritten:
    """A function after rewriting, and what it asks of the program around it."""

    node: ast.FunctionDef
    takes_context: bool = False
    has_barrier: bool = False
    uses_atomics: bool = False


def _call(function, *arguments):
    return ast.Call(ast.Name(function, ast.Load()), list(arguments), [])


class Rewriter(ast.NodeTransformer):
    """Rewrites the body of one function; ``program`` hands out names for what lies outside it."""

    def __init__(self, function: Function, program):
        self.function = function
        self.program = program
        arguments = function.node.args
        stores = [node.id for node in ast.walk(function.node) if _is_store(node)]
        self.locals = {argument.arg for argument in arguments.posonlyargs + arguments.args} | set(stores)
        self.assigned_once = {name for name in stores if stores.count(name) == 1}
        self.arrays = {}
        self.result = None

    def rewritten(self) -> Rewritten:
        """Return the rewritten function."""
        node = copy.deepcopy(self.function.node)
        arguments = node.args
        if arguments.vararg or arguments.kwarg or arguments.kwonlyargs:
            raise self.refusal(node, "a signature with *, *args or **kwargs")
        for argument in arguments.posonlyargs + arguments.args:
            argument.annotation = None
        arguments.args, arguments.posonlyargs = arguments.posonlyargs + arguments.args, []
        arguments.defaults = [self.visit(default) for default in arguments.defaults]
        node.decorator_list, node.returns = [], None
        self.result = Rewritten(node)
        if ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        node.body = self.statements(node.body)
        if self.result.takes_context:
            arguments.args.insert(0, ast.arg("__c"))
        return self.result

    def refusal(self, node, what) -> EmulatorError:
        """Return the error for a construct that the emulator does not know."""
        return EmulatorError(f"{self.function.at(node)}: the emulator does not support {what}")

    # --- names -------------------------------------------------------------------------------------------------------

    def value(self, node):
        """Return what a free name or dotted name means, else `UNKNOWN`."""
        return names.value_of(node, self.locals, self.function.namespace)

    def context(self):
        """Return the hidden argument."""
        self.result.takes_context = True
        return ast.Name("__c", ast.Load())

    def constant(self, node, value):
        """Return the expression for a value of the namespace."""
        if isinstance(value, bool | str | None):
            return ast.Constant(value)
        if isinstance(value, int | float | np.generic):
            return ast.Name(self.program.constant(value), ast.Load())
        if isinstance(value, tuple):
            return ast.Tuple([self.constant(node, item) for item in value], ast.Load())
        if not isinstance(value, str) and (dtype := names.dtype_name(value)):
            return ast.Name(self.program.dtype(dtype), ast.Load())
        if is_function(value):
            raise self.refusal(node, f"a device function as a value: {ast.unparse(node)}")
        raise self.refusal(node, f"{ast.unparse(node)}, which is {value!r}")

    def visit_Name(self, node):
        """Replace constants by their values and arrays that are declared once by their declaration."""
        if isinstance(node.ctx, ast.Load):
            if node.id in self.arrays:
                return ast.copy_location(_call(self.arrays[node.id], self.context()), node)
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

    # --- calls -------------------------------------------------------------------------------------------------------

    def visit_Call(self, node):
        """Replace a call of anything that lives outside the function."""
        value = self.value(node.func)
        if value is UNKNOWN:
            return self.generic_visit(node)
        return ast.copy_location(self.call(node, value), node)

    def call(self, node, value):
        """Return the expression for the call of a free value."""
        if construct := names.construct(value):
            return self.construct(node, construct)
        if value is max or value is min:
            return self.extremum(node, "maximum" if value is max else "minimum")
        if name := names.libdevice_name(value):
            if name not in libdevice.FUNCTIONS:
                raise self.refusal(node, f"libdevice.{name}")
            return self.plain_call(node, self.program.libdevice(name))
        if name := names.math_name(value):
            return self.plain_call(node, self.program.imported("math", name))
        if name := names.builtin_name(value):
            return self.plain_call(node, name)
        if not isinstance(value, str) and (dtype := names.dtype_name(value)):
            return self.plain_call(node, self.program.dtype(dtype))
        if is_function(value):
            name, callee = self.program.device(value, self.function.at(node))
            self.result.has_barrier |= callee.has_barrier
            self.result.uses_atomics |= callee.uses_atomics
            return self.plain_call(node, name, *([self.context()] if callee.takes_context else []))
        raise self.refusal(node, ast.unparse(node.func) + "()")

    def plain_call(self, node, name, *hidden):
        """Return the call of a compiled function by name."""
        self.generic_arguments(node)
        return ast.Call(ast.Name(name, ast.Load()), [*hidden, *node.args], node.keywords)

    def generic_arguments(self, node):
        """Rewrite the arguments of a call."""
        node.args = [self.visit(argument) for argument in node.args]
        node.keywords = [ast.keyword(keyword.arg, self.visit(keyword.value)) for keyword in node.keywords]

    def construct(self, node, name):
        """Return the expression for the call of a construct of `numba.cuda`."""
        if name in ("shared.array", "local.array"):
            return _call(self.array(node, name.split(".")[0]), self.context())
        if node.keywords:
            raise self.refusal(node, f"keyword arguments of cuda.{name}")
        if name in KINDS:
            return self.barrier(node, name)
        if name in _FENCES:
            return ast.Constant(None)
        self.generic_arguments(node)
        if name in ("grid", "gridsize") and len(node.args) == 1 and isinstance(node.args[0], ast.Constant):
            runtime = self.program.imported("workbench.cuda.emulator.context", f"{name}_{node.args[0].value}")
            return _call(runtime, self.context())
        if name in _BIT_FUNCTIONS:
            return _call(self.program.imported("workbench.cuda.emulator.arithmetic", name), *node.args)
        if name.startswith("atomic."):
            self.result.uses_atomics = True
            module, function = "workbench.cuda.emulator.atomics", name.removeprefix("atomic.")
            return _call(self.program.imported(module, function), *node.args)
        raise self.refusal(node, f"{ast.unparse(node)}")

    def barrier(self, node, name):
        """Return the expression that offers a value, waits, and takes the result.

        Python evaluates arguments from left to right, so the wait lies between the other two.
        """
        self.result.has_barrier = True
        arguments = [self.visit(argument) for argument in node.args]
        site = self.program.site(Site(f"cuda.{name}", self.function.at(node)), KINDS[name])
        wait = _call(self.program.imported("workbench.cuda.emulator.barriers", "barrier"), ast.Constant(site))
        zero = ast.Constant(0)
        match name, arguments:
            case "syncthreads", []:
                return wait
            case "syncwarp", []:
                offered = [ast.Constant(0xFFFFFFFF), zero, zero]
            case "syncwarp", [mask]:
                offered = [mask, zero, zero]
            case "activemask", []:
                offered = [zero, zero, zero]
            case ("syncthreads_count" | "syncthreads_and" | "syncthreads_or"), [predicate]:
                offered = [zero, predicate, zero]
            case ("all_sync" | "any_sync" | "eq_sync" | "ballot_sync"), [mask, predicate]:
                offered = [mask, predicate, zero]
            case ("shfl_sync" | "shfl_up_sync" | "shfl_down_sync" | "shfl_xor_sync"), [mask, value, operand]:
                offered = [mask, value, operand]
            case _:
                raise self.refusal(node, f"{ast.unparse(node)} with {len(arguments)} arguments")
        module = "workbench.cuda.emulator.context"
        offer = _call(self.program.imported(module, "offer"), self.context(), *offered)
        return _call(self.program.imported(module, _TAKES[name]), self.context(), offer, wait)

    def extremum(self, node, name):
        """Return nested calls for max or min of several values."""
        self.generic_arguments(node)
        if len(node.args) < 2 or node.keywords:
            raise self.refusal(node, ast.unparse(node))
        function = self.program.imported("workbench.cuda.emulator.arithmetic", name)
        first, *others = node.args
        for other in others:
            first = _call(function, first, other)
        return first

    def array(self, node, memory):
        """Return the name of the compiled function that gives the array declared by this call."""
        given = dict(zip(("shape", "dtype", "alignment"), node.args, strict=False))
        given |= {keyword.arg: keyword.value for keyword in node.keywords}
        if not {"shape", "dtype"} <= given.keys():
            raise self.refusal(node, ast.unparse(node))
        shape = names.static_value(given["shape"], self.locals, self.function.namespace)
        static = names.static_value(given["dtype"], self.locals, self.function.namespace)
        dtype = names.dtype_name(self.value(given["dtype"]) if static is UNKNOWN else static)
        extents = shape if isinstance(shape, tuple) else (shape,)
        if dtype is None:
            raise self.refusal(node, f"cuda.{memory}.array of dtype {ast.unparse(given['dtype'])}")
        if not all(isinstance(extent, int | np.integer) and extent > 0 for extent in extents):
            what = "dynamic shared memory" if extents == (0,) else "a shape that is not constant and positive"
            raise self.refusal(node, f"{what}: {ast.unparse(node)}")
        return self.program.array(Array(memory, tuple(int(extent) for extent in extents), dtype))

    # --- statements --------------------------------------------------------------------------------------------------

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
                    self.arrays[target.id] = self.array(node.value, construct.split(".")[0])
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
        node.body = self.statements(node.body)
        node.orelse = self.statements(node.orelse) if node.orelse else []
        return node

    def visit_IfExp(self, node):
        """Keep only the operand that counts, where constants decide."""
        if (decided := self.decided(node.test)) is not None:
            return self.visit(node.body if decided else node.orelse)
        return self.generic_visit(node)

    def decided(self, test):
        """Return the truth of a test made of constants, else None."""
        value = names.static_value(test, self.locals, self.function.namespace)
        return None if value is UNKNOWN else bool(value)

    def visit_Expr(self, node):
        """Drop comments in the form of strings."""
        return [] if isinstance(node.value, ast.Constant) else self.generic_visit(node)


def _is_store(node):
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def _as_list(visited):
    return visited if isinstance(visited, list) else [] if visited is None else [visited]
