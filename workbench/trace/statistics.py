"""What is known of a stage whose elements nobody gave."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from workbench.floats import DTYPES
from workbench.refusal import Refusal


@dataclass(frozen=True)
class Statistics:
    """What is known of the elements of a stage; None: not given."""

    dtype: str  #: in which the kernel held them, of floats.DTYPES
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


def of_dict(plain: Mapping[str, Any], where: str) -> Statistics:
    """The statistics that a manifest gives; Refusal for an unknown one, and for a value that breaks its rule. `where`
    begins messages.
    """
    known = [field.name for field in fields(Statistics)]
    if unknown := [name for name in plain if name not in known]:
        raise Refusal(f"{where}: unknown are {', '.join(unknown)}; known are {', '.join(known)}")
    if lacking := [name for name in ("dtype", "count") if name not in plain]:
        raise Refusal(f"{where}: {lacking[0]!r} is missing")
    for name, value in plain.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if name == "dtype":
            rule, holds = f"one of {', '.join(DTYPES)}", isinstance(value, str) and value in DTYPES
        elif name in ("min", "max", "mean"):
            rule, holds = "a finite number", number and math.isfinite(value)
        else:
            rule, holds = "a whole number of at least 0", isinstance(value, int) and number and value >= 0
        if not holds:
            raise Refusal(f"{where}: {name} must be {rule}; got {value!r}")
    return Statistics(**plain)
