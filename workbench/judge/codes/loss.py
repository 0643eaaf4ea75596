"""What quantisation costs: no error of the kernel's stages, which are judged from its codes and scales on."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.case.box import Box
from workbench.case.stages import INPUTS, OUT, quantised_inputs
from workbench.expectation.observed import Observed
from workbench.floats import to_float64
from workbench.judge.blocks import over_parts
from workbench.reference import dense
from workbench.reference.walk import values
from workbench.refusal import Refusal


@dataclass(frozen=True)
class Loss:
    """Signed errors in float64: what quantisation and the kernel each do; `of_out` and `of_kernel` add up to out's."""

    inputs: Mapping[str, np.ndarray]  #: decoded - x of those of q, k and v with codes [batch, head, row, dim]
    of_out: np.ndarray  #: attention on decoded inputs - attention on q, k and v, [batch, head, query, dim]
    of_kernel: np.ndarray  #: the kernel's out - attention on decoded inputs

    @property
    def together(self) -> np.ndarray:
        """The kernel's out - attention on q, k and v."""
        return self.of_out + self.of_kernel


def loss(run: Observed) -> Loss:
    """The parts of the error of a quantised kernel's out. What it read is decoded from its codes and scales; where
    these were not dumped, it is what the kernel decoded. Refusal without out, or where nothing but
    quantised codes was put in.
    """
    trace, given = run.trace, run.dumped.get(OUT)
    if given is None:
        raise Refusal(f"the loss of quantisation needs out; {trace.target} gave none")
    if missing := [name for name in INPUTS if name not in trace.inputs]:
        raise Refusal(
            f"the loss of quantisation needs q, k and v; only quantised codes were given for {', '.join(missing)}"
        )
    inputs = {name: to_float64(trace.inputs[name]) for name in INPUTS}
    read = {name: to_float64(x) for name, x in run.dequantised.trace.inputs.items()}
    coded = trace.case.coded
    if set(quantised_inputs(coded)) <= set(trace.stages) and trace.case.codes is not None:
        of_codes = values(run.by_scale, [f"dequant_{name}" for name in coded])
        read |= {name: of_codes[f"dequant_{name}"] for name in coded}
    wanted, reached = (np.empty(given.shape) for _ in range(2))

    def one(part: Box) -> None:
        added, sinks = trace.added(part), trace.case.sink_logits
        options: dict[str, Any] = dict(trace.case.numbers)
        options |= {"sinks": None if sinks is None else sinks[part.h], "score_mod": trace.modified(part)}
        options["dropout_mask"] = trace.kept(part)
        options["mask"] = part.visible(trace.case, trace.inputs)
        options["attn_bias"] = None if added is None else to_float64(added.bias)
        for out, arrays in ((wanted, inputs), (reached, read)):
            of_part = (part.of_input(trace.case, name, arrays[name]) for name in INPUTS)
            part.of(out, "bhqd")[...] = dense.attention(*of_part, **options)[OUT]

    over_parts(run, "cpu", one, f"the quantisation loss of {trace.target}")
    return Loss(
        inputs={name: read[name] - inputs[name] for name in coded},
        of_out=reached - wanted,
        of_kernel=to_float64(given) - reached,
    )
