"""Arrays of other libraries: torch tensors and CuPy arrays from NumPy ones, and back."""

import importlib
from typing import Any

import numpy as np

from workbench.case import DTYPES
from workbench.refusal import Refusal, Unavailable
from workbench.trace import to_float64

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


def module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise Unavailable(f"--arrays {name} needs {name}, which is not installed here") from None


def as_numpy(x: Any, what: str) -> np.ndarray:
    """A contiguous NumPy array of floats from an array of any of the libraries; `what` names it in a Refusal."""
    if hasattr(x, "detach"):  # torch
        x = x.detach().cpu().contiguous()
        x = (
            x.view(module("torch").uint16).numpy().view(DTYPES["bfloat16"])
            if str(x.dtype) == "torch.bfloat16"
            else x.numpy()
        )
    elif hasattr(x, "get"):  # CuPy
        x = x.get()
    array = np.ascontiguousarray(x)
    if array.dtype not in (*DTYPES.values(), np.dtype(np.float64)):
        raise Refusal(f"{what} must be an array of {', '.join(DTYPES)} or float64; got {array.dtype}")
    return array


def in_float64(x: np.ndarray, device: str) -> Any:
    """`x` in float64: a NumPy array on the cpu, a torch tensor on another device, to which its own few bytes travel."""
    if device == "cpu":
        return to_float64(x)
    torch = module("torch")
    return handed_over(np.ascontiguousarray(x), "torch", device).to(torch.float64)
