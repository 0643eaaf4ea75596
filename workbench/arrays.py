"""Arrays of other libraries: those of torch, CuPy and JAX from NumPy ones, and back."""

import importlib.util
import inspect
import random
import re
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import ml_dtypes
import numpy as np

from workbench.extras import absent
from workbench.floats import DTYPES, FLOATS, to_float64
from workbench.refusal import Refusal, Unavailable, unknown

#: dtypes that NumPy's protocols refuse -> the integer of torch as which their bits cross, and what they are in NumPy
_BITS = {
    "torch.bfloat16": ("uint16", DTYPES["bfloat16"]),
    "torch.float8_e4m3fn": ("uint8", np.dtype(ml_dtypes.float8_e4m3fn)),
    "torch.float8_e5m2": ("uint8", np.dtype(ml_dtypes.float8_e5m2)),
}
ARRAYS = ("numpy", "torch", "cupy", "jax")
DEVICES = ("cpu", "cuda")


def home(arrays: str, device: str | None) -> str:
    """The device of `arrays`: `device` where it is said, else where they usually live. Refusal for arrays that are none
    of ARRAYS, or do not live there, Unavailable where they cannot be made.
    """
    if arrays not in ARRAYS:
        raise Refusal(unknown("arrays", arrays, ARRAYS))
    if device not in (None, *DEVICES):
        raise Refusal(f"device must be one of {', '.join(DEVICES)}; got {device!r}")
    if arrays == "numpy" and device == "cuda":
        raise Refusal("NumPy arrays live on the cpu; got device 'cuda': pass --arrays torch, cupy or jax")
    if arrays == "cupy" and device == "cpu":
        raise Refusal("CuPy arrays live on a GPU; got device 'cpu': pass --arrays numpy, torch or jax")
    library = module(arrays)
    chosen = device or ("cuda" if arrays == "cupy" else "cpu")
    if chosen == "cuda" and not _has_gpu(arrays, library):
        raise Unavailable(f"device cuda needs an NVIDIA GPU that {arrays} can use; none was found")
    return chosen


def handed_over(x: np.ndarray, arrays: str, device: str) -> Any:
    """`x` with its strides, but for JAX's arrays, which have none; bfloat16 crosses to torch as bits, since DLPack
    carries none from NumPy. `device` as `home` gives it; what is copied there has arrived.
    """
    if arrays == "numpy":
        return x
    library = module(arrays)
    if arrays == "cupy":
        base, order = _dense(x)
        try:
            made = library.asarray(base).transpose(order)
        except (TypeError, ValueError) as error:
            raise Refusal(f"CuPy {library.__version__} takes no {x.dtype} ({error}); pass --arrays torch") from None
        library.cuda.runtime.deviceSynchronize()
        return made
    if arrays == "jax":
        return library.block_until_ready(library.device_put(x, library.devices(device)[0]))
    if x.dtype == DTYPES["bfloat16"]:
        made = library.from_numpy(x.view(np.uint16)).view(library.bfloat16)
    else:
        made = library.from_numpy(x)
    if not x.size:  # NumPy's strides of such an array are 0, torch's are not
        made = library.empty(x.shape, dtype=made.dtype)
    return made.to(device)


def _dense(x: np.ndarray) -> tuple[np.ndarray, tuple[int, ...]]:
    """A contiguous view of `x`, a permutation of a contiguous array, and the order of its axes that gives `x`."""
    memory = sorted(range(x.ndim), key=lambda axis: -x.strides[axis])
    return x.transpose(memory), tuple(int(axis) for axis in np.argsort(memory))


def _has_gpu(arrays: str, library: Any) -> bool:
    if arrays == "torch":
        return bool(library.cuda.is_available())
    try:
        return bool(library.devices("cuda") if arrays == "jax" else library.cuda.runtime.getDeviceCount())
    except RuntimeError:
        return False


def advice(error: BaseException, function: Any, arrays: str, device: str) -> str:
    """A line on the option that may help a function that failed on `arrays` on a device; empty where none may."""
    said = str(error)
    if not isinstance(error, Exception):  # it was stopped
        return ""
    if arrays != "numpy":
        on_gpu = device == "cpu" and re.search(r"cuda|cpu tensor|\bgpu\b", said, re.IGNORECASE)
        return f"\nIf it expects arrays on a GPU, pass --arrays {arrays},device=cuda." if on_gpu else ""
    return "\nIf it expects torch tensors, pass --arrays torch." if _may_be_of_torch(error, function) else ""


def of_torch(error: BaseException, function: Any, arrays: str) -> bool:
    """Whether a function that failed on `arrays` is worth a call with tensors of torch: it may be written for these,
    and they are here.
    """
    may = arrays == "numpy" and isinstance(error, Exception) and _may_be_of_torch(error, function)
    return may and importlib.util.find_spec("torch") is not None


def names_torch(function: Any) -> bool:
    """Whether the file of a function has imported torch, or Triton, which takes its tensors."""
    return bool({"torch", "triton"} & _packages(function))


def names_numpy(function: Any) -> bool:
    """Whether the file of a function has imported NumPy."""
    return "numpy" in _packages(function)


def _may_be_of_torch(error: BaseException, function: Any) -> bool:
    """Whether a function that failed may be written for torch: its error says so; or it did not raise by itself, and
    its file has imported torch or Triton, or no NumPy.
    """
    if re.search(r"numpy\.ndarray|torch|tensor", str(error), re.IGNORECASE):
        return True
    last = traceback.extract_tb(error.__traceback__)[-1]
    if re.search(r"\b(raise|assert)\b", last.line or ""):
        return False
    return names_torch(function) or not names_numpy(function)


def _packages(function: Any) -> set[str]:
    """The packages of what the file of a function has imported."""
    known = getattr(function, "__globals__", {}).values()
    modules = (x.__name__ if inspect.ismodule(x) else str(getattr(x, "__module__", "")) for x in known)
    return {name.partition(".")[0] for name in modules}


def module(name: str, purpose: str = "--arrays {name}") -> Any:
    """The package `name`, imported; Unavailable, with what needs it, where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        what = purpose.format(name=name)
        raise Unavailable(absent(f"{what} needs", name)) from None


@contextmanager
def own_random(seed: int | None = None) -> Iterator[None]:
    """Within, random numbers of Python, NumPy and torch begin at `seed`, or go on where None; afterwards they are those
    that would have come.
    """
    torch = sys.modules.get("torch")
    of_numpy, of_python = np.random.get_state(), random.getstate()
    on_gpu = torch is not None and torch.cuda.is_initialized()
    devices = [*range(torch.cuda.device_count())] if torch is not None and on_gpu else []
    try:
        with nullcontext() if torch is None else torch.random.fork_rng(devices):
            if seed is not None:
                random.seed(seed)
                np.random.seed(seed)
                if torch is not None:
                    torch.manual_seed(seed)
            yield
    finally:
        np.random.set_state(of_numpy)
        random.setstate(of_python)


def as_numpy(x: Any, what: str, accepted: Sequence[np.dtype] = FLOATS) -> np.ndarray:
    """A contiguous NumPy array from an array of any library that speaks DLPack, once what computes it has finished;
    Refusal where its dtype is not one of `accepted`.

    Strides, expanded ones too, are followed. `what` names it in the Refusal.
    """
    if hasattr(x, "block_until_ready"):  # JAX, with NumPy's bfloat16
        x = x.block_until_ready()
    elif hasattr(x, "__dlpack__") and not isinstance(x, np.ndarray):
        x = _read(x)
    array = np.ascontiguousarray(x)
    if array.dtype not in accepted:
        raise Refusal(f"{what} must be an array of {_either(accepted)}; got {array.dtype}")
    return array


def as_torch(x: Any, what: str) -> Any:
    """A torch tensor of an array of NumPy or of any library that speaks DLPack, which shares its memory; a tensor as it
    is. Refusal for what is none, and for an array that is traced, which has no numbers.
    """
    torch = module("torch", f"{what} as a tensor")
    if isinstance(x, torch.Tensor):
        return x
    if any(one.__name__ == "Tracer" for one in type(x).__mro__):
        raise Refusal(
            f"{what} is traced by jax.jit and has no numbers: call it outside of jit, or in jax.disable_jit()"
        )
    if isinstance(x, np.ndarray | np.generic):
        x = np.asarray(x)
        x = x if x.flags.writeable and all(step >= 0 for step in x.strides) else x.copy()
        return (
            torch.from_numpy(x.view(np.uint16)).view(torch.bfloat16)
            if x.dtype == DTYPES["bfloat16"]
            else torch.from_numpy(x)
        )
    if not hasattr(x, "__dlpack__"):
        raise Refusal(f"{what} must be an array; got {type(x).__name__}")
    return torch.from_dlpack(x)


def _read(x: Any) -> Any:
    """`x` on the host; all streams of its device are waited for, since nobody knows on which it is computed."""
    if hasattr(x, "detach"):  # torch
        torch = module("torch")
        if x.is_cuda:
            torch.cuda.synchronize(x.device)
        x = x.detach().cpu().resolve_neg().contiguous()
        bits = _BITS.get(str(x.dtype))
        return x.numpy() if bits is None else x.view(getattr(torch, bits[0])).numpy().view(bits[1])
    if hasattr(x, "get"):  # CuPy
        with x.device:
            module("cupy").cuda.runtime.deviceSynchronize()
        return x.get()
    try:
        return np.from_dlpack(x)
    except (BufferError, RuntimeError):  # a GPU's, or a dtype that NumPy lacks
        return _read(module("torch", f"an array of {type(x).__module__}").from_dlpack(x))


def _either(dtypes: Sequence[np.dtype]) -> str:
    *others, last = map(str, dtypes)
    return f"{', '.join(others)} or {last}" if others else last


def written(before: Mapping[str, np.ndarray], handed: Mapping[str, Any]) -> list[str]:
    """The arrays of a call that are not what they were `before` it, by name, of those `handed` over, of any library."""
    return [name for name, x in before.items() if as_numpy(handed[name], name, (x.dtype,)).tobytes() != x.tobytes()]


def in_float64(x: np.ndarray, device: str) -> Any:
    """`x` in float64: a NumPy array on the cpu, a torch tensor on another device, to which its own few bytes travel."""
    if device == "cpu":
        return to_float64(x)
    torch = module("torch")
    # torch warns of arrays that may only be read, such as parts of a broadcast one
    return handed_over(np.require(x, requirements=("C", "W")), "torch", device).to(torch.float64)


def as_those(x: np.ndarray, others: Any) -> Any:
    """A NumPy array in the library of others, and on their device."""
    if isinstance(others, np.ndarray):
        return x
    if x.dtype.name.startswith("float8"):  # of which torch takes no array
        return as_torch(x.view(np.uint8), "an array").view(getattr(module("torch"), x.dtype.name)).to(others.device)
    return as_torch(x, "an array").to(others.device)


def on_cpu(x: Any) -> np.ndarray:
    """The NumPy array that `x` is, or of the torch tensor that it is, on any device."""
    return np.asarray(x) if isinstance(x, np.ndarray | np.generic) else x.cpu().numpy()
