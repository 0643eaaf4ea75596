import ast
import importlib.util
import textwrap

import numba
import numpy as np
import pytest
from numba import cuda

from workbench.cuda import emulator

TEXT = """
    from math import exp as e

    import numba.cuda as gpu
    from numba import types as t
    from numba.cuda import libdevice as lib, shared, syncthreads, threadIdx

    @gpu.jit(device=True)
    def scaled(x, factor=FACTOR):
        return lib.fmul_rn(x, t.float32(factor))

    def kernel(x, out):
        s = shared.array(SIZE, dtype=t.float32)
        i = threadIdx.x
        s[i] = scaled(LOAD(x[i]))
        syncthreads()
        if MODE == "reverse":
            out[i] = s[SIZE - 1 - i]
        else:
            out[i] = no_such_function(s[i])
        probe.total[i] = e(s[i])
"""


def load_plain(x):
    return x + numba.float32(1)


@pytest.fixture
def module(tmp_path):
    path = tmp_path / "spelled.py"
    path.write_text("FACTOR, SIZE, MODE, LOAD = 2.0, 8, 'reverse', float\n" + textwrap.dedent(TEXT).lstrip())
    spec = importlib.util.spec_from_file_location("spelled", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def edited(module, before="", after="", **namespace):
    """The module's source after a replacement, without its probe."""
    with open(module.__file__) as file:
        text = file.read()
    assert text.count(before) >= 1
    tree = ast.parse(text.replace(before, after) if before else text)
    tree.body[-1].body.pop()
    return emulator.Source("kernel", tree, vars(module) | namespace, module.__file__)


def run(source):
    x, out = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    emulator.compile(source)(1, 8, (x, out))
    return out


def test_names_are_resolved_by_value_and_constants_may_be_device_functions(module):
    np.testing.assert_array_equal(run(edited(module, LOAD=load_plain)), 2 * (np.arange(8)[::-1] + 1))
    np.testing.assert_array_equal(
        run(edited(module, LOAD=cuda.jit(load_plain, device=True))), 2 * np.arange(1, 9)[::-1]
    )
    np.testing.assert_array_equal(run(edited(module, LOAD=numba.float32)), 2 * np.arange(8)[::-1])


def test_the_tree_counts_where_it_was_edited(module):
    """Device functions of the same file come from the tree, although their function objects hold the old text."""
    source = edited(module, "lib.fmul_rn(x, t.float32(factor))", "x + factor", LOAD=numba.float32, FACTOR=np.float32(3))
    np.testing.assert_array_equal(run(source), np.arange(8)[::-1] + 3)


def test_messages_carry_the_lines_of_the_file(module):
    with pytest.raises(emulator.EmulatorError) as caught:
        run(edited(module, LOAD=numba.float32, MODE="forward"))
    assert str(caught.value) == f"{module.__file__}:20: no_such_function is not defined"


def test_a_kernel_that_the_tree_lacks(module):
    with pytest.raises(emulator.EmulatorError) as caught:
        emulator.compile(emulator.Source("other", ast.parse(""), {}, "spelled.py"))
    assert str(caught.value) == "spelled.py does not define the kernel other"


def test_source_of_a_closure_and_of_a_dispatcher():
    step = np.int32(3)

    @cuda.jit
    def kernel(out):
        out[cuda.threadIdx.x] = cuda.threadIdx.x * step

    out = np.zeros(4, np.int64)
    source = emulator.source_of(kernel)
    emulator.compile(source)(1, 4, (out,))
    np.testing.assert_array_equal(out, [0, 3, 6, 9])
    assert source.name == "kernel" and source.filename == __file__


def test_source_of_something_else():
    with pytest.raises(emulator.EmulatorError, match="3 is not a Python function or a numba dispatcher"):
        emulator.source_of(3)


def test_without_a_text_there_is_no_source():
    namespace = {}
    exec(compile("def kernel(out):\n    out[0] = 1\n", "<nowhere>", "exec"), namespace)
    with pytest.raises(emulator.EmulatorError, match="^<nowhere>: no source of kernel to be found$"):
        emulator.source_of(namespace["kernel"])
