"""Kernels of ours as functions of torch tensors: compiled once for shapes and options, launched by the driver alone.

numba's own launcher takes 35 to 60 us a call, ten times what a small kernel runs (it looks at every argument anew, and
an array is 13 of them). Here the arguments of a shape are written once; a call changes five addresses in them.
"""

import functools
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple, Protocol

from workbench.case.case import Case
from workbench.case.stages import STAGES, shape
from workbench.cuda.build import Build, build
from workbench.cuda.cubin import signature
from workbench.cuda.kernel import Constants, Kernel, Launch
from workbench.cuda.kernels import KERNELS
from workbench.cuda.launch import ADDRESS_CELL, Array, Parameters, cell, load, maps_of, parameters
from workbench.cuda.plan import resolve, scalars
from workbench.extras import needed
from workbench.refusal import Refusal, Unavailable

#: kernels that a call can launch: those on floats, but for split_k
CALLABLE = ("flash", "flash_tensor", "flash_mma", "flash_wgmma", "split_mma")
#: shapes and options whose arguments a thread keeps, 5 kB each: growing caches of keys bring ever new ones
KEPT = 4096
#: bytes of which arrays in one room begin at multiples
ALIGNED = 16


class Attention(Protocol):
    """A kernel as a function of torch tensors on a GPU."""

    def __call__(
        self,
        q: Any,
        k: Any,
        v: Any,
        *,
        scale: float | None = None,
        causal: bool = False,
        window: tuple[int, int] | None = None,
        softcap: float | None = None,
        out: Any = None,
        lse: Any = None,
    ) -> tuple[Any, Any]:
        """(out, lse)."""


def kernel(name: str) -> Attention:
    """A function of torch tensors on a GPU: (q, k, v, options) -> (out, lse); `name`: flash, flash_tensor,
    flash_mma, flash_wgmma or split_mma, which merges as many splits of the keys as keep the GPU busy.

    q [batch, heads, seqlen_q, d], k, v [batch, kv_heads, seqlen_k, d], in float32, float16 or bfloat16 as the kernel
    takes them, none empty, with any strides but for that of d, which is 1; flash_mma copies 16 bytes at once, so that
    addresses and strides are multiples of 16 bytes there. `out` is like q, and `lse` is float32 [batch, heads,
    seqlen_q], contiguous; they are written where they are given, and share no memory with q, k and v then; else they
    are made, out by `torch.empty_like(q)`. A row that sees no key gets out 0 and lse -inf. Options are those of a Case:
    scale is a factor of q k^T, 1 / sqrt(d) where it is None; causal and window are around the diagonal that ends at the
    last key.

    Work is sent to torch's current stream of the tensors' GPU, and nothing is waited for: a CUDA graph may record a
    call, after one like it in the same thread. The first call of a process with other dtypes, layouts,
    head_dim or switches compiles (1 to 3 s, or from the cache on disk), and so does one with shapes that have other
    tiles, which depend on how many blocks there are; one with other new shapes takes a millisecond.

    There is no backward: a Refusal where a gradient would be recorded. Refusal for another kernel, for tensors that are
    no such arrays, and for what the kernel does not take; Unavailable without torch, or with one for CPUs alone.

    >>> attention = kernel("flash_mma")  # doctest: +SKIP
    >>> out, lse = attention(q, k, v, causal=True)  # doctest: +SKIP
    >>> kernel("fp8")
    Traceback (most recent call last):
        ...
    workbench.refusal.Refusal: callable kernels are flash, flash_tensor, flash_mma, flash_wgmma, split_mma; got 'fp8'
    """
    if name not in CALLABLE:
        raise Refusal(f"callable kernels are {', '.join(CALLABLE)}; got {name!r}")
    with needed("calling a kernel needs", "torch"):
        import torch
    try:  # what `torch.cuda.current_stream` asks before it makes an object of the answer
        from torch._C import _cuda_getCurrentRawStream as current_stream
        from torch._C import _cuda_getDevice as current_device
    except ImportError:
        raise Unavailable("calling a kernel needs torch with CUDA; this torch is CPU-only") from None

    from cuda.bindings.driver import cuTensorMapReplaceAddress as replace_address

    empty_like, records = torch.empty_like, torch.is_grad_enabled
    mine = _Mine()

    def attention(
        q: Any,
        k: Any,
        v: Any,
        *,
        scale: float | None = None,
        causal: bool = False,
        window: tuple[int, int] | None = None,
        softcap: float | None = None,
        out: Any = None,
        lse: Any = None,
    ) -> tuple[Any, Any]:
        try:
            key = (
                q.shape, k.shape, v.shape, q.stride(), k.stride(), v.stride(), q.dtype, k.dtype, v.dtype,
                q.device, k.device, v.device, scale, causal, window, softcap,
                None if out is None else (out.shape, out.stride(), out.dtype, out.device),
                None if lse is None else (lse.shape, lse.stride(), lse.dtype, lse.device),
            )  # fmt: skip
            one = mine.by_key.get(key)
        except (AttributeError, TypeError) as error:
            raise Refusal(f"{name} takes torch tensors and options that are numbers or pairs: {error}") from None
        if one is None:
            options = {"scale": scale, "causal": causal, "window": window, "softcap": softcap}
            one = mine.keep(key, _prepared(name, q, k, v, out, lse, options))
        if out is None:
            out = empty_like(q)
        if lse is None:
            lse = empty_like(one.lse)
        grad = q.requires_grad or k.requires_grad or v.requires_grad or out.requires_grad or lse.requires_grad
        if grad and records():
            raise Refusal(f"{name} has no backward: call it within torch.no_grad()")
        values, (of_q, of_k, of_v, of_out, of_lse) = one.values, one.places
        values[of_q] = at_q = q.data_ptr()
        values[of_k] = at_k = k.data_ptr()
        values[of_v] = at_v = v.data_ptr()
        values[of_out] = at_out = out.data_ptr()
        values[of_lse] = lse.data_ptr()
        if (at_q | at_k | at_v | at_out) & one.odd:
            raise Refusal(_misplaced(name, one.odd + 1, {"q": at_q, "k": at_k, "v": at_v, "out": at_out}))
        if one.maps and one.mapped != [at_q, at_k, at_v]:
            one.mapped[:] = at_q, at_k, at_v
            for place, tensor_map in one.maps:
                replace_address(tensor_map, values[place])
        if one.partials:  # anew in each call: another stream, or a graph, may still use those of the last
            room = empty_like(one.room)
            at_room = room.data_ptr()
            for place, offset in one.partials:
                values[place] = at_room + offset
        if current_device() == one.device:
            status = one.launch(current_stream(one.device))
        else:  # the default stream is that of the current GPU
            with torch.cuda.device(one.device):
                status = one.launch(current_stream(one.device))
        if status:
            raise RuntimeError(f"{name}: the driver returned {status.name} for {one.case}")
        return out, lse

    return attention


@dataclass(frozen=True, eq=False)
class _Prepared:
    """A kernel with its arguments for some shapes and options."""

    case: Case
    launches: tuple[tuple[Any, int], ...]  #: cuLaunchKernel of a function, its grid and block; where its arguments are
    device: int
    values: Any  #: of all arguments of all launches, 8 bytes each
    arguments: Parameters  #: keeps them and the tensor maps
    places: tuple[int, ...]  #: of the addresses of q, k, v, out and lse among the values
    maps: tuple[tuple[int, Any], ...]  #: where the address of its array is among the values, and each tensor map
    mapped: list[int]  #: addresses of q, k and v that are in the maps
    odd: int  #: bits that are 0 in the addresses of q, k, v and out
    lse: Any  #: one element with the shape of lse
    room: Any  #: one element with the size of what launches leave for later ones
    partials: tuple[tuple[int, int], ...]  #: places of addresses in there among the values, and bytes before each

    def launch(self, stream: int) -> Any:
        """The status of the first launch that fails, or of the last."""
        for launch, at in self.launches:
            (status,) = launch(stream, at, 0)
            if status:
                break
        return status


class _Mine(threading.local):
    """Arguments by shapes and options; a thread's own, since a call writes into them."""

    def __init__(self) -> None:
        self.by_key: dict[Any, _Prepared] = {}

    def keep(self, key: Any, one: _Prepared) -> _Prepared:
        """`one`, which the next call with that key finds."""
        if len(self.by_key) >= KEPT:  # a launch has copied its arguments when it returns
            self.by_key.clear()
        self.by_key[key] = one
        return one


class _Loaded(NamedTuple):
    """A kernel on a GPU."""

    build: Build
    kernel: Any  #: keeps the code there


def _prepared(name: str, q: Any, k: Any, v: Any, out: Any, lse: Any, options: Mapping[str, Any]) -> _Prepared:
    """The kernel compiled for some tensors, and its arguments but for addresses."""
    import torch
    from cuda.bindings import driver
    from cuda.core import Device

    found: Kernel = KERNELS[name]
    dtypes = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}
    _check({"q": q, "k": k, "v": v} | ({} if out is None else {"out": out}), dtypes, found)
    batch, heads, seqlen_q, head_dim = q.shape
    if k.shape != v.shape or (k.shape[0], k.shape[3]) != (batch, head_dim):
        raise Refusal(f"k and v must be [{batch}, kv_heads, rows, {head_dim}]; got {[*k.shape]} and {[*v.shape]}")
    said = {what: x for what, x in options.items() if x is not None}
    sizes = dict(batch=batch, heads=heads, kv_heads=k.shape[1], seqlen_q=seqlen_q, seqlen_k=k.shape[2])
    case = resolve(found, Case(**sizes, head_dim=head_dim, dtype=dtypes[q.dtype], **said))
    if found.fills is not None:
        gpu = torch.cuda.get_device_properties(q.device)
        splits = found.fills(case, gpu.multi_processor_count, gpu.shared_memory_per_multiprocessor)
        case = case.but(splits=splits)
    if out is None:
        out = torch.empty_like(torch.empty_strided(q.shape, q.stride(), dtype=q.dtype, device="meta"))
    elif out.shape != q.shape:
        raise Refusal(f"out must match q: {_words(q)}; got {_words(out)}")
    elif any(size > 1 and not stride for size, stride in zip(out.shape, out.stride(), strict=True)):
        raise Refusal(f"out must not have overlapping elements; got {_words(out)}, strides {[*out.stride()]}")
    of_lse = q.new_empty((), dtype=torch.float32).expand(q.shape[:3])
    if lse is not None and (lse.shape, lse.dtype, lse.device) != (of_lse.shape, of_lse.dtype, q.device):
        raise Refusal(f"lse must be {_words(of_lse)} on {q.device}; got {_words(lse)} on {lse.device}")
    if lse is not None and not lse.is_contiguous():
        raise Refusal(f"lse must be contiguous; got strides {[*lse.stride()]}")
    launches, constants = found.launches(case), found.constants(case)
    layout = "C" if all(x.is_contiguous() for x in (q, k, v, out)) else "A"
    with torch.cuda.device(q.device):
        Device(q.device.index).set_current()  # in a new thread no context is, until something asks for memory
        loaded = [_loaded(name, one.function, constants, case.dtype, layout, q.device.index) for one in launches]
    tensors = {"q": q, "k": k, "v": v, "out": out, "lse": torch.empty(of_lse.shape, dtype=of_lse.dtype, device="meta")}
    left, size = _left(launches, case)
    arrays = {what: _array(x) for what, x in tensors.items()} | left
    values: list[int] = []
    starts: list[int] = []
    places: dict[str, list[int]] = {x: [] for x in arrays}
    for one in loaded:
        starts.append(len(values))
        values += _arguments(one.build.parameters, arrays, scalars(case), len(values), places)
    maps = [x for one in loaded for x in one.build.maps]  # of the last launch alone: they lie behind all arguments
    made = parameters(values, maps_of(loaded[-1].build, arrays))
    functions = (
        functools.partial(
            driver.cuLaunchKernel,
            driver.CUfunction(int(its.kernel.handle)),
            *one.grid,
            constants.threads,
            1,
            1,
            found.dynamic_bytes(constants, one.function),
        )
        for one, its in zip(launches, loaded, strict=True)
    )
    return _Prepared(
        case=case,
        launches=tuple((function, made.at + 8 * start) for function, start in zip(functions, starts, strict=True)),
        device=q.device.index,
        values=made.values,
        arguments=made,
        maps=tuple((places[array][0], one) for (array, _), one in zip(maps, made.maps, strict=True)),
        mapped=[],
        places=tuple(place for x in ("q", "k", "v", "out", "lse") for place in places[x]),
        odd=found.dims * q.element_size() - 1,
        lse=of_lse,
        room=q.new_empty((), dtype=torch.uint8).expand(size),
        partials=tuple((place, array.address) for x, array in left.items() for place in places[x]),
    )


def _left(launches: Sequence[Launch], case: Case) -> tuple[dict[str, Array], int]:
    """What launches leave for later ones, in one room: arrays of float32, whose addresses are counted from there, and
    the bytes of all.
    """
    found: dict[str, Array] = {}
    size = 0
    for name in (name for one in launches for name in one.leaves):
        dims = shape(STAGES[name], case.sizes)
        strides = tuple(4 * prod(dims[i + 1 :]) for i in range(len(dims)))
        found[name] = Array(size, dims, strides, 4)
        size += -(-4 * prod(dims) // ALIGNED) * ALIGNED
    return found, size


def _check(given: Mapping[str, Any], dtypes: Mapping[Any, str], kernel: Kernel) -> None:
    """Refusal for tensors that no kernel reads, or not this one; the first of them is q."""
    q = given["q"]
    for what, x in given.items():
        strides = x.stride()
        if x.dim() != 4 or x.device.type != "cuda" or x.dtype not in dtypes or (x.shape[3] > 1 and strides[3] != 1):
            raise Refusal(
                f"{what} must be a GPU tensor [batch, heads, rows, d] of {', '.join(dtypes.values())} with stride 1 in "
                f"d; got {_words(x)}, strides {[*strides]} on {x.device}"
            )
        if x.dtype != q.dtype or x.device != q.device:
            raise Refusal(
                f"q, k, v and out must have one dtype on one GPU; {what} is {_words(x)} on {x.device}, q is "
                f"{_words(q)} on {q.device}"
            )
        if any(size > 1 and stride % kernel.dims for size, stride in zip(x.shape[:3], strides[:3], strict=True)):
            raise Refusal(
                f"{kernel.name} copies {kernel.dims} dims at once, so strides must be multiples of "
                f"{kernel.dims}; those of {what} are {[*strides]}"
            )


def _misplaced(name: str, size: int, addresses: Mapping[str, int]) -> str:
    what, at = next((what, at) for what, at in addresses.items() if at % size)
    return f"{name} copies {size} bytes at once, so {what} must be aligned to {size} bytes; got {at:#x}"


@functools.cache
def _loaded(name: str, function: str, constants: Constants, dtype: str, layout: str, device: int) -> _Loaded:
    """A kernel function on a GPU, once in a process and for good: a CUDA graph may hold launches of it."""
    import torch

    found = KERNELS[name]
    made = build(found.functions[function], function, constants, (), ())
    typed, dynamic = signature(made, dtype, layout), found.dynamic_bytes(constants, function)
    return _Loaded(made, load(made, constants, typed, dynamic, device, torch.cuda.get_device_capability(device)))


def _arguments(
    names: tuple[str, ...],
    arrays: Mapping[str, Array],
    numbers: Mapping[str, Any],
    start: int,
    places: Mapping[str, list[int]],
) -> list[int]:
    """What a kernel takes, each as 8 bytes, from `start` on; where the address of an array is goes to its `places`."""
    values: list[int] = []
    for name in names:
        if name in arrays:
            places[name].append(start + len(values) + ADDRESS_CELL)
            values += arrays[name].cells
        else:
            values.append(cell(numbers[name]))
    return values


def _array(x: Any) -> Array:
    """A tensor; its address is that of the next call."""
    size = x.element_size()
    address = 0 if x.device.type == "meta" else x.data_ptr()
    return Array(address, (*x.shape,), tuple(size * stride for stride in x.stride()), size)


def _words(x: Any) -> str:
    return f"{x.dtype} {[*x.shape]}".removeprefix("torch.")
