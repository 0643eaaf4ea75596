"""Files: the folder that keeps compiled kernels between processes, files that are whole or not there, which file it is
(its hash, and whether it is of Python's installation), and sources beside it.
"""

import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from uuid import uuid4

from workbench.process import unfinished
from workbench.refusal import Refusal

#: what code may be compiled from, and where that is looked for, beside what was built or uses it
SOURCES = (".cu", ".cuh", ".cpp", ".cc", ".cxx", ".c", ".h", ".hpp")
_FOLDERS = (".", "csrc", "src", "cuda", "kernels", "include")


def cache_folder() -> Path:
    """`$WORKBENCH_CACHE`, else `workbench` in `$XDG_CACHE_HOME` or in `~/.cache`; it need not exist yet."""
    if chosen := os.environ.get("WORKBENCH_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "workbench"


def write_atomically(path: Path, content: bytes) -> None:
    """Write `content` to `path`, or nothing at all. Refusal where nothing can be written there."""
    part = path.parent / f"{path.name}.{uuid4().hex[:12]}.part"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with unfinished(part):
            try:
                part.write_bytes(content)  # not by tempfile, whose files are this user's alone, whatever the umask
                os.replace(part, path)
            finally:
                part.unlink(missing_ok=True)
    except OSError as error:
        raise Refusal(f"{path} cannot be written: {error.strerror}") from None


@cache
def package_folders() -> tuple[Path, ...]:
    """Where packages are installed: Python's own folders for them, and those of sys.path that hold records of
    installed packages, as an environment's parent and `pip install --target` leave them.
    """
    own = [sysconfig.get_path(name) for name in ("purelib", "platlib")]
    others = [entry for entry in sys.path if entry and any(Path(entry).glob("*.dist-info"))]
    return tuple(dict.fromkeys(path for folder in (*own, *others) for path in (Path(folder), Path(folder).resolve())))


@cache  # sysconfig makes up its paths anew at every call, and every run asks this of each shared object
def of_python(path: Path) -> bool:
    """Whether a file is of Python's installation or environment."""
    library = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")]
    folders = [*library, *(folder.resolve() for folder in library), *package_folders()]
    return any(path.is_relative_to(folder) for folder in folders)


def sources_beside(folder: Path) -> Iterator[Path]:
    """The sources in a folder, and in those folders of it that usually hold them."""
    for path in sorted(path for name in _FOLDERS for path in (folder / name).glob("*")):
        if path.suffix in SOURCES and path.is_file():
            yield path


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
