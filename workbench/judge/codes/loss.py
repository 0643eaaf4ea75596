"""The two halves of a run on 8-bit codes: what quantisation costs, and attention on what was decoded.

The loss of quantisation is no error of the kernel's stages: those are judged from its codes and scales on.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from workbench.case.case import QUANTISED, Case
from workbench.case.stages import ALGORITHMS, INPUTS, QUANTISED_INPUTS
from workbench.floats import DTYPES, round_to, to_float64
from workbench.judge.blocks import over_parts
from workbench.judge.codes.decoded import coarsest, decoded, operand_dtype
from workbench.judge.expectation import Part
from workbench.reference import dense, fp8
from workbench.refusal import Refusal
from workbench.trace.trace import Trace


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
    """The parts of the error of a quantised kernel's out. What it read is decoded from its codes and scales; where
    these were not dumped, it is what the kernel decoded. Refusal without out, or where only codes were put in.
    """
    if "out" not in trace.stages:
        raise Refusal(f"the loss of quantisation needs out; {trace.target} gave none")
    if missing := [name for name in INPUTS if name not in trace.inputs]:
        raise Refusal(f"the loss of quantisation needs q, k and v; only codes were put in for {', '.join(missing)}")
    inputs = {name: to_float64(trace.inputs[name]) for name in INPUTS}
    read = {name: to_float64(x) for name, x in attention(trace).inputs.items()}
    if set(QUANTISED_INPUTS) <= set(trace.stages) and trace.case.codes is not None:
        read = fp8.decoded_inputs(trace.case.codes, {name: to_float64(trace.stages[name]) for name in QUANTISED_INPUTS})
    wanted, reached = (np.empty(trace.stages["out"].shape) for _ in range(2))

    def one(part: Part) -> None:
        bias = part.bias(trace)
        options: dict[str, Any] = {"scale": trace.case.scale, "mask": part.visible(trace)}
        options["bias"] = None if bias is None else to_float64(bias)
        for out, arrays in ((wanted, inputs), (reached, read)):
            of_part = (part.of_input(trace, name, arrays[name]) for name in INPUTS)
            part.of(out, "bhqd")[...] = dense.attention(*of_part, **options)["out"]

    over_parts(trace, "cpu", one, f"what quantisation costs {trace.target}")
    return Loss(
        inputs={name: read[name] - inputs[name] for name in INPUTS},
        of_out=reached - wanted,
        of_kernel=to_float64(trace.stages["out"]) - reached,
    )


def attention(trace: Trace, *, from_codes: bool = False) -> Trace:
    """The run of a quantised kernel as one of the flash algorithm, whose inputs are the decoded ones: its stages from
    qk on, to be judged as any other.

    `from_codes`: the inputs are what a kernel that decodes its codes and scales right may have read, of that the
    nearest to what was dumped. Inputs that were not dumped are decoded to the nearest value, and may be off by
    `input_errors` where roundings that nobody saw can reach a tie; where nobody told the format of the codes, they are
    q, k and v themselves, or may be off by what the coarsest format loses. Inputs are NaN or infinite where codes are.
    """
    read = {name: _decoded(trace, name, from_codes) for name in INPUTS}
    rerun = trace.rerun

    def again(case: Case) -> Trace:
        assert rerun is not None
        made = rerun(trace.case.but(seed=case.seed, distribution=case.distribution))
        return attention(made, from_codes=from_codes)

    # one dtype that holds them all
    dtypes = {x.dtype for x, _ in read.values()}
    dtype = dtypes.pop() if len(dtypes) == 1 and dtypes <= set(DTYPES.values()) else np.dtype(np.float32)
    return replace(
        trace,
        algorithm="flash",
        case=trace.case.but(dtype=str(dtype), **dict.fromkeys(QUANTISED)),
        inputs={**trace.inputs, **{name: x.astype(dtype) for name, (x, _) in read.items()}},
        input_errors={name: error for name, (_, error) in read.items() if np.any(error != 0)},
        stages={name: stage for name, stage in trace.stages.items() if name in ALGORITHMS["flash"]},
        requested=tuple(name for name in trace.requested if name in ALGORITHMS["flash"]),
        put_in=(),
        rerun=None if rerun is None else again,
    )


def attention_of(trace: Trace, *, from_codes: bool = False) -> Trace:
    """The trace whose inputs are the numbers that qk and later stages read: `attention` of a quantised kernel's, any
    other as it is.
    """
    return attention(trace, from_codes=from_codes) if trace.algorithm == "fp8" else trace


@np.errstate(all="ignore")
def _decoded(trace: Trace, name: str, from_codes: bool) -> tuple[np.ndarray, np.ndarray]:
    """A decoded input, and float64 bounds of how far the kernel's may be from it."""
    dumped = trace.stages.get(f"dequant_{name}")
    told = trace.case.codes is not None
    if dumped is not None and not from_codes:
        return dumped, np.zeros(())
    if dumped is None and not told:
        return trace.inputs[name], np.zeros(())
    made = decoded(trace, name, by_table=False) if told else coarsest(trace.inputs[name])
    dtype = operand_dtype(trace, name) or "float32"
    if dumped is None:
        nearest = round_to(made.value, dtype)
        error = np.where(made.low == made.high, 0.0, np.maximum(made.high - nearest, nearest - made.low))
        return nearest.astype(DTYPES[dtype]), error
    found = to_float64(dumped)
    right = np.clip(np.where(np.isnan(found), round_to(made.value, dtype), found), made.low, made.high)
    return right.astype(DTYPES[dtype]), np.zeros(())
