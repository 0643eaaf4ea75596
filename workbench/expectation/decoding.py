"""A run on codes as one of the attention that it runs: what stages before attention are computed from, and the decoded
rows that its attention read.
"""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from workbench.case.fields import QUANTISED
from workbench.case.stages import ALGORITHMS, INPUTS, before_attention
from workbench.case.tiling import Tiling
from workbench.floats import DTYPES, round_to, to_float64
from workbench.reference.attention import attention_of
from workbench.reference.losses import losses_of
from workbench.reference.problem import Codes, Problem
from workbench.reference.stage import Table
from workbench.reference.steps.codes import Interval
from workbench.reference.walk import intervals
from workbench.trace.trace import Trace


def decoding(trace: Trace, table: Table, tiling: Tiling, given: Iterable[str] | None = None) -> Problem:
    """What the stages before attention are computed from: from the `given` ones of those that were dumped, all where
    there are none.
    """
    names, contract = before_attention(trace.algorithm), trace.contract
    seen = [name for name in names if name in trace.stages and (given is None or name in given)]
    losses, case = losses_of(contract), trace.case
    return Problem(
        table={name: table[name] for name in names if name in table},
        contract=contract,
        losses=losses,
        inputs={name: to_float64(trace.inputs[name]) for name in INPUTS if name in trace.inputs},
        numbers={"scale": case.scale},
        attn_bias=None,
        exact_products=True,
        tiling=tiling,
        given={name: to_float64(trace.stages[name]) for name in seen},
        statistics=False,
        codes=Codes(
            format=str(case.codes),
            scaling=case.quantiser_scale or "dynamic",
            scale_of=case.scale_of,
            coded=case.coded,
            slack=losses.division if contract.fast_math else 0.0,
            operands={name: operand_dtype(trace, name) for name in case.coded},
        ),
    )


def operand_dtype(trace: Trace, x: str) -> str | None:
    """To which the decoded input `x` is rounded before products; None where that is not declared."""
    stage = trace.stages.get(f"dequant_{x}")
    if stage is not None and stage.dtype.itemsize == 2:
        return str(stage.dtype)
    return None if "operands_dtype" in trace.contract.assumed else trace.contract.operands_dtype


def decoded(trace: Trace, p: Problem, *, from_codes: bool) -> Trace:
    """The run of a quantised kernel as one of the algorithm that it runs on the decoded rows, which are its inputs; `p`
    is what these are decoded of, of tables that are not believed.

    `from_codes`: the inputs are what a kernel that decodes its codes and scales right may have read, of that the
    nearest to what was dumped. Inputs without codes are as they are; those that were not dumped are decoded to the
    nearest value, and may be off by `input_errors` where roundings that nobody saw can reach a tie; where the format
    of the codes is not declared, they are q, k and v themselves, or may be off by what the coarsest format loses.
    Inputs are NaN or infinite where codes are.
    """
    algorithm = attention_of(trace.algorithm)
    known = ALGORITHMS[algorithm]
    read = {name: (trace.inputs[name], np.zeros(())) for name in INPUTS if name not in trace.case.coded}
    read |= {name: _read(trace, p, name, from_codes) for name in trace.case.coded}
    # one dtype that holds them all
    dtypes = {x.dtype for x, _ in read.values()}
    dtype = dtypes.pop() if len(dtypes) == 1 and dtypes <= set(DTYPES.values()) else np.dtype(np.float32)
    return replace(
        trace,
        algorithm=algorithm,
        case=trace.case.but(dtype=str(dtype), **dict.fromkeys(QUANTISED)),
        inputs={**trace.inputs, **{name: x.astype(dtype) for name, (x, _) in read.items()}},
        input_errors={name: error for name, (_, error) in read.items() if np.any(error != 0)},
        stages={name: stage for name, stage in trace.stages.items() if name in known},
        requested=tuple(name for name in trace.requested if name in known),
        put_in=(),
    )


@np.errstate(all="ignore")
def _read(trace: Trace, p: Problem, name: str, from_codes: bool) -> tuple[np.ndarray, np.ndarray]:
    """A decoded input, and float64 bounds of how far the kernel's may be from it."""
    stage = f"dequant_{name}"
    dumped, declared = trace.stages.get(stage), trace.case.codes is not None
    if dumped is not None and not from_codes:
        return dumped, np.zeros(())
    if dumped is None and not declared:
        return trace.inputs[name], np.zeros(())
    made: Interval = intervals(p, [stage])[stage]
    dtype = operand_dtype(trace, name) or "float32"
    if dumped is None:
        # where both ends are one, all between is rounded to it; a zero has the sign of its code
        apart = made.low != made.high
        nearest, error = np.copysign(made.low, made.value), np.zeros(apart.shape)
        nearest[apart] = round_to(made.value[apart], dtype)
        error[apart] = np.maximum(made.high[apart] - nearest[apart], nearest[apart] - made.low[apart])
        return nearest.astype(DTYPES[dtype]), error
    found = to_float64(dumped)
    right = np.clip(np.where(np.isnan(found), round_to(made.value, dtype), found), made.low, made.high)
    return right.astype(DTYPES[dtype]), np.zeros(())
