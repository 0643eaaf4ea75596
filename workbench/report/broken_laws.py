"""Laws that a kernel breaks for which no cause was found, in words and as a document."""

from typing import Any

from workbench.explore.laws.law import Laws


def lines(found: Laws, command: str) -> list[str]:
    """A line of how many were broken, and which. `command`: what asks them again; empty where only Python does."""
    asks = f"`{command}`" if command else "`workbench.laws` in Python"
    told = document(found)
    broken, asked = told["broken"], sum(map(len, told.values()))
    if not broken:
        return [f"laws: all {asked} hold"]
    return [f"laws: {len(broken)} of {asked} broken: {', '.join(broken)}; {asks} shows how"]


def document(found: Laws) -> dict[str, Any]:
    """What `workbench explain --json` says of them: names of those that were broken and of those that held."""
    signature = found.signature
    return {
        "broken": [name for name, held in signature.items() if held is False],
        "held": [name for name, held in signature.items() if held],
    }
