"""The decorator of functions that compiled code alone calls.

They lack the wrappers through which Python or C would call them, and have no machine code: numba links a function into
its callers, and what is at last called from outside is optimised and made machine code as a whole. By itself, numba
does both for every function, and again for each of its callers. A call from Python would crash the process.
"""

from functools import partial

from numba import _dynfunc, njit
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import register_pass
from numba.core.typed_passes import NativeLowering
from numba.extending import overload


class _Linked(JITCodeLibrary):
    """The code of a function and of all that it calls, to be linked into libraries that run."""

    def _optimize_final_module(self):
        pass

    def _finalize_final_module(self):
        self._finalize_dynamic_globals()
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class _LinkedLowering(NativeLowering):
    """Lower a function into a library that is only linked."""

    _name = "linked_lowering"

    def run_pass(self, state):
        """Return True: lowering changes the function."""
        state.library = _Linked(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        super().run_pass(state)
        result = state.cr
        # numba knows a function by its address, and one without machine code by a function at address 0
        name = result.fndesc.qualname
        function = _dynfunc.make_function(result.fndesc.lookup_module(), name, name, 0, result.env, (state.library,))
        state.targetctx.insert_user_function(function, result.fndesc, [state.library])
        state.cr = result._replace(cfunc=function)
        return True


class InnerCompiler(CompilerBase):
    """numba's default pipeline but for machine code."""

    def define_pipelines(self):
        """Return the one pipeline."""
        pipeline = DefaultPassBuilder.define_nopython_pipeline(self.state)
        pipeline.passes = [(_LinkedLowering if step is NativeLowering else step, why) for step, why in pipeline.passes]
        pipeline.finalize()
        return [pipeline]


_OPTIONS = {"_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True, "pipeline_class": InnerCompiler}
inner = partial(njit, **_OPTIONS)
#: numba's `overload` whose implementations are such functions
inner_overload = partial(overload, jit_options=_OPTIONS)
