"""How a check is repeated: by the name that the command line has for a function, else by a line of Python."""

import ast
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from workbench.case.case import Case
from workbench.files import of_python


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


def python_line(kernel: Any, case: Case, options: Mapping[str, Any]) -> str:
    """The call of `assert_attention` that checks the same again; of `options` arrays and functions are but named."""
    name = repr(kernel) if isinstance(kernel, str) else getattr(kernel, "__name__", "")
    words = [name if isinstance(kernel, str) or name.isidentifier() else "kernel", repr(case)]
    words += [f"{key}={_literal(value, key)}" for key, value in options.items()]
    return f"assert_attention({', '.join(words)})"


def _literal(value: Any, name: str) -> str:
    try:
        ast.literal_eval(written := repr(value))
    except (ValueError, SyntaxError, TypeError):
        return getattr(value, "__name__", name)
    return written
