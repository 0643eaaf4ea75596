"""Public names of a package that are imported when first used, so that importing the package costs nothing.

A package lists its names once, in the stub beside it (`__init__.pyi`): type checkers read them there, and so does
`public`.
"""

import importlib
import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

#: the function of importlib that asks a package for what `from` imports
_FROM = "_handle_fromlist"


def public(
    package: str, file: str, moved: Mapping[str, str] | None = None, *, distribution: str | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package whose names are the imports in its stub, `file` with the suffix .pyi.

    `moved`: name that was public -> where it is now, such as workbench.judge.table.table. Asking for one raises an
    AttributeError that says so; `from` drops what an AttributeError says, so that importing one raises an ImportError.
    `distribution`: the installed package whose version `__version__` is.
    """
    gone = moved or {}

    def attribute(name: str) -> Any:
        listed = names(file)
        if name == "__all__":
            value: Any = [*listed]
        elif name == "__version__" and distribution is not None:
            from importlib.metadata import version

            value = version(distribution)
        elif name in listed:
            module, own = listed[name]
            value = getattr(importlib.import_module(module), own)
        elif name in gone:
            said = f"{package}.{name} has moved: {_line(gone[name], name)}"
            imported = sys._getframe(1).f_code.co_name == _FROM
            raise ImportError(said, name=package) if imported else AttributeError(said)
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        setattr(sys.modules[package], name, value)  # the package has it from then on
        return value

    def everything() -> list[str]:
        return sorted({*vars(sys.modules[package]), *names(file)})

    return attribute, everything


@cache
def names(file: str) -> dict[str, tuple[str, str]]:
    """Public name -> its module and its name there, by the stub beside a package's `file`."""
    import ast  # here, since whoever imports the package alone needs neither
    from pathlib import Path

    tree = ast.parse(Path(file).with_suffix(".pyi").read_text())
    return {
        alias.asname or alias.name: (node.module, alias.name)
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }


def _line(path: str, name: str) -> str:
    """What imports a name from where it is now."""
    module, _, own = path.rpartition(".")
    return f"from {module} import {own}" + (f" as {name}" if own != name else "")
