"""Kernels called with torch tensors: what the driver is given, without one and run by the emulator; bits on a GPU."""

import ctypes
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
from numba import types
from numba.cuda import dispatcher

import workbench
from tests.refusals import refusal
from workbench import Case, Unavailable, run
from workbench.cuda import launch, prepared
from workbench.cuda.build import build
from workbench.cuda.cubin import signature
from workbench.cuda.kernels import KERNELS
from workbench.cuda.plan import settle

torch = pytest.importorskip("torch", reason="torch is not installed")
FLOAT32, FLOAT16, BFLOAT16 = torch.float32, torch.float16, torch.bfloat16


class OnGpu(torch.Tensor):
    """A tensor of the CPU that says it is on a GPU."""

    @property
    def device(self):
        return torch.device("cuda", getattr(self, "gpu", 0))


class Driver:
    """In place of the driver: it copies the arguments of a launch, as the driver does."""

    def __init__(self):
        self.codes, self.launches, self.status = [], [], 0
        self.gpu, self.entered, self.contexts = 0, [], []
        self.runs = False  #: whether the emulator runs what is launched, at once: what is left between may go then
        self.stream_of = lambda: 0

    def load(self, code):
        self.codes.append(code)
        return SimpleNamespace(handle=len(self.codes))

    def launch(self, function, *rest):
        *size, shared, stream, parameters, extra = rest
        assert extra == 0
        code = self.codes[int(function) - 1]
        addresses = (ctypes.c_void_p * len(code.parts)).from_address(parameters)
        values = [part.from_address(address).value for part, address in zip(code.parts, addresses, strict=True)]
        self.launches.append(SimpleNamespace(code=code, size=(*size,), shared=shared, stream=stream, values=values))
        if self.runs:
            emulated(self.launches[-1])
        return (self.status,)

    def context(self, gpu):
        return SimpleNamespace(set_current=lambda: self.contexts.append((gpu, threading.get_ident())))

    def device(self, gpu):
        self.entered.append(gpu if isinstance(gpu, int) else gpu.index)
        return nullcontext()


def code_of(made, constants, typed, compute_capability):
    """In place of machine code: the build, and what it reads of each argument."""
    parts = []
    for x in typed.args:
        wide = [ctypes.c_int64] * (5 + 2 * x.ndim) if isinstance(x, types.Array) else None
        scalar = {types.float32: ctypes.c_float, types.int32: ctypes.c_int32, types.boolean: ctypes.c_bool}
        parts += wide or [scalar[x]]
    return SimpleNamespace(made=made, typed=typed, parts=parts, cc=compute_capability)


@pytest.fixture
def driver(monkeypatch):
    """The driver's stand-in; nothing is compiled."""
    import cuda.core
    from cuda.bindings import driver as bindings

    found = Driver()
    monkeypatch.setattr(dispatcher, "get_current_device", lambda: SimpleNamespace(compute_capability=(9, 0)))
    monkeypatch.setattr(bindings, "cuLaunchKernel", found.launch)
    monkeypatch.setattr(bindings, "cuKernelSetAttribute", lambda *_: (0,))
    monkeypatch.setattr(launch, "cubin", lambda *of: SimpleNamespace(load=lambda: found.load(code_of(*of))))
    monkeypatch.setattr(cuda.core, "Device", found.context)
    monkeypatch.setattr(torch.cuda, "device", found.device)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda gpu: (9, gpu))
    properties = SimpleNamespace(multi_processor_count=4, shared_memory_per_multiprocessor=228 * 1024)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda gpu: properties)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda gpu: found.stream_of(), raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: found.gpu, raising=False)
    prepared._loaded.cache_clear()
    yield found
    prepared._loaded.cache_clear()


def tensor(*shape, dtype=FLOAT16, gpu=0):
    found = torch.zeros(shape, dtype=dtype).as_subclass(OnGpu)
    found.gpu = gpu
    return found


def tensors(batch=2, heads=4, kv_heads=2, seqlen_q=5, seqlen_k=7, head_dim=64, dtype=FLOAT16):
    q, kv = (batch, heads, seqlen_q, head_dim), (batch, kv_heads, seqlen_k, head_dim)
    return tensor(*q, dtype=dtype), tensor(*kv, dtype=dtype), tensor(*kv, dtype=dtype)


def array(parts, dtype):
    """What a kernel sees of an array that is passed in parts: its memory, by its strides."""
    dims = (len(parts) - 5) // 2
    _, _, _, size, address = parts[:5]
    shape, strides = parts[5 : 5 + dims], parts[5 + dims :]
    length = sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True)) + size
    memory = np.frombuffer((ctypes.c_char * length).from_address(address), np.uint8).view(dtype)
    return np.lib.stride_tricks.as_strided(memory, shape, strides)


def given(launch):
    """Name of an argument -> its parts, or its value."""
    values, found = iter(launch.values), {}
    for name, x in zip(launch.code.made.parameters, launch.code.typed.args, strict=True):
        parts = [next(values) for _ in range(5 + 2 * x.ndim if isinstance(x, types.Array) else 1)]
        found[name] = parts if isinstance(x, types.Array) else parts[0]
    assert next(values, None) is None
    return found


def emulated(launch):
    """Run what was launched on the emulator."""
    arguments = [
        array(x, str(kind.dtype)) if isinstance(kind, types.Array) else np.dtype(str(kind)).type(x)
        for x, kind in zip(given(launch).values(), launch.code.typed.args, strict=True)
    ]
    launch.code.made.for_emulator()(launch.size[:3], launch.size[3], arguments, dynamic_shared_bytes=launch.shared)


# ---- what the driver is given


CASES = {
    "flash_mma": dict(
        batch=2, heads=4, kv_heads=2, seqlen_q=37, seqlen_k=50, head_dim=64, dtype="bfloat16", causal=True
    ),
    "flash": dict(heads=2, seqlen_q=20, seqlen_k=17, head_dim=30, scale=0.3, window=(5, 2)),
    "split_mma": dict(heads=8, kv_heads=2, batch=2, seqlen_q=1, seqlen_k=330, head_dim=64, dtype="float16"),
}


def filled(case, device=None, *, transposed=False):
    """q, k, v of a case as torch tensors; `transposed`: [b, s, h, d] in memory."""

    def of(x):
        found = torch.from_numpy(x.astype(np.float32)).to(getattr(torch, case.dtype))
        if transposed:
            found = found.transpose(1, 2).contiguous().transpose(1, 2)
        return found.as_subclass(OnGpu) if device is None else found.to(device)

    return [of(x) for x in case.inputs()]


def bits(x):
    """The bytes of a tensor or array, as it is indexed."""
    if isinstance(x, np.ndarray):
        return x.tobytes()
    x = x.detach().as_subclass(torch.Tensor).contiguous().cpu()
    return x.view(torch.int16 if x.element_size() == 2 else torch.int32).numpy().tobytes()


def options_of(case):
    return {name: getattr(case, name) for name in ("scale", "causal", "window", "softcap")}


@pytest.mark.parametrize(("name", "transposed"), [("flash_mma", False), ("flash_mma", True), ("flash", True)])
def test_what_the_driver_is_given_runs_on_the_emulator(name, transposed, driver):
    """Every address, shape, stride and scalar is used."""
    case = Case(**CASES[name])
    expected = run(name, case, probes="output", backend="emulator").stages
    q, k, v = filled(case, transposed=transposed)
    out, lse = prepared.kernel(name)(q, k, v, **options_of(case))
    assert out.stride() == q.stride() and lse.is_contiguous() and lse.dtype == FLOAT32
    (launch,) = driver.launches
    assert {x.layout for x in launch.code.typed.args[:4]} == {"A" if transposed else "C"}
    emulated(launch)
    assert bits(out) == bits(expected["out"]) and bits(lse) == bits(expected["lse"])


def test_two_launches_of_a_call_share_what_the_first_leaves(driver):
    """Where the second finds it, in a room of the call's own; in as many splits as fill 4 multiprocessors."""
    case = Case(**CASES["split_mma"])
    expected = run("split_mma", case.but(splits=2), probes="output", backend="emulator").stages
    attention, inputs = prepared.kernel("split_mma"), filled(case)
    driver.runs = True
    for _ in range(2):
        out, lse = attention(*inputs)
        assert bits(out) == bits(expected["out"]) and bits(lse) == bits(expected["lse"])
    first, second, *_ = driver.launches
    assert first.size == (2, 2, 2, 128, 1, 1) and second.size == (1, 8, 2, 128, 1, 1)
    assert (first.shared, second.shared) == (2 * (16 + 4 * 64) * 64, 0) and len(driver.codes) == 2
    for name in ("partial_O", "partial_max", "partial_sum"):
        assert given(first)[name] == given(second)[name]
    start = given(first)["partial_O"][4]
    assert given(first)["partial_max"][4] - start == 4 * 2 * 8 * 2 * 64
    assert given(first)["partial_sum"][4] - start == 4 * 2 * 8 * 2 * (64 + 1)


def test_no_later_launch_of_a_call_that_failed(driver):
    driver.status = SimpleNamespace(name="CUDA_ERROR_INVALID_VALUE")
    with pytest.raises(RuntimeError, match="^split_mma: the driver answers CUDA_ERROR_INVALID_VALUE on "):
        prepared.kernel("split_mma")(*tensors())
    assert len(driver.launches) == 1


def test_arguments_are_those_of_numba_cuda(driver):
    """Of an array: no meminfo and no parent, elements, bytes of one, address, shape, strides in bytes."""
    q, k, v = tensors()
    attention = prepared.kernel("flash_mma")
    out, lse = attention(q, k.transpose(1, 2).contiguous().transpose(1, 2), v, window=(3, -1), softcap=2.5, scale=-0.5)
    found = given(driver.launches[0])
    assert found["q"] == [0, 0, 2560, 2, q.data_ptr(), 2, 4, 5, 64, 2560, 640, 128, 2]
    assert found["k"][5:] == [2, 2, 7, 64, 1792, 128, 256, 2] and found["v"][5:] == [2, 2, 7, 64, 1792, 896, 128, 2]
    assert found["out"] == [*found["q"][:4], out.data_ptr(), *found["q"][5:]]
    assert found["lse"] == [0, 0, 40, 4, lse.data_ptr(), 2, 4, 5, 80, 20, 4]
    scalars = {name: found[name] for name in ("scale", "softcap", "diagonal", "left", "right")}
    assert scalars == {"scale": -0.5, "softcap": 2.5, "diagonal": 2, "left": 3, "right": 12}
    attention(q, k[:, :, :4].contiguous(), v[:, :, :4].contiguous(), window=(3, 0))
    assert given(driver.launches[1])["diagonal"] == -1


def test_a_second_call_changes_addresses_alone(driver):
    attention = prepared.kernel("flash")
    first, second = tensors(dtype=FLOAT32), tensors(dtype=FLOAT32)
    out, lse = tensor(2, 4, 5, 64, dtype=FLOAT32), tensor(2, 4, 5, dtype=FLOAT32)
    attention(*first, causal=True)
    got = attention(*second, causal=True, out=out, lse=lse)
    assert got[0] is out and got[1] is lse and len(driver.codes) == 1
    one, two = map(given, driver.launches)
    for name, x in zip(("q", "k", "v", "out", "lse"), (*second, *got), strict=True):
        assert two[name][4] == x.data_ptr() and two[name][:4] + two[name][5:] == one[name][:4] + one[name][5:]
    assert driver.launches[0].size == driver.launches[1].size


def test_the_grid_is_that_of_a_run(driver):
    prepared.kernel("flash_mma")(*tensors(seqlen_q=130))
    one = driver.launches[0]
    assert one.size == (9, 4, 2, 32, 1, 1)  # 16 query rows a block, few as they are
    assert one.shared == 2 * (16 + 2 * 128) * 64


def test_other_shapes_share_the_code(driver):
    attention = prepared.kernel("flash_mma")
    for seqlen_k in (7, 8, 9):
        attention(*tensors(seqlen_k=seqlen_k))
    assert len(driver.codes) == 1 and [given(one)["k"][7] for one in driver.launches] == [7, 8, 9]
    attention(*tensors(), causal=True)
    prepared.kernel("flash_mma")(*tensors(), causal=True)
    assert len(driver.codes) == 2


def test_arguments_that_are_kept_are_limited(driver, monkeypatch):
    monkeypatch.setattr(prepared, "KEPT", 2)
    kept = prepared._Mine()
    for key in range(5):
        kept.keep(key, key)
    assert {*kept.by_key} == {4}


def test_it_is_launched_on_the_current_stream(driver):
    attention = prepared.kernel("flash_mma")
    for stream in (0, 1234):
        driver.stream_of = lambda stream=stream: stream
        attention(*tensors())
    assert [one.stream for one in driver.launches] == [0, 1234]


def test_another_gpu_than_the_current_one(driver):
    """The default stream has one handle for all GPUs, and code is loaded for each."""
    attention = prepared.kernel("flash_mma")
    for gpu in (0, 1):
        q, k, v = (tensor(1, 1, 8, 64, gpu=gpu) for _ in "qkv")
        out, lse = tensor(1, 1, 8, 64, gpu=gpu), tensor(1, 1, 8, dtype=FLOAT32, gpu=gpu)
        attention(q, k, v, out=out, lse=lse)
        driver.entered.append("between")
        attention(q, k, v, out=out, lse=lse)
        driver.entered.append("end")
    assert driver.entered == [0, "between", "end", 1, 1, "between", 1, "end"]
    assert [code.cc for code in driver.codes] == [(9, 0), (9, 1)] and [gpu for gpu, _ in driver.contexts] == [0, 1]


def test_threads_write_into_arguments_of_their_own(driver):
    """All of them write addresses before any of them launches: the stream is asked for between."""
    attention, both = prepared.kernel("flash_mma"), threading.Barrier(2)

    def stream():
        both.wait(10)
        return threading.get_ident()

    driver.stream_of = stream

    def call(_):
        q, k, v = tensors()
        for _ in range(5):
            attention(q, k, v)
        return threading.get_ident(), q

    with ThreadPoolExecutor(2) as pool:
        given_to = dict(pool.map(call, range(2)))
    assert len(given_to) == 2 and len(driver.launches) == 10
    assert all(given(one)["q"][4] == given_to[one.stream].data_ptr() for one in driver.launches)
    assert {thread for _, thread in driver.contexts} == {*given_to}  # a new thread has no context of the GPU


def test_a_status_of_the_driver_is_raised(driver):
    driver.status = SimpleNamespace(name="CUDA_ERROR_INVALID_VALUE")
    with pytest.raises(RuntimeError, match="^flash_mma: the driver answers CUDA_ERROR_INVALID_VALUE on .*seqlen_q=5"):
        prepared.kernel("flash_mma")(*tensors())


# ---- what is refused, before anything is launched


def refused(driver, name, *given, **options):
    said = refusal(prepared.kernel(name), *given, **options)
    assert driver.launches == []
    return said


def test_other_kernels_are_refused():
    assert (
        refusal(workbench.kernel, "fp8")
        == "kernels that can be called are flash, flash_tensor, flash_mma, flash_wgmma, split_mma; got 'fp8'"
    )


@pytest.mark.skipif(hasattr(torch._C, "_cuda_getDevice"), reason="this torch is built for GPUs")
def test_a_torch_for_cpus_is_not_enough():
    with pytest.raises(Unavailable) as raised:
        workbench.kernel("flash_mma")
    expected = "a kernel is called with tensors on a GPU, and this torch is built for CPUs alone"
    assert str(raised.value) == expected


ARRAYS = "is a tensor [batch, heads, rows, d] of float32, float16, bfloat16 on a GPU, the stride of d 1; got"
Q, K, V = tensors()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((Q[0], K, V), f"q {ARRAYS} float16 [4, 5, 64], strides [320, 64, 1] on cuda:0"),
        ((Q, K.double(), V), f"k {ARRAYS} float64 [2, 2, 7, 64], strides [896, 448, 64, 1] on cuda:0"),
        (
            (Q, K, torch.zeros(2, 2, 7, 64, dtype=FLOAT16)),
            f"v {ARRAYS} float16 [2, 2, 7, 64], strides [896, 448, 64, 1] on cpu",
        ),
        (
            (Q, K, V.transpose(2, 3).contiguous().transpose(2, 3)),
            f"v {ARRAYS} float16 [2, 2, 7, 64], strides [896, 448, 1, 7] on cuda:0",
        ),
        (
            (Q, K.to(BFLOAT16), V),
            "q, k, v and out are of one dtype on one GPU; k is bfloat16 [2, 2, 7, 64] on cuda:0, q is float16 "
            "[2, 4, 5, 64] on cuda:0",
        ),
        (
            (Q, K, tensor(2, 2, 7, 64, gpu=1)),
            "q, k, v and out are of one dtype on one GPU; v is float16 [2, 2, 7, 64] on cuda:1, q is float16 "
            "[2, 4, 5, 64] on cuda:0",
        ),
        ((Q, K, V[:, :, :6]), "k and v are [2, kv_heads, rows, 64]; got [2, 2, 7, 64] and [2, 2, 6, 64]"),
        ((Q, K[:1], V[:1]), "k and v are [2, kv_heads, rows, 64]; got [1, 2, 7, 64] and [1, 2, 7, 64]"),
        ((Q[:, :3].contiguous(), K, V), "heads must be a multiple of kv_heads; got heads=3, kv_heads=2"),
        ((Q[:0], K[:0], V[:0]), "batch must be a whole number of at least 1; got 0"),
        ((Q[:, :, :0], K, V), "seqlen_q must be a whole number of at least 1; got 0"),
        ((Q, K[:, :, :0], V[:, :, :0]), "seqlen_k must be a whole number of at least 1; got 0"),
        ((Q[:, :0], K[:, :0], V[:, :0]), "heads must be a whole number of at least 1; got 0"),
        (
            tuple(x.float() for x in (Q, K, V)),
            "kernel flash_mma multiplies float16 or bfloat16 on tensor cores; got float32",
        ),
        (
            tuple(x[..., :60].contiguous() for x in (Q, K, V)),
            "flash_mma copies 8 dims at once, and strides are multiples of 8; those of q are [1200, 300, 60, 1]",
        ),
        (
            (Q, tensor(2, 2, 7, 68)[..., :64], V),
            "flash_mma copies 8 dims at once, and strides are multiples of 8; those of k are [952, 476, 68, 1]",
        ),
        (
            ([0.0], K, V),
            "flash_mma takes torch tensors, and options that are numbers or pairs of them: 'list' object has no "
            "attribute 'shape'",
        ),
    ],
)
def test_tensors_that_are_refused(given, message, driver):
    assert refused(driver, "flash_mma", *given) == message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"out": Q[..., :32]}, "out is like q: float16 [2, 4, 5, 64]; got float16 [2, 4, 5, 32]"),
        (
            {"out": tensor(2, 4, 5, 64, dtype=FLOAT32)},
            "q, k, v and out are of one dtype on one GPU; out is float32 [2, 4, 5, 64] on cuda:0, q is float16 "
            "[2, 4, 5, 64] on cuda:0",
        ),
        (
            {"out": tensor(1, 4, 5, 64).expand(2, 4, 5, 64)},
            "no two elements of out are at one place; got float16 [2, 4, 5, 64], strides [0, 320, 64, 1]",
        ),
        (
            {"lse": tensor(2, 4, 6, dtype=FLOAT32)},
            "lse is float32 [2, 4, 5] on cuda:0; got float32 [2, 4, 6] on cuda:0",
        ),
        ({"lse": tensor(2, 4, 5)}, "lse is float32 [2, 4, 5] on cuda:0; got float16 [2, 4, 5] on cuda:0"),
        (
            {"lse": tensor(2, 4, 5, dtype=FLOAT32, gpu=1)},
            "lse is float32 [2, 4, 5] on cuda:0; got float32 [2, 4, 5] on cuda:1",
        ),
        (
            {"lse": tensor(2, 5, 4, dtype=FLOAT32).transpose(1, 2)},
            "lse is contiguous; got strides [20, 1, 4]",
        ),
        ({"softcap": -1.0}, "softcap must be above 0 and a normal number of float32; got -1.0"),
        (
            {"window": [3, 4]},
            "flash_mma takes torch tensors, and options that are numbers or pairs of them: unhashable type: 'list'",
        ),
    ],
)
def test_options_that_are_refused(options, message, driver):
    assert refused(driver, "flash_mma", Q, K, V, **options) == message


@pytest.mark.parametrize(
    "others",
    [
        {"k": tensor(2, 2, 7, 64, gpu=1)},
        {"v": tensor(2, 2, 7, 64, gpu=1)},
        {"k": K.to(BFLOAT16)},
        {"v": V.to(BFLOAT16)},
        {"v": tensor(2, 2, 7, 65)[..., :64]},
        {"v": V[:, :, :6]},
        {"out": tensor(2, 4, 5, 64, gpu=1)},
        {"out": tensor(2, 4, 5, 64, dtype=BFLOAT16)},
        {"out": tensor(2, 4, 4, 64)},
        {"lse": tensor(2, 4, 5, dtype=FLOAT32, gpu=1)},
        {"lse": tensor(2, 4, 5, dtype=torch.float64)},
        {"lse": tensor(2, 4, 10, dtype=FLOAT32)[..., ::2]},
    ],
    ids=lambda others: ", ".join(f"{x} {one.dtype} {[*one.shape]} {one.device}" for x, one in others.items()),
)
def test_what_was_taken_before_is_looked_at_again(others, driver):
    """Arguments of a call are found by all that was checked."""
    attention = prepared.kernel("flash_mma")
    given = {"q": Q, "k": K, "v": V, "out": tensor(2, 4, 5, 64), "lse": tensor(2, 4, 5, dtype=FLOAT32)}
    attention(**given)
    refusal(attention, **given | others)
    assert len(driver.launches) == 1


@pytest.mark.parametrize("which", ["q", "k", "v", "out"])
def test_an_address_between_16_bytes_is_never_launched(which, driver):
    """A copy of 16 bytes from elsewhere ends the context; the shapes have been launched before."""
    attention = prepared.kernel("flash_mma")
    given = dict(zip("qkv", tensors(), strict=True)) | {"out": tensor(2, 4, 5, 64)}
    attention(**given)
    flat = tensor(given[which].numel() + 4)
    given[which] = flat[4:].view(given[which].shape)
    said = refusal(attention, **given)
    at = flat.data_ptr() + 8
    assert said == f"flash_mma copies 16 bytes at once, and {which} begins at a multiple of 16 bytes; got {at:#x}"
    assert len(driver.launches) == 1


def test_flash_takes_any_element(driver):
    flat = tensor(1 * 2 * 6 * 31 + 1, dtype=FLOAT32)
    x = flat[1:].view(1, 2, 6, 31)[..., :30]
    prepared.kernel("flash")(x, x, x)
    (one,) = driver.launches
    assert given(one)["q"][4] == flat.data_ptr() + 4 and given(one)["q"][9:] == [1488, 744, 124, 4]


def test_one_row_may_have_any_stride(driver):
    """torch gives an axis of size 1 any stride: it is never taken."""
    q, k, v = tensors(batch=1)
    prepared.kernel("flash_mma")(q.as_strided(q.shape, (3, 320, 64, 1)), k, v)
    assert len(driver.launches) == 1


@pytest.mark.parametrize("which", ["q", "k", "v", "out", "lse"])
def test_gradients_are_refused(which, driver):
    attention = prepared.kernel("flash_mma")
    given = dict(zip("qkv", tensors(), strict=True)) | {
        "out": tensor(2, 4, 5, 64),
        "lse": tensor(2, 4, 5, dtype=FLOAT32),
    }
    given[which].requires_grad_()
    expected = "flash_mma has no backward, and a gradient is asked for: call it within torch.no_grad()"
    assert refused(driver, "flash_mma", **given) == expected
    with torch.no_grad():
        attention(**given)
    assert len(driver.launches) == 1


# ---- on a GPU

SHAPE = dict(batch=2, heads=4, kv_heads=2, seqlen_q=150, seqlen_k=200, head_dim=64)
ON_GPU = {
    "plain": dict(dtype="float16"),
    "bfloat16": dict(dtype="bfloat16"),
    "head_dim 128, causal": dict(dtype="float16", head_dim=128, causal=True),
    "padded head_dim, causal": dict(dtype="bfloat16", head_dim=72, causal=True),
    "rows without keys": dict(dtype="float16", causal=True, seqlen_q=200, seqlen_k=150),
    "window": dict(dtype="bfloat16", window=(30, 5)),
    "softcap, negative scale": dict(dtype="float16", softcap=3.0, scale=-0.3),
    "many blocks": dict(dtype="float16", heads=32, seqlen_q=1024, seqlen_k=1024),
}


@pytest.mark.gpu
@pytest.mark.parametrize("transposed", [False, True], ids=["b h s d", "b s h d"])
@pytest.mark.parametrize("name", ON_GPU)
def test_bits_are_those_of_a_run(name, transposed):
    case = Case(**SHAPE | ON_GPU[name])
    assert_like_a_run("flash_mma", case, filled(case, "cuda", transposed=transposed))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_flash_is_called_likewise(dtype):
    case = Case(**SHAPE, dtype=dtype, causal=True)
    assert_like_a_run("flash", case, filled(case, "cuda", transposed=True))


def assert_like_a_run(name, case, given):
    expected = run(name, case, probes="output", backend="cuda").stages
    attention = prepared.kernel(name)
    for _ in range(2):  # the second finds arguments written
        out, lse = attention(*given, **options_of(case))
        assert bits(out) == bits(expected["out"]) and bits(lse) == bits(expected["lse"])
    out, lse = torch.full_like(out, 7), torch.full_like(lse, 7)
    attention(*given, **options_of(case), out=out, lse=lse)
    assert bits(out) == bits(expected["out"]) and bits(lse) == bits(expected["lse"])


@pytest.mark.gpu
def test_the_code_takes_as_many_arguments_as_are_given():
    case = settle(KERNELS["flash_mma"], Case(**SHAPE, dtype="float16", softcap=2.0, window=(3, 4)))
    (one,) = KERNELS["flash_mma"].launches(case)
    constants = KERNELS["flash_mma"].constants(case)
    torch.zeros(1, device="cuda")
    loaded = prepared._loaded("flash_mma", one.function, constants, "float16", "A", 0)
    made = build(KERNELS["flash_mma"].file, one.function, constants, (), ())
    arrays = [x.ndim for x in signature(made, "float16", "A").args if isinstance(x, types.Array)]
    assert loaded.kernel.num_arguments == len(made.parameters) - len(arrays) + sum(5 + 2 * dims for dims in arrays)


def two_inputs(**options):
    cases = [Case(**SHAPE | {"dtype": "float16", "causal": True} | options, seed=seed) for seed in (1, 2)]
    expected = [run("flash_mma", case, probes="output", backend="cuda").stages for case in cases]
    return [filled(case, "cuda") for case in cases], expected


@pytest.mark.gpu
def test_a_graph_that_recorded_a_call_runs_on_other_inputs():
    (first, second), expected = two_inputs()
    attention = prepared.kernel("flash_mma")
    given = [x.clone() for x in first]
    attention(*given, causal=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, lse = attention(*given, causal=True)
    attention(*second, causal=True)  # writes other addresses into the same arguments
    for inputs, right in zip((first, second), expected, strict=True):
        for x, to in zip(inputs, given, strict=True):
            to.copy_(x)
        out.fill_(7)
        graph.replay()
        torch.cuda.synchronize()
        assert bits(out) == bits(right["out"]) and bits(lse) == bits(right["lse"])


@pytest.mark.gpu
def test_another_stream_is_waited_for_by_itself():
    """A call comes behind the work of its own stream: inputs that arrive there late are those that are read."""
    (first, second), (_, expected) = two_inputs()
    attention, stream = prepared.kernel("flash_mma"), torch.cuda.Stream()
    attention(*first, causal=True)
    given = [x.clone() for x in first]
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)  # cycles: some 30 ms
        for x, to in zip(second, given, strict=True):
            to.copy_(x)
        out, lse = attention(*given, causal=True)
    stream.synchronize()
    assert bits(out) == bits(expected["out"]) and bits(lse) == bits(expected["lse"])


@pytest.mark.gpu
def test_two_threads_each_with_a_stream():
    inputs, expected = two_inputs()
    attention = prepared.kernel("flash_mma")
    torch.cuda.synchronize()

    def call(i):
        with torch.cuda.stream(torch.cuda.Stream()):
            found = [attention(*inputs[i], causal=True) for _ in range(200)]
            torch.cuda.current_stream().synchronize()
        return {(bits(out), bits(lse)) for out, lse in found}

    with ThreadPoolExecutor(2) as pool:
        found = [*pool.map(call, range(2))]
    assert found == [{(bits(right["out"]), bits(right["lse"]))} for right in expected]


@pytest.mark.gpu
def test_a_new_thread_needs_no_work_before_its_first_call():
    """No context is current there, and nothing is asked of torch's that would make one."""
    (inputs, _), (expected, _) = two_inputs()
    attention = prepared.kernel("flash_mma")
    out, lse = attention(*inputs, causal=True)
    out.fill_(7)
    torch.cuda.synchronize()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(attention, *inputs, causal=True, out=out, lse=lse).result()
    torch.cuda.synchronize()
    assert bits(out) == bits(expected["out"]) and bits(lse) == bits(expected["lse"])


@pytest.mark.gpu
def test_a_refused_address_leaves_the_gpu_as_it_was():
    flat = torch.zeros(1 * 1 * 64 * 64 + 4, dtype=FLOAT16, device="cuda")
    x, good = flat[4:].view(1, 1, 64, 64), flat[:-4].view(1, 1, 64, 64)
    attention = prepared.kernel("flash_mma")
    assert refusal(attention, good, x, good).startswith("flash_mma copies 16 bytes at once, and k begins at")
    out, _ = attention(good, good, good)
    assert torch.all(out == 0).item()


DECODING = dict(batch=3, heads=16, kv_heads=4, seqlen_q=1, seqlen_k=1500, head_dim=128, dtype="float16")


def as_split(case):
    """The case in as many splits as a call has on this GPU."""
    kernel = KERNELS["split_mma"]
    gpu = torch.cuda.get_device_properties(0)
    count, shared_bytes = gpu.multi_processor_count, gpu.shared_memory_per_multiprocessor
    return case.but(splits=kernel.fills(settle(kernel, case), count, shared_bytes))


@pytest.mark.gpu
@pytest.mark.parametrize("transposed", [False, True], ids=["b h s d", "b s h d"])
@pytest.mark.parametrize(
    "options",
    [
        dict(),
        dict(dtype="bfloat16", head_dim=64, seqlen_q=3, causal=True),
        dict(head_dim=72, seqlen_q=20, window=(300, 0), softcap=3.0),
        dict(batch=64, heads=32, kv_heads=32, seqlen_k=70, scale=-0.3),
    ],
    ids=str,
)
def test_split_mma_is_called_likewise(options, transposed):
    case = as_split(Case(**DECODING | options))
    assert_like_a_run("split_mma", case, filled(case, "cuda", transposed=transposed))


@pytest.mark.gpu
def test_graphs_and_streams_have_partial_results_of_their_own():
    """Two graphs, recorded of one shape, that run at the same time on two streams."""
    cases = [as_split(Case(**DECODING, seed=seed)) for seed in (1, 2)]
    expected = [run("split_mma", case, probes="output", backend="cuda").stages for case in cases]
    attention, found = prepared.kernel("split_mma"), []
    for case in cases:
        inputs = filled(case, "cuda")
        attention(*inputs)
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        with torch.cuda.graph(graph):
            results = [attention(*inputs) for _ in range(20)]
        found.append((graph, stream, results, inputs))
    torch.cuda.synchronize()
    for _ in range(10):
        for graph, stream, _, _ in found:
            with torch.cuda.stream(stream):
                graph.replay()
    torch.cuda.synchronize()
    for (_, _, results, _), right in zip(found, expected, strict=True):
        assert {(bits(out), bits(lse)) for out, lse in results} == {(bits(right["out"]), bits(right["lse"]))}
