"""The kernels of this project, as data; needs no numba to be listed."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Kernel:
    """One attention kernel."""

    name: str
    algorithm: str  #: its stages, by the name of `stages.ALGORITHMS`
    file: Path
    functions: tuple[str, ...]  #: kernel functions of the file, in launch order
    splits: bool  #: whether it takes the case option splits
    summary: str
    quantised: bool = False  #: whether it reads 8-bit codes of float32 inputs, and takes the case options about them


_FOLDER = Path(__file__).parent

KERNELS: Mapping[str, Kernel] = {
    kernel.name: kernel
    for kernel in (
        Kernel(
            "flash",
            "flash",
            _FOLDER / "flash.py",
            ("flash_forward",),
            False,
            "FlashAttention forward: one block for each query tile, online softmax over key tiles",
        ),
        Kernel(
            "split_k",
            "split_k",
            _FOLDER / "split_k.py",
            ("split_k_partial", "split_k_reduce"),
            True,
            "Split-K attention: partial attention of each (query tile, split), then a reduce over splits",
        ),
        Kernel(
            "fp8",
            "fp8",
            _FOLDER / "fp8.py",
            ("fp8_forward",),
            False,
            "FlashAttention on 8-bit codes: decode tables in shared memory, scores from tensor cores",
            quantised=True,
        ),
    )
}
