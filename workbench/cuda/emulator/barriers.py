"""Barriers become yields: the compiler pass that turns a kernel into a generator which suspends at every barrier.

The rewritten kernel calls ``barrier(site)`` wherever a thread waits for others. After numba has inlined the device
functions that contain such calls, the pass replaces each by ``yield site``; numba then saves and restores the live
variables of a thread by itself.
"""

from itertools import count

from numba.core import ir
from numba.core.compiler_machinery import FunctionPass, register_pass
from numba.core.ir_utils import build_definitions, replace_vars_stmt
from numba.core.postproc import PostProcessor
from numba.core.untyped_passes import InlineInlinables

from workbench.cuda.emulator.inner import InnerCompiler


def barrier(site):
    """Mark the place where a thread waits; never called, replaced by a yield of ``site``."""
    raise AssertionError("barrier() is compiled away")


@register_pass(mutates_CFG=True, analysis_only=False)
class YieldAtBarriers(FunctionPass):
    """Replace ``barrier(site)`` by ``yield site`` and keep what is constant out of the saved state."""

    _name = "yield_at_barriers"

    def __init__(self):
        FunctionPass.__init__(self)

    def run_pass(self, state):
        """Return True: the pass always changes the function."""
        blocks = state.func_ir.blocks
        constants = _constants(blocks)
        numbers = count()
        for block in blocks.values():
            block.body = _rewritten(block, constants, numbers)
        state.func_ir._definitions = build_definitions(blocks)
        PostProcessor(state.func_ir).run()
        return True


class KernelCompiler(InnerCompiler):
    """That of inner functions with barriers made yields, before variables get their single-assignment form."""

    def define_pipelines(self):
        """Return the one pipeline."""
        (pipeline,) = super().define_pipelines()
        pipeline.add_pass_after(YieldAtBarriers, InlineInlinables)
        pipeline.finalize()
        return [pipeline]


def _constants(blocks):
    """Return name -> the argument, global or literal that the variable holds from its only assignment on."""
    assignments = {}
    for block in blocks.values():
        for statement in block.find_insts(ir.Assign):
            assignments.setdefault(statement.target.name, []).append(statement.value)
    only = {name: values[0] for name, values in assignments.items() if len(values) == 1}

    def root(name):
        value = only.get(name)
        while isinstance(value, ir.Var):
            value = only.get(value.name)
        return value if isinstance(value, ir.Arg | ir.Global | ir.FreeVar | ir.Const) else None

    return {name: value for name in only if (value := root(name)) is not None}


def _rewritten(block, constants, numbers):
    """Return the statements of a block with barriers as yields.

    A constant is loaded anew after each yield that precedes its use. Otherwise it would be live across the yield and
    be saved: 7 words for an array argument at every barrier of every thread; and a saved callee is a pointer into this
    process, which stops numba from caching the kernel on disk.
    """
    body = []
    loaded = {}
    for statement in block.body:
        is_assignment = isinstance(statement, ir.Assign)
        if is_assignment and statement.target.name in constants:
            continue
        waits = is_assignment and _is_barrier(statement.value, constants)
        if waits:
            (site,) = statement.value.args
            statement.value = ir.Yield(value=site, loc=statement.loc, index=-1)
        for variable in statement.list_vars():
            name = variable.name
            if name in constants and name not in loaded:
                loaded[name] = block.scope.define(f"$constant{next(numbers)}", statement.loc)
                body.append(ir.Assign(constants[name], loaded[name], statement.loc))
        replace_vars_stmt(statement, loaded)
        body.append(statement)
        if waits:
            loaded = {}
    return body


def _is_barrier(value, constants):
    if not (isinstance(value, ir.Expr) and value.op == "call"):
        return False
    callee = constants.get(value.func.name)
    return isinstance(callee, ir.Global | ir.FreeVar) and callee.value is barrier
