"""What a kernel on 8-bit codes reads: its inputs, quantised."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np

from workbench.case.case import Case
from workbench.case.stages import INPUTS, QUANTISED_INPUTS
from workbench.cuda import quantize
from workbench.cuda.faults.fault import Fault, applied, of_file
from workbench.refusal import Refusal

LARGEST_FLOAT16 = float(np.finfo(np.float16).max)
QUANTISER = Path(quantize.__file__)


def encoded(
    case: Case, floats: Mapping[str, np.ndarray], given: Mapping[str, np.ndarray], faults: Sequence[Fault]
) -> dict[str, np.ndarray]:
    """Codes uint8 and scales float32 [heads] of q, k and v, by the names of their stages: those `given`, else those of
    `floats`; those of `faults` put in that change the quantiser. Refusal for what is beyond float16, to which the
    kernel decodes, and for a fault of a quantiser that does not run.
    """
    assert case.codes is not None and case.quantiser_scale is not None
    put_in = of_file(faults, QUANTISER.name)
    if put_in and len(given) == len(QUANTISED_INPUTS):
        raise Refusal(f"fault {put_in[0].id} is in the quantiser, which does not run on codes from outside")
    quantise = quantiser(put_in).quantize
    made: dict[str, np.ndarray] = {}
    for name in INPUTS:
        if f"codes_{name}" in given:
            codes, scale = given[f"codes_{name}"], given[f"scale_{name}"]
            largest = float(scale.max()) * quantize.KINDS[case.codes].largest
        else:
            x = floats[name]
            codes, scale = quantise(x, case.codes, saturate=True, scaling=case.quantiser_scale)
            largest = float(np.abs(x).max())
        if largest > LARGEST_FLOAT16:
            raise Refusal(
                f"codes are decoded to float16, at most {LARGEST_FLOAT16:g} in size; {name} reaches {largest:g}"
            )
        made |= {f"codes_{name}": np.ascontiguousarray(codes), f"scale_{name}": np.ascontiguousarray(scale)}
    return made


def quantiser(faults: tuple[Fault, ...]) -> ModuleType:
    """`workbench.cuda.quantize`, or a copy of it with faults put in."""
    if not faults:
        return quantize
    text = applied(QUANTISER.read_text(), faults, QUANTISER.name)
    module = ModuleType("workbench.cuda.quantize, with faults")
    exec(compile(text, str(QUANTISER), "exec"), vars(module))
    return module
