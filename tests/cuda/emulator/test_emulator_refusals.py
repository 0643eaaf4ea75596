import numpy as np
import pytest
from numba import cuda, float32, from_dtype
from numba.cuda.random import xoroshiro128p_uniform_float32

from workbench.cuda import emulator


def shape_at_run_time(out):
    n = out.shape[0]
    s = cuda.local.array(n, float32)
    out[0] = s[0]


def cooperative(out):
    cuda.cg.this_grid().sync()


def grid_sync(out):
    out[0] = 1
    g = cuda.cg.this_grid()
    g.sync()


PAIR = np.dtype([("m", np.float32), ("l", np.float32)])


def record_tile(out):
    s = cuda.shared.array(4, dtype=PAIR)
    out[0] = s[0].m


def record_type(out):
    pair = from_dtype(PAIR)
    out[0] = pair


def vector(out):
    v = cuda.float32x4(1, 2, 3, 4)
    out[0] = v.x


def cache_hint(x):
    x[0] = cuda.ldcs(x, 1)


def random_number(states, x):
    x[0] = xoroshiro128p_uniform_float32(states, 0)


def special_function(x):
    x[0] = cuda.libdevice.j0f(x[0])


def raises(x):
    if x[0] < 0:
        raise ValueError("negative")


def prints(x):
    print(x[0])


def comprehends(x):
    x[0] = sum([x[i] for i in range(3)])


def undefined(x):
    x[0] = MISSING  # noqa: F821


def numpy_call(x):
    x[:] = np.cumsum(x)


@cuda.jit(device=True)
def helper(x):
    return x


def function_as_value(x):
    f = helper
    x[0] = f(x[0])


def calls_a_local(x):
    n = 3
    x[0] = n(x[1])


def hidden_name(x):
    __c = x[0]
    x[1] = __c


@cuda.jit(device=True)
def recursive(x):
    return x if x < 1 else recursive(x - 1)


def recursion(x):
    x[0] = recursive(x[0])


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (
            shape_at_run_time,
            "+2: the emulator does not support a shape that is not constant and positive: cuda.local.array(n, float32)",
        ),
        (cooperative, "+1: the emulator does not support cuda.cg.this_grid()"),
        (grid_sync, "+2: the emulator does not support cuda.cg.this_grid()"),
        (record_tile, "+1: the emulator does not support cuda.shared.array of dtype PAIR"),
        (record_type, "+1: the emulator does not support from_dtype()"),
        (vector, "+1: the emulator does not support cuda.float32x4()"),
        (cache_hint, "+1: the emulator does not support cuda.ldcs()"),
        (random_number, "+1: the emulator does not support xoroshiro128p_uniform_float32()"),
        (special_function, "+1: the emulator does not support libdevice.j0f"),
        (raises, "+2: the emulator does not support raise"),
        (prints, "+1: the emulator does not support print()"),
        (comprehends, "+1: the emulator does not support sum()"),
        (undefined, "+1: MISSING is not defined"),
        (numpy_call, "+1: the emulator does not support np.cumsum()"),
        (calls_a_local, "+2: the emulator does not support a call of the local variable n"),
        (hidden_name, "+0: the emulator does not support a variable whose name starts with two underscores: __c"),
        (function_as_value, "+1: the emulator does not support a device function as a value: helper"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_refused_constructs_name_themselves_and_their_line(error_of, kernel, message):
    assert error_of(kernel) == message


def test_recursion_is_refused_where_it_recurs():
    with pytest.raises(emulator.EmulatorError) as caught:
        emulator.compile(emulator.source_of(recursion))
    line = recursive.py_func.__code__.co_firstlineno + 2
    assert str(caught.value) == f"{__file__}:{line}: the emulator does not support recursion"


def subscripts_a_scalar(x, n):
    y = x[0]
    x[1] = y[n]


def test_what_numba_cannot_type_names_the_kernels_line(error_of):
    text = error_of(subscripts_a_scalar, 1, 1, (np.zeros(2), 1))
    assert text.startswith("+2: numba cannot compile subscripts_a_scalar for these arguments\n")


def writes(x):
    x[0] = 1


@pytest.mark.parametrize(
    ("launch", "message"),
    [
        ((0, 1, (np.zeros(1),)), "grid must be one to three positive integers, not 0"),
        ((1, (1, 2, 3, 4), (np.zeros(1),)), "block must be one to three positive integers, not (1, 2, 3, 4)"),
        ((1, (64, 32), (np.zeros(1),)), "a block has at most 1024 threads, not (64, 32, 1) = 2048"),
        ((1, 1, ()), "writes takes 1 arguments (x), not 0"),
        ((1, 1, ([1.0],)), "argument x: list has no CUDA type; pass an array or a number"),
        ((1, 1, (np.zeros(1, complex),)), "argument x: arrays of dtype complex128 have no CUDA type"),
        ((1, 1, (np.zeros(1, PAIR),)), "argument x: arrays of dtype [('m', '<f4'), ('l', '<f4')] have no CUDA type"),
        ((1, 1, (2**63,)), "argument x: 9223372036854775808 does not fit an int64"),
    ],
    ids=["grid", "block", "threads", "count", "list", "complex", "record", "int"],
)
def test_launches_that_cuda_would_refuse(error_of, launch, message):
    assert error_of(writes, *launch) == message


def test_an_unknown_order_is_refused():
    with pytest.raises(emulator.EmulatorError, match="order must be one of ascending, descending, shuffle, not 'up'"):
        emulator.compile(emulator.source_of(writes))(1, 1, (np.zeros(1),), order="up")


def test_a_read_only_array_cannot_be_written(error_of):
    x = np.zeros(1)
    x.flags.writeable = False
    assert error_of(writes, 1, 1, (x,)).startswith("+1: numba cannot compile writes for these arguments\n")
    assert x[0] == 0


TABLE = (10, 20, 30)


def looks_up(x):
    x[cuda.threadIdx.x] = TABLE[cuda.threadIdx.x + x.size - 2]


def test_an_exception_inside_a_thread_is_an_error(emulate, error_of):
    x = np.zeros(2)
    emulate(looks_up, 1, 2, x)
    assert x.tolist() == [10, 20]
    text = error_of(looks_up, (1, 1, 2), 2, (np.zeros(4),))
    assert text == "+0: looks_up raised an exception in block (0, 0, 0)"
