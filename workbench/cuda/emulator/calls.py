"""Rewriting of calls: constructs of `numba.cuda` become calls of compiled functions, other functions get new names."""

import ast
from dataclasses import dataclass
from functools import partial

import numpy as np

from workbench.cuda.emulator import async_calls, libdevice, names
from workbench.cuda.emulator.kinds import KINDS
from workbench.cuda.emulator.names import UNKNOWN
from workbench.cuda.emulator.source import is_function

_EMULATOR = "workbench.cuda.emulator"
_FENCES = ("threadfence", "threadfence_block", "threadfence_system", "nanosleep")
_BIT_FUNCTIONS = ("popc", "clz", "ffs", "brev", "selp", "fma", "cbrt")
#: functions of `math` that numba's CPU target lacks or converts to an integer without saturation
_MATH_MODULES = {
    "fmod": f"{_EMULATOR}.arithmetic",
    **{name: f"{_EMULATOR}.conversions" for name in ("floor", "ceil", "trunc")},
}
_TO_INTEGER = {"int": "to_int", "round": "to_nearest"}
_TAKES = {
    **{name: "take" for name in ("shfl_sync", "shfl_up_sync", "shfl_down_sync", "shfl_xor_sync")},
    **{name: "take_bool" for name in ("all_sync", "any_sync", "eq_sync")},
    **{name: "take_int32" for name in ("syncthreads_count", "syncthreads_and", "syncthreads_or", "syncwarp")},
    **{name: "take_int32" for name in ("ballot_sync", "match_any_sync")},  # not unsigned in numba.cuda
    "match_all_sync": "take_match",
    "activemask": "take_uint32",
}


@dataclass(frozen=True)
class Site:
    """A place where threads wait for each other."""

    construct: str
    location: str
    #: whether it stands in a branch
    conditional: bool


@dataclass(frozen=True)
class Array:
    """A shared or local array that a function declares; ``shape`` (0,) stands for dynamic shared memory."""

    memory: str
    shape: tuple[int, ...]
    dtype: str
    #: the variable that holds it; "" where it has none of its own
    name: str
    #: bytes of which its address is a multiple
    alignment: int = 16


def called(function: str, *arguments: ast.expr) -> ast.Call:
    """Return the call of a function by its generated name."""
    return ast.Call(ast.Name(function, ast.Load()), list(arguments), [])


def call_of(rewriter, node: ast.Call, value: object) -> ast.expr:
    """Return the expression for the call of a value from outside the function."""
    if construct := names.construct(value):
        return _construct(rewriter, node, construct)
    if value is max or value is min:
        return _extremum(rewriter, node, "maximum" if value is max else "minimum")
    if name := names.libdevice_name(value):
        if name not in libdevice.FUNCTIONS:
            raise rewriter.refusal(node, f"libdevice.{name}")
        return _renamed(rewriter, node, rewriter.program.libdevice(name))
    if name := names.math_name(value):
        return _renamed(rewriter, node, rewriter.program.imported(_MATH_MODULES.get(name, "math"), name))
    if name := names.builtin_name(value):
        if name in _TO_INTEGER and len(node.args) == 1:
            name = rewriter.program.imported(f"{_EMULATOR}.conversions", _TO_INTEGER[name])
        return _renamed(rewriter, node, name)
    if not isinstance(value, str) and (dtype := names.dtype_name(value)):
        if "int" in dtype:
            return _renamed(rewriter, node, rewriter.program.imported(f"{_EMULATOR}.conversions", dtype))
        return _renamed(rewriter, node, rewriter.program.dtype(dtype))
    if is_function(value):
        name, callee = rewriter.program.device(value, rewriter.function.at(node))
        rewriter.result.has_barrier |= callee.has_barrier
        rewriter.result.uses_atomics |= callee.uses_atomics
        return _renamed(rewriter, node, name, *([rewriter.context()] if callee.takes_context else []))
    raise rewriter.refusal(node, ast.unparse(node.func) + "()")


def array_of(rewriter, node: ast.Call, memory: str, name: str = "") -> str:
    """Return the name of the compiled function that gives the array declared by this call."""
    given = dict(zip(("shape", "dtype", "alignment"), node.args, strict=False))
    given |= {keyword.arg: keyword.value for keyword in node.keywords}
    if not {"shape", "dtype"} <= given.keys():
        raise rewriter.refusal(node, ast.unparse(node))
    shape, static_dtype = rewriter.static(given["shape"]), rewriter.static(given["dtype"])
    dtype = names.dtype_name(rewriter.value(given["dtype"]) if static_dtype is UNKNOWN else static_dtype)
    extents = shape if isinstance(shape, tuple) else (shape,)
    if dtype is None:
        raise rewriter.refusal(node, f"cuda.{memory}.array of dtype {ast.unparse(given['dtype'])}")
    is_dynamic = memory == "shared" and extents == (0,)
    if not is_dynamic and not all(isinstance(extent, int | np.integer) and extent > 0 for extent in extents):
        raise rewriter.refusal(node, f"a shape that is not constant and positive: {ast.unparse(node)}")
    alignment = rewriter.static(given["alignment"]) if "alignment" in given else None
    alignment = max(16, alignment) if isinstance(alignment, int) else 16
    return rewriter.program.array(Array(memory, tuple(int(extent) for extent in extents), dtype, name, alignment))


def _arguments(rewriter, node):
    return [rewriter.visit(argument) for argument in node.args]


def _renamed(rewriter, node, name, *hidden):
    keywords = [ast.keyword(keyword.arg, rewriter.visit(keyword.value)) for keyword in node.keywords]
    return ast.Call(ast.Name(name, ast.Load()), [*hidden, *_arguments(rewriter, node)], keywords)


def _construct(rewriter, node, name):
    """Return the expression for the call of a construct of `numba.cuda`."""
    imported = rewriter.program.imported
    if name in ("shared.array", "local.array"):
        return called(array_of(rewriter, node, name.partition(".")[0]), rewriter.context())
    if node.keywords:
        raise rewriter.refusal(node, f"keyword arguments of {ast.unparse(node.func)}")
    if name.startswith("hopper."):
        return async_calls.operation_of(
            rewriter, node, name.removeprefix("hopper."), partial(_new_site, rewriter, node, name)
        )
    if name.startswith("ptx."):
        return _ptx(rewriter, node, name)
    if name == "const.array_like" and len(node.args) == 1 and isinstance(rewriter.value(node.args[0]), np.ndarray):
        return rewriter.visit(node.args[0])
    if name in KINDS:
        return _barrier(rewriter, node, name)
    if name in _FENCES:  # stores are never reordered here
        return ast.Constant(None)
    if name in ("grid", "gridsize"):
        axes = rewriter.static(node.args[0]) if len(node.args) == 1 else UNKNOWN
        if axes in (1, 2, 3):
            return called(imported(f"{_EMULATOR}.context", f"{name}_{axes}"), rewriter.context())
    if name == "lanemask_lt" and not node.args:
        return called(imported(f"{_EMULATOR}.context", name), rewriter.context())
    if name in _BIT_FUNCTIONS:
        return called(imported(f"{_EMULATOR}.arithmetic", name), *_arguments(rewriter, node))
    if name.startswith("atomic."):
        rewriter.result.uses_atomics = True
        function = imported(f"{_EMULATOR}.atomics", name.removeprefix("atomic."))
        return called(function, *_arguments(rewriter, node))
    raise rewriter.refusal(node, ast.unparse(node))


def _barrier(rewriter, node, name):
    """Return the expression that offers a value, waits, and takes the result.

    Python evaluates arguments from left to right, so the wait lies between the other two.
    """
    imported = rewriter.program.imported
    arguments = _arguments(rewriter, node)
    wait = _wait(rewriter, node, f"cuda.{name}", KINDS[name])
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
        case (("syncthreads_count" | "syncthreads_and" | "syncthreads_or"), [predicate]):
            offered = [zero, predicate, zero]
        case (("all_sync" | "any_sync" | "eq_sync" | "ballot_sync"), [mask, predicate]):
            offered = [mask, predicate, zero]
        case (("match_any_sync" | "match_all_sync"), [mask, value]):
            offered = [mask, value, zero]
        case (("shfl_sync" | "shfl_up_sync" | "shfl_down_sync" | "shfl_xor_sync"), [mask, value, operand]):
            offered = [mask, called(imported(f"{_EMULATOR}.places", "shuffled"), value), operand]
        case _:
            raise rewriter.refusal(node, f"{ast.unparse(node)} with {len(arguments)} arguments")
    offer = called(imported(f"{_EMULATOR}.context", "offer"), rewriter.context(), *offered)
    return called(imported(f"{_EMULATOR}.context", _TAKES[name]), rewriter.context(), offer, wait)


def _new_site(rewriter, node, construct, kind):
    """Return the number of a new place where threads wait for this kind."""
    return rewriter.program.site(Site(construct, rewriter.function.at(node), rewriter.branches > 0), kind)


def _wait(rewriter, node, construct, kind):
    """Return the expression that waits at a new site."""
    rewriter.result.has_barrier = True
    site = _new_site(rewriter, node, construct, kind)
    return called(rewriter.program.imported(f"{_EMULATOR}.barriers", "barrier"), ast.Constant(site))


def _ptx(rewriter, node, name):
    """Return the expression for an operation of `workbench.cuda.ptx`."""
    imported = rewriter.program.imported
    arguments = _arguments(rewriter, node)
    operation = name.removeprefix("ptx.")
    if name in KINDS:
        wait = _wait(rewriter, node, name, KINDS[name])
        kind = "mma" if operation.startswith("mma") else operation.removesuffix("_trans")
        offer, take = (imported(f"{_EMULATOR}.fragments", f"{verb}_{kind}") for verb in ("offer", "take"))
        return called(take, rewriter.context(), called(offer, rewriter.context(), *arguments), wait)
    if operation.startswith("cp_async"):
        if operation == "cp_async_wait_group" and UNKNOWN in map(rewriter.static, node.args):
            raise rewriter.refusal(node, f"a group count that is not constant: {ast.unparse(node)}")
        arguments.insert(0, called(rewriter.program.copies(), rewriter.context()))
        return called(imported(f"{_EMULATOR}.copies", operation), *arguments)
    rewriter.result.uses_atomics |= operation.startswith("red_")
    return called(imported(f"{_EMULATOR}.packed", operation), *arguments)


def _extremum(rewriter, node, name):
    """Return nested calls for max or min of several values."""
    if len(node.args) < 2 or node.keywords:
        raise rewriter.refusal(node, ast.unparse(node))
    function = rewriter.program.imported(f"{_EMULATOR}.arithmetic", name)
    first, *others = _arguments(rewriter, node)
    for other in others:
        first = called(function, first, other)
    return first
