"""Arrays of other libraries, there and back: dtypes, strides, devices, and what is refused."""

import sys
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from workbench import Case, Refusal, Unavailable, run
from workbench.arrays import as_numpy, as_torch, handed_over, home, in_float64
from workbench.extras import absent

FLOATS = [np.float32, np.float16, ml_dtypes.bfloat16]
X = np.arange(24.0).reshape(2, 3, 4)
SWAPPED = (1, 0, 2)


def library(arrays: str) -> str:
    """The device of `arrays` here, or a skip that says what is missing."""
    pytest.importorskip(arrays, reason=f"{arrays} is not installed")
    try:
        return home(arrays, None)
    except Unavailable as missing:
        pytest.skip(str(missing))


def over(x: np.ndarray, arrays: str) -> Any:
    """`x` handed over, or a skip where a CuPy without bfloat16 refuses it."""
    device = library(arrays)
    try:
        return handed_over(x, arrays, device)
    except Refusal as refusal:
        assert arrays == "cupy" and x.dtype == ml_dtypes.bfloat16
        pytest.skip(str(refusal))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("arrays", ["numpy", "torch", "cupy", "jax"])
def test_there_and_back(arrays: str, dtype: Any) -> None:
    x = X.astype(dtype)
    there = over(x, arrays)
    assert there.shape == x.shape and str(there.dtype).removeprefix("torch.") == x.dtype.name
    back = as_numpy(there, "x")
    assert back.dtype == x.dtype and back.tobytes() == x.tobytes()


@pytest.mark.parametrize("arrays", ["numpy", "torch", "cupy"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_strides_travel(arrays: str, dtype: Any) -> None:
    x = X.astype(dtype).transpose(SWAPPED)
    there = over(x, arrays)
    strides = there.stride() if arrays == "torch" else tuple(step // x.itemsize for step in there.strides)
    assert strides == (4, 12, 1) and np.array_equal(as_numpy(there, "x"), x)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("arrays", ["torch", "cupy", "jax"])
def test_views_are_read_as_they_are_seen(arrays: str, dtype: Any) -> None:
    """Transposed, in steps, backwards and expanded."""
    x = X.astype(dtype)
    there = over(x, arrays)
    views = {"steps": (there[:, ::2], x[:, ::2]), "row": (there[0, 1], x[0, 1])}
    if arrays == "torch":
        views["expanded"] = (there[:1].expand(5, -1, -1), np.broadcast_to(x[:1], (5, 3, 4)))
        views["transposed"] = (there.permute(2, 0, 1), x.transpose(2, 0, 1))
    else:
        package: Any = pytest.importorskip(arrays if arrays == "cupy" else "jax.numpy")
        views["expanded"] = (package.broadcast_to(there[:1], (5, 3, 4)), np.broadcast_to(x[:1], (5, 3, 4)))
        views["transposed"] = (there.transpose(2, 0, 1), x.transpose(2, 0, 1))
        views["backwards"] = (there[::-1], x[::-1])
    for name, (view, expected) in views.items():
        found = as_numpy(view, name)
        assert found.flags.c_contiguous and found.dtype == x.dtype and np.array_equal(found, expected)


@dataclass
class Other:
    """An array of a library that nobody here knows, which speaks DLPack."""

    of: Any

    def __dlpack__(self, **options: Any) -> Any:
        return self.of.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.of.__dlpack_device__()


def test_any_library_that_speaks_dlpack_is_read() -> None:
    assert np.array_equal(as_numpy(Other(X.transpose(SWAPPED)), "x"), X.transpose(SWAPPED))
    device = library("torch")
    for dtype in FLOATS:  # NumPy takes no bfloat16, torch does
        x = X.astype(dtype)
        assert as_numpy(Other(handed_over(x, "torch", device)), "x").tobytes() == x.tobytes()


def test_a_dlpack_array_that_only_torch_could_read_needs_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    other = Other(handed_over(X.astype(ml_dtypes.bfloat16), "torch", library("torch")))
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(Unavailable) as missing:
        as_numpy(other, "x")
    assert str(missing.value) == absent(f"an array of {__name__} needs", "torch")


@pytest.mark.parametrize(
    ("arrays", "device", "message"),
    [
        ("numpy", "cuda", "NumPy arrays live on the cpu; got device 'cuda': pass --arrays torch, cupy or jax"),
        ("cupy", "cpu", "CuPy arrays live on a GPU; got device 'cpu': pass --arrays numpy, torch or jax"),
        ("torch", "gpu", "device must be one of cpu, cuda; got 'gpu'"),
    ],
)
def test_homes_that_do_not_exist_are_refused(arrays: str, device: str, message: str) -> None:
    with pytest.raises(Refusal) as refusal:
        home(arrays, device)
    assert str(refusal.value) == message


@pytest.mark.parametrize("arrays", ["torch", "cupy", "jax"])
def test_a_library_that_is_not_there_is_unavailable(arrays: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, arrays, None)
    with pytest.raises(Unavailable) as missing:
        home(arrays, None)
    assert str(missing.value) == absent(f"--arrays {arrays} needs", arrays)


@pytest.mark.parametrize("arrays", ["torch", "cupy", "jax"])
def test_a_gpu_that_a_library_cannot_use_is_unavailable(arrays: str) -> None:
    package: Any = pytest.importorskip(arrays, reason=f"{arrays} is not installed")
    from workbench.arrays import _has_gpu

    if _has_gpu(arrays, package):
        pytest.skip("there is a GPU")
    with pytest.raises(Unavailable) as missing:
        home(arrays, "cuda")
    assert str(missing.value) == f"device cuda needs an NVIDIA GPU that {arrays} can use; none was found"


def test_jax_has_no_strides() -> None:
    with pytest.raises(Refusal) as refusal:
        run(lambda q, k, v, *, scale, causal: q, Case(), arrays="jax", layout="strided")
    assert (
        str(refusal.value) == "JAX arrays have no strides; got layout 'strided': pass --arrays jax,layout=bhsd or bshd"
    )


@pytest.mark.gpu
def test_streams_are_waited_for() -> None:
    """A result that is still being computed, on a stream that is not torch's current one."""
    library("torch")
    import torch

    side, late = torch.cuda.Stream(), torch.zeros(1 << 20, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(int(2e9))  # clock cycles: about a second
        late += 1
    assert np.all(as_numpy(late, "late") == 1)


@pytest.mark.gpu
def test_cupy_streams_are_waited_for() -> None:
    library("cupy")
    import cupy
    import torch

    late = cupy.zeros(1 << 20, np.float32)
    cupy.cuda.runtime.deviceSynchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(int(2e9))
        torch.from_dlpack(late).add_(1)
    assert np.all(as_numpy(late, "late") == 1)


def test_what_may_only_be_read_is_copied_to_float64_in_torch() -> None:
    """Torch warns of it once, and writes to it where it is told to."""
    library("torch")
    parts = np.broadcast_to(np.ones((2, 3)), (2, 3))
    made = in_float64(parts, "cpu:0")  # to torch the cpu is a device like others
    assert not np.shares_memory(made.numpy(), parts) and made.tolist() == parts.tolist()


def test_arrays_of_numpy_are_tensors_of_the_same_memory_where_torch_can() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    tensor = as_torch(x, "q")
    x[0, 0] = 7
    assert tensor[0, 0] == 7 and as_torch(tensor, "q") is tensor
    assert torch.equal(as_torch(x[:, ::-1], "q"), tensor.flip(1))
    narrow = as_torch(x.astype(ml_dtypes.bfloat16), "q")
    assert narrow.dtype == torch.bfloat16 and torch.equal(narrow.float(), tensor)
    x.flags.writeable = False
    assert torch.equal(as_torch(x, "q"), tensor)
    with pytest.raises(Refusal, match="q must be an array; got list"):
        as_torch([1.0], "q")


def test_an_array_that_is_traced_has_no_numbers() -> None:
    tracer = type("Tracer", (), {})
    with pytest.raises(Refusal, match=r"k is traced by jax.jit and has no numbers: call it outside of jit"):
        as_torch(type("JitTracer", (tracer,), {})(), "k")
