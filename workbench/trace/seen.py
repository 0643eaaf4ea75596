"""What the stages that a foreign kernel dumped say of its contract where it says nothing itself."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from workbench.case.case import Case
from workbench.case.contract import Contract, of_foreign
from workbench.case.masks import visible
from workbench.case.promises import unwrapped
from workbench.case.stages import LSE, MERGED, OUT, PARTIALS, RESULTS, STAGES
from workbench.floats import DTYPES, round_to

Stages = Mapping[str, np.ndarray]

_NARROW = ("float16", "bfloat16")
#: dtypes that hold any result
_WIDE = ("float32", "float64")
#: relative error of a product and its factor in float32, both rounded
_PRODUCT = 2.0**-22


def promise_of(
    declared: Mapping[str, Any], stages: Stages, inputs: Stages, case: Case, gpu: str | None = None
) -> Contract:
    """The contract of a kernel that gave `stages` (as dumped) and says `declared`, the weakest choice where neither
    tells. `gpu`: the generation of the GPU on which it ran, as of `contract.of_foreign`.
    """
    decoded = {str(x.dtype) for name, x in stages.items() if name.startswith("dequant") and x.dtype.itemsize == 2}
    operands_dtype = decoded.pop() if len(decoded) == 1 else None
    proven = proven_by(stages, inputs, case) | dict(declared)
    # among maxima that a kernel chooses as it likes an lse is one more
    merges = not {*PARTIALS, *MERGED}.isdisjoint(stages) and proven.get("row_max", "running") == "running"
    return of_foreign(proven, case, operands_dtype, gpu, merges)


def notes(stages: Stages, case: Case) -> tuple[str, ...]:
    """What a reader should know of the dtypes of `stages`: a result of another one than the case's."""
    stored = [name for name, stage in RESULTS.items() if stage.dtype and name in stages and case.codes is None]
    return tuple(
        f"{name} is {x.dtype} in a {case.dtype} case: it is judged as {_dtype_of(x)}"
        for name in stored
        if (x := stages[name]).dtype != DTYPES[case.dtype]
    )


def held_in(case: Case) -> Mapping[str, tuple[str, ...]]:
    """The dtypes in which a function may return out and lse where it declares none, the usual one first. One of fewer
    bits would be allowed their rounding; of codes out is of any dtype.
    """
    own = dict.fromkeys((case.dtype, *(() if case.codes is None else DTYPES)))
    return {OUT: (*own, *(x for x in _WIDE if x not in own)), LSE: _WIDE}


def narrower(stages: Stages, case: Case, declared: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """What is wrong of the dtypes in which the function `name`, which `declared` these fields, returned its results."""
    lines = []
    for stage, dtypes in held_in(case).items():
        field = RESULTS[stage].dtype
        said = unwrapped(declared)[0].get(field) if field else None
        got = str(stages[stage].dtype) if stage in stages else dtypes[0]
        if got in ((said, *_WIDE) if said else dtypes):
            continue
        if said:
            rule = f"its contract says {field}={said}"
        else:
            rule = f"a kernel of {case.dtype} returns {dtypes[0]}"
            rule += f": if that is intended, declare {field}={got}" if field else ""
        lines.append(f"{name} returned {stage} in {got}, and {rule}")
    return tuple(lines)


def proven_by(stages: Stages, inputs: Stages, case: Case) -> dict[str, Any]:
    """Contract fields that the dumped `stages` prove: a result has its dtype; a stage in float32 whose values no 16-bit
    dtype has was not rounded to one; and acc and its like are made of probs that were cast before they were normalised.
    """
    found: dict[str, Any] = {}
    found |= {stage.dtype: _dtype_of(stages[name]) for name, stage in RESULTS.items() if stage.dtype and name in stages}
    if any(STAGES[name].of_cast for name in stages if name in STAGES):
        found["probs_normalised"] = False
    if case.dtype == "float32" or case.codes is not None:
        return found
    for name, stage in STAGES.items():
        if not stage.dtype or stage.result or name not in stages or stages[name].dtype != np.float32:
            continue
        values, off = [stages[name]], [0.0]
        if stage.unit:
            shape = tuple(case.sizes[axis] for axis in stage.axes)
            if "bias" in inputs or values[0].shape != shape:
                continue
            seen = values[0][np.broadcast_to(visible(case, inputs), shape)]
            # scores may be the float32 product of the scale and of sums that were rounded
            values, off = [seen, seen / np.float64(case.scale or 1)], [0.0, _PRODUCT]
        if not any(_rounded(x, dtype, e) for x, e in zip(values, off, strict=True) for dtype in _NARROW):
            found[stage.dtype] = "float32"
    return found


def _dtype_of(out: np.ndarray) -> str:
    """In which a kernel stores an out; none stores it in float64."""
    return next((key for key, dtype in DTYPES.items() if dtype == out.dtype), "float32")


@np.errstate(all="ignore")
def _rounded(values: np.ndarray, dtype: str, off: float = 0.0) -> bool:
    """Whether all finite values are those of `dtype`, but for a relative error of `off`."""
    x = values[np.isfinite(values)].astype(np.float64)
    return bool(np.all(abs(x - round_to(x, dtype)) <= off * abs(x)))
