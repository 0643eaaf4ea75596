"""The two halves of a run on 8-bit codes: what quantisation costs, and attention on what was decoded.

The loss of quantisation is no error of the kernel's stages: those are judged from its codes and scales on.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from workbench.budget.quantised import decoded_interval
from workbench.case import QUANTISED, Case
from workbench.errors import round_to
from workbench.reference import dense, fp8, quantize
from workbench.refusal import Refusal
from workbench.stages import ALGORITHMS, INPUTS, QUANTISED_INPUTS
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


def attention(trace: Trace, *, from_codes: bool = False) -> Trace:
    """The run of a quantised kernel as one of the flash algorithm, whose float16 inputs are the decoded ones: its
    stages from qk on, to be judged as any other.

    `from_codes`: the inputs are what a kernel that decodes its codes and scales right may have read, of that the
    nearest to what was dumped. Inputs that were not dumped are decoded to the nearest float16, and may be off by
    `input_errors` where roundings before the cast can reach a tie. Inputs are NaN or infinite where codes are; Refusal
    where neither a decoded input nor its codes and scale were dumped.
    """
    read = {name: _decoded(trace, name, from_codes) for name in INPUTS}
    rerun = trace.rerun

    def again(case: Case) -> Trace:
        assert rerun is not None
        made = rerun(trace.case.but(seed=case.seed, distribution=case.distribution))
        return attention(made, from_codes=from_codes)

    return replace(
        trace,
        algorithm="flash",
        case=trace.case.but(dtype="float16", **dict.fromkeys(QUANTISED)),
        inputs={name: x for name, (x, _) in read.items()},
        input_errors={name: error for name, (_, error) in read.items() if np.any(error != 0)},
        stages={name: stage for name, stage in trace.stages.items() if name in ALGORITHMS["flash"]},
        requested=tuple(name for name in trace.requested if name in ALGORITHMS["flash"]),
        rerun=None if rerun is None else again,
    )


def attention_of(trace: Trace, *, from_codes: bool = False) -> Trace:
    """The trace whose inputs are the numbers that qk and later stages read: `attention` of a quantised kernel's,
    without stages where codes or scales are missing; any other as it is.
    """
    if trace.algorithm != "fp8":
        return trace
    if not set(QUANTISED_INPUTS) <= set(trace.stages):
        return replace(trace, algorithm="flash", stages={}, requested=())
    return attention(trace, from_codes=from_codes)


@np.errstate(all="ignore")
def _decoded(trace: Trace, name: str, from_codes: bool) -> tuple[np.ndarray, np.ndarray]:
    """A decoded input, float16, and float64 bounds of how far the kernel's may be from it."""
    dumped = trace.stages.get(f"dequant_{name}")
    if dumped is not None and not from_codes:
        return dumped, np.zeros(())
    for stage in (f"scale_{name}", f"codes_{name}"):
        if stage not in trace.stages:
            raise Refusal(
                f"attention on decoded inputs needs them or their codes and scales; {trace.target} gave no {stage}"
            )
    kind = str(trace.case.codes)
    codes, scale = (to_float64(trace.stages[f"{stage}_{name}"]) for stage in ("codes", "scale"))
    value = quantize.decoded(codes, quantize.table(scale, kind))
    low, high = decoded_interval(value, kind)
    nearest = round_to(value, "float16")
    if dumped is None:
        error = np.where(low == high, 0.0, np.maximum(high - nearest, nearest - low))
        return nearest.astype(np.float16), error
    found = to_float64(dumped)
    return np.clip(np.where(np.isnan(found), nearest, found), low, high).astype(np.float16), np.zeros(())
