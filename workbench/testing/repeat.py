"""How a check is repeated: where the command line has no name for a function, by a line of Python."""

import ast
from collections.abc import Mapping
from typing import Any

from workbench.case.case import Case


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
