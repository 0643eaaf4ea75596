"""Whether this machine can run the workbench, and what to do where it cannot.

`facts` looks at the machine, `judge` compares what it found with what is needed. The command line prints the result.
"""

import operator
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from workbench.cuda.gpu import Gpu, implementation, look_for_gpu
from workbench.extras import install
from workbench.files import cache_folder
from workbench.machine import versions

# As in pyproject.toml; a test compares them.
PYTHON = ">=3.11"
NUMBA = ">=0.68.0,<0.69"
NUMBA_CUDA = ">=0.30.4,<0.31"
NUMPY = ">=2.1"

#: libraries of the CUDA toolkit that PTX is made with (nvrtc, nvvm) and linked with (nvJitLink)
TOOLKIT = ("nvrtc", "nvvm", "nvJitLink")
#: distribution -> the extra that it stands for, and what is lost without; numba and numba-cuda have their own checks
OTHERS = {
    "matplotlib": ("plot", "no pictures"),
    "hypothesis": ("test", "no strategies for tests, and no smallest failing case of attention"),
    "torch": ("torch", "kernels that take torch tensors cannot run"),
    "triton": ("triton", "kernels in Triton cannot run"),
    "distributed": ("sweep", "sweeps cannot use Dask workers"),
}
#: the comparisons of the bounds above
_COMPARED = {">=": operator.ge, "<": operator.lt}


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    ok: bool
    detail: str  #: what was found
    fix: str  #: what to do about it; empty when ok
    required: bool  #: whether the workbench cannot work without it


@dataclass(frozen=True)
class Facts:
    """What the checks need to know about a machine."""

    python: str
    versions: Mapping[str, str]  #: of Python and of the installed distributions that matter
    implementation: str  #: "NVIDIA", "Built-in", or why numba.cuda cannot be imported
    gpu: Gpu | None
    no_gpu: str  #: why there is none; empty with one
    missing_toolkit: tuple[str, ...]  #: libraries of TOOLKIT that cannot be loaded
    cache: Path
    cache_writable: bool


def checks() -> list[Check]:
    """Every check of this machine, in the order in which a reader would mend what is wrong."""
    return judge(facts())


def facts() -> Facts:
    """What is so on this machine; takes about a second, most of it the import of numba."""
    found = look_for_gpu()
    cache = cache_folder()
    return Facts(
        python=".".join(map(str, sys.version_info[:3])),
        versions=versions("attention-workbench", "numpy", "numba", "numba-cuda", *OTHERS),
        implementation=_implementation(),
        gpu=found if isinstance(found, Gpu) else None,
        no_gpu="" if isinstance(found, Gpu) else found,
        missing_toolkit=tuple(name for name in TOOLKIT if not _can_load(name)),
        cache=cache,
        cache_writable=can_write(cache),
    )


def judge(facts: Facts) -> list[Check]:
    """What `facts` mean, one check for each line of the report."""
    return [
        _workbench(facts),
        _version("Python", facts.python, PYTHON, "install Python 3.11 or newer and recreate the environment with it"),
        _distribution("numpy", facts, NUMPY),
        *_kernels(facts),
        _gpu(facts),
        _toolkit(facts),
        *(_extra(name, facts, *one) for name, one in OTHERS.items()),
        _cache(facts),
    ]


def _workbench(facts: Facts) -> Check:
    """What a bug report needs first."""
    version = facts.versions.get("attention-workbench", "not installed, runs from its checkout")
    return Check("workbench", True, version, "", required=False)


def _version(name: str, version: str, allowed: str, fix: str, of: str = "") -> Check:
    if all(_COMPARED[how](_release(version), _release(bound)) for how, bound in re.findall(r"(>=|<)([\d.]+)", allowed)):
        return Check(name, True, version + of, "", required=True)
    return Check(name, False, f"{version}, needs {allowed}", fix, required=True)


def _release(version: str) -> tuple[int, ...]:
    """The numbers that a version begins with, without zeros at their end: (0, 68) of 0.68.0rc1."""
    numbers = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, re.sub(r"(\.0+)+$", "", numbers[0]).split("."))) if numbers else ()


def _distribution(name: str, facts: Facts, allowed: str, of: str = "") -> Check:
    fix = f'pip install "{name}{allowed}"'
    if name not in facts.versions:
        return Check(name, False, f"not installed, needs {allowed}", fix, required=True)
    return _version(name, facts.versions[name], allowed, fix, of)


def _kernels(facts: Facts) -> list[Check]:
    """Of what compiles built-in kernels: the one that its extra is absent, or those of its parts, which must fit."""
    if not {"numba", "numba-cuda"} & {*facts.versions}:
        return [_extra("numba", facts, "kernels", "built-in kernels and kernels of numba.cuda cannot run")]
    parts = {"numba": NUMBA, "numba-cuda": NUMBA_CUDA}
    return [
        *(_distribution(name, facts, allowed, " (extra kernels)") for name, allowed in parts.items()),
        _numba_cuda_is_nvidias(facts),
    ]


def _numba_cuda_is_nvidias(facts: Facts) -> Check:
    name = "numba.cuda"
    if facts.implementation == "NVIDIA":
        return Check(name, True, "from numba-cuda", "", required=True)
    if facts.implementation == "Built-in":
        detail = "numba's deprecated built-in target, not NVIDIA's"
        fix = (
            "install numba-cuda into the environment itself: folders of PYTHONPATH and `pip install --target` "
            "ignore its .pth file. Restart a running Jupyter kernel"
        )
        return Check(name, False, detail, fix, required=True)
    fix = "fix the versions above first, or recreate the environment with `make clean setup`"
    return Check(name, False, f"cannot be imported: {facts.implementation}", fix, required=True)


def _gpu(facts: Facts) -> Check:
    if facts.gpu is not None:
        major, minor = facts.gpu.compute_capability
        detail = f"{facts.gpu.name}, compute capability {major}.{minor}, driver for CUDA {facts.gpu.driver}"
        return Check("GPU", True, detail, "", required=False)
    emulated = "; runs use the emulator" if "numba" in facts.versions else ""
    detail = f"none ({facts.no_gpu}){emulated}"
    return Check(
        "GPU", False, detail, "for GPU runs, install NVIDIA's driver for CUDA 13 (580 or newer)", required=False
    )


def _toolkit(facts: Facts) -> Check:
    name = "CUDA toolkit"
    if not facts.missing_toolkit:
        return Check(name, True, f"has {', '.join(TOOLKIT)}", "", required=False)
    detail = f"lacks {', '.join(facts.missing_toolkit)}: no GPU runs, no PTX"
    return Check(name, False, detail, install("cu13"), required=False)


def _extra(name: str, facts: Facts, extra: str, without: str) -> Check:
    if version := facts.versions.get(name):
        return Check(name, True, f"{version} (extra {extra})", "", required=False)
    return Check(name, False, f"not installed: {without}", install(extra), required=False)


def _cache(facts: Facts) -> Check:
    if facts.cache_writable:
        return Check("compile cache", True, str(facts.cache), "", required=True)
    fix = "set WORKBENCH_CACHE to a writable folder"
    return Check("compile cache", False, f"{facts.cache} is not writable", fix, required=True)


def _implementation() -> str:
    try:
        return implementation()
    except Exception as error:  # numba checks versions at import and raises what it likes
        return f"{type(error).__name__}: {error}"


def _can_load(library: str) -> bool:
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        load_nvidia_dynamic_lib(library)
    except Exception:  # its errors share no base class
        return False
    return True


def can_write(folder: Path) -> bool:
    """Whether files can be made in `folder`, or in the folder that would hold it; nothing is created."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)
