"""How records show themselves, and look at more than their room sees: by functions of rooms above them. This is the
one way up.
"""

import importlib
from typing import Any


def shown_by(name: str, *what: Any, **options: Any) -> Any:
    """What a function of the room `report` makes of a record; `name` is its module and its own, such as
    `text.html_table`.
    """
    return above(f"report.{name}", *what, **options)


def above(name: str, *what: Any, **options: Any) -> Any:
    """What a function of a room above makes of a record, `name` with its room, such as `explore.explain.laws`."""
    module, _, function = name.rpartition(".")
    return getattr(importlib.import_module(f"workbench.{module}"), function)(*what, **options)
