"""The folder that keeps compiled kernels between processes."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """`$WORKBENCH_CACHE`, else `workbench` in `$XDG_CACHE_HOME` or in `~/.cache`; it need not exist yet."""
    if chosen := os.environ.get("WORKBENCH_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "workbench"
