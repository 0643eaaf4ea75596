"""What a foreign function returned, in the forms in which attention functions do: its stages and its contract."""

from collections.abc import Generator, Mapping
from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np

from workbench.arrays import as_numpy
from workbench.case.inputs import CODES
from workbench.case.stages import OUT, RESULTS
from workbench.refusal import Refusal

_FORMS = "return out, (out, lse), or a dict of stage name -> array"


class Returned(NamedTuple):
    """The parts of what a call returned."""

    stages: dict[str, np.ndarray]  #: those given whole
    parts: dict[str, Mapping[str, Any]]  #: those given in part: {"indices": ..., "values": ...}
    declared: str | Mapping[str, Any]  #: the contract, as of `presets.fields_of`


def read(returned: Any, name: str) -> Returned:
    """The stages and the contract among what the function `name` returned.

    It may be out; (out, lse) and what else stands behind them, as flash_attn returns it, which is not read; or a dict
    of stage name -> array, with an optional key "contract". A stage that is None was not given. Arrays are of any
    library that speaks DLPack; what comes back are copies, as a function may return the same workspace each time.
    Refusal for anything else.
    """
    given = by_name(returned, name)
    if unnamed := [key for key in given if not isinstance(key, str)]:
        raise Refusal(f"{name} returned a dict with the key {unnamed[0]!r}; {_FORMS}")
    declared = given.pop("contract", None)
    if not isinstance(declared, Mapping | str | None):
        raise Refusal(f'{name}: "contract" must be a dict; got {type(declared).__name__}')
    given = {key: value for key, value in given.items() if value is not None}
    if not given:
        raise Refusal(f"{name} returned no stage; {_FORMS}")
    parts = {key: _part(value, f"{name}: {key}") for key, value in given.items() if isinstance(value, Mapping)}
    stages: dict[str, np.ndarray] = {}
    for key, value in given.items():
        if key.startswith("codes"):
            stages[key] = as_numpy(value, f"{name}: {key}", CODES).view(np.uint8).copy()
        elif key not in parts:
            stages[key] = as_numpy(value, f"{name}: {key}").copy()
    return Returned(stages, parts, deepcopy(declared or {}))


def _part(given: Mapping[str, Any], what: str) -> Mapping[str, Any]:
    """What was given in place of a stage, with copies of its arrays."""
    found = dict(given)
    if "values" in found:
        found["values"] = as_numpy(found["values"], f"{what}: values").copy()
    if "indices" in found:
        found["indices"] = np.array(found["indices"])
    return found


def by_name(returned: Any, name: str) -> dict[str, Any]:
    """What was returned, with names."""
    if returned is None:
        raise Refusal(f"{name} returned None; {_FORMS}, including arrays that it wrote in place")
    if isinstance(returned, Generator) or hasattr(returned, "__await__"):
        what = "a generator" if isinstance(returned, Generator) else "a coroutine"
        returned.close()
        raise Refusal(f"{name} returned {what}, which never ran; {_FORMS}")
    if isinstance(returned, Mapping):
        return dict(returned)
    several = isinstance(returned, tuple) or (isinstance(returned, list) and all(hasattr(x, "shape") for x in returned))
    return dict(zip(RESULTS, returned, strict=False)) if several else {OUT: returned}
