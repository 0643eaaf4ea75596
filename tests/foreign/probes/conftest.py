"""Probed CUDA C++ as g++ compiles it (cuda_on_host.h), and the launch of its kernels."""

import ctypes
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workbench.foreign.probes import cuda_cpp as probes

HERE = Path(__file__).parent
ROOT = HERE.parent.parent.parent


@pytest.fixture(scope="session")
def on_host(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """on_host(source, *kernels, defines) -> a shared object that exports KERNEL_on_host for each of the kernels."""
    if shutil.which("g++") is None:
        pytest.skip("there is no g++ here")

    made: dict[tuple[object, ...], Path] = {}

    def compiled(source: str, *kernels: str, defines: Mapping[str, str] | None = None, probed: bool = True) -> Path:
        asked = (source, kernels, str(defines), probed)
        if asked in made:
            return made[asked]
        text = "\n".join(['#include "cuda_on_host.h"', source, *(f"ON_HOST({kernel})" for kernel in kernels)])
        path = tmp_path_factory.mktemp("on_host") / "probed.so"
        folders = [f"-I{folder}" for folder in (HERE, ROOT / "examples", probes.include_dir())]
        macros = [f"-D{name}={value}" for name, value in (defines or {}).items()] + ["-DWB_PROBES"] * probed
        options = "-std=c++20 -O1 -shared -fPIC -Wall -Werror -Wno-unknown-pragmas -x c++ -".split()
        done = subprocess.run(
            ["g++", *folders, *macros, *options, "-o", str(path)], input=text, text=True, capture_output=True
        )
        if done.returncode:
            raise RuntimeError(done.stderr)
        made[asked] = path
        return path

    return compiled


def launch_on_host(library: Path, kernel: str, grid: Sequence[int], block: int, arguments: Sequence[Any]) -> None:
    """Run a kernel of `on_host`; arrays are handed over by their address, scalars as they are."""
    values = [np.array(x.ctypes.data if isinstance(x, np.ndarray) and x.ndim else x) for x in arguments]
    pointers = (ctypes.c_void_p * len(values))(*(x.ctypes.data for x in values))
    getattr(ctypes.CDLL(str(library)), f"{kernel}_on_host")((ctypes.c_int * 3)(*grid), block, pointers)


@pytest.fixture(name="launch_on_host", scope="session")
def _launch_on_host() -> Callable[..., None]:
    return launch_on_host
