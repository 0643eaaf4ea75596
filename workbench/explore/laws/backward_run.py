"""A function of the backward pass of attention on a case, and the runs that laws ask of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from workbench.explore.laws.law import Break, Verdict
from workbench.explore.laws.run import Bounded
from workbench.floats import to_float64, ulp
from workbench.operations.backward_inputs import seen
from workbench.operations.call import Runner
from workbench.operations.case import OperationCase
from workbench.operations.judge import OperationDiff, judged
from workbench.refusal import Refusal

Arrays = Mapping[str, np.ndarray]
NOTHING = "no element can be checked: budgets are as large as the terms"


@dataclass(frozen=True, eq=False)
class Found:
    """One run, judged from its inputs."""

    diff: OperationDiff

    @property
    def stages(self) -> Arrays:
        """What it returned."""
        return self.diff.run.stages

    @property
    def own(self) -> tuple[str, ...]:
        """What of out and lse it made itself."""
        return self.diff.run.own

    def axes(self, name: str) -> str:
        """The axes of a stage."""
        return self.diff[name].axes

    def value(self, name: str) -> np.ndarray:
        """A stage in float64; Refusal where it was not given."""
        if name not in self.stages:
            raise Refusal(f"there is no {name}")
        return to_float64(self.stages[name])

    def bounded(self, name: str) -> Bounded:
        """A stage, and how far a right kernel may be from what the inputs make of it; NaN where nobody can tell."""
        value, found = self.value(name), self.diff[name].propagated
        assert found is not None
        return Bounded(value, np.where(found.judged | ~np.isnan(found.expected), found.budget, np.nan))


@dataclass(frozen=True, eq=False)
class Gradients:
    """A function of the backward pass on a case."""

    run: Runner
    case: OperationCase
    inputs: Arrays

    @cached_property
    def first(self) -> Found:
        """The run of the case itself."""
        return Found(judged(self.run(self.case)))

    @cached_property
    def adopted(self) -> Mapping[str, Any]:
        """Conventions that nobody told, with which alone all is right; none of a function that is right without."""
        explained = self.first.diff.explained_by
        return explained[0][1] if explained else {}

    @property
    def conventions(self) -> dict[str, Any]:
        """Those of the case, and these."""
        return {**self.first.diff.run.case.conventions, **self.adopted}

    @cached_property
    def told(self) -> Found:
        """The first run under these conventions."""
        return self.under(self.first) if self.adopted else self.first

    def under(self, found: Found) -> Found:
        """A run under the conventions."""
        run = found.diff.run
        return Found(judged(replace(run, case=replace(run.case, conventions=self.conventions))))

    def again(self, **changed: np.ndarray) -> Found:
        """The run on inputs of which some are `changed`, of the same shapes."""
        case = replace(self.case, conventions=self.conventions)
        return Found(judged(self.run(case, {**self.inputs, **changed})))

    def has(self, *names: str) -> bool:
        """Whether the case has one of the optional inputs, numbers and functions."""
        return bool({*names} & {*self.case.optional, *self.case.numbers, *self.case.functions})

    def wide(self, name: str) -> np.ndarray:
        """An input in float64."""
        return to_float64(self.inputs[name])

    @cached_property
    def visible(self) -> np.ndarray:
        """Which keys queries see, bool [b, h, q, k]."""
        sizes = self.case.sizes
        return np.broadcast_to(seen(self.case.setting, self.inputs), [sizes[axis] for axis in "bhqk"])

    @cached_property
    def off_delta(self) -> np.ndarray:
        """How far delta [b, h, q] of the out that was given is from that of the right one: half an ulp of each."""
        if "out" in self.first.own or self.case.conventions["delta"] == "probs":
            return np.zeros(self.inputs["lse"].shape)
        stored = self.inputs["out"]
        return np.asarray((abs(self.wide("dout")) * ulp(self.wide("out"), stored.dtype) / 2).sum(-1))

    @cached_property
    def off_lse(self) -> np.ndarray:
        """How far lse [b, h, q] that was given is from the right one."""
        lse = self.wide("lse")
        if "lse" in self.first.own:
            return np.zeros(lse.shape)
        return np.where(np.isfinite(lse), ulp(np.where(np.isfinite(lse), lse, 0.0), "float32") / 2, 0.0)

    def per_group(self, x: np.ndarray) -> np.ndarray:
        """Query heads [b, h, ...] summed over each kv head, [b, g, ...]."""
        return np.asarray(x.reshape(x.shape[0], self.case.sizes["g"], -1, *x.shape[2:]).sum(2))

    def of_heads(self, name: str) -> np.ndarray:
        """k or v, [b, h, k, d], in float64."""
        return np.repeat(self.wide(name), self.case.sizes["h"] // self.case.sizes["g"], 1)


def within(stage: str, axes: str, found: np.ndarray, wanted: np.ndarray, allowed: np.ndarray, why: str = "") -> Verdict:
    """Whether each element is as far from what a law makes of it as is allowed, at most; NaN of what is found is never,
    and NaN of what is allowed is not judged.
    """
    found, wanted, allowed = np.broadcast_arrays(found, wanted, allowed)
    judged_ = np.isfinite(allowed)
    if not judged_.any():
        return NOTHING
    error = abs(found - wanted)
    broken = judged_ & ~(error <= allowed)
    if not broken.any():
        return None
    with np.errstate(invalid="ignore", divide="ignore"):
        far = np.where(broken, np.where(np.isnan(error), np.inf, error / allowed), -1.0)
    at = np.unravel_index(int(far.argmax()), far.shape)
    place = dict(zip(axes, map(int, at), strict=True))
    return Break(stage, place, float(found[at]), float(wanted[at]), float(allowed[at]), int(broken.sum()),
                 int(judged_.sum()), why)  # fmt: skip


def first(verdicts: Sequence[Verdict]) -> Verdict:
    """The first break; why nothing could be told where that goes for all; else None."""
    if broken := next((one for one in verdicts if isinstance(one, Break)), None):
        return broken
    return None if None in verdicts or not verdicts else verdicts[0]


Check = Callable[[Gradients], Verdict]
