"""What a free name of a kernel means: resolution by value, so that every spelling of an import works."""

import ast
import builtins
import copy
import math
from collections.abc import Mapping, Set

import numpy as np
from numba import cuda
from numba.core import types
from numba.cuda import libdevice

from workbench.cuda import hopper, ptx
from workbench.cuda.emulator.intrinsics import DTYPES

UNKNOWN = object()

_CUDA_NAMES = (
    "threadIdx blockIdx blockDim gridDim laneid warpsize grid gridsize syncthreads syncthreads_and syncthreads_or "
    "syncthreads_count syncwarp shfl_sync shfl_up_sync shfl_down_sync shfl_xor_sync all_sync any_sync eq_sync "
    "ballot_sync activemask match_any_sync match_all_sync lanemask_lt threadfence threadfence_block "
    "threadfence_system nanosleep popc clz ffs brev selp fma cbrt"
).split()
_ATOMIC_NAMES = "add sub max min nanmax nanmin and_ or_ xor inc dec exch cas compare_and_swap".split()
#: constructs of numba.cuda, `ptx` and `hopper` that are rewritten, by the identity of the value that stands for them
_CONSTRUCTS = {
    **{id(getattr(cuda, name)): name for name in _CUDA_NAMES},
    **{id(getattr(cuda.atomic, name)): f"atomic.{name}" for name in _ATOMIC_NAMES},
    id(cuda.shared.array): "shared.array",
    id(cuda.local.array): "local.array",
    **{id(operation): f"ptx.{name}" for name, operation in ptx.OPERATIONS.items()},
    **{id(operation): f"hopper.{name}" for name, operation in hopper.OPERATIONS.items()},
    id(cuda.const.array_like): "const.array_like",
}
_MATH = {id(value): name for name, value in vars(math).items() if callable(value)}
_LIBDEVICE = {id(value): name for name, value in vars(libdevice).items() if callable(value)}
_BUILTINS = {id(getattr(builtins, name)): name for name in "abs range len int float bool round pow divmod".split()}
_STATIC_CALLS = {id(function) for function in (min, max, len, int, float, abs)}
_STATIC_TYPES = (bool, int, float, str, tuple, np.generic, np.dtype, types.Type, type(None))
_STATIC_NODES = (
    *(ast.Constant, ast.Name, ast.Attribute, ast.Tuple, ast.Subscript, ast.Call),
    *(ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp),
    *(ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop),
)


def value_of(node: ast.expr, local_names: Set[str], namespace: Mapping[str, object]) -> object:
    """Return the value of a name or dotted name that is free in a function, else `UNKNOWN`."""
    if isinstance(node, ast.Name) and node.id not in local_names:
        return namespace.get(node.id, getattr(builtins, node.id, UNKNOWN))
    if isinstance(node, ast.Attribute):
        owner = value_of(node.value, local_names, namespace)
        if owner is not UNKNOWN:
            return getattr(owner, node.attr, UNKNOWN)
    return UNKNOWN


def static_value(node: ast.expr, local_names: Set[str], namespace: Mapping[str, object]) -> object:
    """Return the value of an expression of literals and free constants, else `UNKNOWN`."""
    values: dict[str, object] = {}

    class Bind(ast.NodeTransformer):
        def visit_Name(self, name):
            values[f"value{len(values)}"] = value_of(name, local_names, namespace)
            return ast.copy_location(ast.Name(f"value{len(values) - 1}", ast.Load()), name)

        visit_Attribute = visit_Name

    if not all(isinstance(child, _STATIC_NODES) for child in ast.walk(node)):
        return UNKNOWN
    code = compile(ast.Expression(Bind().visit(copy.deepcopy(node))), "<constant>", "eval")
    if not all(isinstance(value, _STATIC_TYPES) or id(value) in _STATIC_CALLS for value in values.values()):
        return UNKNOWN
    try:
        return eval(code, {"__builtins__": {}}, values)
    except Exception:  # whatever is wrong with it, the compiler will say better
        return UNKNOWN


def construct(value: object) -> str | None:
    """Return the name within `numba.cuda` of a construct that is rewritten, such as ``"atomic.add"``.

    Of an operation of `workbench.cuda.ptx` or `hopper` it is the name with ``"ptx."`` or ``"hopper."`` before it.
    """
    return _CONSTRUCTS.get(id(value))


def math_name(value: object) -> str | None:
    """Return the name of a function of `math`."""
    return _MATH.get(id(value))


def libdevice_name(value: object) -> str | None:
    """Return the name of a function of `numba.cuda.libdevice`."""
    return _LIBDEVICE.get(id(value))


def builtin_name(value: object) -> str | None:
    """Return the name of a builtin that numba compiles as it is."""
    return _BUILTINS.get(id(value))


def dtype_name(value: object) -> str | None:
    """Return the name of the element type that a numba type, a NumPy type or a dtype stands for."""
    if isinstance(value, types.Type) or type(value).__module__.startswith("numba"):
        name = {"boolean": "bool"}.get(str(value), str(value))
    elif isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        name = np.dtype(value).name
    elif isinstance(value, str):
        name = value
    else:
        return None
    return name if name in DTYPES else None
