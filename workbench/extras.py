"""Packages that only some requests need, the extra of the installation that brings each, and the sentence where one is
missing.
"""

import importlib
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from workbench.refusal import Unavailable
from workbench.suggested import command

#: package, as it is imported -> the extra that installs it
EXTRAS = {
    "numba": "kernels",
    "numba_cuda": "kernels",
    "cuda.bindings": "kernels",
    "hypothesis": "test",
    "matplotlib": "plot",
    "torch": "torch",
    "triton": "triton",
    "distributed": "sweep",
}


def install(extra: str) -> str:
    """The line for a shell that installs an extra."""
    return f"pip install 'attention-workbench[{extra}]'"


def absent(what: str, package: str) -> str:
    """The sentence for a package that is not installed; `what`: subject and verb, such as "pictures need"."""
    extra = EXTRAS.get(package)
    return f"{what} {package}, which is not installed here" + (f": {install(extra)}" if extra else "")


def not_found(error: ModuleNotFoundError, name: str) -> str:
    """The sentence for a package that code of a user, `name`, imports and that is not installed, with its line."""
    line = traceback.extract_tb(error.__traceback__)[-1]
    package = str(error.name).partition(".")[0]
    return f"{absent(f'{name} needs', package)} ({line.filename}:{line.lineno}: {line.line})"


def require(what: str, package: str) -> None:
    """Import `package`; Unavailable as of `needed`. Before work that would be lost where it turns out to be missing."""
    with needed(what, package):
        importlib.import_module(package)


def lacking(what: str, package: str) -> str:
    """The sentence that `require` raises; empty where the package is there."""
    try:
        require(what, package)
    except Unavailable as missing:
        return str(missing)
    return ""


@contextmanager
def needed(what: str, package: str) -> Iterator[None]:
    """Within it `package` is imported; Unavailable, in one sentence, where it cannot be. `what` as of `absent`."""
    try:
        yield
    except ModuleNotFoundError:
        raise Unavailable(absent(what, package)) from None
    except Exception as error:  # numba checks versions at import and raises what it likes
        why = f"{type(error).__name__}: {error}"
        raise Unavailable(
            f"{what} {package}, which cannot be imported here ({why}): `{command('doctor')}` says what to install"
        ) from error
