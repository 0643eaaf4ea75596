"""Files: the folder that keeps compiled kernels between processes, and files that are whole or not there."""

import os
from pathlib import Path
from uuid import uuid4

from workbench.process import unfinished
from workbench.refusal import Refusal


def cache_folder() -> Path:
    """`$WORKBENCH_CACHE`, else `workbench` in `$XDG_CACHE_HOME` or in `~/.cache`; it need not exist yet."""
    if chosen := os.environ.get("WORKBENCH_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "workbench"


def write_atomically(path: Path, content: bytes) -> None:
    """Write `content` to `path`, or nothing at all. Refusal where nothing can be written there."""
    part = path.parent / f"{path.name}.{uuid4().hex[:12]}.part"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with unfinished(part):
            try:
                part.write_bytes(content)  # not by tempfile, whose files are this user's alone, whatever the umask
                os.replace(part, path)
            finally:
                part.unlink(missing_ok=True)
    except OSError as error:
        raise Refusal(f"{path} cannot be written: {error.strerror}") from None
