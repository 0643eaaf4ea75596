"""What a kernel on codes reads: its inputs, quantised."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

import ml_dtypes
import numpy as np

from workbench.case.case import Case
from workbench.case.formats import FORMATS
from workbench.cuda import quantize
from workbench.cuda.faults.fault import Fault, applied, of_file
from workbench.refusal import Refusal

LARGEST_FLOAT16 = float(np.finfo(np.float16).max)
QUANTISER = Path(quantize.__file__)


def encoded(
    case: Case, floats: Mapping[str, np.ndarray], given: Mapping[str, np.ndarray], faults: Sequence[Fault]
) -> dict[str, np.ndarray]:
    """Codes uint8, one a byte, and scales and what a format has beside them, float32, of the inputs that have codes, by
    the names of their stages: those `given`, else those of `floats`; those of `faults` put in that change the
    quantiser. Refusal for what is beyond float16, to which the kernel decodes, and for a fault of a quantiser that does
    not run.
    """
    assert case.codes is not None and case.quantiser_scale is not None
    put_in = of_file(faults, QUANTISER.name)
    if put_in and all(f"codes_{name}" in given for name in case.coded):
        raise Refusal(f"fault {put_in[0].id} is in the quantiser, which does not run when codes are given")
    quantise = quantiser(put_in).quantized
    made: dict[str, np.ndarray] = {}
    for name in case.coded:
        if f"codes_{name}" in given:
            of_input = {stage: x for stage, x in given.items() if stage.endswith(f"_{name}")}
            over = float(of_input.get(f"global_{name}", np.ones(1)).max())
            largest = float(of_input[f"scale_{name}"].max()) * quantize.KINDS[case.codes].largest * over
        else:
            of_input, largest = quantise(floats[name], name, case), float(np.abs(floats[name]).max())
        if largest > LARGEST_FLOAT16:
            raise Refusal(
                f"codes are decoded to float16, whose largest value is {LARGEST_FLOAT16:g}; {name} reaches {largest:g}"
            )
        made |= {stage: np.ascontiguousarray(x) for stage, x in of_input.items()}
    return made


def in_memory(case: Case, made: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same as memory has it: codes of four bits two a byte, the first one in the low half; scales of a dtype of
    eight bits as these, uint8. In the place of zero points and scales of tensors that a format has not stand its
    scales, which nobody reads there.
    """
    form = FORMATS[str(case.codes)]
    found = {f"{kind}_{x}": made[f"scale_{x}"] for kind in ("zero", "global") for x in case.coded} | dict(made)
    for stage, x in made.items():
        if stage.startswith("codes") and form.four_bits:
            found[stage] = np.ascontiguousarray(x[..., ::2] | x[..., 1::2] << 4)
        elif stage.startswith("scale") and form.scale_dtype != "float32":
            found[stage] = x.astype(getattr(ml_dtypes, form.scale_dtype)).view(np.uint8)
    return found


def quantiser(faults: tuple[Fault, ...]) -> ModuleType:
    """`workbench.cuda.quantize`, or a copy of it with faults put in."""
    if not faults:
        return quantize
    text = applied(QUANTISER.read_text(), faults, QUANTISER.name)
    module = ModuleType("workbench.cuda.quantize, with faults")
    exec(compile(text, str(QUANTISER), "exec"), vars(module))
    return module
