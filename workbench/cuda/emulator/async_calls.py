"""Rewriting of calls of `workbench.cuda.hopper`: they become calls of `requests`, and after some a thread waits."""

import ast

from workbench.cuda.emulator.kinds import KINDS
from workbench.cuda.emulator.names import UNKNOWN

_REQUESTS = "workbench.cuda.emulator.requests"
#: operation -> places of its operands that are constants on a GPU
_CONSTANTS = {
    "wgmma_fence": (1,),
    "wgmma_wait": (0, 2),
    "cp_async_bulk_tensor": (3,),
    **dict.fromkeys(("set_max_registers_inc", "set_max_registers_dec"), (0,)),
    **dict.fromkeys(("named_barrier", "named_barrier_arrive"), (1,)),
}


def operation_of(rewriter, node: ast.Call, operation: str, site) -> ast.expr:
    """Return the expression for an operation; `site(kind)` gives a new place where threads may wait."""
    arguments = [rewriter.visit(argument) for argument in node.args]
    is_product = operation.startswith("wgmma_m64")
    constants = (5,) if operation.endswith("_trans") else () if is_product else _CONSTANTS.get(operation, ())
    for place in constants:
        value = rewriter.static(node.args[place]) if place < len(node.args) else UNKNOWN
        if value is UNKNOWN or int(value) < 0:
            raise rewriter.refusal(node, f"an operand that is negative or not constant: {ast.unparse(node)}")
    rewriter.program.asynchronous = True
    if operation.startswith("set_max_registers"):
        return ast.Constant(None)
    if is_product:
        if not operation.endswith("_trans"):
            arguments.insert(5, ast.Constant(0))
        arguments.insert(0, ast.Constant(operation))
        operation = "wgmma"
    kind = KINDS.get(f"hopper.{operation}")
    number = site(kind or 0)
    made = _request(rewriter, operation, number, arguments)
    if kind is None:
        return made
    rewriter.result.has_barrier = True
    wait = _called(rewriter.program.imported("workbench.cuda.emulator.barriers", "barrier"), ast.Constant(number))
    return _called(rewriter.program.imported(_REQUESTS, "waited"), made, wait)


def _request(rewriter, operation, number, arguments):
    """Return the call of a request; `watcher` replaces the zero by the number of the place."""
    int64 = rewriter.program.dtype("int64")
    where = (_called(int64, ast.Constant(n)) for n in (number, 0))
    name = rewriter.program.imported(_REQUESTS, operation)
    return _called(name, rewriter.context(), *where, *arguments)


def _called(function, *arguments):
    return ast.Call(ast.Name(function, ast.Load()), list(arguments), [])
