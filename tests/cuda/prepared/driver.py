"""A stand-in for the driver, and tensors of the CPU that say they are on a GPU."""

import ctypes
import threading
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
from numba import types

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


def filled(case, device=None, *, transposed=False):
    """q, k, v of a case as torch tensors; `transposed`: [b, s, h, d] in memory."""

    def of(x):
        found = torch.from_numpy(x.astype(np.float32)).to(getattr(torch, case.dtype))
        if transposed:
            found = found.transpose(1, 2).contiguous().transpose(1, 2)
        return found.as_subclass(OnGpu) if device is None else found.to(device)

    return [of(x) for x in case.inputs()]


def options_of(case):
    return {name: getattr(case, name) for name in ("scale", "causal", "window", "softcap")}


def bits(x):
    """The bytes of a tensor or array, as it is indexed."""
    if isinstance(x, np.ndarray):
        return x.tobytes()
    x = x.detach().as_subclass(torch.Tensor).contiguous().cpu()
    return x.view(torch.int16 if x.element_size() == 2 else torch.int32).numpy().tobytes()
