"""Random cases from a seeded generator: independent of each other, and the same for a seed whatever is installed."""

from typing import Any

import numpy as np

from workbench.case.case import Case
from workbench.explore.draw import Among, Between
from workbench.explore.ranges import drawn


def sample(random: np.random.Generator, kernel: str | None = None, **given: Any) -> Case:
    """A case from the table of ranges (`ranges.RANGES`), as `ranges.drawn` says; `given` are values, or ranges."""

    def draw(one: Any) -> Any:
        if isinstance(one, Between):
            return int(random.integers(one.low, one.high + 1))
        return one.values[int(random.integers(len(one.values)))] if isinstance(one, Among) else one

    return drawn(draw, kernel, given)
