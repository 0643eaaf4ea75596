"""Arrays of other libraries: torch tensors and CuPy arrays from NumPy ones, and back."""

import importlib
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from workbench.case import DTYPES
from workbench.refusal import Refusal, Unavailable
from workbench.trace import to_float64

#: dtypes of stages and of q, k and v
FLOATS = (*DTYPES.values(), np.dtype(np.float64))
#: dtypes that NumPy's protocols refuse -> the integer of torch as which their bits cross, and what they are in NumPy
_BITS = {
    "torch.bfloat16": ("uint16", DTYPES["bfloat16"]),
    "torch.float8_e4m3fn": ("uint8", np.dtype(ml_dtypes.float8_e4m3fn)),
    "torch.float8_e5m2": ("uint8", np.dtype(ml_dtypes.float8_e5m2)),
}
ARRAYS = ("numpy", "torch", "cupy")
DEVICES = ("cpu", "cuda")


def handed_over(x: np.ndarray, arrays: str, device: str) -> Any:
    """`x` as a foreign function wants it; bfloat16 crosses to torch as bits, which NumPy's protocols refuse."""
    if arrays == "numpy":
        if device != "cpu":
            raise Refusal(f"NumPy arrays live on the cpu; got device {device!r}: say --arrays torch or cupy")
        return x
    if arrays == "cupy":
        if x.dtype == DTYPES["bfloat16"]:
            raise Refusal("CuPy has no bfloat16; say --arrays torch, or another --dtype")
        return module("cupy").asarray(x)
    torch = module("torch")
    if device == "cuda" and not torch.cuda.is_available():
        raise Unavailable("device cuda needs an NVIDIA GPU that torch can use; none was found")
    if x.dtype == DTYPES["bfloat16"]:
        return torch.from_numpy(x.view(np.uint16)).view(torch.bfloat16).to(device)
    return torch.from_numpy(x).to(device)


def module(name: str, purpose: str = "--arrays {name}") -> Any:
    """The package `name`, imported; Unavailable, with what needs it, where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        what = purpose.format(name=name)
        raise Unavailable(f"{what} needs {name}, which is not installed here") from None


def as_numpy(x: Any, what: str, accepted: Sequence[np.dtype] = FLOATS) -> np.ndarray:
    """A contiguous NumPy array from an array of any of the libraries; Refusal where its dtype is not one of `accepted`.

    `what` names it in the Refusal.
    """
    if hasattr(x, "detach"):  # torch
        x = x.detach().cpu().contiguous()
        bits = _BITS.get(str(x.dtype))
        x = x.numpy() if bits is None else x.view(getattr(module("torch"), bits[0])).numpy().view(bits[1])
    elif hasattr(x, "get"):  # CuPy
        x = x.get()
    array = np.ascontiguousarray(x)
    if array.dtype not in accepted:
        raise Refusal(f"{what} must be an array of {_either(accepted)}; got {array.dtype}")
    return array


def _either(dtypes: Sequence[np.dtype]) -> str:
    *others, last = map(str, dtypes)
    return f"{', '.join(others)} or {last}" if others else last


def in_float64(x: np.ndarray, device: str) -> Any:
    """`x` in float64: a NumPy array on the cpu, a torch tensor on another device, to which its own few bytes travel."""
    if device == "cpu":
        return to_float64(x)
    torch = module("torch")
    return handed_over(np.ascontiguousarray(x), "torch", device).to(torch.float64)
