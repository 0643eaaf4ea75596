"""What a program asks numba.cuda for, where there is no GPU: numba's own host code runs, on the host's memory."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numba import cuda, float32
from numba.cuda.cudadrv.devicearray import DeviceNDArray

from tests.refusals import refusal
from workbench.cuda.gpu import gpu
from workbench.cuda.host.launches import OnEmulator, sent_to

X = np.arange(100, dtype=np.float32)


@pytest.fixture(autouse=True)
def host() -> Iterator[OnEmulator]:
    """Every test's program runs on a host with an emulator in the place of a GPU."""
    emulator = OnEmulator()
    with emulator.standing_in(), sent_to(lambda kernel, args, to: emulator(kernel, kernel.py_func, args, (), to)):
        yield emulator


@cache
def double() -> Any:
    """y = 2 x of the first n; compiled when it is defined, as it has signatures."""

    @cuda.jit("float32(float32)", device=True)
    def twice(x):  # type: ignore[no-untyped-def]
        return x * float32(2)

    @cuda.jit(["void(float32[:], float32[:], int32)", "void(float64[:], float64[:], int8)"])
    def kernel(x, y, n):  # type: ignore[no-untyped-def]
        i = cuda.grid(1)
        if i < n:
            y[i] = twice(float32(x[i]))

    return kernel


def run(x: Any, y: Any, n: Any = 100) -> None:
    double()[4, 32](x, y, n)


def test_a_host_finds_a_gpu() -> None:
    assert cuda.is_available()
    device = cuda.get_current_device()
    assert (device.compute_capability, device.MULTIPROCESSOR_COUNT, device.WARP_SIZE) == ((9, 0), 132, 32)
    assert cuda.select_device(0) is cuda.current_context().device is device
    assert refusal(lambda: device.L2_CACHE_SIZE) == ("the emulator's device has no 'L2_CACHE_SIZE'")
    assert refusal(lambda: cuda.current_context().get_memory_info()) == (
        "the emulator's context has no 'get_memory_info'"
    )


def test_arrays_on_the_device() -> None:
    there = cuda.to_device(X)
    y = cuda.device_array_like(there)
    assert isinstance(there, DeviceNDArray) and np.isnan(y.copy_to_host()).all(), "nobody has written it"
    run(there, y)
    assert np.array_equal(y.copy_to_host(), 2 * X) and np.array_equal(there.copy_to_host(), X)
    assert y[3] == 6 and np.array_equal(np.asarray(y.reshape(10, 10)[2:4]), 2 * X[20:40].reshape(2, 10))
    target = np.zeros(100, np.float32)
    assert y.copy_to_host(target) is target and target[99] == 198
    run(there[50:], y[50:], 10)
    y[10:20], y[3] = 0, 7
    assert y[3] == 7 and not y[10:20].copy_to_host().any() and y[20] == 40
    assert [len(part) for part in y.split(30)] == [30, 30, 30, 10]
    square = cuda.device_array((4, 5), np.float32, order="F")
    square.copy_to_device(np.ones((4, 5), np.float32))
    square[:, 1] = cuda.to_device(np.full(4, 3, np.float32))
    assert square.copy_to_host().sum() == 28 and cuda.to_device(square) is square
    assert cuda.device_array(0, np.float32).copy_to_host().shape == (0,)


def test_arrays_of_the_host_are_copied_there_and_back() -> None:
    x, y = X.copy(), np.zeros(100, np.float32)
    run(x, y, 50)
    assert np.array_equal(y, np.where(X < 50, 2 * X, 0))
    run(x, x)
    assert np.array_equal(x, 2 * X), "two copies of one array: the second is the last to come back"
    run(cuda.In(X), cuda.Out(y), 50)
    assert np.array_equal(y[:50], 2 * X[:50]) and np.isnan(y[50:]).all(), "Out goes there without its numbers"
    run(cuda.InOut(X), cuda.In(y), 100)
    assert np.isnan(y[50:]).all()
    for shared in (cuda.mapped_array(100, np.float32), cuda.managed_array(100, np.float32)):
        pinned = cuda.pinned_array(100, np.float32)
        pinned[:] = X
        run(pinned, shared)
        assert np.array_equal(shared, 2 * X)
    with cuda.pinned(x), cuda.mapped(y) as mapped:
        run(X, mapped)
    assert np.array_equal(y, 2 * X)


def test_what_numba_refuses_is_refused_in_its_words() -> None:
    y = np.zeros(50, np.float32)
    with pytest.raises(ValueError, match="^Array contains non-contiguous buffer"):
        run(X[::2], y)
    with pytest.raises(TypeError, match=r"^No matching definition for argument type\(s\) array\(float32, 2d, C\)"):
        run(X.reshape(10, 10), y)
    with pytest.raises(TypeError, match="^incompatible dtype: float32 vs. float64$"):
        cuda.to_device(y).copy_to_device(np.zeros(50))
    with pytest.raises(TypeError, match="doesn't implement the cuda array interface"):
        cuda.as_cuda_array(y)


def test_numbers_have_the_types_of_the_signature() -> None:
    y = np.zeros(100)
    double().forall(100)(X.astype(np.float64), y, 257)  # as int8, 1
    assert y.tolist() == [0.0] * 100
    double().forall(100)(X.astype(np.float64) + 1, y, 257)
    assert y.tolist() == [2.0] + [0.0] * 99
    double().forall(0)(X, X, 0)


def test_streams_and_events() -> None:
    stream, start, end = cuda.stream(), cuda.event(), cuda.event()
    y = cuda.device_array(100, np.float32, stream=stream)
    start.record(stream)
    with stream.auto_synchronize():
        double()[4, 32, stream](cuda.to_device(X, stream=stream), y, 100)
    end.record(stream)
    end.synchronize()
    cuda.default_stream().synchronize()
    cuda.synchronize()
    assert y.copy_to_host(stream=stream)[99] == 198 and end.query() and cuda.event_elapsed_time(start, end) > 0


def test_dtypes_of_ml_dtypes_have_no_buffer_and_are_copied_all_the_same() -> None:
    x = np.arange(100).astype(ml_dtypes.bfloat16)
    with pytest.raises(ValueError, match="cannot include dtype 'E' in a buffer"):
        memoryview(x)
    there = cuda.to_device(x.reshape(4, 25))
    np.testing.assert_array_equal(there.copy_to_host(), x.reshape(4, 25))
    np.testing.assert_array_equal(there[1].copy_to_host(), x[25:50])
    wide = cuda.device_array(100, np.float32)
    widened[4, 32](x, wide)
    np.testing.assert_array_equal(wide.copy_to_host(), x.astype(np.float32))


@cuda.jit
def widened(x, y):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < x.size:
        y[i] = x[i]


def test_tensors_of_torch_are_on_the_device_as_they_are() -> None:
    torch = pytest.importorskip("torch")
    x, y = torch.arange(100, dtype=torch.float32), torch.zeros(100)
    run(x, cuda.as_cuda_array(y))
    assert torch.equal(y, 2 * x)
    half = cuda.as_cuda_array(torch.ones(3, dtype=torch.bfloat16))
    assert str(half.dtype) == "bfloat16" and half.shape == (3,)


@cuda.jit
def shared(x):  # type: ignore[no-untyped-def]
    part = cuda.shared.array(0, float32)
    part[0] = x[0]


@cuda.jit
def with_list(x):  # type: ignore[no-untyped-def]
    x[0] = [1][0]


@pytest.mark.parametrize(
    ("launch", "message"),
    [
        (
            lambda: shared[1, 1](X.copy()),
            "{file}:{shared}: shared uses dynamic shared memory but is launched without its size: shared[grid, block, stream, bytes]",
        ),
        (lambda: shared[1, 1, 0, 4](X.copy(), 1), "{file}:{shared}: shared takes 1 arguments (x); it is launched with 2"),
        (
            lambda: with_list[1, 1]((1, 2)),
            "with_list does not run on the emulator\n"
            "{file}:{list}: the emulator does not support list",
        ),
        (
            lambda: shared[1, 1, 0, 4]((1, 2)),
            "{file}:{shared}: the emulator takes only arrays and numbers as kernel arguments; x is (1, 2) (UniTuple(int64 x 2))",
        ),
        (
            lambda: shared[1, 1, 0, 4](OnGpu()),
            "a {module}.OnGpu on a GPU was given to a kernel that runs on the emulator, whose arrays are in the host's "
            "memory; `--backend cuda` runs it on the GPU",
        ),
        (
            lambda: shared[1, 1, 0, 4](None),
            "{file}:{shared}: the emulator takes only arrays and numbers as kernel arguments; x is None (none)",
        ),
    ],
    ids=["no dynamic memory", "arguments", "construct", "tuple", "on a gpu", "none"],
)  # fmt: skip
def test_what_the_emulator_does_not_run_is_refused(launch: Any, message: str) -> None:
    lines = {
        "shared": shared.py_func.__code__.co_firstlineno + 1,
        "list": with_list.py_func.__code__.co_firstlineno + 2,
    }
    assert refusal(launch) == message.format(file=__file__, module=__name__, **lines)


class OnGpu:
    """An array of a library that has it on a GPU."""

    __cuda_array_interface__ = {"shape": (1,), "typestr": "<f4", "data": (1, False), "version": 3}


@pytest.mark.skipif(gpu() is not None, reason="there is a GPU")
def test_afterwards_numba_is_as_it_was(host: OnEmulator) -> None:
    compiled = {id(x) for x in double().overloads.values()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("numba.cuda.dispatcher.CUDADispatcher.call", "mine")
        with OnEmulator().standing_in(), sent_to(lambda *_: None):
            assert cuda.is_available()
        assert cuda.dispatcher.CUDADispatcher.call == "mine"
    assert {id(x) for x in double().overloads.values()} == compiled
