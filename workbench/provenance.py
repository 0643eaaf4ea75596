"""What code a foreign run was: its sources and shared objects with their hashes, its machine, and whether it repeats.

A verdict is about the code that ran. An extension that was not rebuilt after its source changed is found by holding the
files of two runs beside each other.
"""

import hashlib
import importlib.metadata
import inspect
import platform
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.refusal import Refusal
from workbench.shared_object import SOURCES, sources_beside

if TYPE_CHECKING:
    import numpy as np

    from workbench.trace import Trace

#: packages that are told by their versions: torch alone maps 4 GB
FRAMEWORKS = ("torch", "triton", "cupy", "jax", "jaxlib", "numpy", "numba", "numba-cuda")
#: folders of site-packages whose shared objects are not told: those of frameworks, and what the workbench itself loads
_UNTOLD = (
    *("torch", "torchgen", "triton", "nvidia", "cupy", "cupy_backends", "jaxlib", "cuda", "numba", "numba_cuda"),
    *("numpy", "ml_dtypes", "safetensors", "llvmlite", "matplotlib", "PIL", "pillow", "kiwisolver", "contourpy"),
)
_MAPS, _DELETED = Path("/proc/self/maps"), " (deleted)"


@dataclass(frozen=True)
class File:
    """A file that a run was made of."""

    path: str
    sha256: str  #: empty of a file that was removed or replaced since it was loaded: nobody can read what ran
    modified: str  #: UTC, to the second
    loaded: bool  #: whether it ran; else it is a source beside, from which something else was built

    @property
    def is_object(self) -> bool:
        """Whether it is a shared object."""
        return _is_object(self.path)


@dataclass(frozen=True)
class Provenance:
    """What code ran, and where."""

    files: tuple[File, ...]
    device: str  #: the GPU of the machine, else its processor; a function may use the one without being told
    driver: str  #: the newest CUDA release that the driver serves; empty without a GPU
    versions: Mapping[str, str]
    runs: int = 1  #: how often the function was called
    identical: bool | None = None  #: whether all runs gave the same bits; None of one run
    plain_agrees: bool | None = None  #: whether out and lse have the same bits without probes; None: no plain run

    def as_dict(self) -> dict[str, Any]:
        """The fields as plain Python values, for JSON."""
        return {**asdict(self), "files": [asdict(file) for file in self.files]}


def of_run(function: Callable[..., Any], **repeated: Any) -> Provenance:
    """The provenance of a run of `function`; `repeated`: runs, identical, plain_agrees."""
    from workbench.cuda.gpu import gpu

    found = gpu()
    return Provenance(
        files=tuple(files(function)),
        device=platform.processor() or platform.machine() if found is None else found.name,
        driver="" if found is None else found.driver,
        versions={"python": platform.python_version()} | _versions(),
        **repeated,
    )


def files(function: Callable[..., Any]) -> Iterator[File]:
    """The function's file, the modules from its folder, the sources beside them, and the shared objects that are
    loaded, without those of the system, of Python and of FRAMEWORKS.
    """
    source = _source_of(function)
    folder = source.parent if source is not None else None
    paths = {
        name: vars(module).get("__file__") for name, module in [*sys.modules.items()] if hasattr(module, "__dict__")
    }
    modules = {
        _resolved(path)
        for name, path in paths.items()
        if path and Path(path).is_file() and name.partition(".")[0] != "workbench"
    }
    own = {path for path in modules if folder and path.is_relative_to(folder) and not of_python(path)}
    for path in sorted({*own, *([source] if source else [])}):
        if not _is_object(str(path)):
            yield _file(path, loaded=True)
    for path, deleted in sorted(_mapped().items()):
        if _foreign_object(path):
            yield _file(path, loaded=True, deleted=deleted)
    if folder is not None:
        for path in sources_beside(folder):
            yield _file(path, loaded=False)


@cache
def _resolved(path: str) -> Path:
    return Path(path).resolve()  # 60 us, and a process has a thousand modules


def _source_of(function: Callable[..., Any]) -> Path | None:
    """The file that defines a function; None of one that was typed in."""
    try:
        path = inspect.getsourcefile(inspect.unwrap(function))
    except TypeError:  # an object with __call__
        path = inspect.getsourcefile(type(function))
    return Path(path).resolve() if path and Path(path).is_file() else None


def _mapped() -> dict[Path, bool]:
    """Shared objects in this process's memory -> whether what was mapped is no more on disk; none where the system does
    not tell.
    """
    lines = _MAPS.read_text().splitlines() if _MAPS.exists() else []
    paths = [line.split(None, 5)[5] for line in lines if len(line.split(None, 5)) == 6]
    found = {path.removesuffix(_DELETED): path.endswith(_DELETED) for path in paths if path.startswith("/")}
    return {Path(path): deleted for path, deleted in found.items() if _is_object(path)}


def _is_object(path: str) -> bool:
    name = Path(path).name
    return name.endswith(".so") or ".so." in name


def _foreign_object(path: Path) -> bool:
    """Whether a shared object is neither the system's, nor Python's or the workbench's, a framework's, or made by one
    at run time.
    """
    system = path.is_relative_to("/usr/lib") or path.parts[1] in ("lib", "lib32", "lib64")
    toolkit = str(path).startswith(("/usr/local/cuda", "/usr/local/nvidia"))
    made = any(part == ".triton" or part.startswith("torchinductor_") for part in path.parts)
    if system or toolkit or made or path.name.startswith("libpython"):
        return False
    for folder in {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")}:
        if path.is_relative_to(folder):
            return path.relative_to(folder).parts[0].removesuffix(".libs") not in _UNTOLD
    return not of_python(path)


def of_python(path: Path) -> bool:
    """Whether a file is of Python's installation or environment."""
    folders = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    return any(path.is_relative_to(Path(folder).resolve()) or path.is_relative_to(folder) for folder in folders)


def _file(path: Path, *, loaded: bool, deleted: bool = False) -> File:
    """The record of a file; `deleted`: what is in memory is no more on disk."""
    if deleted or not path.exists():
        return File(str(path), "", "", loaded)
    status = path.stat()
    modified = datetime.fromtimestamp(int(status.st_mtime), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return File(str(path), _sha256(path, status.st_mtime_ns, status.st_size), modified, loaded)


def sha256_of(path: Path) -> str:
    """The hash of a file; empty where there is none."""
    try:
        status = path.stat()
        return _sha256(path, status.st_mtime_ns, status.st_size)
    except OSError:
        return ""


@cache
def _sha256(path: Path, modified_ns: int, size: int) -> str:
    """The hash of a file, once for each time that it was written."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _versions() -> dict[str, str]:
    """Versions of those of FRAMEWORKS that are imported."""
    imported = [name for name in FRAMEWORKS if name.replace("-", "_") in sys.modules]
    return {name: version for name in imported if (version := _version(name))}


@cache
def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:  # CuPy's wheels have names of their own
        return str(getattr(sys.modules.get(name), "__version__", ""))


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
    if gone := [_name(file) for file in provenance.files if file.loaded and not file.sha256]:
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


def since(now: Provenance, before: Provenance, previous: str, *, moved: bool) -> tuple[tuple[str, ...], str]:
    """What stands above the verdict of a run `now`, and a remark, of what changed since the run `before`, whose trace
    is `previous`. `moved`: whether the two gave other numbers on the same inputs, so that other code ran; but for an
    extension that has the name of a source, which may give other numbers each time.
    """
    by_path, by_name = ({key(file): file.sha256 for file in before.files} for key in (_path, _name))
    changed = [_name(file) for file in now.files if by_path.get(_path(file), by_name.get(_name(file))) != file.sha256]
    compiled = [name for name in changed if Path(name).suffix in SOURCES]
    kept = [file for file in now.files if file.is_object and _name(file) not in changed]
    remark = f"since {previous}: {'changed: ' + ', '.join(changed) if changed else 'no file changed'}"
    other = moved or any(_is_object(name) for name in changed)
    stale = [file for file in kept if not other or _built_from(file, compiled)]
    if not compiled or not stale:
        return (), remark
    ran = ", ".join(f"{_name(file)} (sha256 {file.sha256[:8]}, of {file.modified})" for file in stale)
    return (
        f"stale: {', '.join(compiled)} changed since {previous}, but what ran is the same: {ran}; rebuild it, the "
        "verdict is on the old code",
    ), remark


def _path(file: File) -> str:
    return file.path


def _name(file: File) -> str:
    return Path(file.path).name


def held_to(trace: "Trace", previous: str | Path) -> "Trace":
    """A trace with what changed of its code since that in the file `previous`, among its gates and notes. Refusal where
    one of them is of no foreign function.
    """
    from workbench.trace_file import load

    before = load(previous)
    if before.provenance is None:
        raise Refusal(f"{previous}: tells no provenance: it is of no foreign function that the workbench ran")
    if trace.provenance is None:
        raise Refusal(f"--against-trace is for foreign functions, whose code is told; of {trace.target} it is not")
    alike = trace.case_run == before.case_run and _same(trace.inputs, before.inputs)
    moved = alike and not _same(trace.stages, before.stages)
    gates, remark = since(trace.provenance, before.provenance, str(previous), moved=moved)
    said = {**trace.called_with, "against-trace": str(previous)}
    return replace(trace, gates=(*trace.gates, *gates), notes=(*trace.notes, remark), called_with=said)


def _same(arrays: "Mapping[str, np.ndarray]", others: "Mapping[str, np.ndarray]") -> bool:
    """Whether the arrays that both have are the same bits."""
    return all(
        x.dtype == others[name].dtype and x.tobytes() == others[name].tobytes()
        for name, x in arrays.items()
        if name in others
    )


def _built_from(file: File, sources: Sequence[str]) -> bool:
    """Whether a shared object has the name of one of the sources."""
    return _name(file).split(".")[0].lstrip("_") in {Path(source).stem for source in sources}


def of_dict(plain: Mapping[str, Any]) -> Provenance:
    """The provenance that a manifest holds; Refusal where it is none."""
    try:
        made = Provenance(**{**plain, "files": tuple(File(**file) for file in plain["files"])})
    except (KeyError, TypeError):
        raise Refusal(
            f"the manifest's 'provenance' has the fields {', '.join(field.name for field in fields(Provenance))}, "
            f"its files {', '.join(field.name for field in fields(File))}; got {plain!r}"
        ) from None
    texts = [made.device, made.driver, *made.versions.values()] if isinstance(made.versions, dict) else [None]
    texts += [x for file in made.files for x in (file.path, file.sha256, file.modified)]
    if not all(isinstance(text, str) for text in texts) or not isinstance(made.runs, int):
        raise Refusal(f"the manifest's 'provenance' holds texts, and runs, a whole number; got {plain!r}")
    return made
