"""What a kernel on 8-bit codes needs beside what every kernel does: its case options, and its inputs quantised."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np

from workbench.case.case import GIVEN, QUANTISED, Case
from workbench.case.contract import Contract, of_kernel
from workbench.case.stages import INPUTS, QUANTISED_INPUTS
from workbench.cuda import quantize
from workbench.cuda.faults.fault import Fault, applied, of_file
from workbench.cuda.kernels import Kernel
from workbench.refusal import Refusal

#: dtypes of the stages that are not float32; the codes, uint8, are no buffer of the kernel's own
DTYPES: Mapping[str, np.dtype] = dict.fromkeys(("dequant_q", "dequant_k", "dequant_v", "out"), np.dtype(np.float16))
HEAD_DIMS = range(16, 129, 16)
BLOCKS = range(16, 129, 16)  # a tensor-core tile is 16x16
#: default tiles (block_q, block_k) for head_dim up to 64 and beyond, as large as shared memory allows
DEFAULT_BLOCKS = {64: (64, 32), 128: (32, 32)}
LARGEST_FLOAT16 = float(np.finfo(np.float16).max)
QUANTISER = Path(quantize.__file__)


def settle(kernel: Kernel, case: Case) -> Case:
    """`case` with its tiles, format and variants as `kernel` will run it; Refusal where it cannot."""
    if case.distribution == GIVEN:
        case = case.but(dtype="float32")  # which holds what other dtypes hold
    if case.dtype != "float32":
        raise Refusal(f"kernel {kernel.name} quantises float32 inputs and takes no dtype; got dtype={case.dtype}")
    if case.head_dim not in HEAD_DIMS:
        raise Refusal(f"kernel {kernel.name} takes head_dim 16 to 128 in steps of 16; got {case.head_dim}")
    if case.probs_dtype not in (None, "float16", "float32"):
        raise Refusal(
            f"kernel {kernel.name} casts probs to float16 or keeps them in float32; got probs_dtype={case.probs_dtype}"
        )
    block_q, block_k = next(blocks for dim, blocks in DEFAULT_BLOCKS.items() if dim >= case.head_dim)
    case = case.but(
        block_q=case.block_q or block_q,
        block_k=case.block_k or block_k,
        probs_dtype=case.probs_dtype or "float16",
        **{name: getattr(case, name) or values[0] for name, values in QUANTISED.items()},
    )
    for name in ("block_q", "block_k"):
        if getattr(case, name) not in BLOCKS:
            raise Refusal(
                f"{name} of kernel {kernel.name} is a multiple of 16 from 16 to 128; got {getattr(case, name)}"
            )
    return case


def contract(case: Case) -> Contract:
    """The contract of a kernel on codes for a settled case: out is float16, whatever was quantised, and qk comes from
    tensor cores or not, acc never.
    """
    return replace(
        of_kernel(case),
        operands_dtype="float16",
        out_dtype="float16",
        accumulation="tensor-core" if case.scores == "mma" else "nearest",
        acc_accumulation="nearest",
    )


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
