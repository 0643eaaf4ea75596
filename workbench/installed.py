"""Kernels that installed packages ship: a package names its functions as entry points of the group `workbench.kernels`.

[project.entry-points."workbench.kernels"]
my_flash = "my_package.attention:forward"
"""

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from workbench.refusal import Refusal
from workbench.user_code import prints_aside

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
    except BaseException:  # sys.exit among them
        raise Refusal(f"{kernel.name} of {kernel.package} could not be imported:\n{traceback.format_exc()}") from None
    if not callable(function):
        raise Refusal(f"{kernel.name} of {kernel.package} must be a function; {kernel.function} is {function!r}")
    return function
