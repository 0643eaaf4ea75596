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
    )
}
