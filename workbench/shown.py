"""How records show themselves: by functions of the room `report`, which is above them. This is the one way up."""

import importlib
from typing import Any


def shown_by(name: str, *what: Any, **options: Any) -> Any:
    """What a function of the room makes of a record; `name` is its module and its own, such as `text.html_table`."""
    module, _, function = name.rpartition(".")
    return getattr(importlib.import_module(f"workbench.report.{module}"), function)(*what, **options)
