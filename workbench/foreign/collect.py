"""What code runs in this process: the files of a function, the shared objects that are loaded, the machine."""

import ctypes
import inspect
import os
import platform
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from operator import is_not
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
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
#: folders of site-packages of those that are never told by their files, and of what they bring along
_OF_FRAMEWORKS = (
    *("torch", "triton", "nvidia", "cuda", "cupy", "cupy_backends", "jaxlib"),
    *("numba", "numba_cuda", "llvmlite", "numpy"),
)
_MAPS, _DELETED = Path("/proc/self/maps"), " (deleted)"
_PATH = re.compile(r" (/.*)")  # the last field of a line, the only one with a slash
#: shared objects that were loaded while a target was loaded or ran; what a process has beside them is the workbench's
_of_targets: set[str] = set()


@contextmanager
def loading() -> Iterator[None]:
    """Within it a target is loaded or runs: what was loaded before it is not told as its own."""
    before = _objects()
    try:
        yield
    finally:
        _of_targets.update(_objects().keys() - before.keys())


class _Object(ctypes.Structure):
    """The start of dl_phdr_info (man 3 dl_iterate_phdr)."""

    _fields_ = (
        ("address", ctypes.c_size_t), ("name", ctypes.c_char_p), ("headers", ctypes.c_void_p),
        ("count", ctypes.c_uint16), ("loads", ctypes.c_ulonglong), ("unloads", ctypes.c_ulonglong),
    )  # fmt: skip


_counts: list[tuple[int, int]] = []


@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Object), ctypes.c_size_t, ctypes.c_void_p)
def _count(one: Any, size: int, _: None) -> int:
    _counts[:] = [(one.contents.loads, one.contents.unloads)] if size >= ctypes.sizeof(_Object) else []
    return 1  # the first object tells of all


def _loads() -> tuple[int, int] | None:
    """How often this process has loaded and unloaded shared objects; None where the system does not tell."""
    iterate = getattr(ctypes.CDLL(None), "dl_iterate_phdr", None)
    if iterate is not None:
        iterate(_count, None)
    return _counts[0] if _counts else None


#: of a file on disk: device and inode, which no other file has while it is in some process's memory
_Identity = tuple[int, int]
_last_objects: list[tuple[tuple[int, int] | None, dict[str, _Identity | None]]] = [(None, {})]


def _objects() -> dict[str, _Identity | None]:
    """Paths of the shared objects in this process's memory, with the file that each was when it was first seen; None:
    it was no more on disk then. Every run asks this three times, and the system takes 3 ms to tell, 5 with CUDA loaded:
    it is asked again once others were loaded.
    """
    loads = _loads()
    if loads is None or loads != _last_objects[0][0]:
        known = _last_objects[0][1]
        found = {name: None if deleted else known.get(name, _identity(name)) for name, deleted in _mapped().items()}
        _last_objects[0] = (loads, found)
    return _last_objects[0][1]


def _identity(name: str) -> _Identity | None:
    try:
        status = os.stat(name)
    except OSError:
        return None
    return status.st_dev, status.st_ino


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
    loaded, without those of the system, of Python and of FRAMEWORKS: of packages those that were loaded with a target,
    or whose package the function names, which may have been loaded before it was handed over.
    """
    source = _source_of(function)
    folder = source.parent if source is not None else None
    near = {Path(path) for path in _modules(os.path.join(folder, ""))} if folder else set()
    own = {path for path in near if path.is_file() and not of_python(path)}
    for path in sorted({*own, *([source] if source else [])}):
        if not is_object(str(path)):
            yield _file(path, loaded=True)
    named = _packages(function)
    for name, first in sorted(_objects().items()):
        if _foreign_object(path := _path(name)) and (name in _of_targets or _package(path) in (None, *named)):
            yield _file(path, loaded=True, deleted=first is None or first != _identity(name))
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


def _packages(function: Callable[..., Any]) -> set[str]:
    """The packages of the function and of the modules, functions and classes among its globals."""
    function = inspect.unwrap(function)
    called = function if isinstance(function, FunctionType) else type(function).__call__
    held = [called, *getattr(called, "__globals__", {}).values()]
    modules = [x.__name__ for x in held if isinstance(x, ModuleType)]
    modules += [x.__module__ for x in held if isinstance(x, FunctionType | BuiltinFunctionType | type) and x.__module__]
    return {name.partition(".")[0] for name in modules}


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


def _mapped() -> dict[str, bool]:
    """Shared objects in this process's memory -> whether what was mapped is no more on disk; none where the system does
    not tell.
    """
    lines = {*_PATH.findall(_MAPS.read_text())} if _MAPS.exists() else set()
    found = {path.removesuffix(_DELETED): path.endswith(_DELETED) for path in sorted(lines)}
    return {path: deleted for path, deleted in found.items() if is_object(path)}


@cache
def _path(name: str) -> Path:
    return Path(name)  # 10 us, of a hundred objects at every run


@cache
def _foreign_object(path: Path) -> bool:
    """Whether a shared object is neither the system's, nor Python's, a framework's, or made by one at run time."""
    system = path.is_relative_to("/usr/lib") or path.parts[1] in ("lib", "lib32", "lib64")
    toolkit = str(path).startswith(("/usr/local/cuda", "/usr/local/nvidia"))
    made = any(part == ".triton" or part.startswith("torchinductor_") for part in path.parts)
    if system or toolkit or made or path.name.startswith("libpython"):
        return False
    package = _package(path)
    return not of_python(path) if package is None else package not in _OF_FRAMEWORKS


@cache
def _package(path: Path) -> str | None:
    """The package, by the name of its folder or module, that a file is installed with; None of one that is of none."""
    for folder in package_folders():
        if path.is_relative_to(folder):
            return path.relative_to(folder).parts[0].partition(".")[0]
    return None


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
        lines.append(f"{name} gives different bits from run to run ({provenance.runs} runs); the first run is judged")
    if provenance.plain_agrees is False:
        lines.append(
            f"{name} gives different bits with and without probes; the probed kernel is judged, not the plain one"
        )
    if gone := [file.name for file in provenance.files if file.loaded and not file.sha256]:
        lines.append(f"{', '.join(gone)} was replaced on disk after loading, and the old version ran: restart")
    return tuple(lines)


def wrote(name: str, inputs: Iterable[str]) -> tuple[str, ...]:
    """That the function `name` wrote into its `inputs`, which stands above any verdict, too."""
    return tuple(f"{name} wrote to its input {x}, which the caller may read again" for x in inputs)


def repeats(provenance: Provenance) -> tuple[str, ...]:
    """What several runs of a function showed, where all is well."""
    lines = []
    if provenance.identical:
        lines.append(f"the same bits in {provenance.runs} runs")
    if provenance.plain_agrees:
        lines.append("the same bits of out and lse without its probes")
    return tuple(lines)
