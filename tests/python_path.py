"""The PYTHONPATH of a Python that a test starts."""

import os
from pathlib import Path


def python_path(*folders: Path) -> str:
    """`folders`, and behind them what the caller has: a `sitecustomize` of theirs among it."""
    return os.pathsep.join([*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])])
