"""Generated modules on disk: named by their content, so that processes share what numba compiled for them."""

import atexit
import gc
import hashlib
import importlib.util
import os
import sys
import tempfile
import threading
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType

import llvmlite
import numba

from workbench.cache import cache_folder
from workbench.cuda.emulator.errors import EmulatorError

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
    digest = hashlib.sha256((text + _version()).encode()).hexdigest()[:24]
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
        with _uncollected():
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


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
def _version() -> str:
    """Return what the generated code depends on besides its text."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    return f"{digest} {numba.__version__} {llvmlite.__version__}"


def _write(path: Path, text: str) -> None:
    """Write a file that other processes see whole or not at all.

    numba forgets its compiled code when a file's time changes, so the time is the same for all that write this text.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    except OSError as error:
        raise EmulatorError(f"cannot write to {path.parent}: {error}; set WORKBENCH_CACHE to another folder") from error
    with os.fdopen(handle, "w") as file:
        file.write(text)
    os.utime(temporary, (0, 0))
    os.replace(temporary, path)
