"""A contract that was read off a function: lines, and the document."""

import math
from typing import Any

from workbench.case.presets import word, words
from workbench.readings.contract.measured import MeasuredContract

SCHEMA = "workbench.measured-contract/1"


def lines(found: MeasuredContract) -> list[str]:
    """Every field, a line each, with what shows it or why it cannot be read; and all that were read as --contract takes
    them.
    """
    count = len(found.fields)
    said = [f"{found.target}: {count} contract fields measured in {found.calls} calls on {found.case}"]
    said += [f"{one.name} = {word(one.value)}: {one.evidence}" for one in found.every if one.is_read]
    said += [f"{name} cannot be measured: {reason}" for name, reason in found.unread.items()]
    return [*said, f"--contract {words(found.fields)}"]


def document(found: MeasuredContract) -> dict[str, Any]:
    """The document `workbench.measured-contract/1` of `workbench contract TARGET --measure --json`, which `--contract
    @FILE`
    reads; numbers that are not finite are strings.

    - `fields`: the contract
    - `evidence`, `unread`: a sentence for each field: what shows it; why it cannot be measured
    - `calls`: of the function
    """
    return {
        "schema": SCHEMA,
        "target": found.target,
        "case": found.case.as_dict(),
        "fields": {name: _plain(value) for name, value in found.fields.items()},
        "evidence": {name: f"measured: {text}" for name, text in found.evidence.items()},
        "unread": dict(found.unread),
        "calls": found.calls,
        "seconds": round(found.seconds, 3),
    }


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [*value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
