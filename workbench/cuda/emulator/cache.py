"""Generated modules on disk: named by their content, so that processes share what numba compiled for them."""

import atexit
import fcntl
import gc
import hashlib
import importlib.util
import os
import sys
import tempfile
import threading
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import ModuleType

import llvmlite
import numba

from workbench.cuda.emulator.emulator_error import EmulatorError
from workbench.files import cache_folder

atexit.register(gc.freeze)  # half a second: a process that ends would look at millions of numba's objects once more

_LOADING = threading.RLock()  # a module that is being executed by one thread is already in sys.modules for another


def cache_dir() -> Path:
    """Return the folder of the generated modules; it need not exist yet."""
    return cache_folder() / "emulator"


def load(stem: str, text: str) -> ModuleType:
    """Return the module with this text, from its file in `cache_dir`; written there first where it is new.

    The file's name also holds the versions of the emulator, numba and llvmlite: code that numba compiled from older
    ones is never found.
    """
    digest = hashlib.sha256((text + version()).encode()).hexdigest()[:24]
    name = f"{stem}_{digest}"
    with _LOADING:
        return _loaded(name, text)


def _loaded(name, text):
    if name in sys.modules:
        return sys.modules[name]
    path = cache_dir() / f"{name}.py"
    if not path.exists():
        _write(path, text)
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with _alone(path), _uncollected():
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@contextmanager
def _alone(path: Path):
    """As the only process that loads this file: what one compiles, those that wait find on disk."""
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # until the file is closed, by the end of the process at the latest
        yield


@contextmanager
def _uncollected():
    """Without the cyclic garbage collector, which looks at millions of numba's objects and frees none: a quarter of the
    time of a compile.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@cache
def version() -> str:
    """Return what the generated code depends on besides its text."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    return f"{digest} {numba.__version__} {llvmlite.__version__}"


def _write(path: Path, text: str) -> None:
    """Write a file that other processes see whole or not at all; where one was faster, its file stays, for its lock.

    numba forgets its compiled code when a file's time changes, so the time is the same for all that write this text.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp") as file:
            file.write(text)
            file.flush()
            os.utime(file.name, (0, 0))
            with suppress(FileExistsError):
                os.link(file.name, path)
    except OSError as error:
        raise EmulatorError(f"cannot write to {path.parent}: {error}; set WORKBENCH_CACHE to another folder") from error
