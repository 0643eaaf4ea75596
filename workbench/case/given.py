"""Options of a run as type checkers see them: what `run`, `explain`, `sweep` and others take by keyword. Meaning and
defaults are in `options.Options`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict


class SweepOptions(TypedDict, total=False):
    """Options for many cases."""

    faults: Sequence[str]
    backend: str
    probes: str
    limit_gb: float
    arrays: str
    device: str | None
    layout: str
    calibration: str | None
    contract: str | Mapping[str, Any] | None
    runs: int


class RunOptions(SweepOptions, total=False):
    """Options for one case."""

    isolate: bool
    timeout: float | None
    memory_gb: float | None
    feed: Mapping[str, Any]
    where: str | None
    inputs: Any
