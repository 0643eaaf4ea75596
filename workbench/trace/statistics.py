"""What is known of a stage whose elements nobody gave."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from workbench.floats import DTYPES
from workbench.records import Rule, one_of
from workbench.refusal import Refusal


@dataclass(frozen=True)
class Statistics:
    """What is known of the elements of a stage; None: not given."""

    dtype: str  #: in which the kernel held them
    count: int  #: of all elements
    nan: int | None = None  #: elements that are NaN
    pos_inf: int | None = None  #: elements that are +inf
    neg_inf: int | None = None  #: elements that are -inf
    min: float | None = None  #: of the finite elements
    max: float | None = None  #: of the finite elements
    mean: float | None = None  #: of the finite elements, summed in float64

    def as_dict(self) -> dict[str, Any]:
        """Those that were given, for JSON."""
        return {name: value for name, value in asdict(self).items() if value is not None}


_COUNT = Rule("a whole number of at least 0", lambda x: type(x) is int and x >= 0)
_NUMBER = Rule("a finite number", lambda x: type(x) in (int, float) and math.isfinite(x))
_RULES = {
    "dtype": one_of([*DTYPES]),
    **dict.fromkeys(("count", "nan", "pos_inf", "neg_inf"), _COUNT),
    **dict.fromkeys(("min", "max", "mean"), _NUMBER),
}


def of_dict(plain: Mapping[str, Any], where: str) -> Statistics:
    """The statistics that a manifest gives; Refusal for an unknown one, and for a value that breaks its rule. `where`
    begins messages.
    """
    if unknown := [name for name in plain if name not in _RULES]:
        raise Refusal(f"{where}: unknown are {', '.join(unknown)}; known are {', '.join(_RULES)}")
    if lacking := [name for name in ("dtype", "count") if name not in plain]:
        raise Refusal(f"{where}: {lacking[0]!r} is missing")
    for name, value in plain.items():
        if not _RULES[name].holds(value):
            raise Refusal(f"{where}: {name} must be {_RULES[name].words}; got {value!r}")
    return Statistics(**plain)
