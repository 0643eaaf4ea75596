"""Calls by keyword: what is passed, what comes back, twice."""

import numpy as np
import pytest

from workbench.foreign.plain import CALLS, _is_on_gpu, read, run_plain
from workbench.refusal import Raised, Refusal, Unavailable


def test_arrays_go_in_as_they_are_and_numbers_too() -> None:
    seen = []

    def f(x, *, eps, flag=False):
        seen.append((x.dtype, x.strides, eps, flag))
        return x + eps

    x = np.ones((3, 4), np.float32).T
    run = run_plain(f, {"x": x, "eps": 2.0}, name="f")
    assert seen == [(x.dtype, x.strides, 2.0, False)] * CALLS
    (made,) = run.returned
    assert made.arrays[0].shape == (4, 3) and (made.arrays[0] == 3).all() and run.gates == run.notes == ()


def test_what_comes_back_keeps_its_form() -> None:
    x = np.arange(3.0, dtype=np.float32)
    assert read((x, None, 2.5), "f").arrays[1] is None
    assert read(3, "f").arrays[0].shape == ()
    by_name = read({"h": [x, x], "out": x[0], "none": None}, "f").arrays
    assert list(by_name) == ["h[0]", "h[1]", "out"] and by_name["out"].shape == ()
    assert read(x.astype(np.float16), "f").arrays[0].dtype == np.float16


def test_two_calls_that_differ_are_both_there() -> None:
    made = iter([1.0, 2.0])
    run = run_plain(lambda x: x + np.float32(next(made)), {"x": np.zeros(2, np.float32)}, name="f")
    assert [float(one.arrays[0][0]) for one in run.returned] == [1.0, 2.0] and "different bits" in run.notes[0]


def test_torch_tensors_are_made_of_numpy_s_where_that_is_asked() -> None:
    torch = pytest.importorskip("torch")

    def f(x):
        assert isinstance(x, torch.Tensor) and x.dtype == torch.bfloat16
        return x * 2

    x = np.ones(3, np.dtype("bfloat16"))
    (made,) = run_plain(f, {"x": x}, name="f", arrays="torch").returned
    assert made.arrays[0].dtype == x.dtype and (made.arrays[0] == 2).all()


def test_a_function_for_torch_gets_tensors_where_it_raises_on_arrays() -> None:
    torch = pytest.importorskip("torch")

    def f(x):
        return x.to(torch.float64).sum()

    run = run_plain(f, {"x": np.ones(3, np.float32)}, name="f")
    assert run.returned[0].arrays[0] == 3 and "called with torch tensors" in run.notes[0]
    with pytest.raises(Raised, match="has no attribute 'nothing'"):
        run_plain(lambda x: x.nothing, {"x": np.ones(3, np.float32)}, name="f")


def test_what_cannot_be_called_is_refused() -> None:
    x = {"x": np.ones(2, np.float32)}
    with pytest.raises(Refusal, match="called by keyword with x"):
        run_plain(lambda y: y, x, name="f")
    with pytest.raises(Raised, match="SystemExit"):
        run_plain(lambda x: exit(3), x, name="f")
    with pytest.raises(Refusal, match="must be an array of .*; got complex64"):
        run_plain(lambda x: x, {"x": np.ones(2, np.complex64)}, name="f")
    with pytest.raises((Refusal, Unavailable)):
        run_plain(lambda x: x, x, name="f", arrays="cupy")


def test_a_function_that_numba_compiles_gets_numpy_s_own_memory() -> None:
    numba = pytest.importorskip("numba")

    @numba.njit
    def compiled(x):
        out = np.empty(x.shape, x.dtype)
        out[:] = x * 2
        return out

    (made,) = run_plain(lambda x: compiled(x), {"x": np.ones(3, np.float32)}, name="f").returned
    assert (made.arrays[0] == 2).all()


class _At:
    """An array on a device, by DLPack's numbers: 1 a CPU, 2 CUDA."""

    def __init__(self, kind: int) -> None:
        self.kind = kind

    def __dlpack__(self) -> None: ...

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.kind, 0


def test_arrays_of_a_gpu_are_known_alone_and_in_lists() -> None:
    cpu, gpu = _At(1), _At(2)
    assert not _is_on_gpu([np.zeros(1), np.float32(1), 1.0, None, cpu, [cpu]])
    assert _is_on_gpu([cpu, gpu]) and _is_on_gpu([None, [cpu, gpu]])
