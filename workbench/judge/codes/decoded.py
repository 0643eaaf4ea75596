"""What a kernel on 8-bit codes may have decoded: from its table, its codes and its scales where these were seen, else
from what its quantiser must have made of q, k and v.
"""

from typing import NamedTuple

import numpy as np

from workbench.floats import to_float64, unit_roundoff
from workbench.reference import quantize
from workbench.reference.budget import losses_of
from workbench.reference.budget.quantised import as_operands, decoding_error
from workbench.trace.trace import Trace

#: stages that are judged by what the coarsest 8-bit format loses where nobody told the format
BY_COARSEST = ("dequant_q", "dequant_k", "dequant_v")


class Range(NamedTuple):
    """A decoded input, float64 [batch, head, row, dim]."""

    value: np.ndarray  #: as float64 decodes it, before any cast
    low: np.ndarray  #: smallest that a correct kernel may read
    high: np.ndarray  #: largest


def coarsest(x: np.ndarray) -> Range:
    """What a kernel of unknown 8-bit format may decode of the input `x`, [batch, head, row, dim].

    Of a value at most half an ulp of float8_e5m2, the format of fewest bits; of the largest value half a step of int8,
    127 of which reach a largest value that a static scale takes for twice as large as it is; each twice, since a
    quantiser may truncate.
    """
    x = to_float64(x)
    off = 2 * (unit_roundoff("float8_e5m2") * abs(x) + np.abs(x).max(initial=0.0) / 127)
    return Range(x, x - off, x + off)


def slack(trace: Trace) -> float:
    """Relative error of a division beyond its rounding, in a kernel that may use the approximate one."""
    return losses_of(trace.contract).division if trace.contract.fast_math else 0.0


def operand_dtype(trace: Trace, x: str) -> str | None:
    """To which the decoded input `x` is rounded before products; None where nobody told."""
    stage = trace.stages.get(f"dequant_{x}")
    if stage is not None and stage.dtype.itemsize == 2:
        return str(stage.dtype)
    return None if "operands_dtype" in trace.contract.assumed else trace.contract.operands_dtype


def scale_of(trace: Trace, x: str) -> np.ndarray:
    """The scale of `x`, float64 [head]: the dumped one where there is one."""
    return to_float64(trace.stages[f"scale_{x}"]) if f"scale_{x}" in trace.stages else computed_scale(trace, x)


def computed_scale(trace: Trace, x: str) -> np.ndarray:
    """The scale that the quantiser must compute of the input `x`, float64 [head]."""
    case = trace.case
    assert case.codes is not None and case.quantiser_scale is not None
    return quantize.scale(to_float64(trace.inputs[x]), case.codes, scaling=case.quantiser_scale)


def scale_error(trace: Trace, x: str) -> float:
    """Relative error of `scale_of`: 0 where the scale was dumped."""
    return 0.0 if f"scale_{x}" in trace.stages else quantize.U + slack(trace)


def codes_of(trace: Trace, x: str) -> tuple[np.ndarray, np.ndarray]:
    """Smallest and largest code of `x` that a quantiser may give for its scale, float64."""
    reach = slack(trace) + scale_error(trace, x)
    return quantize.codes_interval(to_float64(trace.inputs[x]), scale_of(trace, x), str(trace.case.codes), reach=reach)


@np.errstate(all="ignore")
def decoded(trace: Trace, x: str, *, by_table: bool) -> Range:
    """What the kernel may decode as `x`, before and after the cast to what products take: from its codes, and from its
    table, if that is to be believed (`by_table`) and was dumped, else from its scale.
    """
    kind, table = str(trace.case.codes), trace.stages.get(f"lut_{x}") if by_table else None
    entries = quantize.table(scale_of(trace, x), kind) if table is None else to_float64(table)
    if f"codes_{x}" in trace.stages:
        low = high = value = quantize.decoded(to_float64(trace.stages[f"codes_{x}"]), entries)
    else:
        value = quantize.decoded(quantize.codes(to_float64(trace.inputs[x]), scale_of(trace, x), kind), entries)
        one, other = (quantize.decoded(codes, entries) for codes in codes_of(trace, x))
        low, high = np.minimum(one, other), np.maximum(one, other)
    if table is None:
        low, high = (
            end + sign * decoding_error(end, kind, scale_error(trace, x)) for end, sign in ((low, -1), (high, 1))
        )
    return Range(value, *as_operands(low, high, operand_dtype(trace, x)))
