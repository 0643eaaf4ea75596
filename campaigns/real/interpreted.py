"""Kernels of projects on a CPU, by Triton's interpreter: what it lacks of what they use, and a GPU that they ask for.

Nothing here changes what is computed: names of Triton's functions are looked up when they are called, since the
interpreter replaces them, and questions about a GPU get the answers of some GPU.
"""

import builtins
import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any


def is_interpreted() -> bool:
    """Whether Triton's kernels run on the CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


class _Device:
    """As torch.cuda.device is, of the one that there is."""

    idx = 0

    def __init__(self, *_: Any) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: Any) -> None:
        pass


def pretend() -> None:
    """A GPU is there where a project asks for one, before it is imported; its tensors are on the CPU."""
    import torch
    import triton.language as tl
    from triton.language.extra import libdevice
    from triton.runtime import driver

    cuda: Any = torch.cuda
    about = {"name": "none", "major": 9, "minor": 0, "multi_processor_count": 132, "total_memory": 1 << 34}
    for module in (torch.cuda, torch.cpu):
        vars(module)["device"] = _Device
    cuda.get_device_properties = lambda *_: SimpleNamespace(**about)
    cuda.get_device_name, cuda.get_device_capability = (lambda *_: "none"), (lambda *_: (9, 0))
    cuda.current_device, cuda.device_count, cuda.set_device = (lambda: 0), (lambda: 1), (lambda *_: None)
    vars(torch)["hip"] = SimpleNamespace(is_available=lambda: False)
    vars(torch._C)["_cuda_getCurrentRawStream"] = lambda _: 0
    for name in ("empty", "zeros", "ones", "empty_like", "zeros_like", "tensor", "arange"):
        setattr(torch, name, _on_cpu(getattr(torch, name)))
    vars(torch)["histc"] = _counted(torch.histc)
    asked = SimpleNamespace(
        get_current_target=lambda: SimpleNamespace(arch=90, backend="cuda", warp_size=32),
        get_current_device=lambda: 0, get_device_interface=lambda: torch.cuda,
        utils=SimpleNamespace(get_device_properties=lambda *_: {"max_shared_mem": 1 << 17, **about}),
    )  # fmt: skip
    driver.set_active(asked)
    libdevice.rsqrt = lambda x: tl.math.rsqrt(x)
    libdevice.tanh = lambda x: 2 * tl.sigmoid(2 * x) - 1


def _on_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def called(*given: Any, **named: Any) -> Any:
        return function(*given, **named | ({"device": "cpu"} if "cuda" in str(named.get("device", "")) else {}))

    return called


def _counted(histc: Callable[..., Any]) -> Callable[..., Any]:
    """Of whole numbers, too, as on a GPU."""
    return lambda x, *given, **named: histc(x if x.is_floating_point() else x.float(), *given, **named).to(x.dtype)


def complete(root: Path) -> None:
    """Makes of the modules that were imported from `root` such that the interpreter runs: their `range` makes Triton's
    numbers, where a kernel counts up to one, and functions of Triton that they imported by name are its present ones.
    """
    import triton.language as tl
    from triton.language.extra import libdevice

    for module in [*sys.modules.values()]:
        if str(getattr(module, "__file__", None) or "").startswith(str(root)):
            names = vars(module)
            names["range"] = _range
            for name, x in [*names.items()]:
                own = getattr(x, "__name__", None)
                if isinstance(own, str) and callable(x) and str(getattr(x, "__module__", "")).startswith(tl.__name__):
                    owner = next((one for one in (tl, tl.math, libdevice) if getattr(one, own, None) is x), None)
                    names[name] = x if owner is None or isinstance(x, type) else _late(owner, own)


def _late(owner: Any, name: str) -> Callable[..., Any]:
    return lambda *given, **named: getattr(owner, name)(*given, **named)


def _range(*ends: Any) -> Iterable[Any]:
    from triton.language import tensor

    return _numbers(ends) if any(isinstance(x, tensor) for x in ends) else builtins.range(*ends)


def _numbers(ends: tuple[Any, ...]) -> Iterator[Any]:
    import numpy as np
    from triton.language import int32, tensor
    from triton.runtime.interpreter import TensorHandle

    for i in builtins.range(*(int(x) for x in ends)):
        yield tensor(TensorHandle(np.array([i], np.int32), int32), int32)
