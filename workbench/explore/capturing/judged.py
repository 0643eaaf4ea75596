"""A snapshot judged: its trace, and whether it leaves its budget by more than all rows of a process may by chance."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.arrays import as_numpy
from workbench.case.presets import fields_of, merged
from workbench.case.stages import INPUTS
from workbench.explore.capturing.snapshot import Snapshot
from workbench.foreign.call import generation
from workbench.judge.bias import biases
from workbench.judge.diff import Diff, diff
from workbench.judge.evidence import excesses
from workbench.judge.stage import EVIDENCE, ORIGIN_VERDICTS
from workbench.trace.assembled import assembled
from workbench.trace.trace import Trace

#: standard deviations beyond which a mean of errors is none of a right kernel, of all calls of a process together: a
#: normal number is beyond 7 once in 4e11, so that of 1e6 calls with 66 tests each (all elements and 32 lanes, out and
#: lse) 2e-4 are called wrong by chance; `diff` of one run doubts beyond 6
BEYOND = 7.0


@dataclass(frozen=True)
class Judged:
    """One judged call."""

    call: int
    verdict: str  #: of `diff`
    leaves: bool  #: whether it is wrong: an element beyond its worst-case bound, or a mean beyond BEYOND
    stage: str | None  #: the first wrong or doubted one
    over_budget: float  #: largest x of budget of an element
    max_abs: float  #: largest |error|
    element: Mapping[str, Any]  #: the element farthest from its budget: stage, index, actual, expected, allowed


def trace_of(snapshot: Snapshot, name: str, said: str | Mapping[str, Any] | None, notes: tuple[str, ...]) -> Trace:
    """What was copied of a call of the function `name`, as a trace; `said` is the contract that its user tells."""
    heard, case = snapshot.heard, snapshot.case
    inputs = {x: array(snapshot.inputs[x] if heard.cast is None else snapshot.inputs[x].to(heard.cast)) for x in INPUTS}
    if "bias" in snapshot.inputs:
        inputs["bias"] = array(snapshot.inputs["bias"])
    seen_keys = snapshot.whole.mask(snapshot.part.q)
    if "mask" in snapshot.inputs:
        seen_keys = array(snapshot.inputs["mask"]) & seen_keys
    if not seen_keys.all():
        inputs["mask"] = np.ascontiguousarray(seen_keys)
    stages = {stage: array(x) for stage, x in snapshot.results.items()}
    if heard.base2 and "lse" in stages:
        stages["lse"] = stages["lse"].astype(np.float64) * math.log(2)
    declared = merged(fields_of(heard.contract, case), {} if said is None else fields_of(said, case), name)
    gpu = None if snapshot.ready is None else generation()
    return assembled(name, case, inputs, stages, declared, notes=notes, gpu=gpu)


def array(x: Any) -> np.ndarray:
    """A tensor in NumPy, on whose stream the caller has waited already."""
    import torch

    accepted = (np.dtype(bool),) if x.dtype == torch.bool else None
    x = x.detach().cpu()
    return as_numpy(x, "a call") if accepted is None else as_numpy(x, "a call", accepted)


def judged(trace: Trace, call: int, judge: Callable[[Trace], Diff] = diff) -> tuple[Judged, Diff]:
    """What float64 says of one call."""
    found = judge(trace)
    doubted = found.verdict in ("suspicious", "biased") and found.doubt == EVIDENCE
    leaves = found.verdict in ORIGIN_VERDICTS or (doubted and _beyond(found) > BEYOND)
    stages = [stage for stage in found.stages if stage.decisive is not None]
    worst = max(stages, key=lambda stage: _over(stage.judged.summary.worst), default=None)
    element = None if worst is None else worst.judged.summary.worst
    doubtful = next((stage.name for stage in found.stages if stage.verdict == found.verdict), None)
    described: dict[str, Any] = {}
    if worst is not None and element is not None:
        described = {
            "stage": worst.name, "index": dict(zip(worst.axes, element.place, strict=True)),
            "actual": element.actual, "expected": element.expected, "allowed": element.budget,
        }  # fmt: skip
    stage = found.origin or (doubtful if doubted else None)
    max_abs = max((one.judged.summary.max_abs for one in stages), default=math.nan)
    return Judged(call, found.verdict, leaves, stage, _over(element), max_abs, described), found


def _over(element: Any) -> float:
    return 0.0 if element is None else float(element.over_budget)


def _beyond(found: Diff) -> float:
    """The largest test statistic of the means of a run: of how its errors lean, and of how large they are together."""
    names = [stage.name for stage in found.stages if stage.decisive is not None]
    leans = (min(abs(one.own.z), abs(one.excess.z)) for one in biases(found.run, names).values() if one.trips)
    sizes = (one.z for one in excesses(found.run, names).values())
    return max([*leans, *sizes], default=0.0)
