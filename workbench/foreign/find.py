"""Functions to run: path.py:function, those of packages that have an adapter, and those that installed packages name,
as entry points of `workbench.kernels`.

[project.entry-points."workbench.kernels"]
my_flash = "my_package.attention:forward"
"""

import ast
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from workbench.case.user_code import Function, function_of, prints_aside
from workbench.cuda.gpu import gpu
from workbench.files import of_python
from workbench.foreign import adapters
from workbench.foreign.collect import loading
from workbench.foreign.lacking import lacking
from workbench.foreign.launches import Launches
from workbench.raised import as_raised
from workbench.refusal import Refusal, Unavailable

GROUP = "workbench.kernels"


@dataclass(frozen=True)
class Installed:
    """A function that a package ships as a kernel."""

    name: str
    function: str  #: module:function
    package: str  #: its name and version
    entry: EntryPoint


def installed() -> dict[str, Installed]:
    """The kernels of installed packages by name; nothing is imported. Refusal for a name that several give."""
    found: dict[str, Installed] = {}
    for entry in entry_points(group=GROUP):
        package = "unknown" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"
        one = Installed(entry.name, entry.value, package, entry)
        other = found.setdefault(entry.name, one)
        if (other.function, other.package) != (one.function, one.package):  # a package on the path twice is one
            raise Refusal(
                f"two packages ship a kernel {entry.name!r}, {other.package} ({other.function}) and {one.package} "
                f"({one.function}): uninstall one, or give the function as path.py:function"
            )
    return found


def load(kernel: Installed) -> Callable[..., Any]:
    """Its function; Refusal where that cannot be imported or is none."""
    try:
        with prints_aside():
            function = kernel.entry.load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # sys.exit among them
        raise Refusal(f"{kernel.name} of {kernel.package} could not be imported:\n{as_raised(error)}") from None
    if not callable(function):
        raise Refusal(f"{kernel.name} of {kernel.package} must be a function; {kernel.function} is {function!r}")
    return function


def names_in(path: Path) -> tuple[list[str], list[str]]:
    """The functions that a file of Python defines, as its text tells, and the kernels that `jit` makes of some; none of
    one that cannot be read.
    """
    try:
        body = ast.parse(path.read_text()).body
    except (OSError, SyntaxError, ValueError):
        return [], []
    defined = [node for node in body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]
    made = {node.name: any("jit" in ast.unparse(one) for one in node.decorator_list) for node in defined}
    return [name for name, kernel in made.items() if not kernel], [name for name, kernel in made.items() if kernel]


@loading()
def find(target: str) -> Function:
    """The function that `path.py:function`, an adapter or a name of `installed` names; Refusal where there is none,
    Unavailable where its file needs what this machine lacks.
    """
    if (kernel := None if ":" in target else installed().get(target)) is not None:
        return load(kernel)
    if (adapter := adapters.known(target)) is not None:
        with prints_aside():
            return adapters.load(adapter, target)
    if target.endswith(".py"):
        raise Refusal(of_file(Path(target)))
    path, _, name = target.rpartition(":")
    if not path.endswith(".py") or not name:
        package = target.partition(":")[0].partition(".")[0]
        others = [key for key, one in adapters.ADAPTERS.items() if package in (one.package, key.partition(":")[0])]
        known = f"; of {package} there are {', '.join(others)}" if others else ""
        raise Refusal(f"give your kernel as path.py:function; got {target!r}{known}")
    if not Path(path).is_file():
        raise Refusal(f"{path}: no such file")
    try:
        with Launches(
            target, on_emulator=gpu() is None
        ).sent():  # kernels with signatures are compiled when it is loaded
            return function_of(Path(path), name)
    except Refusal as refusal:
        if (error := refusal.__cause__) is not None and (why := lacking(error, str(Path(path).resolve()))):
            raise Unavailable(why) from None
        raise refusal from None


def name_of(function: Callable[..., Any]) -> str | None:
    """path.py:function, where the command line finds this very function by it: one at the top of a file of the user's
    that imports nothing relative to its package. None of any other.
    """
    module, name = sys.modules.get(getattr(function, "__module__", None) or ""), getattr(function, "__name__", "")
    path = Path(getattr(module, "__file__", None) or "")
    if getattr(module, name, None) is not function or path.suffix != ".py" or of_python(path.resolve()):
        return None
    try:
        tree = ast.parse(path.read_text())
    except (OSError, SyntaxError, ValueError):
        return None
    if any(isinstance(node, ast.ImportFrom) and node.level for node in ast.walk(tree)):
        return None
    path = path.resolve()
    return f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}:{name}"


def of_file(path: Path) -> str:
    """What to write in the place of a file alone."""
    if not path.is_file():
        return f"{path}: no such file"
    functions, kernels = names_in(path)
    listed = f"; functions in it: {', '.join(functions) or 'none'}"
    listed += f"; kernels, which a function launches: {', '.join(kernels)}" if kernels else ""
    return f"give your kernel as path.py:function; got {str(path)!r}{listed}"
