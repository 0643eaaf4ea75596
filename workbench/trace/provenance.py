"""What code a foreign run was: its sources and shared objects with their hashes, its machine, whether it repeats."""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from workbench.refusal import Refusal


@dataclass(frozen=True)
class File:
    """A file that a run was made of."""

    path: str
    sha256: str  #: empty of a file that was removed or replaced since it was loaded: nobody can read what ran
    modified: str  #: UTC, to the second
    loaded: bool  #: whether it ran; else it is a source beside, from which something else was built

    @property
    def name(self) -> str:
        """Without its folder."""
        return Path(self.path).name

    @property
    def is_object(self) -> bool:
        """Whether it is a shared object."""
        return is_object(self.path)


@dataclass(frozen=True)
class Provenance:
    """What code ran, and where."""

    files: tuple[File, ...]
    device: str  #: the GPU of the machine, else its processor; a function may use the one without being told
    driver: str  #: the newest CUDA release that the driver serves; empty without a GPU
    versions: Mapping[str, str]
    runs: int = 1  #: how often the function was called
    identical: bool | None = None  #: whether all runs gave the same bits; None of one run
    plain_agrees: bool | None = None  #: whether out and lse have the same bits without probes; None: no plain run

    def as_dict(self) -> dict[str, Any]:
        """The fields as plain Python values, for JSON."""
        return {**asdict(self), "files": [asdict(file) for file in self.files]}


def is_object(path: str) -> bool:
    """Whether a path is that of a shared object, by its name."""
    name = os.path.basename(path)
    return name.endswith(".so") or ".so." in name


def of_dict(plain: Mapping[str, Any]) -> Provenance:
    """The provenance that a manifest holds; Refusal where it is none."""
    try:
        made = Provenance(**{**plain, "files": tuple(File(**file) for file in plain["files"])})
    except (KeyError, TypeError):
        raise Refusal(
            "the manifest's 'provenance' must have the fields "
            f"{', '.join(field.name for field in fields(Provenance))}, and each of its files the fields "
            f"{', '.join(field.name for field in fields(File))}; got {plain!r}"
        ) from None
    texts = [made.device, made.driver, *made.versions.values()] if isinstance(made.versions, dict) else [None]
    texts += [x for file in made.files for x in (file.path, file.sha256, file.modified)]
    if not all(isinstance(text, str) for text in texts) or not isinstance(made.runs, int):
        raise Refusal(f"the manifest's 'provenance' holds texts, and runs, a whole number; got {plain!r}")
    return made
