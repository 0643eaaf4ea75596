"""The two halves of a run on 8-bit codes: what quantisation costs, and attention on what was decoded.

The loss of quantisation is no error of the kernel's stages: those are judged from its codes and scales on.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from workbench.case import QUANTISED
from workbench.reference import dense, fp8
from workbench.refusal import Refusal
from workbench.stages import ALGORITHMS, INPUTS, QUANTISED_INPUTS
from workbench.trace import Trace, check, to_float64


@dataclass(frozen=True)
class Loss:
    """Signed errors in float64: what quantisation and the kernel each do; `of_out` and `of_kernel` add up to out's."""

    inputs: Mapping[str, np.ndarray]  #: decoded - x of q, k and v [batch, head, row, dim]
    of_out: np.ndarray  #: attention on decoded inputs - attention on q, k and v, [batch, head, query, dim]
    of_kernel: np.ndarray  #: the kernel's out - attention on decoded inputs

    @property
    def together(self) -> np.ndarray:
        """The kernel's out - attention on q, k and v."""
        return self.of_out + self.of_kernel


def loss(trace: Trace) -> Loss:
    """The parts of the error of a quantised kernel's out, from its codes and scales. Refusal where one is missing."""
    missing = [name for name in (*QUANTISED_INPUTS, "out") if name not in trace.stages]
    if missing:
        raise Refusal(f"the loss of quantisation needs codes, scales and out; {trace.target} gave no {missing[0]}")
    case = trace.case
    assert case.codes is not None
    inputs = {name: to_float64(trace.inputs[name]) for name in INPUTS}
    decoded = fp8.decoded_inputs(case.codes, {name: to_float64(trace.stages[name]) for name in QUANTISED_INPUTS})
    wanted, reached = (
        dense.attention(*x.values(), scale=case.scale, mask=case.mask())["out"] for x in (inputs, decoded)
    )
    return Loss(
        inputs={name: decoded[name] - inputs[name] for name in INPUTS},
        of_out=reached - wanted,
        of_kernel=to_float64(trace.stages["out"]) - reached,
    )


def attention(trace: Trace) -> Trace:
    """The run of a quantised kernel as one of the flash algorithm, whose float16 inputs are the decoded ones: its
    stages from qk on, to be judged as any other. Refusal where decoded inputs were not dumped or are not finite.
    """
    missing = [name for name in INPUTS if f"dequant_{name}" not in trace.stages]
    if missing:
        raise Refusal(f"attention on decoded inputs needs them dumped; {trace.target} gave no dequant_{missing[0]}")
    flash = {name: stage for name, stage in trace.stages.items() if name in ALGORITHMS["flash"]}
    decoded = replace(
        trace,
        algorithm="flash",
        case=trace.case.but(dtype="float16", **dict.fromkeys(QUANTISED)),
        inputs={name: trace.stages[f"dequant_{name}"] for name in INPUTS},
        stages=flash,
        requested=tuple(name for name in trace.requested if name in ALGORITHMS["flash"]),
    )
    return check(decoded, trace.target)
