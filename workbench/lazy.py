"""Public names of a package that are imported when they are first used, so that to import the package costs nothing."""

import importlib
import sys
from collections.abc import Mapping
from typing import Any


def attribute(package: str, homes: Mapping[str, str], name: str) -> Any:
    """The public `name` of a package, which has it from then on. `homes`: public name -> where it is in the workbench,
    such as judge.diff.diff. AttributeError for a name that is not among them, as of any module.
    """
    if name not in homes:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    module, _, own = homes[name].rpartition(".")
    value = getattr(importlib.import_module(f"workbench.{module}"), own)
    setattr(sys.modules[package], name, value)
    return value
