"""Laws that a kernel breaks in words, and the known faults that break the same."""

from workbench.explore.laws.alike import alike
from workbench.explore.laws.law import Laws


def lines(found: Laws, command: str) -> list[str]:
    """What laws tell of a kernel whose fault nothing reproduces, a line each; `command`: what asks them again, empty
    where only Python does.
    """
    asks = f"`{command}`" if command else "`workbench.laws`, in Python,"
    signature = found.signature
    broken = [name for name, held in signature.items() if held is False]
    asked = sum(held is not None for held in signature.values())
    if not broken:
        return [f"laws: all {asked} that were asked hold"]
    said = [f"laws: {len(broken)} of {asked} broken: {', '.join(broken)}; {asks} says how"]
    for one in alike(found):
        said.append(
            f"  {one.share:.0%} the same laws are broken by {one.fault}: {one.summary} ({', '.join(one.stages)})"
        )
    return said
