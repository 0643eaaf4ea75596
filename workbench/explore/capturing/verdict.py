"""A snapshot judged: its trace, and whether it leaves its budget by more than all rows of a process may by chance."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from workbench.arrays import as_numpy
from workbench.case.assumptions import usual
from workbench.case.masks import visible
from workbench.case.presets import fields_of, merged
from workbench.case.promises import LIBRARIES, OfPreset
from workbench.case.stages import INPUTS, LSE, PROBS
from workbench.expectation.elements import State
from workbench.explore.capturing.snapshot import Snapshot, named
from workbench.judge.bias import biases
from workbench.judge.diff import Diff, diff
from workbench.judge.evidence import excesses
from workbench.judge.stage import EVIDENCE, ORIGIN_VERDICTS, RIGHT_VERDICTS, StageDiff
from workbench.reference.bound import deviations
from workbench.trace.assembled import assembled
from workbench.trace.hidden import told_apart
from workbench.trace.trace import Trace

#: standard deviations beyond which what a right kernel may do by chance is none of a right kernel, of all calls of a
#: process together. An element is as far off with a probability of 2 exp(-7^2 / 2) = 5e-11 at most (Azuma, as of
#: `reference.bound`), so that 1e8 elements of right calls have one with less than 1 %; a mean is, once in 4e11 tests.
#: `diff` of one run of 3,000 elements doubts from 6.7, and means from 6
BEYOND = 7.0


@dataclass(frozen=True)
class Judged:
    """One judged call."""

    call: int
    verdict: str  #: of `diff`
    leaves: bool  #: whether it leaves its budget: beyond the worst-case bound (a bug), or BEYOND (suspicious)
    stage: str | None  #: the first wrong or doubted one
    over_budget: float  #: largest x of budget of an element
    max_abs: float  #: largest |error|
    element: Mapping[str, Any]  #: the element farthest from its budget: stage, index, actual, expected, allowed
    where: str = ""  #: which call of a model it is: layer 7, step 3
    reason: str = ""  #: of a call that leaves its budget though no element is beyond its own: why

    @property
    def named(self) -> str:
        """Which call it is, as reports and traces say it."""
        return named(self.call, self.where)

    @property
    def proved(self) -> bool:
        """Whether a bound is broken that no right kernel breaks."""
        return self.verdict in ORIGIN_VERDICTS


def trace_of(
    snapshot: Snapshot,
    name: str,
    said: str | Mapping[str, Any] | None,
    notes: tuple[str, ...],
    gpu: str | None = None,
) -> Trace:
    """What was copied of a call of the function `name`, as a trace; `said` is the contract that its user tells, `gpu`
    the generation of the GPU on which it ran.
    """
    asked, case = snapshot.asked, snapshot.case
    inputs = {x: array(snapshot.inputs[x] if asked.cast is None else snapshot.inputs[x].to(asked.cast)) for x in INPUTS}
    if "bias" in snapshot.inputs:
        inputs["bias"] = array(snapshot.inputs["bias"])
    seen_keys = np.ones((1, 1), bool) if snapshot.all_rows else snapshot.whole.mask(snapshot.part.q)
    if "mask" in snapshot.inputs:
        seen_keys = array(snapshot.inputs["mask"]) & seen_keys
    if not seen_keys.all():
        inputs["mask"] = np.ascontiguousarray(seen_keys)
    stages = {stage: array(x) for stage, x in snapshot.results.items() if stage != PROBS}
    if asked.base2 and LSE in stages:
        stages[LSE] = stages[LSE].astype(np.float64) * math.log(2)
    declared = merged(fields_of(asked.contract, case), {} if said is None else fields_of(said, case), name)
    for field in ("empty_out", "empty_lse"):  # of a padded query, whose out nobody reads
        if isinstance(declared.get(field, OfPreset(0.0)), OfPreset):
            declared[field] = LIBRARIES
    empty = int(np.broadcast_to(~visible(case, inputs).any(axis=-1), (case.batch, case.heads, case.seqlen_q)).sum())
    if empty and declared["empty_out"] == LIBRARIES:
        notes = (*notes, f"{empty} empty rows (no visible key): 0, NaN or a mean of v is right there")
    return told_apart(assembled(name, case, inputs, stages, declared, notes=notes, gpu=gpu))


def array(x: Any) -> np.ndarray:
    """A tensor in NumPy, on whose stream the caller has waited already; an array of NumPy as it is."""
    if isinstance(x, np.ndarray):
        return x
    import torch

    accepted = (np.dtype(bool),) if x.dtype == torch.bool else None
    x = x.detach().cpu()
    return as_numpy(x, "a call") if accepted is None else as_numpy(x, "a call", accepted)


def judged(trace: Trace, call: int) -> Judged:
    """What float64 says of one call: first as of a usual kernel, which takes half the time of all that its contract
    leaves open, and is all there is to say where it is right.
    """
    found = diff(replace(trace, contract=usual(trace.contract)))
    if found.verdict not in RIGHT_VERDICTS:
        found = diff(trace)
    doubted = found.verdict in ("suspicious", "biased") and found.doubt == EVIDENCE
    leaves = found.verdict in ORIGIN_VERDICTS or (doubted and _beyond(found) > BEYOND)
    doubtful = next((stage.name for stage in found.stages if stage.verdict == found.verdict), None)
    stage = found.origin or (doubtful if doubted else None)
    described_ = described(found.stages)
    reason = found[stage].reason if leaves and stage is not None and described_[0] <= 1 else ""
    return Judged(call, found.verdict, leaves, stage, *described_, reason)


def described(every: Iterable[StageDiff]) -> tuple[float, float, dict[str, Any]]:
    """The largest x of budget and |error| of judged stages, and the element that is farthest from its budget."""
    stages = [stage for stage in every if stage.decisive is not None]
    worst = max(stages, key=lambda stage: _over(stage.judged.summary.worst), default=None)
    element = None if worst is None else worst.judged.summary.worst
    said: dict[str, Any] = {}
    if worst is not None and element is not None:
        said = {
            "stage": worst.name, "index": dict(zip(worst.axes, element.place, strict=True)),
            "actual": element.actual, "expected": element.expected, "allowed": element.budget,
        }  # fmt: skip
    return _over(element), max((one.judged.summary.max_abs for one in stages), default=math.nan), said


def _over(element: Any) -> float:
    return 0.0 if element is None else float(element.over_budget)


def _beyond(found: Diff) -> float:
    """How many standard deviations a doubted run is off: by its farthest element, and by its errors together."""
    judged_ = [stage for stage in found.stages if stage.decisive is not None]
    return max((*map(_farthest, judged_), *_together(found, [stage.name for stage in judged_])), default=0.0)


def _farthest(stage: StageDiff) -> float:
    """Of the elements beyond their statistical bound, which is so many deviations for so many elements."""
    of = stage.judged.elements
    doubted = of.state == State.SUSPICIOUS
    if not doubted.any():
        return 0.0
    return deviations(of.state.size) * float((of.over_budget[doubted] / of.statistical[doubted]).max())


def _together(found: Diff, names: list[str]) -> Iterator[float]:
    """The test statistics of how far errors lean, and of how large they are together."""
    yield from (min(abs(one.own.z), abs(one.excess.z)) for one in biases(found.run, names).values() if one.trips)
    yield from (one.z for one in excesses(found.run, names).values())
