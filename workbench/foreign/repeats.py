"""Whether a foreign function gives the same bits again, and without its probes."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from workbench.arrays import as_numpy
from workbench.case.stages import RESULTS
from workbench.foreign.arguments import parameters_of
from workbench.refusal import Refusal

#: keywords of a function that can leave its probes out; it is then called with False too, and its outputs compared
PROBES = ("probes", "probed")

#: stages by name; those given in part; the rest of what a call returned
Returned = tuple[Mapping[str, np.ndarray], Mapping[str, Mapping[str, Any]], Any]


def _switch(function: Callable[..., Any]) -> str | None:
    """The keyword that leaves the probes out."""
    return next((name for name in PROBES if name in parameters_of(function)), None)


def repeated(
    function: Callable[..., Any],
    call: Callable[..., Returned],
    first: Returned,
    runs: int,
    plain: Callable[[], Returned] | None = None,
) -> dict[str, Any]:
    """`runs`, how often `function` was run; `identical`, whether all runs gave the same bits (None of one run); and
    `plain_agrees`, whether out and lse have the same bits without probes, in as many runs again (None for a function
    that has none of PROBES). `call` runs it on fresh copies of its arrays; `first` is what one run gave; `plain` runs
    it without probes where no keyword does.
    """
    if isinstance(runs, bool) or not isinstance(runs, int) or runs < 1:
        raise Refusal(f"runs must be a whole number of at least 1; got {runs!r}")
    if plain is None and (switch := _switch(function)) is not None:
        plain = partial(call, **{switch: False})
    if runs == 1 and plain is None:
        return {}
    bits = _bits(first)
    same = [_bits(call()) == bits for _ in range(runs - 1)]
    agrees = None
    if plain is not None:
        found = [_bits(plain()) for _ in range(runs)]
        outputs = {name: bits[name] for name in RESULTS if name in bits and name in found[0]}  # a probe may dump lse
        agrees = bool(outputs) and all({name: one.get(name) for name in outputs} == outputs for one in found)
    return {"runs": runs, "identical": all(same) if same else None, "plain_agrees": agrees}


def _bits(returned: Returned) -> dict[str, tuple[str, bytes]]:
    stages, parts, _ = returned
    arrays = {**stages, **{name: as_numpy(one.get("values"), name) for name, one in parts.items()}}
    return {name: (str(x.dtype), x.tobytes()) for name, x in arrays.items()}
