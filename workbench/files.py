"""Files: the folder that keeps compiled kernels between processes, and files that are whole or not there."""

import os
import tempfile
from pathlib import Path

from workbench.process import unfinished
from workbench.refusal import Refusal


def cache_folder() -> Path:
    """`$WORKBENCH_CACHE`, else `workbench` in `$XDG_CACHE_HOME` or in `~/.cache`; it need not exist yet."""
    if chosen := os.environ.get("WORKBENCH_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "workbench"


def write_atomically(path: Path, content: bytes) -> None:
    """Write `content` to `path`, or nothing at all. Refusal where nothing can be written there."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
        with unfinished(Path(name)):
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(content)
                os.replace(name, path)
            except BaseException:
                os.unlink(name)
                raise
    except OSError as error:
        raise Refusal(f"{path} cannot be written: {error.strerror}") from None
