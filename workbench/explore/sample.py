"""Random cases from a seeded generator: independent of each other, and the same for a seed whatever is installed."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from workbench.case.case import Case
from workbench.explore.draw import Among, Between
from workbench.explore.ranges import drawn, has_empty_rows, rows_asked
from workbench.refusal import Refusal

#: cases that are drawn for one whose rows all see a key, at most
_DRAWS = 50


def sample(
    random: np.random.Generator,
    kernel: str | None = None,
    *,
    empty_rows: bool | None = None,
    usual: Mapping[str, Any] = MappingProxyType({}),
    **given: Any,
) -> Case:
    """A case from the table of ranges (`ranges.RANGES`), as `ranges.drawn` says; `usual` and `given` are values, or
    ranges, and `empty_rows` as of `ranges.rows_asked`. Refusal where rows that see no key are not asked for, and all
    cases drawn have some.
    """
    asked = rows_asked(kernel, empty_rows)

    def draw(one: Any) -> Any:
        if isinstance(one, Between):
            return int(random.integers(one.low, one.high + 1))
        return one.values[int(random.integers(len(one.values)))] if isinstance(one, Among) else one

    for _ in range(_DRAWS):
        case = drawn(draw, kernel, given, empty_rows=asked, usual=usual)
        if asked or not has_empty_rows(case):
            return case
    raise Refusal(f"all {_DRAWS} cases drawn have empty rows (no visible key): set empty_rows = true")
