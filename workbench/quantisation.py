"""What quantisation costs, apart from what the kernel adds: the errors of decoded inputs, and both parts of out's.

Neither is an error of the kernel's stages: those are judged from its codes and scales on.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from workbench.reference import dense, fp8
from workbench.refusal import Refusal
from workbench.stages import INPUTS, QUANTISED_INPUTS
from workbench.trace import Trace, to_float64


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
