"""What code runs in this process: the files of a function, the shared objects that are loaded, the machine."""

import inspect
import os
import platform
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import cache
from operator import is_not
from pathlib import Path
from typing import Any, NamedTuple

from workbench.cuda.gpu import gpu
from workbench.files import of_python, package_folders, sha256_of, sources_beside
from workbench.machine import versions
from workbench.trace.provenance import File, Provenance, is_object

#: packages that are told by their versions: torch alone maps 4 GB
FRAMEWORKS = (
    *("torch", "triton", "cupy", "jax", "jaxlib", "numpy", "numba", "numba-cuda"),
    *("flash-attn", "flashinfer", "xformers"),
)
#: folders of site-packages whose shared objects are not told: those of frameworks, and what the workbench itself loads
_UNTOLD = (
    *("torch", "torchgen", "triton", "nvidia", "cupy", "cupy_backends", "jaxlib", "cuda", "numba", "numba_cuda"),
    *("numpy", "ml_dtypes", "safetensors", "llvmlite", "matplotlib", "PIL", "pillow", "kiwisolver", "contourpy"),
    "charset_normalizer",  # which NumPy's f2py imports; some of its releases lie beside their folder too, as mypyc's
)
_MAPS, _DELETED = Path("/proc/self/maps"), " (deleted)"
_PATH = re.compile(r" (/.*)")  # the last field of a line, the only one with a slash


def of_run(function: Callable[..., Any], **repeated: Any) -> Provenance:
    """The provenance of a run of `function`; `repeated`: runs, identical, plain_agrees."""
    found = gpu()
    imported = [name for name in FRAMEWORKS if name.replace("-", "_") in sys.modules]
    return Provenance(
        files=tuple(files(function)),
        device=platform.processor() or platform.machine() if found is None else found.name,
        driver="" if found is None else found.driver,
        versions=versions(*imported),
        **repeated,
    )


def files(function: Callable[..., Any]) -> Iterator[File]:
    """The function's file, the modules from its folder, the sources beside them, and the shared objects that are
    loaded, without those of the system, of Python and of FRAMEWORKS.
    """
    source = _source_of(function)
    folder = source.parent if source is not None else None
    near = {Path(path) for path in _modules(os.path.join(folder, ""))} if folder else set()
    own = {path for path in near if path.is_file() and not of_python(path)}
    for path in sorted({*own, *([source] if source else [])}):
        if not is_object(str(path)):
            yield _file(path, loaded=True)
    for path, deleted in sorted(_mapped().items()):
        if _foreign_object(path):
            yield _file(path, loaded=True, deleted=deleted)
    if folder is not None:
        for path in sources_beside(folder):
            yield _file(path, loaded=False)


class _Imported(NamedTuple):
    """The modules of this process when they were last looked at, and the files of all but the workbench's, as text."""

    modules: Sequence[object]
    files: Sequence[str]


_last = [_Imported((), ())]


def _modules(folder: str) -> set[str]:
    """The files of modules in a folder, but for the workbench's. Every run asks this, of a thousand modules: they are
    looked at again once others were imported.
    """
    items, known = [*sys.modules.items()], _last[0]
    modules = [module for _, module in items]
    if len(modules) != len(known.modules) or any(map(is_not, modules, known.modules)):
        theirs = [module for name, module in items if name.partition(".")[0] != "workbench"]
        files = [getattr(module, "__dict__", {}).get("__file__") for module in theirs]
        known = _last[0] = _Imported(modules, [_resolved(file) for file in files if file])
    return {path for path in known.files if path.startswith(folder)}


@cache
def _resolved(path: str) -> str:
    return str(Path(path).resolve())  # 60 us, and a process has a thousand modules


def _source_of(function: Callable[..., Any]) -> Path | None:
    """The file that defines a function; None of one that was typed in, or compiled."""
    function = inspect.unwrap(function)
    if inspect.isbuiltin(function):
        return None
    try:
        path = inspect.getsourcefile(function)
    except TypeError:  # an object with __call__
        path = inspect.getsourcefile(type(function))
    return Path(path).resolve() if path and Path(path).is_file() else None


def _mapped() -> dict[Path, bool]:
    """Shared objects in this process's memory -> whether what was mapped is no more on disk; none where the system does
    not tell.
    """
    lines = {*_PATH.findall(_MAPS.read_text())} if _MAPS.exists() else set()
    found = {path.removesuffix(_DELETED): path.endswith(_DELETED) for path in sorted(lines)}
    return {Path(path): deleted for path, deleted in found.items() if is_object(path)}


@cache
def _foreign_object(path: Path) -> bool:
    """Whether a shared object is neither the system's, nor Python's or the workbench's, a framework's, or made by one
    at run time.
    """
    system = path.is_relative_to("/usr/lib") or path.parts[1] in ("lib", "lib32", "lib64")
    toolkit = str(path).startswith(("/usr/local/cuda", "/usr/local/nvidia"))
    made = any(part == ".triton" or part.startswith("torchinductor_") for part in path.parts)
    if system or toolkit or made or path.name.startswith("libpython") or "__mypyc." in path.name:
        return False
    for folder in package_folders():
        if path.is_relative_to(folder):
            return path.relative_to(folder).parts[0].removesuffix(".libs") not in _UNTOLD
    return not of_python(path)


def _file(path: Path, *, loaded: bool, deleted: bool = False) -> File:
    """The record of a file; `deleted`: what is in memory is no more on disk."""
    if deleted or not path.exists():
        return File(str(path), "", "", loaded)
    status = path.stat()
    modified = datetime.fromtimestamp(int(status.st_mtime), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return File(str(path), sha256_of(path), modified, loaded)


def failed(provenance: Provenance, name: str) -> tuple[str, ...]:
    """What of a run stands above any verdict on it; `name` is the function's."""
    lines = []
    if provenance.identical is False:
        lines.append(f"{name} gives other bits from run to run ({provenance.runs} runs): the verdict is on the first")
    if provenance.plain_agrees is False:
        lines.append(
            f"{name} gives other bits with its probes than without: the verdict is on the probed kernel, which is "
            "another one"
        )
    if gone := [file.name for file in provenance.files if file.loaded and not file.sha256]:
        lines.append(f"{', '.join(gone)} was replaced on disk after it was loaded: what ran is the old one; restart")
    return tuple(lines)


def repeats(provenance: Provenance) -> tuple[str, ...]:
    """What several runs of a function showed, where all is well."""
    lines = []
    if provenance.identical:
        lines.append(f"the same bits in {provenance.runs} runs")
    if provenance.plain_agrees:
        lines.append("the same bits of out and lse without its probes")
    return tuple(lines)
